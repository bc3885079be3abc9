# SPDX-License-Identifier: Apache-2.0
"""The search path of data files, and readers: contents, error messages, and robustness against any corruption."""

import gzip
import lzma
import tracemalloc
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.csv_table import Dialect, parse_csv
from edgernn.runtime.wav import read_wav
from edgernn.training.datasets.find import find_either, find_files
from edgernn.training.formats import read_csv, read_idx, read_npz, read_text
from edgernn.training.papers.formats import read_cifar10, read_physionet, read_svhn
from tests.format_files import (
    RECORD,
    ROWS,
    X,
    Y,
    header,
    mat_bytes,
    matrix,
    npz_bytes,
    npz_with,
    packed_stays,
    svhn_bytes,
    write_packed,
    write_physionet,
)
from tests.training_helpers import PACK, idx_bytes

SUFFIXES = pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])


# search path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    return tmp_path / "home" / "edgernn"


def test_places_and_their_order(tmp_path, cache, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(EdgernnError, match=r"t needs a, b \(plain, .* and no data folder is set: .*--data DIR"):
        find_files("t", "set", ["a", "b"], None)
    with pytest.raises(
        EdgernnError, match=rf"t: no a .* in {mine}/set and {mine} and {cache}/set: set the data folder"
    ):
        find_files("t", "set", ["a", "b"], mine)
    for place, suffix in ((cache / "set", ".gz"), (mine, ".xz"), (mine / "set", "")):
        for name in "ab":
            write_packed(place / (name + suffix), b"")
        assert find_files("t", "set", ["a", "b"], mine) == [place / f"{name}{suffix}" for name in "ab"]
    assert find_files("t", "set", ["b"], None) == [cache / "set" / "b.gz"]
    monkeypatch.setenv("EDGERNN_DATA", str(mine))
    assert find_files("t", "set", ["b"], None) == [mine / "set" / "b"]
    with pytest.raises(UsageError, match="no such folder"):
        find_files("t", "set", ["b"], tmp_path / "nowhere")


def test_the_first_whole_form_is_found(tmp_path, cache):
    forms = [["a", "b/"], ["c"]]
    write_packed(tmp_path / "a", b"")
    with pytest.raises(EdgernnError, match=r"t: no a, b/ or c \(plain"):
        find_either("t", "set", forms, tmp_path)
    write_packed(tmp_path / "set" / "c.gz", b"")
    assert find_either("t", "set", forms, tmp_path) == [tmp_path / "set" / "c.gz"]
    write_packed(tmp_path / "b" / "x", b"")
    assert find_either("t", "set", forms, tmp_path) == [tmp_path / "a", tmp_path / "b"]


# idx files


@SUFFIXES
def test_idx_round_trip(tmp_path, suffix):
    array = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    path = write_packed(tmp_path / f"images{suffix}", idx_bytes(array))
    assert np.array_equal(read_idx(path, (None, 28, 28)), array)


LABELS = idx_bytes(np.arange(5))
BAD_IDX = {
    "empty": (b"", r"expected an idx file with a header of 8 bytes, got 0 bytes"),
    "header": (LABELS[:6], r"expected an idx file with a header of 8 bytes, got 6 bytes"),
    "magic": (b"\x01" + LABELS[1:], r"expected the magic number 0x00000801 .*, got 0x01000801"),
    "dtype": (b"\0\0\x0d" + LABELS[3:], r"expected the magic number 0x00000801 .*, got 0x00000d01"),
    "rank": (idx_bytes(np.zeros((5, 1))), r"expected the magic number 0x00000801 .*, got 0x00000802"),
    "truncated": (LABELS[:-1], r"expected 5 bytes after the header for shape \(5,\), got 4 bytes"),
    "trailing": (LABELS + b"\0", r"expected 5 bytes after the header for shape \(5,\), got more"),
    "huge": (LABELS[:4] + b"\xff" * 4, r"expected 4294967295 bytes .*, got 0 bytes"),
}


@SUFFIXES
@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_is_named(tmp_path, case, suffix):
    content, message = BAD_IDX[case]
    path = write_packed(tmp_path / f"labels{suffix}", content)
    with pytest.raises(EdgernnError, match=message) as caught:
        read_idx(path, (None,))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["not packed", "cut", "flipped", "sum"])
