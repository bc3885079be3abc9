# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: files are whole, temporary files of killed processes are removed, and those of others are kept."""

import io
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.byte_source import read_all, take
from edgernn.cell_files import KEPT, load_cell
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.streaming.stream_file import stream_file
from edgernn.files import CONFIG, output_file, read_json, replacing, write_text
from edgernn.locks import hold_file
from edgernn.model import SequenceModel
from edgernn.npz import read_npy, read_npz
from edgernn.runtime.describe import describe_file
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_file import read
from edgernn.runtime.wav import read_wav
from edgernn.store import WEIGHTS, load_model, load_weights, read_config, read_tensors
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.evaluate_model import evaluate_model
from edgernn.training.papers.recipe import load_recipe
from edgernn.training.run_directory import METRICS, STATE, RunDirectory
from edgernn.training.tables.toml_settings import read_toml
from edgernn.training.tasks import find_task
from tests.source_tree import ROOT
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL_FILES = {"a FIFO": os.mkfifo, "a socket": make_socket, "a folder": os.mkdir}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_what_is_not_a_regular_file_is_not_replaced(tmp_path, monkeypatch, kind):
    # the path of a socket is short
    monkeypatch.chdir(tmp_path)
    SPECIAL_FILES[kind]("special")
    (tmp_path / "link").symlink_to("special")
    before = os.lstat("special")
    for name in ("special", "link"):
        message = f"--out: expected a regular file or a new one, got {kind}, {tmp_path / name}; give another name"
        with pytest.raises(UsageError, match=message):
            write_text(tmp_path / name, "text")
        with pytest.raises(UsageError, match=message), hold_file(tmp_path / name):
            pass
    after = os.lstat("special")
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "special"]


READERS = [
    read_json,
    read,
    read_tensors,
    read_all,
    lambda path: read_npz(path, ("x",)),
    read_npy,
    read_toml,
    lambda path: read_wav(path, 8),
]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device")
def test_a_file_without_an_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for kind, target in (("a FIFO", "fifo"), ("a device", "/dev/zero"), ("a folder", ".")):
        link = tmp_path / f"{kind}.csv"
        link.symlink_to(target)
        for reader in READERS:
            with pytest.raises(
                EdgernnError, match=f"^{link}: expected an? [^ ]* ?file, got {kind}; give a regular file$"
            ):
                reader(link)
    with pytest.raises(EdgernnError, match="fifo: expected a model file, got a FIFO"):
        read_model(tmp_path / "fifo")


