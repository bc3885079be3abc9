# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, SIGHUP and full disks: saved checkpoints, messages and exit statuses."""

import importlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgernn.cli.frame import main
from edgernn.export.check import _margins
from edgernn.rules import RULES
from edgernn.signals import Interrupted, delaying, ignore_interrupts, noting, raising
from edgernn.training import train
from tests.test_locks import ENDLESS, ended, wait_for
from tests.training_helpers import SMALL, Silent, command_line, leftovers, snapshot, words

ARGUMENTS = ["train", *ENDLESS, "--out", "run", "checkpoint_every=1000000"]


def saved(folder):
    return json.loads((folder / "run/state.json").read_text())["step"]


@pytest.mark.slow
def test_a_signal_saves_as_ctrl_c_does(tmp_path):
    process = command_line(*ARGUMENTS, cwd=tmp_path)
    wait_for(tmp_path / "run/metrics.jsonl", process)
    process.send_signal(signal.SIGTERM)
    # a second signal has no effect
    process.send_signal(signal.SIGTERM)
    status, out, error = ended(process)
    assert (status, out) == (128 + signal.SIGTERM, "")
    step = saved(tmp_path)
    assert f"interrupted at step {step} of 1000000; a checkpoint is saved; resume with: edgernn train" in error
    assert not leftovers(tmp_path / "run")


def test_a_signal_loses_no_step(tmp_path):
    class Kill(Silent):
        def update(self, step, line="", **figures):
            if step == 6 and not line:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    settings = {**SMALL, "steps": 12, "eval_every": 5}
    with pytest.raises(Interrupted, match="interrupted at step 6 of 12") as caught:
        train("adding", "gru", out=tmp_path / "run", settings=settings, progress=Kill())
    assert caught.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    train("adding", "gru", out=tmp_path / "run", settings=settings, resume=True)
    train("adding", "gru", out=tmp_path / "whole", settings=settings)
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


@pytest.mark.slow
def test_a_closed_terminal_saves(tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "edgernn", *ARGUMENTS])
    try:
        wait_for(tmp_path / "run/metrics.jsonl", Child(process))
    finally:
        os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 128 + signal.SIGHUP
    assert saved(tmp_path) > 0
    assert not leftovers(tmp_path / "run")


class Child:
    """A forked process, for `wait_for`."""

    def __init__(self, process):
        self.process = process

    def poll(self):
        return None


