# SPDX-License-Identifier: Apache-2.0
"""Readers of MATLAB files, SVHN, CIFAR-10 and PhysioNet 2012, and all readers on real files."""

import hashlib
import struct

import numpy as np
import pytest

from edgernn.byte_source import read_all
from edgernn.errors import EdgernnError
from edgernn.training.datasets import SETS
from edgernn.training.datasets.find import find_either, find_files, locate, places
from edgernn.training.formats import read_csv, read_text
from edgernn.training.papers.formats import read_cifar10, read_physionet, read_svhn
from edgernn.training.papers.formats.mat import read_mat
from edgernn.training.papers.formats.physionet import PARAMETERS
from tests.format_files import (
    CLASSES,
    RECORD,
    ROWS,
    X,
    Y,
    cifar_bytes,
    element,
    mat_bytes,
    matrix,
    npz_bytes,
    packed_stays,
    svhn_bytes,
    write_packed,
    write_physionet,
)
from tests.training_helpers import data_folder

NO_DATA = pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set: no data sets")
SUFFIXES = pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
RNG = np.random.default_rng(0)


# MATLAB files: the writer follows the format specification, not the reader


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("dtype", CLASSES)
def test_mat_round_trip(tmp_path, dtype, order, packed):
    arrays = {
        "one": RNG.integers(0, 100, (2, 3, 4)).astype(dtype),
        "a": np.array([[5]]).astype(dtype),
        "two": RNG.integers(0, 100, (7, 1)).astype(dtype),
    }
    content = mat_bytes(*(matrix(name, array, None, order, packed) for name, array in arrays.items()), order=order)
    path = write_packed(tmp_path / "t.mat", content)
    for names in (["two"], ["one", "two"], ["a"]):
        arrays_read = read_mat(path, names)
        assert set(arrays_read) == set(names)
        for name in names:
            assert arrays_read[name].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(arrays_read[name], arrays[name])


def test_mat_numbers_may_be_stored_in_a_smaller_type(tmp_path):
    array = np.array([[1.0, 2, 250], [0, 7, 9]])
    path = write_packed(tmp_path / "t.mat", mat_bytes(matrix("v", array, stored="u1", packed=True)))
    assert read_mat(path, ["v"])["v"].tolist() == array.tolist()
    assert read_mat(path, ["v"])["v"].dtype == np.float64


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_svhn(tmp_path, dtype, suffix):
    x = RNG.integers(256, size=(32, 32, 3, 12), dtype=np.uint8)
    y = np.array([*range(1, 11), 10, 3], dtype)[:, None]
    images = read_svhn(write_packed(tmp_path / f"train_32x32.mat{suffix}", svhn_bytes(x, y)))
    assert images.x.shape == (12, 32, 32, 3)
    for n in range(12):
        assert np.array_equal(images.x[n], x[:, :, :, n])
    assert images.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 3]


SVHN = svhn_bytes(X, Y)
CLAIM = (
    struct.pack("<II", 14, 2**31) + element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack("<2i", 50000, 40000))
)
BAD_MAT = {
    "empty": (b"", "expected a MATLAB file with a header of 128 bytes, got 0"),
    "hdf5": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"\x89HDF", "got a newer one; save it with"),
    "text": (b"x" * 200, "expected a MATLAB file of version 5 to 7.2, got another kind of file"),
    "cut-tag": (SVHN[:132], "got a corrupt or truncated file"),
    "cut-packed": (SVHN[:160], "got a corrupt or truncated"),
    "cut": (svhn_bytes(X, Y, packed=False)[:900], "got a corrupt or truncated file"),
    "no-y": (mat_bytes(matrix("X", X)), "expected the arrays X, y, got X; y is missing"),
    "shape": (svhn_bytes(np.zeros((3, 32, 32, 4), np.uint8), Y), r"X: expected uint8 \(32, 32, 3, N\), got uint8 \(3"),
    "dtype": (svhn_bytes(X.astype(np.int8), Y), "X: expected uint8 .*, got int8"),
    "count": (svhn_bytes(X, Y[:3]), r"y: expected shape \(4, 1\), got \(3, 1\)"),
    "label": (svhn_bytes(X, Y * 11), "y: expected labels 1 to 10, got 11 at index 0"),
    "zero": (svhn_bytes(X, Y * 0), "y: expected labels 1 to 10, got 0 at index 0"),
    "complex": (mat_bytes(matrix("X", X, flags=0x0800), matrix("y", Y)), "X: expected an array of real numbers"),
    "sparse": (mat_bytes(matrix("X", X).replace(b"\x09\0\0\0\0\0\0\0", b"\x05\0\0\0\0\0\0\0", 1)), "real numbers"),
    "claims": (
        mat_bytes(CLAIM + element(1, b"X") + struct.pack("<II", 2, 2_000_000_000)),
        "got a corrupt or truncated file",
    ),
    "size": (mat_bytes(CLAIM + element(1, b"X") + element(2, bytes(80))), "expected 2000000000 bytes .*, got 80"),
}


