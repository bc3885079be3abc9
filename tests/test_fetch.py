# SPDX-License-Identifier: Apache-2.0
"""Downloads of data sets from a loopback server: correct, wrong, malicious and missing files, and cut connections."""

import functools
import gzip
import json
import re
import resource
import signal
import tarfile
from pathlib import Path

import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.locks import LOCK, hold
from edgernn.progress import Progress
from edgernn.training.datasets import Download, File, fetch
from edgernn.training.datasets.find import find_files
from tests.file_server import CONTENT, CUT, SIZE, SUM, home, plain, register_data_set, server, sha
from tests.test_unpack import ARCHIVES

__all__ = ["home", "server"]
get = functools.partial(fetch, pause=0)


def ranges(server):
    return [asked for _, asked in server.seen]


# correct files


def test_file_is_fetched_checked_and_found(server, monkeypatch, home, capsys):
    register_data_set(monkeypatch, plain(server))
    result = get("small", progress=Progress())
    path = home / "small" / "f.bin"
    assert path.read_bytes() == CONTENT
    assert result == {
        "name": "small",
        "folder": str(path.parent),
        "fetched": True,
        "cache": True,
        "files": [{"file": "f.bin", "bytes": 300_000, "sha256": SUM, "known": True}],
        "folders": [],
    }
    assert find_files("t", "small", ["f.bin"], None) == [path]
    assert [p.name for p in path.parent.iterdir()] == ["f.bin"]
    assert f"{server.url}/f.bin: 300,000 bytes" in capsys.readouterr().err
    assert get("small")["fetched"] is False
    assert len(server.seen) == 1


def test_folder_of_the_user_is_filled_and_made(server, monkeypatch, home, tmp_path):
    register_data_set(monkeypatch, plain(server))
    assert get("small", tmp_path / "new" / "mine")["cache"] is False
    assert (tmp_path / "new" / "mine" / "small" / "f.bin").read_bytes() == CONTENT
    monkeypatch.setenv("EDGERNN_DATA", str(tmp_path / "other"))
    get("small")
    assert (tmp_path / "other" / "small" / "f.bin").read_bytes() == CONTENT
    assert not home.exists()


def test_packed_file_is_unpacked_and_its_content_checked(server, monkeypatch, home):
    server.files["/f.bin.gz"] = gzip.compress(CONTENT)
    register_data_set(monkeypatch, Download((f"{server.url}/f.bin.gz",), (File("f.bin", SIZE, SUM),)))
    assert get("small")["files"][0]["known"] is True
    assert (home / "small" / "f.bin").read_bytes() == CONTENT
    server.files["/f.bin.gz"] = gzip.compress(CONTENT[::-1])
    (home / "small" / "f.bin").unlink()
    with pytest.raises(EdgernnError, match=rf"f\.bin: expected SHA-256 {SUM} .*, got SHA-256 {sha(CONTENT[::-1])}"):
        get("small")
    assert not (home / "small").exists()


@ARCHIVES
def test_archive_gives_its_files_wherever_they_lie_in_it(server, monkeypatch, home, suffix, pack):
    content = pack(("x/one.bin", b"1"), ("x/set-a/7.txt", b"7"), ("x/set-a/8.txt", b"8"), ("x/other.bin", b"0"))
    server.files[f"/all{suffix}"] = content
    gives = (File("one.bin"), File("set-a/"))
    register_data_set(monkeypatch, Download((f"{server.url}/all{suffix}",), gives, len(content), sha(content)))
    get("small")
    contents = {str(p.relative_to(home / "small")): p.read_text() for p in (home / "small").rglob("*") if p.is_file()}
    assert contents == {"one.bin": "1", "set-a/7.txt": "7", "set-a/8.txt": "8"}


# wrong, malicious and missing files


def test_wrong_sum_is_refused_and_leaves_nothing(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server, sha(b"other")))
    with pytest.raises(EdgernnError, match=f"{server.url}/f.bin: .*expected {sha(b'other')} but got {SUM}"):
        get("small")
    assert not (home / "small").exists()


def test_next_address_is_asked(server, monkeypatch, home, capsys):
    right = plain(server)
    server.files["/wrong/f.bin"] = CONTENT[::-1]
    urls = (f"{server.url}/none/f.bin", f"{server.url}/wrong/f.bin", *right.urls)
    register_data_set(monkeypatch, Download(urls, right.gives, right.size, right.sha256))
    get("small", progress=Progress())
    assert (home / "small" / "f.bin").read_bytes() == CONTENT
    assert "/none/f.bin: expected the file, got 404" in capsys.readouterr().err
    assert ranges(server) == [None] * 3


def test_other_size_is_refused_before_it_comes(server, monkeypatch):
    register_data_set(monkeypatch, plain(server, size=299_999))
    with pytest.raises(EdgernnError, match=r"expected a file of 299,999 bytes, got one of 300,000"):
        get("small")