def test_nohup_is_respected(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raising(), noting() as noted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert noted() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_between_trainings_ends_the_command():
    with pytest.raises(Interrupted) as caught, raising():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM


def test_a_signal_during_a_picture_is_raised_after_it():
    drawn = []

    def draw():
        with raising(), delaying():
            os.kill(os.getpid(), signal.SIGTERM)
            drawn.append("whole")

    with pytest.raises(Interrupted) as caught:
        draw()
    assert caught.value.number == signal.SIGTERM
    assert drawn == ["whole"]


# run by a process of its own: a limit on file sizes simulates a full disk
LIMITED = """
import resource, sys
import edgernn.training
from edgernn.cli.frame import main

for size, *more in ((6000,), (20_000, "--resume")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    assert main([*sys.argv[1:], *more]) == 1
"""


@pytest.mark.slow
def test_a_full_disk_says_where_what_is_kept_and_what_to_do(tmp_path, monkeypatch):
    # first checkpoints do not fit, then the picture
    settings = [*words(SMALL), "steps=6", "eval_every=2", "checkpoint_every=2"]
    command = ["train", "--task", "adding", "--cell", "gru", "--out", "run", *settings]
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (process.returncode, "Traceback" in process.stderr) == (0, False)
    first, second = [line for line in process.stderr.splitlines() if line.startswith("edgernn: error")]
    output = (
        "run/state.safetensors: File too large; no step is saved yet; free some space and resume with: edgernn train"
    )
    assert output in first
    output = (
        r"edgernn: error: run/learning\.png: File too large; step 6 is saved; free some space and resume with: (.*)"
    )
    resuming = re.fullmatch(output, second)
    assert resuming, second
    command, *again = shlex.split(resuming[1])
    assert (command, again[-1]) == ("edgernn", "--resume")
    monkeypatch.chdir(tmp_path)
    assert main(again) == 0
    assert not leftovers(tmp_path / "run")


SLOW = """
import time
from types import SimpleNamespace
steps = []
try:
    for _ in range(20):
        time.sleep(0.02)
        steps.append(_)
except BaseException:
    steps.append("caught")
"""


def import_slowly(timer):
    with raising():
        timer.start()
        importlib.import_module("slow_module")
        # the signal comes again within this pause
        time.sleep(5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_is_raised_after_it(tmp_path, monkeypatch, number):
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    with pytest.raises(Interrupted) as caught:
        import_slowly(timer)
    assert caught.value.number == number
    assert sys.modules.pop("slow_module").steps == list(range(20))


class Slow:
    """Object whose deletion takes a while, in which a signal arrives."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        done.append("ended")


def delete_slowly():
    item = Slow()
    with raising():
        del item
        done.append("deleted")
        # the signal comes again within this pause
        time.sleep(5)


done = []


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_during_a_deletion_is_raised_after_it():
    with pytest.raises(Interrupted):
        delete_slowly()
    assert done == ["ended", "deleted"]


@pytest.mark.slow
def test_an_early_ctrl_c_ends_a_training_with_a_message(tmp_path):
    # while torch is being imported, which takes more than half a second after its first library is loaded
    process = command_line(*ARGUMENTS, cwd=tmp_path)
    while "torch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    status, _, error = ended(process)
    assert status == 128 + signal.SIGINT
    assert error.splitlines()[-1].startswith("edgernn: interrupted")
    assert "Traceback" not in error


# run by a process of its own: trains in a pool of workers, which get Ctrl-C every 30 ms from their start to their end
CROWD = """
import multiprocessing, os, signal, sys, threading, time
from pathlib import Path
from edgernn.training.tables.jobs import Job
from edgernn.training.tables.worker_processes import processes

def interrupt(workers, delay):
    time.sleep(delay)
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            os.kill(worker.pid, signal.SIGINT)
        time.sleep(0.03)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda number, frame: None)
    with processes(1, 1, 1, None, "cpu") as pool:
        pool.start(Job("adding", "gru", None, 0, {"steps": 10**6}, Path("run")))
        workers = multiprocessing.active_children()
        threading.Thread(target=interrupt, args=(workers, float(sys.argv[1]))).start()
        try:
            while not pool.ended(1.0):
                pass
        except KeyboardInterrupt:
            print(len(workers), "interrupted")
"""


@pytest.mark.parametrize("delay", ["0", "0.5"])
@pytest.mark.slow
def test_a_worker_that_starts_waits_or_exits_ignores_ctrl_c(tmp_path, delay):
    (tmp_path / "crowd.py").write_text(CROWD)
    process = subprocess.run(
        [sys.executable, "crowd.py", delay], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert process.stdout == "1 interrupted\n"
    assert "Traceback" not in process.stderr, process.stderr


IMPORTING = """
import os, signal, sys
from edgernn.__main__ import run
class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
run()
"""


@pytest.mark.slow
def test_ctrl_c_during_the_imports_of_a_command_prints_no_traceback():
    process = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "edgernn: interrupted\n")


def test_a_worker_leaves_an_ignored_ctrl_c_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ignore_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_between_two_layers_ends_the_check_of_an_export():
    class StoppedRule:
        @property
        def decide(self):
            raise KeyboardInterrupt

    first = RULES["selective"](3, 4)
    layers = [SimpleNamespace(rule=rule) for rule in (first, StoppedRule())]
    with pytest.raises(KeyboardInterrupt):
        _margins(SimpleNamespace(recurrent_layers=lambda: layers), None, None)
    assert "decide" not in vars(first)