@pytest.mark.parametrize("case", BAD_MAT)
def test_bad_mat_is_named(tmp_path, case):
    content, message = BAD_MAT[case]
    path = write_packed(tmp_path / "t.mat", content)
    with pytest.raises(EdgernnError, match=message) as caught:
        read_svhn(path)
    assert str(path) in str(caught.value)


def test_mat_that_unpacks_to_too_much_is_refused(tmp_path):
    path = write_packed(
        tmp_path / "t.mat", svhn_bytes(np.zeros((32, 32, 3, 1000), np.uint8), np.ones((1000, 1), np.uint8))
    )
    assert path.stat().st_size < 10_000
    with pytest.raises(EdgernnError, match="X: expected an array of at most 1000000 bytes, got a larger one, uint8"):
        read_svhn(path, limit=1_000_000)


# CIFAR-10


@SUFFIXES
def test_cifar_batches(tmp_path, suffix):
    x = RNG.integers(256, size=(9, 32, 32, 3), dtype=np.uint8)
    y = RNG.integers(10, size=9)
    files = [
        write_packed(tmp_path / f"batch_{i}.bin{suffix}", cifar_bytes(x[3 * i : 3 * i + 3], y[3 * i : 3 * i + 3]))
        for i in range(3)
    ]
    train, test = read_cifar10(files)
    assert np.array_equal(train.x, x[:6])
    assert np.array_equal(test.x, x[6:])
    assert np.array_equal(train.y, y[:6])
    assert np.array_equal(test.y, y[6:])


def test_bad_cifar_is_named(tmp_path):
    good = write_packed(tmp_path / "good.bin", cifar_bytes(X.transpose(3, 0, 1, 2), [1, 2, 3, 4]))
    for content, message in (
        (b"", r"bad\.bin: expected one or more records of 3073 bytes each, got 0 bytes in all"),
        (bytes(3073 * 2 - 1), r"bad\.bin: expected one or more records of 3073 bytes each, got 6145 bytes in all"),
        (bytes(3073) + b"\x0a" + bytes(3072), r"bad\.bin: expected labels 0 to 9, got 10 at index 1"),
    ):
        with pytest.raises(EdgernnError, match=message):
            read_cifar10([write_packed(tmp_path / "bad.bin", content), good])