def test_file_that_is_not_there(server, monkeypatch, home):
    register_data_set(monkeypatch, Download((f"{server.url}/none.bin",), (File("none.bin"),)))
    with pytest.raises(EdgernnError, match=rf"{server.url}/none\.bin: expected the file, got 404"):
        get("small")
    assert not (home / "small").exists()


def test_server_that_is_not_there(monkeypatch):
    register_data_set(monkeypatch, Download(("http://127.0.0.1:9/f.bin",), (File("f.bin"),)))
    with pytest.raises(EdgernnError, match=r"f\.bin: the connection broke \(.*refused\); no bytes were received"):
        get("small")


@ARCHIVES
@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../one.bin", b"1"), r"expected paths that stay inside the target folder, got '\.\./one\.bin'"),
        (("a/../../one.bin", b"1"), r"expected paths that stay inside the target folder, got 'a/\.\./\.\./one\.bin'"),
        (("/tmp/one.bin", b"1"), r"expected paths that stay inside the target folder, got '/tmp/one\.bin'"),
        (("one.bin", (tarfile.SYMTYPE, "/etc/passwd")), r"got a link.*: 'one\.bin'"),
        (("two.bin", b"1"), r"expected one\.bin in the archive, got none of that name"),
    ],
    ids=["up", "through", "absolute", "link", "absent"],
)
def test_hostile_archive_is_refused_as_a_whole(server, monkeypatch, home, suffix, pack, member, message):
    server.files[f"/all{suffix}"] = pack(("other.bin", b"0"), member)
    register_data_set(monkeypatch, Download((f"{server.url}/all{suffix}",), (File("one.bin"),)))
    with pytest.raises(EdgernnError, match=message):
        get("small")
    assert not (home / "small").exists()
    assert not list(home.parent.rglob("one.bin"))


# downloads without a checksum


def test_first_use_is_trusted_said_and_remembered(server, monkeypatch, home, capsys):
    register_data_set(monkeypatch, plain(server, None, size=None))
    assert main(["data", "fetch", "small"]) == 0
    assert f"SHA-256 {SUM} (no expected value is known: not verified)" in capsys.readouterr().out
    assert json.loads((home / "small" / "fetched.json").read_text())["f.bin"]["sha256"] == SUM
    assert main(["data", "fetch", "small"]) == 0
    assert f"SHA-256 {SUM} (as expected)" in capsys.readouterr().out
    (home / "small" / "f.bin").unlink()
    server.files["/f.bin"] = CONTENT[::-1]
    with pytest.raises(EdgernnError, match=rf"expected SHA-256 {SUM}, recorded in fetched\.json at the first"):
        get("small")
    assert not (home / "small" / "f.bin").exists()


def test_file_in_its_place_is_checked_and_never_overwritten(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server))
    path = home / "small" / "f.bin.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(CONTENT))
    assert get("small")["files"] == [{"file": "f.bin.gz", "bytes": 300_000, "sha256": SUM, "known": True}]
    path.write_bytes(gzip.compress(b"mine"))
    with pytest.raises(
        EdgernnError, match=r"f\.bin\.gz: f\.bin: expected SHA-256 .* move the file away and get it again"
    ):
        get("small")
    assert gzip.decompress(path.read_bytes()) == b"mine"
    assert not server.seen


def test_only_a_file_with_the_known_sum_counts_outside_the_folder_of_a_set(server, monkeypatch, home, tmp_path):
    register_data_set(monkeypatch, plain(server))
    (tmp_path / "f.bin").write_bytes(b"something else")
    assert get("small", tmp_path)["fetched"] is True
    assert (tmp_path / "f.bin").read_bytes() == b"something else"
    assert (tmp_path / "small/f.bin").read_bytes() == CONTENT
    (tmp_path / "small/f.bin").rename(tmp_path / "f.bin")
    assert get("small", tmp_path)["fetched"] is False
    assert len(server.seen) == 1
    # a file whose sum is not known may be anything
    register_data_set(monkeypatch, plain(server, sha256=None, size=None))
    assert get("small", tmp_path)["fetched"] is True


def test_preferred_form_is_enough(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server), forms=(("better",), ("f.bin",), ("part",)))
    (home / "small").mkdir(parents=True)
    (home / "small" / "better").write_text("x")
    assert get("small")["fetched"] is False
    (home / "small" / "better").rename(home / "small" / "part")
    assert get("small")["fetched"] is True


# cut connections


def test_cut_download_goes_on_where_it_was(server, monkeypatch, home, capsys):
    register_data_set(monkeypatch, plain(server))
    server.cuts = 2
    get("small", progress=Progress())
    assert (home / "small" / "f.bin").read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", "bytes=200000-"]
    assert "300,000 bytes, from byte 200,000 on" in capsys.readouterr().err


