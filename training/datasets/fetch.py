# SPDX-License-Identifier: Apache-2.0
"""Download a data set, check it, and put it in its place."""

import hashlib
import os
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, nearest
from edgernn.files import read_json, write_json
from edgernn.locks import LOCK, hold
from edgernn.progress import Progress, Silent
from edgernn.training.data import VARIABLE, cache_folder, locate
from edgernn.training.datasets.download import Resuming
from edgernn.training.datasets.registry import SETS, DataSet, Download, File
from edgernn.training.datasets.unpack import unpack
from edgernn.training.formats.byte_source import opened

# in the folder of a set: what came of files whose sum is not known, so that another file is noticed the next time
RECORD = "fetched.json"
_WORK = ".fetch"
_CHUNK = 1 << 20


def find_set(name: str) -> DataSet:
    """Raises UsageError for an unknown name, with the nearest known one."""
    if name not in SETS:
        raise nearest("data set", name, SETS)
    return SETS[name]


def fetch(name: str, data: Path | None = None, progress: Progress | None = None, pause: float = 1.0) -> dict[str, Any]:
    """Download a data set to its folder under `data`, else under EDGERNN_DATA, else in the user's cache.

    Returns name, folder, fetched (whether anything had to be downloaded), cache (whether it is in the cache) and files:
    file, bytes, sha256 and known of each that was checked. What is there already is only checked. A cut download goes
    on where it ended, by itself a few times (after `pause` seconds) and with the next call.
    Raises UsageError for an unknown name; EdgernnError where a set cannot be downloaded, comes with another sum, is
    corrupt or does not come; OSError where the disk is full. Then nothing but what is needed to go on is left.
    """
    wanted, progress = find_set(name), progress or Silent()
    given = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    folder = (given or cache_folder()) / wanted.folder
    if not wanted.downloads:
        raise EdgernnError(f"{name} cannot be downloaded: {wanted.agreement}; put {wanted.forms[0][0]} into {folder}")
    where = [folder, given] if given else [folder]
    found = _complete(wanted, where)
    if found is None:
        with _working(folder):
            files = [file for download in wanted.downloads for file in _get(download, folder, where, progress, pause)]
    else:
        files = [_check(path, file) for file, path in found if path.is_file()]
    return {"name": name, "folder": str(folder), "fetched": found is None, "cache": given is None, "files": files}


@contextmanager
def _working(folder: Path) -> Iterator[None]:
    """A folder to work in, for one process at a time; what is needed to go on stays in it after an error."""
    work = folder / _WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        with hold(work / LOCK, folder, option="--data"):
            yield
            shutil.rmtree(work, ignore_errors=True)
    finally:
        for made in (work, folder):
            # where nothing came, nothing stays; a folder that is not empty cannot be removed
            with suppress(OSError):
                made.rmdir()


def _complete(wanted: DataSet, where: list[Path]) -> list[tuple[File, Path]] | None:
    """The files of the set, if they are there: in the form that is downloaded, or in one that is preferred to it."""
    downloaded = {file.name for download in wanted.downloads for file in download.gives}
    for form in wanted.forms:
        paths = locate(form, where)
        if None not in paths:
            return [(wanted.files[name], path) for name, path in zip(form, paths, strict=True) if path]
        if set(form) == downloaded:
            break
    return None


def _get(download: Download, folder: Path, where: list[Path], progress: Progress, pause: float) -> list[dict[str, Any]]:
    """What a download gives: checked where it is there already, else from the first address that has it."""
    paths = locate([file.name for file in download.gives], where)
    if None not in paths:
        return [_check(path, file) for file, path in zip(download.gives, paths, strict=True) if path and path.is_file()]
    *others, last = download.urls
    for url in others:
        try:
            return _get_from(url, download, folder, progress, pause)
        except EdgernnError as error:
            progress.note(f"{error}; trying another address")
    return _get_from(last, download, folder, progress, pause)


def _get_from(url: str, download: Download, folder: Path, progress: Progress, pause: float) -> list[dict[str, Any]]:
    import pooch

    # it would repeat what the progress says
    pooch.get_logger().setLevel("WARNING")
    work = folder / _WORK
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    downloader = Resuming(work / f"{name}.part", download.size, download.checked, progress, pause)
    try:
        path = Path(pooch.retrieve(url, download.sha256, name, work, downloader=downloader))
    except EdgernnError:
        raise
    except ValueError as error:
        raise EdgernnError(f"{url}: {error}") from None
    try:
        found = _place(url, path, download, folder)
    except EdgernnError:
        # it would not be better the next time
        path.unlink()
        raise
    path.unlink()
    return found


def _place(url: str, path: Path, download: Download, folder: Path) -> list[dict[str, Any]]:
    """Unpack and check what came beside its place, then move it there."""
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        staged = Path(name)
        unpack(path, download.gives, staged)
        known = _record(folder)
        found = [_check(staged / file.name, file, known, url) for file in download.gives if not file.name.endswith("/")]
        new = {
            entry["file"]: {"url": url, "bytes": entry["bytes"], "sha256": entry["sha256"]}
            for entry in found
            if not entry["known"] and download.sha256 is None
        }
        if new:
            write_json(folder / RECORD, known | new)
        for file in download.gives:
            (staged / file.name).replace(folder / file.name)
    return found


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    record = read_json(path) if path.exists() else {}
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        raise EdgernnError(f"{path}: expected the sums of fetched files, got something else")
    return record


def _check(path: Path, file: File, known: dict[str, Any] | None = None, url: str | None = None) -> dict[str, Any]:
    """Size and sum of what a file unpacks to. Raises EdgernnError where they are not those that are known.

    known: sums of files whose sum is in no table, else those beside the file. url: where it has come from just now.
    """
    first = (_record(path.parent) if known is None else known).get(file.name, {})
    expected = file.sha256 or first.get("sha256")
    size, digest = 0, hashlib.sha256()
    with opened(path) as stream:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
    got = digest.hexdigest()
    if expected not in (None, got) or file.size not in (None, size):
        wanted = [f"SHA-256 {expected}"] if expected else []
        wanted += [f"{file.size:,} bytes"] if file.size is not None else []
        origin = "" if file.sha256 or not expected else f", as {RECORD} says of the first that came"
        hint = "" if url else "; move it away to fetch it anew"
        text = f"expected {' and '.join(wanted)}{origin}, got SHA-256 {got} and {size:,} bytes{hint}"
        raise EdgernnError(f"{url or path}: {file.name}: {text}")
    return {"file": path.name, "bytes": size, "sha256": got, "known": expected is not None}
