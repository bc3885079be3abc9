# SPDX-License-Identifier: Apache-2.0
"""The commands of `make check-faults`: every task and every verb that writes files, with equal shares of the time."""

import os
import random
import subprocess
import sys

import pytest

from edgernn.training.tasks import TASKS, find_task
from tests.checks.fault_commands import COMMANDS, Command, Turns
from tests.checks.fault_tasks import TRAININGS, write_data
from tests.kernel_builds import compiler
from tests.source_tree import ROOT


def test_every_task_and_every_verb_that_writes_takes_part(tmp_path):
    write_data(tmp_path)
    own = {training.task for training in TRAININGS} - TASKS.keys()
    assert {training.task for training in TRAININGS} >= TASKS.keys()
    assert {find_task(str(tmp_path / name))[0].__name__ for name in own} == {"Arrays", "Tables", "OwnWords"}
    assert {c.verb for c in COMMANDS} == {"train", "export", "calibrate", "pack", "data", "reproduce", "sweep"}
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("seed", [0, 1])
def test_verbs_get_equal_shares_of_the_time(seed):
    takes = {"train a": 1.0, "train b": 5.0, "train c": 2.0, "pack": 0.1, "sweep": 30.0}
    commands = [Command(name, lambda folder: 0, lambda folder: None) for name in takes]
    turns, draw, trials = Turns(commands, seed), random.Random(seed), dict.fromkeys(takes, 0)
    for _ in range(5000):
        command = turns.next()
        turns.seconds[command] += draw.uniform(0, 2) * takes[command.name]
        trials[command.name] += 1
    seconds = {command.name: spent for command, spent in turns.seconds.items()}
    trained = [spent for name, spent in seconds.items() if name.startswith("train")]
    # a share exceeds another by at most the longest trial
    shares = [sum(trained), seconds["pack"], seconds["sweep"]]
    assert max(shares) - min(shares) <= 60
    assert max(trained) - min(trained) <= 10
    assert trials["pack"] > 10 * trials["sweep"] > 0


# a command that renames no file, and sleeps where the folder has a file named slow
DELIVERED = """
import sys, time
from pathlib import Path
from tests.checks.fault_commands import Command
from tests.checks.faults import FAULTS, run

def main(folder):
    (folder / "f").write_text("x")
    time.sleep(5 * (folder / "slow").exists())
    return 0

def delivered(name, failing=0, moment=None):
    return run(Command("c", main, lambda folder: None), folder, FAULTS[name], failing, moment).delivered

folder = Path(sys.argv[1])
print(delivered("read-only folder", 1), delivered("kill -9 before a call", 1), delivered("write: disk is full", 1))
print(delivered("read-only folder", 9), delivered("kill -9 before a call", 9), delivered("rename: input/output error"))
print(delivered("SIGTERM", moment=60.0), delivered("small disk"))
(folder / "slow").touch()
print(delivered("SIGTERM", moment=0.2), delivered("kill -9 at a moment", moment=0.2))
"""


@pytest.mark.slow
def test_a_fault_that_reaches_no_process_is_not_delivered(tmp_path):
    shim, work = tmp_path / "fault_shim.so", tmp_path / "work"
    work.mkdir()
    subprocess.run(
        [compiler(), "-x", "c", "-shared", "-fPIC", ROOT / "tests/fault_shim.c", "-o", shim, "-ldl"], check=True
    )
    environment = os.environ | {"FAULT_SHIM": str(shim), "LD_PRELOAD": str(shim)}
    words = [sys.executable, "-c", DELIVERED, work]
    output = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout
    assert output.splitlines() == ["True True True", "False False False", "False False", "True True"]
