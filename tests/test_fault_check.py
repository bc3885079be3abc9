# SPDX-License-Identifier: Apache-2.0
"""The commands of `make check-faults`: every task and every verb that writes files, with equal shares of the time."""

import random

import pytest

from edgernn.training.tasks import TASKS, find_task
from tests.checks.fault_commands import COMMANDS, Command, Turns
from tests.checks.fault_tasks import TRAININGS, write_data


def test_every_task_and_every_verb_that_writes_takes_part(tmp_path):
    write_data(tmp_path)
    own = {training.task for training in TRAININGS} - TASKS.keys()
    assert {training.task for training in TRAININGS} >= TASKS.keys()
    assert {find_task(str(tmp_path / name))[0].__name__ for name in own} == {"Arrays", "Folder", "OwnWords"}
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
