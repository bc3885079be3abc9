# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped in any way and resumed ends like an uninterrupted one."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import edgernn.training
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.progress import Silent
from edgernn.training import Interrupted, train
from tests.training_helpers import SMALL, Stop, command_line, leftovers, snapshot, wait_until, words

pytestmark = pytest.mark.usefixtures("no_pictures")

SETTINGS = {**SMALL, "steps": 30, "eval_every": 4, "checkpoint_every": 3, "epoch_steps": 10}
# λ moves from step to step, and the best of the evaluations after the warm-up is kept
STEERED = {"skip": 0.8}


class Notes(Silent):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def run(out, resume=False, progress=None, **changes):
    return train("adding", "sarnn", out=out, resume=resume, progress=progress, settings={**SETTINGS, **changes})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return snapshot(out)


def stopped(out, at):
    with pytest.raises(RuntimeError, match="stopped by the test"):
        run(out, progress=Stop(at))


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    out = tmp_path_factory.mktemp("steered") / "run"
    with pytest.warns(EdgernnWarning, match="skip: expected 80 %"):
        run(out, **STEERED)
    return snapshot(out)


@pytest.mark.filterwarnings("ignore:skip. expected:edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize("at", [1, 3, 4, 17, 29, 30])
def test_a_steered_run_stopped_and_resumed_equals_whole(tmp_path, steered, at):
    with pytest.raises(RuntimeError, match="stopped by the test"):
        run(tmp_path / "run", progress=Stop(at), **STEERED)
    run(tmp_path / "run", resume=True, **STEERED)
    assert snapshot(tmp_path / "run") == steered
    state = json.loads((tmp_path / "run/state.json").read_text())["steering"]
    assert (state["first_share"], state["z"]) != (state["share"], 0)


@pytest.mark.parametrize("at", [1, 3, 4, 17, 29, 30])
def test_stopped_and_resumed_equals_whole(tmp_path, uninterrupted, at):
    stopped(tmp_path / "run", at)
    run(tmp_path / "run", resume=True)
    assert snapshot(tmp_path / "run") == uninterrupted


# one process forks a child for each attempt, so that torch is loaded once
KILLS = """
import os, random, signal, sys, time
import matplotlib.figure, matplotlib.backends.backend_agg
import torch
from edgernn.training import train
torch.set_num_threads(1)
folder, rng, settings = sys.argv[1], random.Random(int(sys.argv[2])), dict(word.split("=") for word in sys.argv[3:])

def child(out, resume):
    pid = os.fork()
    if pid == 0:
        train("adding", "sarnn", out=out, resume=resume, settings=settings)
        os._exit(0)
    return pid

begun = time.monotonic()
assert os.waitpid(child(folder + "/whole", False), 0)[1] == 0
whole = time.monotonic() - begun
kills = 0
while True:
    pid = child(folder + "/killed", True)
    if kills < 8:
        time.sleep(rng.uniform(0, whole / 3))
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_killed_at_random_moments_equals_whole(tmp_path):
    # a steered run has the states of other runs, and its own
    settings = {**SMALL, "steps": 80, "eval_every": 7, "checkpoint_every": 2, **STEERED}
    seed = int(time.time())
    # shown if the test fails
    print(f"seed of the moments: {seed}")
    process = subprocess.run(
        [sys.executable, "-c", KILLS, tmp_path, str(seed), *words(settings)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert int(process.stdout) > 2
    assert snapshot(tmp_path / "killed") == snapshot(tmp_path / "whole")
    assert not leftovers(tmp_path / "killed")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    arguments = ["train", "--task", "adding", "--cell", "sarnn", "--out", "run", *words(SMALL), "steps=100000"]
    process = command_line(*arguments, "eval_every=2", "checkpoint_every=100000", cwd=tmp_path)
    metrics = tmp_path / "run/metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    step = json.loads((tmp_path / "run/state.json").read_text())["step"]
    assert f"interrupted at step {step} of 100000; a checkpoint is saved; resume with: edgernn train" in err
    command = shlex.split(re.search(r"resume with: (.*)", err)[1])
    assert command[-1] == "--resume"
    assert command[1:3] == ["train", "--task"]
    assert "eval_every=2" in command


def test_an_interrupt_loses_no_step(tmp_path, uninterrupted):
    class Press(Silent):
        def update(self, step, line="", **figures):
            if step == 16 and not line:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="interrupted at step 16 of 30"):
        run(tmp_path / "run", progress=Press())
    assert signal.getsignal(signal.SIGINT) is before
    run(tmp_path / "run", resume=True)
    assert snapshot(tmp_path / "run") == uninterrupted


def test_a_second_interrupt_does_not_wait(tmp_path):
    class Press(Silent):
        def update(self, step, line="", **figures):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path / "run", progress=Press())
    assert not isinstance(caught.value, Interrupted)


def test_a_finished_run_is_only_read(tmp_path):
    first = run(tmp_path / "run")
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    notes = Notes()
    assert run(tmp_path / "run", resume=True, progress=notes) == first
    assert notes.texts == [f"{tmp_path / 'run'} is finished: nothing to do"]
    assert times == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}


def test_resuming_nothing_begins(tmp_path, uninterrupted):
    notes = Notes()
    run(tmp_path / "run", resume=True, progress=notes)
    assert notes.texts == [f"nothing to resume in {tmp_path / 'run'}: starting a new run there"]
    assert snapshot(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("resume", [True, False])
def test_killed_before_the_config_was_there(tmp_path, uninterrupted, resume):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.json.a1b2c3d4.json").write_text("{")
    run(tmp_path / "run", resume=resume)
    assert snapshot(tmp_path / "run") == uninterrupted


def test_a_hidden_file_of_another_program_stays(tmp_path):
    (tmp_path / ".config.json.swp").touch()
    with pytest.raises(UsageError, match=r"expected a new or empty directory, got .* with 1 files"):
        run(tmp_path)
    assert (tmp_path / ".config.json.swp").exists()


def test_a_directory_in_use_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"out: expected a new or empty directory, got .* choose another with --out"):
        run(tmp_path)
    with pytest.raises(UsageError, match=r"expected a run directory, got .* without config\.json"):
        run(tmp_path, resume=True)
    with pytest.raises(UsageError, match="is not a directory"):
        run(tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_is_not_overwritten(tmp_path):
    stopped(tmp_path / "run", 8)
    with pytest.raises(UsageError, match="with an unfinished run; resume it: edgernn train --resume --out"):
        run(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 9}, "hidden_size: the run in .* has 8, got 9"),
        ({"T": 11}, "T: the run in .* has 10, got 11"),
        ({"lambda": 0.5}, "lambda: the run in .* has 0.0001, got 0.5"),
        ({"budget": "likelihoods"}, "budget: the run in .* has no value, got 'likelihoods'"),
    ],
)
def test_another_config_is_refused_by_name(tmp_path, changes, message):
    stopped(tmp_path / "run", 8)
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "run", resume=True, **changes)


def test_another_machine_is_told(tmp_path):
    stopped(tmp_path / "run", 8)
    path = tmp_path / "run/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "threads": 99, "torch": "0.1"}))
    notes = Notes()
    run(tmp_path / "run", resume=True, progress=notes)
    assert re.match(r"started with torch 0.1, now .*; threads 99, now \d+: the last digits may differ", notes.texts[0])


def test_random_numbers_of_a_gpu_go_on(tmp_path, monkeypatch):
    """Tested as far as possible without a GPU: the state that torch returns for a checkpoint is restored."""
    state, back = torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr("edgernn.training.run_directory._is_on_gpu", lambda model: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", back.append)
    stopped(tmp_path / "run", 8)
    run(tmp_path / "run", resume=True)
    assert len(back) == 1
    assert torch.equal(back[0], state)


def corrupt(path):
    path.write_bytes(b"\xff garbage")


def shorten(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def change(path, edit):
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"position": json.dumps({"step": 6})})


def drop_weight(path):
    change(path, lambda t: t.pop("model.head.bias"))


def reshape_weight(path):
    change(path, lambda t: t.update({"model.head.bias": t["model.head.bias"].repeat(2)}))


def drop_slot(path):
    change(path, lambda t: [t.pop(name) for name in list(t) if name.startswith("optimizer.0.")])


def drop_rng(path):
    change(path, lambda t: t.pop("rng"))


def drop_position(path):
    save_file(load_file(path), path)


@pytest.mark.parametrize(
    "damage", [corrupt, shorten, empty, drop_weight, reshape_weight, drop_slot, drop_rng, drop_position]
)
def test_a_corrupt_checkpoint_is_named(tmp_path, damage):
    stopped(tmp_path / "run", 8)
    damage(tmp_path / "run/state.safetensors")
    with pytest.raises(EdgernnError, match=r"state\.safetensors: expected (a whole|the) checkpoint"):
        run(tmp_path / "run", resume=True)


@pytest.mark.parametrize("name", ["config.json", "state.json", "metrics.jsonl"])
def test_other_corrupt_files_are_named(tmp_path, name):
    stopped(tmp_path / "run", 8)
    (tmp_path / "run" / name).write_text("{\n{\n")
    with pytest.raises(EdgernnError, match=re.escape(name)):
        run(tmp_path / "run", resume=True)


def test_a_torn_last_line_is_forgotten(tmp_path, uninterrupted):
    stopped(tmp_path / "run", 8)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "lo')
    run(tmp_path / "run", resume=True)
    assert snapshot(tmp_path / "run") == uninterrupted


def test_a_kill_between_checkpoint_and_weights(tmp_path, uninterrupted, monkeypatch):
    def killed(*_):
        raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr(edgernn.training.run_directory, "save_weights", killed)
        with pytest.raises(RuntimeError):
            run(tmp_path / "run")
    assert not (tmp_path / "run/model.safetensors").exists()
    run(tmp_path / "run", resume=True)
    assert snapshot(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("change", [{"step": "3"}, {"step": -1}, {"loss_count": []}, {"loss_sum": float("nan")}])
def test_a_damaged_position_is_refused(tmp_path, change):
    stopped(tmp_path / "run", 4)
    path = tmp_path / "run/state.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    metadata["position"] = json.dumps(json.loads(metadata["position"]) | change)
    save_file(load_file(path), path, metadata)
    with pytest.raises(EdgernnError, match=r"state\.safetensors: expected a whole checkpoint, got a corrupt one"):
        run(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda text: "", r"expected evaluations up to step 30, got the last one at 0; restore the file"),
        (lambda text: text[: text.rindex("{")], r"expected evaluations up to step 30, got the last one at 28"),
        (lambda text: text[:-9], r"line 8: expected a JSON object with the key 'step', got .*; restore the file"),
    ],
    ids=["empty", "a line less", "cut"],
)
def test_a_finished_run_without_its_last_evaluation_is_damaged(tmp_path, keep, message):
    finished = run(tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    text = metrics.read_text()
    assert [line["step"] for line in finished.history] == [4, 8, 12, 16, 20, 24, 28, 30]
    metrics.write_text(keep(text))
    with pytest.raises(EdgernnError, match=message):
        list(finished.history)
