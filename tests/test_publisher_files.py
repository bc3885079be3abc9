# SPDX-License-Identifier: Apache-2.0
"""HAPT and the MIT-BIH database in the files of their publishers: the same as from the npz files, and damaged files."""

import random

import numpy as np
import pytest

from edgernn.errors import EdgernnError
from edgernn.training.formats import read_hapt, read_wfdb
from edgernn.training.tasks.activity import Activity
from edgernn.training.tasks.ecg import Ecg
from edgernn.training.tasks.heartbeats import DS1, DS2, read_records
from tests.publisher_files import annotation_bytes, write_hapt, write_wfdb
from tests.read_damaged import damage
from tests.task_helpers import opened
from tests.test_task_activity import streams, write_activity

HAPT = ("RawData", "Train/subject_id_train.txt", "Test/subject_id_test.txt")


def hapt_files(folder):
    return [folder / name for name in HAPT]


def test_hapt_in_texts_is_that_of_the_archive(tmp_path):
    write_hapt(tmp_path / "texts/hapt", streams())
    write_activity(tmp_path / "npz/hapt")
    arrays = read_hapt(hapt_files(tmp_path / "texts/hapt"))
    for name, expected in streams().items():
        assert np.array_equal(arrays[name], expected), name
    texts, npz = (opened(Activity(window=50, lead=10), tmp_path / form) for form in ("texts", "npz"))
    assert np.array_equal(texts.test.x, npz.test.x)
    assert np.array_equal(texts.train.y, npz.train.y)


ACC, GYRO, LABELS = "RawData/acc_exp01_user01.txt", "RawData/gyro_exp01_user01.txt", "RawData/labels.txt"
BAD_HAPT = {
    "word": (ACC, "1 2 3\n1 2 x\n", "line 2: expected numbers in 3 columns, got '1 2 x'"),
    "columns": (ACC, "1 2 3\n1 2\n", "line 2: expected numbers in 3 columns, got '1 2'"),
    "nan": (ACC, "1 2 nan\n", "line 1: expected numbers in 3 columns, got '1 2 nan'"),
    "underscore": (ACC, "1 2 1_0\n", "line 1: expected numbers in 3 columns, got '1 2 1_0'"),
    "empty line": (ACC, "1 2 3\n\n4 5 6\n", "line 2: expected numbers in 3 columns, got ''"),
    "uneven lines": (ACC, "1 2 3 4\n1 2\n", "line 1: expected numbers in 3 columns, got '1 2 3 4'"),
    "large": (ACC, "1 2 1e999\n", "line 1: expected numbers in 3 columns, got '1 2 1e999'"),
    "nothing": (ACC, "", "expected lines of numbers, got none"),
    "binary": (ACC, b"\xff\xfe", "expected text in UTF-8"),
    "length": (GYRO, "1 2 3\n", r"lines, as acc_exp01_user01\.txt has, got 1; get the file again"),
    "activity": (LABELS, "1 1 13 1 2\n", "line 1: expected an activity from 1 to 12 and samples from 1 to"),
    "begin": (LABELS, "1 1 1 0 2\n", "in ascending order, got 1, 0 and 2"),
    "order": (LABELS, "1 1 1 3 2\n", "in ascending order, got 1, 3 and 2"),
    "end": (LABELS, "1 1 1 1 900\n", "in ascending order, got 1, 1 and 900"),
    "fraction": (LABELS, "1 1 1 1.5 2\n", "line 1: expected whole numbers in 5 columns, got '1 1 1 1.5 2'"),
    "recording": (LABELS, "1 1 1 1 2\n99 1 1 1 2\n", "line 2: expected the experiment and the user of a recording"),
    "users": (HAPT[1], "one\n", "line 1: expected whole numbers in 1 columns, got 'one'"),
}


