# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: files are whole, temporary files of killed processes are removed, and those of others are kept."""

import os
import signal
import subprocess
import sys
import wave
import zipfile

import numpy as np
import pytest

from edgernn.errors import EdgernnError
from edgernn.files import read_arrays, read_json, replacing, write_text
from edgernn.runtime.run_file import read
from edgernn.runtime.wav import read_wav
from edgernn.training.toml_settings import read_toml
from tests.training_helpers import leftovers

WRITE = """
import sys, time
from pathlib import Path
from edgernn.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is writing the file m.onnx."""
    words = [sys.executable, "-c", WRITE, tmp_path / "m.onnx"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    yield process
    process.kill()
    process.communicate()


def test_a_killed_writer_leaves_a_file_that_the_next_one_removes(writer, tmp_path):
    (tmp_path / "m.onnx").write_text("old")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(leftovers(tmp_path)) == 1
    assert (tmp_path / "m.onnx").read_text() == "old"
    # files of other names are kept
    others = [".m.onnx.lock", ".m.onnx.12345678.md", ".other.onnx.12345678.onnx"]
    for name in others:
        (tmp_path / name).write_text("")
    write_text(tmp_path / "m.onnx", "new")
    assert sorted(leftovers(tmp_path)) == sorted(others)
    assert (tmp_path / "m.onnx").read_text() == "new"


def test_the_file_of_a_living_writer_is_kept(writer, tmp_path):
    write_text(tmp_path / "m.onnx", "new")
    assert len(leftovers(tmp_path)) == 1
    writer.communicate()
    assert writer.returncode == 0
    assert (tmp_path / "m.onnx").read_text() == "half"
    assert not leftovers(tmp_path)


def test_an_error_is_not_hidden_by_a_folder_that_became_read_only(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(RuntimeError, match="first"), replacing(tmp_path / "x"):
        raise RuntimeError("first")


HOSTILE_TEXTS = ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\xff\xfe"]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=["brackets", "braces", "digits", "latin"])
def test_hostile_texts_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(EdgernnError, match=r"x\.json: expected a JSON file"):
        read_json(path)
    path.write_bytes(f"a = {text}".encode("latin-1"))
    with pytest.raises(EdgernnError, match=r"x\.json: expected valid TOML"):
        read_toml(path)


@pytest.mark.parametrize(
    "header", ["{'descr': '<f8', 'shape': (6{ 3), }", "{'descr': '<f8', 'shape': (2,), ", "\0", "9" * 9999]
)
def test_a_damaged_array_is_refused(tmp_path, header):
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(EdgernnError, match=r"x\.npy: cannot be read"):
        read(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(EdgernnError, match=r"x\.npz: expected an npz file"):
        read_arrays(tmp_path / "x.npz", ("x",))


def test_an_array_larger_than_memory_is_refused(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(EdgernnError, match=r"x\.npy: cannot be read"):
        read(tmp_path / "x.npy")


def test_a_wav_chunk_that_ends_after_the_file_is_refused(tmp_path):
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.zeros(50, np.int16).tobytes())
    content = bytearray((tmp_path / "x.wav").read_bytes())
    # the chunk of samples becomes an unknown one of almost the file's claimed size
    content[36:44] = b"JUNK" + (2**31).to_bytes(4, "little")
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(EdgernnError, match=r"x\.wav: expected a wav file with 16-bit PCM samples"):
        read_wav(tmp_path / "x.wav", 16_000)
