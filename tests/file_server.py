# SPDX-License-Identifier: Apache-2.0
"""A file server on loopback that can cut connections, and data sets that download from it."""

import contextlib
import hashlib
import http.server
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from edgernn.training.datasets import SETS, DataSet, Download, File

CONTENT = np.random.default_rng(0).bytes(300_000)
CUT = 100_000


def sha(content):
    return hashlib.sha256(content).hexdigest()


SUM, SIZE = sha(CONTENT), len(CONTENT)


class Files(http.server.BaseHTTPRequestHandler):
    """Serves `files` by path and records each request.

    cuts: Number of responses that still end after CUT bytes. interrupts: Send SIGINT after CUT bytes. ranges: Support
    range requests.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.seen.append((self.path, asked))
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        # the client may have disconnected
        with contextlib.suppress(ConnectionError):
            self.send(content[start:])

    def send(self, content):
        if self.server.interrupts:
            self.wfile.write(content[:CUT])
            time.sleep(0.2)
            # the client is waiting for more data
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        elif self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(content[:CUT])
            self.close_connection = True
        else:
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as files:
        files.files, files.seen, files.cuts, files.ranges, files.interrupts = {}, [], 0, True, False
        files.url = f"http://127.0.0.1:{files.server_port}"
        files.daemon_threads = True
        thread = threading.Thread(target=files.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield files
        files.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache folder, and no data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    return tmp_path / "home" / "edgernn"


def register_data_set(monkeypatch, *downloads, forms=None, **options):
    """Register the downloads as the data set "small"."""
    forms = forms or (tuple(file.name for download in downloads for file in download.gives),)
    data_set = DataSet("Small", "here", "none", (), "small", forms, downloads, **options)
    monkeypatch.setitem(SETS, "small", data_set)


def plain(server, sha256=SUM, name="f.bin", size=SIZE):
    server.files.setdefault(f"/{name}", CONTENT)
    return Download((f"{server.url}/{name}",), (File(name, size, sha256),), size, sha256)
