# SPDX-License-Identifier: Apache-2.0
"""Download and verification of data sets."""

import hashlib
import os
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgernn.byte_source import opened
from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import read_json, write_json
from edgernn.locks import LOCK, hold
from edgernn.progress import Progress, Silent
from edgernn.training.datasets.download import Resuming
from edgernn.training.datasets.find import VARIABLE, cache_folder, locate
from edgernn.training.datasets.registry import SETS, DataSet, Download, File
from edgernn.training.datasets.unpack import unpack

# file in a set's folder with the checksums of downloaded files that are not in the registry, to notice later changes
RECORD = "fetched.json"
_WORK = ".fetch"
_CHUNK = 1 << 20


def find_set(name: str) -> DataSet:
    """Look up a data set by name, or raise UsageError with the nearest known name."""
    if name not in SETS:
        raise nearest("data set", name, SETS)
    return SETS[name]


def fetch(name: str, data: Path | None = None, progress: Progress | None = None, pause: float = 1.0) -> dict[str, Any]:
    """Download a data set, or verify it if its files exist.

    The files of a set that must be unpacked by hand are verified as well, as far as their checksums are known. Files
    inside folders that a set names, such as recordings, are not. Files of a set that can be downloaded count in the
    data folder itself, outside the set's folder, only if they have a known checksum.

    If the connection breaks, the download is resumed automatically a few times. After that, or after an interruption,
    the next call resumes it. A file without a known checksum is downloaded from its beginning instead.

    Args:
        name: Name of the data set.
        data: The user's data folder. Default: the environment variable EDGERNN_DATA, or the user's cache if it is not
            set.
        progress: Progress bar. Default: none.
        pause: Seconds to wait after a broken connection, before the next attempt.

    Returns:
        A dict with name, the name of the data set; folder, the path of its folder; fetched, true if files were
        downloaded; cache, true if the folder is in the user's cache; files, a list with a dict for each file; and
        folders, a list of the names of existing folders, whose files are not verified. The dict of a file has the keys
        file (its name), bytes (its unpacked size), sha256 (of its unpacked content), and known (true if there was a
        checksum to compare).

    Raises:
        UsageError: The name is unknown, or another process downloads this data set.
        EdgernnError: The set cannot be downloaded, or a file is corrupt or has another checksum.
        OSError: The disk is full.
    """
    data_set, progress = find_set(name), progress or Silent()
    root = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    folder = (root or cache_folder()) / data_set.folder
    existing = _existing_files(data_set, folder, root)
    if existing is None and not data_set.downloads:
        wanted = " or ".join(", ".join(form) for form in data_set.forms)
        raise EdgernnError(f"{name} cannot be downloaded: {data_set.agreement}; put {wanted} into {folder}")
    if existing is None:
        with _work_folder(folder):
            files = [
                file
                for download in data_set.downloads
                for file in _fetch_or_check(download, folder, root, progress, pause)
            ]
    else:
        files = [_check(path, file) for file, path in existing if path.is_file()]
        if (folder / _WORK).is_dir():
            # a kill after the last file was in place left it
            with suppress(UsageError, OSError), _work_folder(folder):
                pass
    return {
        "name": name,
        "folder": str(folder),
        "fetched": existing is None,
        "cache": root is None,
        "files": files,
        "folders": [file.name for file, path in existing or () if path.is_dir()],
    }


@contextmanager
def _work_folder(folder: Path) -> Iterator[None]:
    """Create and lock a folder for the partial downloads of a data set, as a context manager."""
    work = folder / _WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        with hold(work / LOCK, folder, option="--data"):
            yield
            shutil.rmtree(work, ignore_errors=True)
    finally:
        for created in (work, folder):
            # rmdir removes a folder only if it is empty
            with suppress(OSError):
                created.rmdir()