def test_corrupt_packed_file_is_named(tmp_path, suffix, damage):
    packed = bytearray(PACK[suffix](idx_bytes(np.random.default_rng(0).integers(10, size=1000))))
    if damage == "not packed":
        packed = bytearray(LABELS)
    elif damage == "cut":
        del packed[len(packed) // 2 :]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed[-8 if suffix == ".gz" else -30] ^= 0xFF
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(packed)
    with pytest.raises(EdgernnError, match=r"corrupt or cut|bytes after the header"):
        read_idx(path, (None,))


def test_idx_of_another_shape(tmp_path):
    path = write_packed(tmp_path / "images", idx_bytes(np.zeros((2, 8, 28))))
    with pytest.raises(EdgernnError, match=r"expected shape \(N, 28, 28\), got \(2, 8, 28\)"):
        read_idx(path, (None, 28, 28))


# text and csv


@SUFFIXES
def test_text_is_read_as_it_stands(tmp_path, suffix):
    content = "a\r\nb\rc\u2028ä \x00 😀 \n"
    assert read_text(write_packed(tmp_path / f"t.txt{suffix}", content.encode())) == content
    assert read_text(write_packed(tmp_path / f"bom.txt{suffix}", b"\xef\xbb\xbf" + content.encode())) == content


def test_text_that_is_none_is_named(tmp_path):
    path = write_packed(tmp_path / "t.txt", "grün".encode("latin-1"))
    with pytest.raises(EdgernnError, match=r"t\.txt: expected text in UTF-8, got 0xfc at byte 2"):
        read_text(path)
    with pytest.raises(EdgernnError, match=r"none\.txt: no such file"):
        read_text(tmp_path / "none.txt")


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    readers = {"t.csv": read_csv, "t.npz": read_npz, "t.csv.gz": read_csv, "t.wav": partial(read_wav, rate=16_000)}
    for name, read in readers.items():
        (tmp_path / name).write_bytes(pointer)
        message = f"{name}: expected .*, got a pointer of Git LFS; get the content with: git lfs pull"
        with pytest.raises(EdgernnError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_what_unpacks_to_too_much_is_refused(tmp_path, pack):
    path = tmp_path / ("bomb.txt.gz" if pack is gzip.compress else "bomb.txt.xz")
    path.write_bytes(pack(bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    with pytest.raises(EdgernnError, match="expected at most 1,000,000 bytes when unpacked, got more"):
        read_text(path, limit=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


@SUFFIXES
def test_csv_with_a_header_and_words(tmp_path, suffix):
    content = b'id,"a,b",c\r\nx1, 1.5,-2e3\r\n"y,2",nan,"0"\r\n\r\n'
    table = read_csv(write_packed(tmp_path / f"t.csv{suffix}", content), text=("id", "other"))
    assert table.names == ("a,b", "c")
    np.testing.assert_array_equal(table.values, [[1.5, -2000.0], [np.nan, 0.0]])
    assert table.text == {"id": ["x1", "y,2"]}
    np.testing.assert_array_equal(table.column("c"), [-2000.0, 0.0])
    with pytest.raises(EdgernnError, match=r"expected a column 'd', got a,b, c"):
        table.column("d")


@pytest.mark.parametrize("header", [b"# x , y\n", b'"x","y"\r', b"\xef\xbb\xbfx,y\n"])
def test_a_header_gives_names_in_any_dialect(tmp_path, header):
    table = read_csv(write_packed(tmp_path / "t.csv", header + b'"1",2\r"-3",4e0'))
    assert table.names == ("x", "y")
    assert table.values.tolist() == [[1, 2], [-3, 4]]


def test_csv_without_a_header(tmp_path):
    table = read_csv(write_packed(tmp_path / "t.data", b"1,2\n3,4\n5,6\n"))
    assert table.names is None
    assert table.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert parse_csv(tmp_path / "s.csv", "1;2\n3;4", dialect=Dialect(";")).values.tolist() == [[1, 2], [3, 4]]


BAD_CSV = {
    "empty": (b"", "expected rows of numbers, got none"),
    "blank": (b"\n\r\n\n", "expected rows of numbers, got none"),
    "header-only": (b"a,b\n", "got none after the header"),
    "word": (b"a,b\n1,2\n3,x\n", r"line 3, column 2 \(b\): expected a number, got 'x'"),
    "gap": (b"a\n1\n\n2\n", "line 3: expected a row of a csv file, got an empty line"),
    "gap-first": (b",2\n3,4\n", "line 1, column 1: expected a number, got ''"),
    "gaps": (b",\n3,4\n", "line 1, column 1: expected a number, got ''"),
    "hash": (b"1,2\n#3,4\n", "line 2, column 1: expected a number, got '#3'"),
    "minus": ("−1,−2\n3,4\n".encode(), "line 1, column 1: expected a number, got '−1'"),
    "no-header": (b"1,2\n3,\n", "line 2, column 2: expected a number, got ''"),
    "underscore": (b"1,2\n3,1_0\n", "line 2, column 2: expected a number, got '1_0'"),
    "short": (b"a,b\n1,2\n3\n", "line 3: expected 2 columns as in the first line, got 1"),
    "long": (b"1,2\n3,4,5\n", "line 2: expected 2 columns as in the first line, got 3"),
    "decimal-commas": (b"a\n1,5\n", "line 2: expected 1 columns .*, got 2; .*, or write decimal points if its commas"),
    "quote": (b'a\n1\n"2\n', "expected a row of a csv file"),
    "quoted": (b'a\n"1"2\n', "line 2: expected a row of a csv file"),
    "field": (b"a\n" + b"1" * 200_000 + b"\n", "expected a row of a csv file, got field larger than"),
    "encoding": (b"a\n\xff\n", "expected text in UTF-8, got 0xff at byte 2"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv_is_named(tmp_path, case):
    content, message = BAD_CSV[case]
    path = write_packed(tmp_path / "t.csv", content)
    with pytest.raises(EdgernnError, match=message) as caught:
        read_csv(path)
    assert str(path) in str(caught.value)


# npz


@SUFFIXES
def test_npz_round_trip(tmp_path, suffix):
    arrays = {
        "a": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "b": np.asfortranarray(np.random.default_rng(0).integers(9, size=(2, 5, 3))),
        "c": np.array(["one", "three"]),
        "d": np.array(7, ">i2"),
        "e": np.zeros((0, 3), np.uint8),
    }
    arrays_read = read_npz(write_packed(tmp_path / f"t.npz{suffix}", npz_bytes(**arrays)))
    assert list(arrays_read) == list(arrays)
    for name, array in arrays.items():
        assert arrays_read[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays_read[name], array)
    assert list(read_npz(tmp_path / f"t.npz{suffix}", ["b"])) == ["b"]


BAD_NPZ = {
    "empty": (b"", "expected an npz archive, got a truncated one or another format"),
    "objects": (npz_bytes(x=np.array([None])), "Python objects, which are never read"),
    "record": (npz_with(header("[('a', 'O')]")), "Python objects, which are never read"),
    "code": (npz_with("__import__('os').getcwd()"), "got a corrupt header"),
    "version": (npz_with(header(), bytes(16), version=9), "got another format"),
    "long header": (npz_with(header() + " " * 20_000, bytes(16)), "expected an npy header of at most 10000 bytes"),
    "huge": (npz_with(header(shape="(1000000000000,)")), "expected at most"),
    "large": (npz_with(header(shape="(100000000,)"), bytes(16)), "expected 800000000 bytes .*, got 16 bytes"),
    "negative": (
        npz_with(header(shape="(-1, -2)"), bytes(16)),
        "expected a tuple of sizes as shape and a bool as fortran_order",
    ),
    "lzma": (npz_with(header(), bytes(16), method=zipfile.ZIP_LZMA), "got zip compression method 14; write the file"),
    "trailing": (npz_with(header(), bytes(17)), "expected 16 bytes .*, got 17 bytes"),
    "weightless": (npz_with(header("'<U0'", "(1000000000000,)")), "of numbers, got '<U0'"),
    "no-dtype": (npz_with(header("'<f3'")), "of numbers, got '<f3'"),
    "empty-and-huge": (npz_with(header(shape=f"(0, {2**62}, {2**62})")), "expected an array that NumPy can hold, got"),
    "axes": (
        npz_with(header(shape=str((2, *[1] * 64))), bytes(16)),
        "expected an array that NumPy can hold, got shape",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz_is_named(tmp_path, case):
    content, message = BAD_NPZ[case]
    path = write_packed(tmp_path / "t.npz", content)
    with pytest.raises(EdgernnError, match=message) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


def test_npz_that_unpacks_to_too_much_is_refused(tmp_path):
    path = write_packed(tmp_path / "t.npz", npz_bytes(a=np.zeros(100_000), b=np.zeros(100_000)))
    assert path.stat().st_size < 10_000
    assert len(read_npz(path, limit=1_600_000)) == 2
    with pytest.raises(EdgernnError, match="b: expected at most 300000 bytes"):
        read_npz(path, limit=1_100_000)
    with pytest.raises(EdgernnError, match="expected the arrays a, c, got a, b; c is missing"):
        read_npz(path, ["a", "c"])


# any corruption gives data or one type of error, with bounded memory

FILES = {
    "idx": ("f", idx_bytes(np.arange(6).reshape(2, 3)), lambda p: read_idx(p, (None, 3))),
    "idx-gz": ("f.gz", gzip.compress(idx_bytes(np.arange(6).reshape(2, 3))), lambda p: read_idx(p, (None, 3))),
    "idx-xz": ("f.xz", lzma.compress(idx_bytes(np.arange(6).reshape(2, 3))), lambda p: read_idx(p, (None, 3))),
    "text": ("f.txt", "naïve\n".encode(), read_text),
    "csv": ("f.csv", b'id,"x",y\na,1,2.5\nb,3,4\n', lambda p: read_csv(p, text=("id",))),
    "npz": ("f.npz", npz_bytes(x=np.arange(6.0).reshape(2, 3), y=np.array(["a", "b"])), read_npz),
    "npz-plain": ("f.npz", npz_with(header(), bytes(16)), read_npz),
    "mat": ("f.mat", mat_bytes(matrix("X", X[..., :1]), matrix("y", Y[:1])), read_svhn),
    "mat-packed": ("f.mat", svhn_bytes(X, Y), read_svhn),
    "cifar": ("f.bin", bytes(3073), lambda p: read_cifar10([p, p])),
    "stays": ("f.npz", packed_stays(), lambda p: read_physionet([p])),
    "record": ("set-a/141.txt", RECORD.format(141).encode(), lambda p: read_physionet([p.parent, p.parents[1] / "o"])),
    "outcomes": ("o", ROWS.encode(), lambda p: read_physionet([p.parent / "set-a", p])),
}


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_gives_data_or_an_error(tmp_path, kind, data):
    name, content, read = FILES[kind]
    write_physionet(tmp_path, {141: RECORD.format(141)})
    write_packed(tmp_path / "o", ROWS.encode())
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        piece = data.draw(st.binary(max_size=8))
        gone = data.draw(st.sampled_from([0, len(piece), len(piece), 3, len(changed)]))
        changed[at : at + gone] = piece
    path = tmp_path / name
    path.write_bytes(changed)
    tracemalloc.start()
    try:
        assert read(path) is not None
    except EdgernnError as error:
        message = str(error)
    else:
        message = str(tmp_path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(tmp_path) in message
    assert peak < 50_000_000
