# SPDX-License-Identifier: Apache-2.0
"""A downloader for pooch that goes on where a cut download ended.

What has come lies in NAME.part, what is known of its source beside it in NAME.part.json. Bytes are added only to those
of the same file: the server is asked for the rest under the condition that the file has not changed since (If-Range).
Where it gives no means to say so, a part is used only if the sum of the whole is known, so that a mix is found out.
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
from edgernn.errors import EdgernnError
from edgernn.files import FULL, read_json, write_json
from edgernn.progress import Progress
from edgernn.signals import Interrupted, number_of
from edgernn.training.formats.byte_source import LIMIT

_CHUNK = 1 << 18
_TIMEOUT = 30.0
# a connection that breaks may do so a few times
_ATTEMPTS = 4
_BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)


@dataclass
class _RemoteFile:
    """What is known of the file of which a part has come: its address, size, and the mark of its version."""

    url: str
    size: int | None = None
    mark: str | None = None


class Resuming:
    """Downloads one file; called by pooch with the URL and the temporary path to leave it at.

    part: where what comes is kept until it is whole. size: what is known of the file's; checked: whether its sum is
    known. Raises EdgernnError where the server has no such file, or none of this size, or the connection stays broken;
    OSError where the disk is full. What has come of a right file is kept for the next call.
    """

    def __init__(self, part: Path, size: int | None, checked: bool, progress: Progress, pause: float = 1.0) -> None:
        self.part, self.size, self.checked, self.progress, self.pause = part, size, checked, progress, pause
        self._notes = part.with_name(part.name + ".json")

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        try:
            self._download(url)
        except KeyboardInterrupt as stop:
            raise Interrupted.by(number_of(stop), f"interrupted; {self._how_far()}") from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            full = OSError(error.errno, error.strerror, str(self.part))
            full.add_note(f"free some space; {self._how_far()}")
            raise full from None
        finally:
            self.progress.close()
        self.part.replace(output_file)
        self._notes.unlink(missing_ok=True)

    def _how_far(self) -> str:
        have = self._have()
        return f"{have:,} bytes are kept: the same command goes on from there" if have else "nothing came"

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _download(self, url: str) -> None:
        for attempt in range(_ATTEMPTS):
            before = self._have()
            try:
                self._attempt(url)
                return
            except urllib.error.HTTPError as error:
                with error:
                    raise EdgernnError(f"{url}: expected the file, got {error.code} {error.reason}") from None
            except _BROKEN as error:
                reason = getattr(error, "reason", None) or error
                # a server that gives nothing more will not do so at once
                if attempt == _ATTEMPTS - 1 or (attempt and self._have() <= before):
                    raise EdgernnError(f"{url}: the connection broke ({reason}); {self._how_far()}") from None
                time.sleep(self.pause)

    def _attempt(self, url: str) -> None:
        source, have = self._known(url), self._have()
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
            # the file is no longer the one of which a part has come
            error.close()
            self._forget()
            raise ConnectionError("the file has changed on the server") from None
        with answer:
            start, total = self._where(answer, have)
            if start and source.url == url and source.mark not in (None, _mark(answer)):
                self._forget()
                raise ConnectionError("the file has changed on the server")
            self._check_size(url, total)
            if start == 0:
                self._forget()
            self._check_space((total or 0) - start)
            write_json(self._notes, {"url": url, "size": total, "mark": _mark(answer)})
            self._copy(url, answer, start, total)

    def _known(self, url: str) -> _RemoteFile:
        """What is known of the part; forgets it where nothing says that the rest would belong to it."""
        try:
            notes = read_json(self._notes)
            source = _RemoteFile(**notes)
        except (EdgernnError, TypeError):
            source = _RemoteFile("")
        same = source.url == url and source.mark is not None
        if not (same or self.checked) or self._have() > (source.size or LIMIT):
            self._forget()
            return _RemoteFile("")
        return source

    def _forget(self) -> None:
        for path in (self.part, self._notes):
            path.unlink(missing_ok=True)

    def _where(self, answer: Any, have: int) -> tuple[int, int | None]:
        """Where in the file the answer starts, and how large the file is."""
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
            if not span or int(span[1]) != have:
                self._forget()
                raise ConnectionError(f"the server sent another range: {answer.headers.get('Content-Range')}")
            return have, None if span[2] == "*" else int(span[2])
        # a server that knows no ranges, or has another version by now, sends all of it
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isascii() and length.isdigit() else None

    def _check_size(self, url: str, total: int | None) -> None:
        if total is None:
            return
        if self.size is not None and total != self.size:
            raise EdgernnError(f"{url}: expected a file of {self.size:,} bytes, got one of {total:,}")
        if total > LIMIT:
            raise EdgernnError(f"{url}: expected a file of at most {LIMIT:,} bytes, got one of {total:,}")

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.part.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"expected {needed:,} bytes of free space, got {free:,}", str(self.part.parent))

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
                    raise EdgernnError(f"{url}: expected at most {most:,} bytes, got more")
                file.write(chunk)
                self.progress.update(have, f"{have:,} of {size} bytes")
        if whole is not None and have < whole:
            raise ConnectionError(f"after {have:,} of {whole:,} bytes")


def _mark(answer: Any) -> str | None:
    """What tells two versions of the file apart: a strong entity tag, else the date of the last change."""
    tag: str = answer.headers.get("ETag", "")
    date: str | None = answer.headers.get("Last-Modified")
    return tag if tag.startswith('"') else date