def _existing_files(data_set: DataSet, folder: Path, root: Path | None) -> list[tuple[File, Path]] | None:
    """Find the files of a data set; return None if no form of the data set is complete."""
    downloaded = {file.name for download in data_set.downloads for file in download.gives}
    for form in data_set.forms:
        if data_set.downloads:
            paths = _locate([data_set.files[name] for name in form], folder, root)
        else:
            paths = locate(form, [folder, root] if root else [folder])
        if None not in paths:
            return [(data_set.files[name], path) for name, path in zip(form, paths, strict=True) if path]
        if set(form) == downloaded:
            break
    return None


def _locate(files: Sequence[File], folder: Path, root: Path | None) -> list[Path | None]:
    paths = locate([file.name for file in files], [folder])
    for i, file in enumerate(files):
        if paths[i] is None and root is not None and file.sha256 is not None:
            (path,) = locate([file.name], [root])
            if path is not None and _matches(path, file):
                paths[i] = path
    return paths


def _matches(path: Path, file: File) -> bool:
    try:
        _check(path, file, {})
    except EdgernnError:
        return False
    return True


def _fetch_or_check(
    download: Download, folder: Path, root: Path | None, progress: Progress, pause: float
) -> list[dict[str, Any]]:
    """Verify the files of a download if they exist, else download them from the first URL that works."""
    paths = _locate(download.gives, folder, root)
    if None not in paths:
        return [_check(path, file) for file, path in zip(download.gives, paths, strict=True) if path and path.is_file()]
    *others, last = download.urls
    for url in others:
        try:
            return _download(url, download, folder, progress, pause)
        except EdgernnError as error:
            progress.note(f"{error}; trying the next URL")
    return _download(last, download, folder, progress, pause)


def _download(url: str, download: Download, folder: Path, progress: Progress, pause: float) -> list[dict[str, Any]]:
    import pooch

    # its log lines would repeat the progress
    pooch.get_logger().setLevel("WARNING")
    work = folder / _WORK
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    downloader = Resuming(work / f"{name}.part", download.size, download.checked, progress, pause)
    try:
        path = Path(pooch.retrieve(url, download.sha256, name, work, downloader=downloader))
    except EdgernnError:
        raise
    except ValueError as error:
        raise EdgernnError(f"{url}: the download failed; try again, or download it by hand: {error}") from None
    try:
        files = _install(url, path, download, folder)
    except EdgernnError:
        # do not try the invalid file again
        path.unlink()
        raise
    path.unlink()
    return files


def _install(url: str, path: Path, download: Download, folder: Path) -> list[dict[str, Any]]:
    """Unpack and verify a download in a temporary folder, then move its files to the folder of the data set."""
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        staged = Path(name)
        unpack(path, download.gives, staged)
        known = _record(folder)
        files = [_check(staged / file.name, file, known, url) for file in download.gives if not file.name.endswith("/")]
        new = {
            entry["file"]: {"url": url, "bytes": entry["bytes"], "sha256": entry["sha256"]}
            for entry in files
            if not entry["known"] and download.sha256 is None
        }
        if new:
            write_json(folder / RECORD, known | new)
        for file in download.gives:
            (staged / file.name).replace(folder / file.name)
    return files


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    record = read_json(path) if path.exists() else {}
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        raise EdgernnError(
            f"{path}: expected a JSON object from file names to checksums, got another value; remove the file"
        )
    return record


def _check(path: Path, file: File, known: dict[str, Any] | None = None, url: str | None = None) -> dict[str, Any]:
    """Verify a file's unpacked content, or raise EdgernnError if its size or checksum is not the expected one."""
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
        origin = "" if file.sha256 or not expected else f", recorded in {RECORD} at the first download"
        hint = "; download it by hand" if url else "; move the file away and get it again"
        raise EdgernnError(
            f"{url or path}: {file.name}: expected {' and '.join(wanted)}{origin}, got SHA-256 {got} and {size:,} bytes"
            f"{hint}"
        )
    return {"file": path.name, "bytes": size, "sha256": got, "known": expected is not None}
