# SPDX-License-Identifier: Apache-2.0
"""Downloader for pooch that resumes interrupted downloads.

The bytes received so far are kept in NAME.part. Only a file with a known checksum is resumed: the checksum detects a
mix of two versions of the file.
"""

import errno
import http.client
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import edgernn
from edgernn.byte_source import LIMIT
from edgernn.errors import EdgernnError
from edgernn.files import FULL
from edgernn.progress import Progress
from edgernn.signals import Interrupted, number_of

_CHUNK = 1 << 18
_TIMEOUT = 30.0
# tries before a broken connection is an error
_ATTEMPTS = 4
_BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)


class Resuming:
    """Downloader of one file, called by pooch with a URL and the path to save to.

    A call raises EdgernnError if the server has no such file, if the file's size is not `size`, or if the connection
    keeps breaking, and OSError if the disk is full. The bytes received are kept for the next call.

    Args:
        part: Path of the partial download.
        size: Size of the file in bytes; None if unknown.
        checked: True if the file's checksum is known. Only then is a partial download resumed.
        progress: Progress bar.
        pause: Seconds to wait after a broken connection, before the next attempt.
    """

    def __init__(self, part: Path, size: int | None, checked: bool, progress: Progress, pause: float = 1.0) -> None:
        self.part, self.size, self.checked, self.progress, self.pause = part, size, checked, progress, pause

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

    def _status(self) -> str:
        have = self._received()
        if not have or not self.checked:
            return "the same command starts again from byte 0" if have else "no bytes were received; try again"
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
        if not self.checked or self._received() > (self.size or LIMIT):
            self.part.unlink(missing_ok=True)
        have = self._received()
        if have and have == self.size:
            return
        request = urllib.request.Request(url, headers={"User-Agent": f"edgernn/{edgernn.__version__}"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()
            raise self._other_file(f"got a file of fewer bytes than the {have:,} received") from None
        with answer:
            start, total = self._start_and_size(answer, have)
            self._check_size(url, total)
            if start == 0:
                self.part.unlink(missing_ok=True)
            self._check_space((total or 0) - start)
            self._copy(url, answer, start, total)

    def _other_file(self, what: str) -> ConnectionError:
        """Delete the part, which is of another file; return the error of this attempt."""
        self.part.unlink(missing_ok=True)
        return ConnectionError(f"{what}; the next attempt starts from byte 0")

    def _start_and_size(self, answer: Any, have: int) -> tuple[int, int | None]:
        """Return the byte offset in the file at which the server's answer starts, and the file's size in bytes."""
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
            if not span or int(span[1]) != have:
                got = answer.headers.get("Content-Range")
                raise self._other_file(f"expected the rest of the file from byte {have:,} on, got {got}")
            return have, None if span[2] == "*" else int(span[2])
        # a server without ranges sends the whole file
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
