# SPDX-License-Identifier: Apache-2.0
"""Concurrent commands that write to the same place: the second one is refused, in separate processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.zoo_entry import add_model
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.locks import LOCK, hold_file, hold_folder
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.papers import recipe
from tests.test_calibrate_file import data, operator
from tests.training_helpers import SMALL, command_line, wait_until, without_pictures, words

HOLD = """
import sys, time
from pathlib import Path
from edgernn import locks
with getattr(locks, sys.argv[1])(Path(sys.argv[2])):
    print("inside", flush=True)
    time.sleep(60)
"""
ENDLESS = ["--task", "adding", "--cell", "gru", *words(SMALL), "steps=1000000", "eval_every=1"]
TABLE = """
title = "T"
paper = "P"
columns = ["mse"]
seeds = 1
settings = { T = 10, hidden_size = 8, batch_size = 10, steps = 1000000, eval_every = 1 }
[rows.gru]
task = "adding"
cell = "gru"
"""
# a table defined by the test, run from the command line
REPRODUCE = """
import sys
from pathlib import Path
from edgernn.cli.frame import main
from edgernn.training.papers import recipe
recipe.RECIPES = Path("recipes")
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def wait_for(path, process):
    wait_until(lambda: (path.exists() and path.stat().st_size) or process.poll() is not None)
    assert path.exists(), process.poll()


def ended(process):
    out, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    return process.returncode, out, error


def refusal(words, capsys):
    """Run a command that writes to a place in use, and return the error with which it ends."""
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error


@pytest.mark.parametrize(("holder", "hold"), [("hold_folder", hold_folder), ("hold_file", hold_file)])
@pytest.mark.slow
def test_a_place_is_held_by_one_process_and_let_go_by_a_kill(tmp_path, holder, hold):
    place = tmp_path / "place"
    process = subprocess.Popen([sys.executable, "-c", HOLD, holder, place], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"inside\n"
    output = rf"place: in use by process {process.pid} on {socket.gethostname()}; wait until it ends, or name another"
    with pytest.raises(UsageError, match=output), hold(place):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with hold(place):
        (lock,) = tmp_path.rglob(f"*{LOCK}")
        assert lock.read_text() == f"{os.getpid()} on {socket.gethostname()}"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_waited_for(tmp_path):
    with hold_folder(tmp_path / "place"):
        begun = time.monotonic()
        with pytest.raises(UsageError, match="in use"), hold_folder(tmp_path / "place", seconds=0.3):
            pass
        assert time.monotonic() - begun >= 0.3


def test_a_file_where_a_folder_is_wanted_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(UsageError, match=f"out: {place} is not a directory; name another one with --out"):
            train("adding", "gru", out=place, settings={**SMALL, "steps": 1})


@pytest.mark.slow
def test_a_second_training_is_refused_and_the_first_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = command_line("train", *ENDLESS, "--out", "run")
    try:
        wait_for(tmp_path / "run/metrics.jsonl", first)
        for more in ([], ["--resume"]):
            error = refusal(["train", *ENDLESS, "--out", "run", *more], capsys)
            assert f"edgernn: error: run: in use by process {first.pid} on " in error
            assert error.count("\n") == 1
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
        assert ended(first)[0] == 130
    assert not (tmp_path / "run" / LOCK).exists()
    step = json.loads((tmp_path / "run/state.json").read_text())["step"]
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == step


def assert_interrupted(process):
    """Interrupt a command that trains in workers, and assert that it saved and said so."""
    # only the command receives the signal, and it stops its workers
    process.send_signal(signal.SIGTERM)
    status, _, error = ended(process)
    assert status == 128 + signal.SIGTERM
    assert error.endswith(
        "edgernn: interrupted; the running trainings are saved; run the same command again to resume\n"
    )


@pytest.mark.slow
def test_a_second_table_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe, "RECIPES", tmp_path / "recipes")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/t.toml").write_text(TABLE)
    (tmp_path / "main.py").write_text(REPRODUCE)
    words = ["reproduce", "t", "--jobs", "1"]
    first = subprocess.Popen(
        [sys.executable, "main.py", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(tmp_path / "runs/t/gru-seed0/metrics.jsonl", first)
        assert f"edgernn: error: runs/t: in use by process {first.pid} on " in refusal(words, capsys)
    finally:
        assert_interrupted(first)
    assert json.loads((tmp_path / "runs/t/gru-seed0/state.json").read_text())["step"] > 0
    assert not list(tmp_path.rglob(LOCK))


# writers of a model file or a folder of the zoo, with the inputs of `inputs`
WRITERS = {
    "calibrate a run": lambda inputs, out: calibrate(inputs / "run", out),
    "calibrate a file": lambda inputs, out: calibrate_file(inputs / "gru.onnx", inputs / "gru.npz", out),
    "an entry of the zoo": lambda inputs, out: add_model(inputs / "run", out.name, out.parent),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        train("adding", "gru", out=folder / "run", settings={**SMALL, "steps": 1, "test_size": 60})
    (folder / "gru.onnx").write_bytes(operator("GRU", initial=False, linear_before_reset=1).SerializeToString())
    np.savez(folder / "gru.npz", **data(steps=40))
    return folder


def test_a_second_export_is_refused(inputs, monkeypatch, capsys):
    monkeypatch.chdir(inputs)
    with hold_file(inputs / "run/model.onnx"):
        assert f"run/model.onnx: in use by process {os.getpid()} on " in refusal(["export", "run"], capsys)
    assert not (inputs / "run/model.onnx").exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_second_writer_of_a_model_is_refused(inputs, writer, tmp_path):
    out = tmp_path / "out"
    with hold_file(out), pytest.raises(UsageError, match=f"out: in use by process {os.getpid()} on "):
        WRITERS[writer](inputs, out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
def test_a_folder_that_takes_no_files_is_not_in_use():
    message = r"^/proc/m\.onnx: no file can be written there; name another place"
    with pytest.raises(EdgernnError, match=message), hold_file(Path("/proc/m.onnx")):
        pass
