# SPDX-License-Identifier: Apache-2.0
"""Downloader for pooch that resumes interrupted downloads.

The bytes received so far are kept in NAME.part, and their source in NAME.part.json. The remaining bytes are requested
with the HTTP header If-Range: if the file on the server has changed, the server sends the whole file instead. If-Range
needs an ETag or a date from the server. Without them, a download is resumed only if the file's checksum is known,
because the checksum detects a mix of two versions of the file.
"""

import errno
import http.client
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgernn
from edgernn.byte_source import LIMIT
from edgernn.errors import EdgernnError
from edgernn.files import FULL, read_json, write_json
from edgernn.progress import Progress
from edgernn.signals import Interrupted, number_of

_CHUNK = 1 << 18
_TIMEOUT = 30.0
# tries before a broken connection is an error
_ATTEMPTS = 4
_BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)


@dataclass
class _RemoteFile:
    """The file on a server that a partial download came from: URL, size in bytes, and `mark`.

    The mark identifies the version of the file: its ETag, or else the date of its last change. Size and mark are None
    if the server does not send them.
    """

    url: str
    size: int | None = None
    mark: str | None = None


class Resuming:
    """Downloader of one file, called by pooch with a URL and the path to save to.

    A call raises EdgernnError if the server has no such file, if the file's size is not `size`, or if the connection
    keeps breaking, and OSError if the disk is full. The bytes received are kept for the next call.

    Args:
        part: Path of the partial download.
        size: Size of the file in bytes; None if unknown.
        checked: True if the file's checksum is known. Only then can a partial download without an ETag or date be
            resumed.
        progress: Progress bar.
        pause: Seconds to wait after a broken connection, before the next attempt.
    """

    def __init__(self, part: Path, size: int | None, checked: bool, progress: Progress, pause: float = 1.0) -> None:
        self.part, self.size, self.checked, self.progress, self.pause = part, size, checked, progress, pause
        self._notes = part.with_name(part.name + ".json")

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        try:
            self._download(url)
        except KeyboardInterrupt as stop:
            raise Interrupted.by(number_of(stop), f"interrupted; {self._status()}") from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            full = OSError(error.errno, error.strerror, str(self.part))
            full.add_note(f"free some space; {self._status()}")
            raise full from None
        finally:
            self.progress.close()
        self.part.replace(output_file)
        self._notes.unlink(missing_ok=True)

    def _status(self) -> str:
        have = self._received()
        if not have:
            return "no bytes were received; try again"
        return f"{have:,} bytes are kept, and the same command resumes from there"

    def _received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _download(self, url: str) -> None:
        for attempt in range(_ATTEMPTS):
            before = self._received()
            try:
                self._attempt(url)
                return
            except urllib.error.HTTPError as error:
                with error:
                    raise EdgernnError(
                        f"{url}: expected the file, got {error.code} {error.reason}; download it by hand"
                    ) from None
            except _BROKEN as error:
                reason = getattr(error, "reason", None) or error
                # without progress since the last try, give up
                if attempt == _ATTEMPTS - 1 or (attempt and self._received() <= before):
                    raise EdgernnError(f"{url}: the connection broke ({reason}); {self._status()}") from None
                time.sleep(self.pause)

    def _attempt(self, url: str) -> None:
        source, have = self._read_source(url), self._received()
        if have and have == source.size and source.url == url:
            return
        request = urllib.request.Request(url, headers={"User-Agent": f"edgernn/{edgernn.__version__}"})
        if have:
            request.add_header("Range", f"bytes={have}-")
            if source.mark and source.url == url:
                request.add_header("If-Range", source.mark)
        try:
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            # the file on the server has changed since the part was downloaded
            error.close()
            self._delete_part()
            raise ConnectionError(
                "the file has changed on the server since the download began; the next attempt starts from byte 0"
            ) from None
        with answer:
            start, total = self._start_and_size(answer, have)
            if start and source.url == url and source.mark not in (None, _version(answer)):
                self._delete_part()
                raise ConnectionError(
                    "the file has changed on the server since the download began; the next attempt starts from byte 0"
                )
            self._check_size(url, total)
            if start == 0:
                self._delete_part()
            self._check_space((total or 0) - start)
            write_json(self._notes, {"url": url, "size": total, "mark": _version(answer)})
            self._copy(url, answer, start, total)

    def _read_source(self, url: str) -> _RemoteFile:
        """Return the file on the server that the partial download came from, as stored in NAME.part.json."""
        try:
            source = _RemoteFile(**read_json(self._notes))
        except (EdgernnError, TypeError):
            source = _RemoteFile("")
        same = source.url == url and source.mark is not None
        if not (same or self.checked) or self._received() > (source.size or LIMIT):
            self._delete_part()
            return _RemoteFile("")
        return source

    def _delete_part(self) -> None:
        for path in (self.part, self._notes):
            path.unlink(missing_ok=True)

    def _start_and_size(self, answer: Any, have: int) -> tuple[int, int | None]:
        """Return the byte offset in the file at which the server's answer starts, and the file's size in bytes."""
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
            if not span or int(span[1]) != have:
                self._delete_part()
                raise ConnectionError(
                    f"expected the rest of the file from byte {have:,} on, got {answer.headers.get('Content-Range')}; "
                    "the next attempt starts from byte 0"
                )
            return have, None if span[2] == "*" else int(span[2])
        # a server without ranges, or with another version, sends the whole file
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isascii() and length.isdigit() else None

    def _check_size(self, url: str, total: int | None) -> None:
        if total is None:
            return
        if self.size is not None and total != self.size:
            raise EdgernnError(
                f"{url}: expected a file of {self.size:,} bytes, got one of {total:,}: the file has changed on the "
                "server; report it to the authors of edgernn"
            )
        if total > LIMIT:
            raise EdgernnError(
                f"{url}: expected a file of at most {LIMIT:,} bytes, got one of {total:,}; download it by hand"
            )

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.part.parent).free
        if free < needed:
            raise OSError(
                errno.ENOSPC,
                f"expected {needed:,} bytes of free space, got {free:,}; make space on this disk",
                str(self.part.parent),
            )

    def _copy(self, url: str, answer: Any, start: int, total: int | None) -> None:
        have, whole = start, self.size if total is None else total
        most = LIMIT if whole is None else whole
        size = "?" if whole is None else f"{whole:,}"
        line = f"{url}: {size} bytes" + (f", from byte {start:,} on" if start else "")
        self.progress.begin(url.rpartition("/")[2], whole, start, line=line, in_bytes=True)
        with self.part.open("ab") as file:
            while chunk := answer.read1(_CHUNK):
                have += len(chunk)
                if have > most:
                    raise EdgernnError(
                        f"{url}: expected at most {most:,} bytes, got more: the file has changed on the server; "
                        "report it to the authors of edgernn"
                    )
                file.write(chunk)
                self.progress.update(have, f"{have:,} of {size} bytes")
        if whole is not None and have < whole:
            raise ConnectionError(f"the download ended after {have:,} of {whole:,} bytes")


def _version(answer: Any) -> str | None:
    """Return an identifier of the file's version on the server: a strong ETag, else the date of the last change."""
    tag: str = answer.headers.get("ETag", "")
    date: str | None = answer.headers.get("Last-Modified")
    return tag if tag.startswith('"') else date