def test_next_call_goes_on_where_a_broken_one_was(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server))
    monkeypatch.setattr("edgernn.training.datasets.download._ATTEMPTS", 1)
    server.cuts = 1
    with pytest.raises(
        EdgernnError, match=r"broke \(the download ended after 100,000 of 300,000 bytes\); 100,000 bytes are kept"
    ):
        get("small")
    assert not (home / "small" / "f.bin").exists()
    assert (home / "small" / ".fetch" / "f.bin.part").read_bytes() == CONTENT[:CUT]
    get("small")
    assert (home / "small" / "f.bin").read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-"]
    assert [p.name for p in (home / "small").iterdir()] == ["f.bin"]


def test_server_without_ranges_sends_all_again(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server))
    server.cuts, server.ranges = 1, False
    get("small")
    assert (home / "small" / "f.bin").read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-"]


def test_without_a_checksum_a_download_starts_again(server, monkeypatch, home):
    """Otherwise a mixture of two versions would not be detected."""
    register_data_set(monkeypatch, plain(server, None, size=None))
    monkeypatch.setattr("edgernn.training.datasets.download._ATTEMPTS", 1)
    server.cuts = 1
    with pytest.raises(EdgernnError, match=r"broke .*; the same command starts again from byte 0"):
        get("small")
    server.files["/f.bin"] = CONTENT[::-1]
    get("small")
    assert (home / "small" / "f.bin").read_bytes() == CONTENT[::-1]
    assert ranges(server) == [None, None]


@pytest.mark.parametrize(("size", "asked"), [(SIZE, [None]), (None, ["bytes=300004-", None])], ids=["known", "unknown"])
def test_part_that_is_longer_than_the_file_is_dropped(server, monkeypatch, home, size, asked):
    register_data_set(monkeypatch, plain(server, size=size))
    part = home / "small" / ".fetch" / "f.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT + b"more")
    get("small")
    assert ranges(server) == asked
    assert (home / "small" / "f.bin").read_bytes() == CONTENT


def test_broken_server_is_not_asked_for_ever(server, monkeypatch):
    register_data_set(monkeypatch, plain(server))
    server.cuts = 99
    monkeypatch.setattr("tests.file_server.CUT", 1000)
    with pytest.raises(EdgernnError, match="4,000 bytes are kept"):
        get("small")
    assert len(server.seen) == 4


def test_interrupt_leaves_what_goes_on(server, monkeypatch, home, capsys):
    register_data_set(monkeypatch, plain(server))
    server.interrupts = True
    # a background process may ignore SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["data", "fetch", "small"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.endswith(
        "edgernn: interrupted; 100,000 bytes are kept, and the same command resumes from there\n"
    )
    part = home / "small" / ".fetch" / "f.bin.part"
    assert part.read_bytes() == CONTENT[:CUT]
    assert [p.name for p in part.parent.iterdir()] == ["f.bin.part"]
    server.interrupts = False
    get("small")
    assert ranges(server) == [None, "bytes=100000-"]
    assert (home / "small" / "f.bin").read_bytes() == CONTENT


def test_full_disk_is_one_line_and_goes_on(server, monkeypatch, home, capsys):
    register_data_set(monkeypatch, plain(server))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # limit files to 150,000 bytes, to simulate a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        assert main(["data", "fetch", "small"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    out, errors = capsys.readouterr()
    assert out == ""
    line = errors.splitlines()[-1]
    assert re.fullmatch(
        r"edgernn: error: .*f\.bin\.part: File too large; free some space; 150,000 bytes are kept, .*", line
    )
    get("small")
    assert ranges(server) == [None, "bytes=150000-"]
    assert (home / "small" / "f.bin").read_bytes() == CONTENT


def test_one_process_at_a_time(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server))
    (home / "small" / ".fetch").mkdir(parents=True)
    with (
        hold(home / "small" / ".fetch" / LOCK, home),
        pytest.raises(UsageError, match=r"small: in use by process \d+ on .*name another place with --data"),
    ):
        get("small")
    get("small")
    assert len(server.seen) == 1


def test_space_is_asked_for_before(server, monkeypatch):
    register_data_set(monkeypatch, plain(server))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 299_999})())
    with pytest.raises(OSError, match="expected 300,000 bytes of free space, got 299,999"):
        get("small")


def test_what_a_kill_after_the_last_file_left_is_removed(server, monkeypatch, home):
    register_data_set(monkeypatch, plain(server))
    folder = Path(fetch("small")["folder"])
    (folder / ".fetch").mkdir()
    (folder / ".fetch" / "f.bin").write_bytes(CONTENT)
    assert not fetch("small")["fetched"]
    assert [path.name for path in folder.iterdir()] == ["f.bin"]