@pytest.mark.parametrize("case", BAD_HAPT)
def test_bad_texts_of_hapt_are_named(tmp_path, case):
    name, content, message = BAD_HAPT[case]
    write_hapt(tmp_path, streams())
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EdgernnError, match=message) as caught:
        read_hapt(hapt_files(tmp_path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing_texts_of_hapt_are_named(tmp_path):
    write_hapt(tmp_path, streams())
    (tmp_path / GYRO).unlink()
    with pytest.raises(EdgernnError, match=r"gyro_exp01_user01\.txt: no such file"):
        read_hapt(hapt_files(tmp_path))
    for path in (tmp_path / "RawData").iterdir():
        path.unlink()
    with pytest.raises(EdgernnError, match=r"expected files such as acc_exp01_user01\.txt, got none; unpack RawData"):
        read_hapt(hapt_files(tmp_path))


BEATS = [(18, "+"), (77, "N"), (370, "A"), (662, "V"), (1200, "["), (4000, "]"), (4100, "F"), (140_000, "L")]


def signals(size=150_001, seed=0):
    """Draw samples (size, 2) of 12 bits with the extreme values; an odd number of them ends within a byte."""
    samples = np.random.default_rng(seed).integers(-2048, 2048, (size, 2))
    samples[:2] = [[-2048, 2047], [2047, -2048]]
    return samples


@pytest.mark.parametrize("names", [("MLII", "V5"), ("V5", "MLII"), ("MLII",), ("V1", "V2 x", "MLII")], ids=str)
def test_a_record_is_read_as_written(tmp_path, names):
    samples = np.concatenate([signals(), signals(seed=1)], 1)[:, : len(names)]
    write_wfdb(tmp_path, "100", samples, BEATS, names)
    record = read_wfdb(tmp_path, "100", "MLII")
    assert np.array_equal(record.samples, samples[:, names.index("MLII")])
    assert list(zip(record.ann_sample.tolist(), record.ann_symbol, strict=True)) == BEATS
    assert (record.rate, record.gain, record.zero) == (360, 200, 1024)


@pytest.mark.parametrize(
    ("record", "signal", "expected"),
    [
        ("100 1 360/360(0) 50 12:00:00 01/01/1990", "212+0 200(1024)/mV 11 0 7 {sum} 0 MLII", (360, 200, 1024)),
        ("100 1 128.5/64", "212:0 0 12 1024 0 {sum} 0 MLII", (128.5, 200, 1024)),
        ("100 1 360 0", "212x1 1e2/uV(x 12 0 0 {sum} 0 MLII", (360, 100, 0)),
    ],
)
def test_a_header_may_leave_fields_out_or_have_optional_ones(tmp_path, record, signal, expected):
    samples = signals(50)[:, :1]
    write_wfdb(tmp_path, "100", samples, BEATS, ("MLII",))
    (tmp_path / "100.hea").write_text(f"{record}\n100.dat {signal.format(sum=int(samples.sum()))}\n")
    found = read_wfdb(tmp_path, "100", "MLII")
    assert np.array_equal(found.samples, samples[:, 0])
    assert (found.rate, found.gain, found.zero) == expected


def test_a_shortest_header_and_a_prefix_of_the_samples(tmp_path):
    write_wfdb(tmp_path, "100", signals(50)[:, :1], BEATS, ("MLII",))
    path = tmp_path / "100.dat"
    path.write_bytes(b"12345" + path.read_bytes())
    (tmp_path / "100.hea").write_text("100 1\n100.dat 212+5\n")
    found = read_wfdb(tmp_path, "100", "")
    assert np.array_equal(found.samples, signals(50)[:, 0])
    assert (found.rate, found.gain, found.zero) == (250, 200, 0)


def test_an_interval_may_lead_back(tmp_path):
    write_wfdb(tmp_path, "100", signals(100), [])
    words = [1 << 10 | 1000, 59 << 10, 0xFFFF, 0xFFFF - 899, 5 << 10 | 3, 0]
    (tmp_path / "100.atr").write_bytes(np.array(words, "<u2").tobytes())
    # 1000, then -900 and 3
    assert read_wfdb(tmp_path, "100", "MLII").ann_sample.tolist() == [1000, 103]


def test_the_task_reads_the_folder_of_physionet(tmp_path):
    folder = tmp_path / "mit-bih/mit-bih-arrhythmia-database-1.0.0"
    rng = np.random.default_rng(0)
    for name in (*DS1, *DS2):
        beats = np.cumsum(rng.integers(200, 400, 18))
        symbols = ["N", "A", "V"] * 6
        annotations = [(int(sample), symbol) for sample, symbol in zip(beats, symbols, strict=True)]
        write_wfdb(folder, name, rng.integers(900, 1200, (8000, 2)), annotations)
    ds1, ds2 = read_records(folder)
    assert [[record.name for record in part] for part in (ds1, ds2)] == [DS1, DS2]
    last = read_wfdb(folder, DS2[-1], "MLII")
    np.testing.assert_allclose(ds2[-1].signal, (last.samples - 1024.0) / 200, rtol=1e-6)
    assert ds2[-1].label.tolist() == [0, 1, 2] * 6
    task = opened(Ecg(window=300, lead=50), tmp_path)
    assert sorted(record.name for record in [*task.train.records, *task.validation.records]) == sorted(DS1)
    write_wfdb(folder, DS2[0], rng.integers(900, 1200, (8000, 2)), [(5, "N")], rate=250)
    with pytest.raises(EdgernnError, match="record 100: expected 360 samples per second, got 250; resample the record"):
        read_records(folder)
    write_wfdb(folder, DS2[0], rng.integers(900, 1200, (8000, 2)), [(5, "+")])
    with pytest.raises(EdgernnError, match="record 100: expected annotated beats, got none"):
        read_records(folder)


def replaced(old, new):
    return lambda content: content.replace(old.encode(), new.encode(), 1)


BAD_WFDB = {
    "no header": ("hea", lambda c: b"", "expected a line with name, number of signals"),
    "no number": ("hea", replaced("100 2 360", "100 two 360"), "expected a line with name, number of signals"),
    "signals": ("hea", replaced("100 2", "100 3"), "and then a line for each signal, got '100 3 360 1000' and 2 lines"),
    "samples": (
        "hea",
        replaced("360 1000", "360 1001"),
        r"100\.dat: expected 3003 bytes for 2002 samples, .* got 3000",
    ),
    "format": ("hea", replaced(" 212 ", " 16 "), "expected signals of format 212, got 16; convert the record"),
    "fields": ("hea", replaced(" 11 1024 ", " "), "checksum, block size and name of a signal, got"),
    "gain": ("hea", replaced(" 200 ", " -5 "), "a gain above 0 and a zero of 16 bits, got 100.dat, -5 and 1024"),
    "segments": ("hea", replaced("100 2", "100/3 2"), "expected a record of one segment, got 3; join the segments"),
    "frame": ("hea", replaced(" 212 ", " 212x4 "), "expected signals of format 212, got 212x4; convert the record"),
    "skew": ("hea", replaced(" 212 ", " 212:2 "), "expected signals of format 212, got 212:2; convert the record"),
    "path": ("hea", replaced("100.dat", "../100.dat"), "expected a file of samples beside the header"),
    "files": ("hea", replaced("100.dat", "101.dat"), "expected all signals in one file of samples, got several"),
    "lead": ("hea", replaced("MLII", "V1"), "expected a signal 'MLII', got V1, V5; leave the record out"),
    "checksum": ("dat", lambda c: bytes([c[0] ^ 1]) + c[1:], "expected samples of MLII with the checksum"),
    "cut": ("dat", lambda c: c[:-1], "expected 3000 bytes for 2000 samples, as the header says, got 2999"),
    "no end": ("atr", lambda c: c[:-2], "expected a word of zeros at the end of the annotations, got none"),
    "cut interval": ("atr", lambda c: annotation_bytes([(5000, "N")])[:4], "expected a word of zeros at the end"),
    "long text": ("atr", lambda c: b"\xff\xff\x00\x00", "expected a word of zeros at the end"),
    "code": ("atr", lambda c: b"\x01\xc8\x00\x00", "expected codes of annotations below 42, got 50"),
}


@pytest.mark.parametrize("case", BAD_WFDB)
def test_bad_records_are_named(tmp_path, case):
    suffix, change, message = BAD_WFDB[case]
    write_wfdb(tmp_path, "100", signals(1000), [(5, "N")])
    path = tmp_path / f"100.{suffix}"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(EdgernnError, match=message) as caught:
        read_wfdb(tmp_path, "100", "MLII")
    assert str(caught.value).startswith(str(tmp_path / "100."))
    assert "\n" not in str(caught.value)


def test_missing_files_of_a_record_are_named(tmp_path):
    for suffix in ("atr", "dat", "hea"):
        write_wfdb(tmp_path, "100", signals(10), [])
        (tmp_path / f"100.{suffix}").unlink()
        with pytest.raises(EdgernnError, match=rf"100\.{suffix}: no such file"):
            read_wfdb(tmp_path, "100", "MLII")


# two recordings of 5 steps
SMALL = {
    "x": np.ones((10, 6), np.float32),
    "label": np.array([0, 1, 1, 7, 7, 2, 2, 0, 3, 3], np.uint8),
    "offset": np.array([0, 5, 10]),
    "exp_user": np.array([[1, 1], [2, 2]]),
    "train_users": np.array([1]),
    "test_users": np.array([2]),
}


def test_damaged_files_are_read_or_refused(tmp_path):
    refused = 0
    for number in range(150):
        draw = random.Random(number)
        if number % 2:
            write_wfdb(tmp_path, "100", np.zeros((99, 2), int), [(i * 700, "N") for i in range(20)])
            path = tmp_path / f"100.{draw.choice(['hea', 'dat', 'atr'])}"
        else:
            write_hapt(tmp_path, SMALL)
            path = tmp_path / draw.choice([ACC, GYRO, LABELS, *HAPT[1:]])
        path.write_bytes(damage(path.name, path.read_bytes(), draw))
        try:
            read_wfdb(tmp_path, "100", "MLII") if number % 2 else read_hapt(hapt_files(tmp_path))
        except EdgernnError:
            refused += 1
    assert refused > 50