def test_cifar_archive(tmp_path):
    arrays = {
        "x_train": RNG.integers(256, size=(5, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(5, dtype=np.uint8),
        "x_test": RNG.integers(256, size=(2, 32, 32, 3), dtype=np.uint8),
        "y_test": np.array([9, 0], np.uint8),
    }
    train, test = read_cifar10([write_packed(tmp_path / "c.npz.xz", npz_bytes(**arrays))])
    assert np.array_equal(train.x, arrays["x_train"])
    assert test.y.tolist() == [9, 0]
    for name, array, message in (
        ("x_test", arrays["x_test"][0], r"x_test: expected uint8 \(N, 32, 32, 3\), got uint8 \(32, 32, 3\)"),
        ("y_train", np.arange(4, dtype=np.uint8), r"y_train: expected uint8 \(5,\), a label for each image, got"),
        ("y_test", np.array([9, 10], np.uint8), "y_test: expected labels 0 to 9, got 10 at index 1"),
    ):
        path = write_packed(tmp_path / "bad.npz.xz", npz_bytes(**{**arrays, name: array}))
        with pytest.raises(EdgernnError, match=message):
            read_cifar10([path])


# PhysioNet 2012


def test_physionet_text(tmp_path):
    stays = read_physionet(write_physionet(tmp_path))
    assert stays.record_id.tolist() == [132, 141]
    assert stays.row_start.tolist() == [0, 2, 7]
    assert stays.minute.tolist() == [0, 210, 0, 0, 0, 7, 2880]
    names = [PARAMETERS[i] for i in stays.param]
    assert names == ["RecordID", "TroponinT", "RecordID", "Age", "Weight", "GCS", "pH"]
    assert stays.value.tolist() == np.array([132, 0.05, 141, 54, -1, 15, 7.36], np.float32).tolist()
    assert stays.outcomes.tolist() == [[132, 16, 8, 8, 4, 1], [141, 6, 1, 5, -1, 0]]
    assert len(set(PARAMETERS)) == 42


def test_physionet_text_and_archive_are_the_same(tmp_path):
    one = read_physionet(write_physionet(tmp_path))
    two = read_physionet([write_packed(tmp_path / "set-a.npz.xz", packed_stays())])
    for name, array in vars(one).items():
        assert getattr(two, name).dtype == array.dtype
        np.testing.assert_array_equal(getattr(two, name), array)


START = "Time,Parameter,Value\n00:00,RecordID,141\n"
BAD_RECORD = {
    "empty": ("", "expected the header Time,Parameter,Value, got ''"),
    "header": ("a,b,c\n", "expected the header Time,Parameter,Value, got 'a,b,c'"),
    "no-rows": ("Time,Parameter,Value\n", "expected 00:00,RecordID,141 as the first row"),
    "other-id": (RECORD.format(142), "expected 00:00,RecordID,141 as the first row, got another"),
    "columns": (START + "00:07,GCS\n", "line 3: expected HH:MM,parameter,value, got '00:07,GCS'"),
    "time": (START + "0007,GCS,1\n", "line 3: expected HH:MM,parameter,value"),
    "late": (START + "48:01,GCS,1\n", "line 3: expected a time from 00:00 to 48:00, got '48:01'"),
    "early": (START + "-1:00,GCS,1\n", "line 3: expected a time from 00:00 to 48:00, got '-1:00'"),
    "number": (START + "00:07,GCS,high\n", "line 3: expected HH:MM,parameter,value"),
    "nan": (START + "00:07,GCS,nan\n", "line 3: expected a finite number, got 'nan'"),
    "large": (START + "00:07,GCS,1e39\n", "line 3: expected a finite number, got '1e39'"),
    "name": (START + "00:07,GCZ,1\n", "expected one of the parameters RecordID.*, got 'GCZ'"),
    "blank": (START + "\n00:07,GCS,1\n", "line 3: expected HH:MM,parameter,value, got ''"),
}


@pytest.mark.parametrize("case", BAD_RECORD)
def test_bad_record_is_named(tmp_path, case):
    content, message = BAD_RECORD[case]
    files = write_physionet(tmp_path, {141: content})
    with pytest.raises(EdgernnError, match=rf"141\.txt: {message}"):
        read_physionet(files)


def test_bad_outcomes_are_named(tmp_path):
    for outcomes, message in (
        ("RecordID,SAPS-I\n141,1\n", "expected the header RecordID,SAPS-I,SOFA"),
        (ROWS.replace("132,16", "133,16"), "expected a row for record 132, which is in .*set-a, got none"),
        (ROWS.replace("132,16", "141,16"), "expected one row for each record, got two rows for one record"),
        (ROWS.replace("8,8", "8,8.5"), "expected whole numbers in every column, got others"),
    ):
        with pytest.raises(EdgernnError, match=rf"Outcomes-a\.txt: {message}"):
            read_physionet(write_physionet(tmp_path, outcomes=outcomes))
    with pytest.raises(EdgernnError, match=r"expected records such as 132539\.txt, got none"):
        read_physionet([tmp_path, tmp_path / "Outcomes-a.txt"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_start": np.array([0, 8, 7], np.int32)}, "row_start: expected 3 non-decreasing numbers from 0 to 7"),
        ({"row_start": np.array([0, 7], np.int32)}, "row_start: expected 3 non-decreasing"),
        ({"minute": np.array([0, 210, 0, 0, 0, 7, 2881], np.int16)}, "minute: expected 0 to 2880, got 0 to 2881"),
        ({"minute": np.zeros(6, np.int16)}, "minute: expected 7 numbers, as the array 'value' has, got 6"),
        ({"param": np.full(7, 42, np.uint8)}, "param: expected numbers below 42, got 42"),
        ({"value": np.full(7, np.inf, np.float32)}, "value: expected finite numbers"),
        ({"value": np.zeros(7)}, r"value: expected float32 of rank 1, got float64 \(7,\)"),
        ({"record_id": np.array([141, 132], np.int32)}, "record_id: expected ascending numbers"),
        ({"outcomes": np.zeros((2, 6), np.int32)}, "outcomes: expected a row of 6 numbers for each of 2 stays"),
        ({"param_names": np.array(PARAMETERS[::-1])}, "param_names: expected RecordID, Age"),
    ],
)
def test_bad_archive_of_stays_is_named(tmp_path, changes, message):
    with pytest.raises(EdgernnError, match=message):
        read_physionet([write_packed(tmp_path / "set-a.npz", packed_stays(**changes))])


# real files


@NO_DATA
def test_real_physionet():
    stays = read_physionet(find_either("t", "physionet2012", [["set-a.npz"], ["set-a/", "Outcomes-a.txt"]], None))
    assert len(stays.record_id) == 4000
    assert len(stays.value) == 1_757_980
    assert stays.outcomes[:, 5].sum() == 554
    table = read_csv(find_files("t", "physionet2012", ["Outcomes-a.txt"], None)[0])
    assert np.array_equal(table.values, stays.outcomes)


@NO_DATA
def test_real_cifar():
    train, test = read_cifar10(find_files("t", "cifar10", ["cifar10_subset_train2500_test1000.npz"], None))
    assert np.bincount(train.y).tolist() == [253, 243, 255, 244, 262, 236, 250, 253, 254, 250]
    assert np.bincount(test.y).tolist() == [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]


@NO_DATA
def test_real_texts():
    text = read_text(find_files("t", "tinyshakespeare", ["input.txt"], None)[0])
    assert (len(text), len(set(text)), text.count("\n")) == (1_115_394, 65, 40_000)
    counts = [len(read_text(path).split()) for path in find_files("t", "ptb", ["ptb.train.txt", "ptb.test.txt"], None)]
    assert counts == [887_521, 78_669]


@NO_DATA
def test_real_seizures():
    table = read_csv(find_files("t", "seizures", ["epileptic_seizure_recognition.csv"], None)[0], text=("recording",))
    assert table.values.shape == (11_500, 180)
    assert np.unique(table.column("y"), return_counts=True)[1].tolist() == [2300] * 5
    samples = table.values[:, 1:-1]
    assert (samples.min(), samples.max()) == (-1885, 2047)
    assert len(set(table.text["recording"])) == 500


@NO_DATA
@pytest.mark.slow
def test_real_files_are_what_the_table_of_sets_says():
    seen = 0
    for entry in SETS.values():
        for name, path in zip(entry.files, locate(entry.files, places(entry.folder, None)), strict=True):
            file = entry.files[name]
            if path is not None and path.is_file() and file.sha256:
                content = read_all(path)
                assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256), name
                seen += 1
    assert seen