@pytest.mark.parametrize(
    "path", ["m" * 300, "m/" * 2500, "m\0.onnx", "cycle", "cycle/m", "\ud800"], ids=lambda path: ascii(path[:8])
)
def test_a_path_that_no_file_can_have_is_refused_in_a_sentence(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cycle").symlink_to("cycle")
    file = Path(path)
    readers = [
        lambda: edgernn.runtime.Session(path),
        lambda: edgernn.runtime.NetworkSession(path),
        lambda: describe_file(file),
        lambda: pack_file(file, tmp_path / "m.edgernn"),
        lambda: calibrate_file(file, file),
        lambda: stream_file(file),
        lambda: evaluate_model(file),
        lambda: output_file(file),
        lambda: find_task(path),
        lambda: load_model(file),
        lambda: load_recipe(f"{path}/m.toml:a"),
        *(lambda read=read: read(file) for read in READERS),
    ]
    for reader in readers:
        with pytest.raises(EdgernnError, match="expected the path of a file, got"):
            reader()


@pytest.mark.parametrize("name", [METRICS, STATE, CONFIG, WEIGHTS, KEPT])
def test_a_fifo_in_a_run_directory_is_not_read(tmp_path, name):
    model = SequenceModel("gru", 2, 4, 1)
    run = RunDirectory(tmp_path)
    readers = {
        METRICS: run.metrics,
        STATE: lambda: run.load(model, torch.optim.SGD(model.parameters()), "cpu"),
        CONFIG: lambda: read_config(tmp_path),
        WEIGHTS: lambda: load_weights(model, tmp_path),
        KEPT: lambda: load_cell(f"{tmp_path / KEPT}:Mine"),
    }
    os.mkfifo(tmp_path / name)
    with pytest.raises(EdgernnError, match=f"{tmp_path / name}: expected a .*, got a FIFO; give a regular file"):
        readers[name]()


def test_a_device_is_not_replaced():
    with pytest.raises(UsageError, match="got a device, /dev/null"):
        output_file(Path("/dev/null"))


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name in ("old", "new"):
        (tmp_path / f"{name}.json").symlink_to(f"elsewhere/{name}.json")
    (tmp_path / "elsewhere/old.json").write_text("old")
    for name in ("old", "new"):
        with hold_file(tmp_path / f"{name}.json"):
            write_text(tmp_path / f"{name}.json", "text")
        assert (tmp_path / f"{name}.json").is_symlink()
        assert (tmp_path / f"elsewhere/{name}.json").read_text() == "text"
    assert not leftovers(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("link", "command"),
    [
        ("model.edgernn", ["pack", "model.onnx"]),
        ("model", ["pack", "model.onnx", "--target", "c"]),
        ("bench.json", ["bench", "model.onnx"]),
        ("model-delta.onnx", ["calibrate", "model.onnx", "--data", "x.npz"]),
    ],
)
def test_a_link_where_no_output_was_named_is_refused(link, command, tmp_path, monkeypatch, capsys):
    """A folder of somebody else may hold such links, with or without a config.json."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "models" / "adding-sarnn" / "model.onnx", "model.onnx")
    np.savez("x.npz", x=np.zeros((5, 2, 2), np.float32), y=np.zeros((2, 1), np.float32))
    Path("mine").mkdir()
    Path("mine/precious").write_text("text")
    Path(link).symlink_to("mine" if link == "model" else "mine/precious")
    assert main(command) == 2
    assert f"{link}: expected a new or regular file or folder, got a link" in capsys.readouterr().err
    assert [path.name for path in Path("mine").iterdir()] == ["precious"]
    assert Path("mine/precious").read_text() == "text"


def test_arrays_that_do_not_fit_in_memory_are_refused(tmp_path, monkeypatch):
    # a machine of 10 pages of 1,000 bytes
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 1_000}.get)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(9_000, np.int8), y=np.zeros(2_000, np.int8))
    np.save(tmp_path / "y.npy", np.zeros(11_000, np.int8))
    assert read(tmp_path / "x.npz").shape == (9_000,)
    with pytest.raises(EdgernnError, match=r"x\.npz: y: expected at most 1000 bytes, got 2000 bytes .*; split the"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(EdgernnError, match=r"y\.npy: expected at most 10000 bytes, got 11000 bytes"):
        read(tmp_path / "y.npy")


def test_the_header_of_an_array_is_compared_before_data_are_read(tmp_path, monkeypatch):
    content = io.BytesIO()
    np.save(content, np.zeros(4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content.getvalue() + bytes(10_000_000))
    read_sizes = []
    monkeypatch.setattr("edgernn.npz.take", lambda stream, size: read_sizes.append(size) or take(stream, size))
    with pytest.raises(EdgernnError, match=r"x\.npz: x: expected 32 bytes for float64 \(4,\), got 10000032 bytes"):
        read_npz(tmp_path / "x.npz")
    assert sum(read_sizes) < 200


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_replaced_file_keeps_its_permissions_and_a_new_one_has_those_of_the_umask(tmp_path, mode):
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(mode)
    umask = os.umask(0o027)
    try:
        for name in ("old", "new"):
            write_text(tmp_path / name, "text")
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")]
    assert modes == [mode, 0o640]


def test_an_input_is_not_replaced_by_any_spelling_of_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.csv").write_text("1,2\n")
    (tmp_path / "link.csv").symlink_to("x.csv")
    (tmp_path / "hard.csv").hardlink_to("x.csv")
    (tmp_path / "here").symlink_to(".")
    for name in ("x.csv", tmp_path / "x.csv", "folder/../x.csv", "link.csv", "hard.csv", "here/x.csv"):
        with pytest.raises(UsageError, match=r"--output: expected a file other than the input x\.csv, got"):
            output_file(Path(name), Path("missing"), Path("x.csv"), option="--output")
    assert output_file(Path("here/y.csv"), Path("x.csv")) == tmp_path / "y.csv"


def test_a_link_out_of_a_run_directory_is_not_followed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / CONFIG).write_text("{}")
    (tmp_path / "precious").write_text("old")
    (run / "result.json").symlink_to("../precious")
    (run / "inside.json").symlink_to("other.json")
    with pytest.raises(UsageError, match=r"result\.json: expected a file in the run directory, got a link to"):
        write_text(run / "result.json", "new")
    write_text(run / "inside.json", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (run / "other.json").read_text() == "new"


def test_a_file_that_cannot_be_made_is_named_instead_of_its_temporary_file(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path / ".x.12345678"))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(PermissionError) as raised:
        write_text(tmp_path / "x", "text")
    assert raised.value.filename == str(tmp_path / "x")


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
    message = "expected an array in the npy format, got a corrupt header"
    with pytest.raises(EdgernnError, match=rf"x\.npy: {message}"):
        read(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(EdgernnError, match=rf"x\.npz: x: {message}"):
        read(tmp_path / "x.npz")


def test_a_byte_order_mark_before_toml_is_read(tmp_path):
    (tmp_path / "x.toml").write_text("seeds = 2\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "x.toml") == {"seeds": 2}


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
