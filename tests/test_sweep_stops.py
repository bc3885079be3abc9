# SPDX-License-Identifier: Apache-2.0
"""Sweeps that are stopped: neither kills nor a full disk lose finished runs."""

import json
import os
import re
import signal
import time

import pytest

from edgernn.locks import LOCK
from edgernn.training import train
from edgernn.training.statistics import spread
from edgernn.training.sweep.table import markdown
from tests.training_helpers import command_line, leftovers, snapshot, wait_until

LONG = """task = "adding"
cells = ["gru", "sarnn"]
seeds = 2
[settings]
T = 10
hidden_size = 8
batch_size = 10
steps = 800
eval_every = 100
checkpoint_every = 50
"""
# a disk that is full while a file exists
FULL = """import errno, os
fsync = os.fsync
def full(handle):
    if os.path.exists({flag!r}):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(handle)
os.fsync = full
"""


class Story:
    """A sweep that is restarted repeatedly in one folder."""

    def __init__(self, folder):
        self.folder, self.runs = folder, folder / "runs/long"
        (folder / "long.toml").write_text(LONG)
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(FULL.format(flag=str(folder / "full")))

    def start(self, *words):
        environment = {"PYTHONPATH": str(self.folder / "site"), "HOME": str(self.folder / "home")}
        return command_line(
            "sweep", "long.toml", "--jobs", "2", *words, cwd=self.folder, env=environment, start_new_session=True
        )

    def finished(self):
        return {path: path.stat().st_mtime_ns for path in self.runs.glob("*/result.json")}

    def at_work(self, after=0.0):
        """Return a run that has saved a checkpoint since then and continues, and the process that trains it."""
        for path in self.runs.glob("*/state.json"):
            lock = path.with_name(LOCK)
            if path.stat().st_mtime > after and lock.exists() and (holder := lock.read_text()):
                return path.parent, int(holder.split()[0])
        return None


@pytest.mark.slow
def test_nothing_finished_is_lost_and_nothing_is_run_twice(tmp_path):
    story = Story(tmp_path)
    # a worker is killed and, once a run is finished, the driver too
    process = story.start()
    killed, worker = wait_until(story.at_work)
    os.kill(worker, signal.SIGKILL)
    wait_until(story.finished)
    process.kill()
    _, error = process.communicate()
    assert f"{killed.name}: its process was killed; it may have run out of memory; resuming it" in error
    before = story.finished()
    # on a full disk
    (tmp_path / "full").touch()
    process = story.start()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(r"edgernn: error: .*No space left on device: [1-3] of 4 runs finished and kept", error)
    assert "Traceback" not in error
    (tmp_path / "full").unlink()
    # Ctrl-C on a terminal
    begun = time.time()
    process = story.start()
    interrupted, _ = wait_until(lambda: story.at_work(begun))
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "edgernn: interrupted; the running trainings are saved; run the same command again to resume" in error
    assert "Traceback" not in error
    assert not leftovers(story.runs)
    between = story.finished()
    assert between.items() >= before.items()
    # a truncated result
    damaged = min(between)
    damaged.write_text(damaged.read_text()[:100])
    process = story.start("--json", "--export")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    after = story.finished()
    assert len(after) == 4
    assert {path for path, when in between.items() if after[path] != when} == {damaged}
    check_table(story, json.loads(out))
    # as in an undisturbed sweep
    for run in {killed, interrupted}:
        config = json.loads((run / "config.json").read_text())
        words = dict(word.split("=") for word in config["command"] if "=" in word and "/" not in word)
        cell = json.loads((run / "result.json").read_text())["cell"]
        train("adding", cell, out=tmp_path / run.name, seed=config["seed"], settings=words)
        assert snapshot(run) == snapshot(tmp_path / run.name)


def check_table(story, table):
    assert [row["name"] for row in table["rows"]] == ["gru", "sarnn"]
    assert any({"work", "latency"} <= set(row["front"]) for row in table["rows"])
    for row in table["rows"]:
        results = [json.loads((story.runs / f"{row['name']}-seed{seed}/result.json").read_text()) for seed in range(2)]
        values = [result["mse"] for result in results]
        assert row["test"] == spread(values)
        assert row["work"]["mean"] == pytest.approx(sum(result["macs_executed"] for result in results) / 2)
        assert row["latency"]["mean"] > 0
        lines = [(story.runs / f"{row['name']}-seed{seed}/metrics.jsonl").read_text().splitlines() for seed in range(2)]
        assert row["validation"]["values"] == [json.loads(of_run[-1])["mse"] for of_run in lines]
        best = min(range(2), key=lambda seed: row["validation"]["values"][seed])
        assert row["best"] == f"runs/long/{row['name']}-seed{best}"
        exported = story.runs / f"front/{row['name']}/model.onnx"
        assert exported.is_file() == bool(row["front"])
        assert row["command"].startswith("for seed in 0 1; do edgernn train --task adding --cell ")
        assert f"--out again/{row['name']}-seed$seed --seed $seed --device cpu T=10" in row["command"]
    saved = json.loads((story.runs / "table.json").read_text())
    assert saved == {key: value for key, value in table.items() if key != "files"}
    assert (story.runs / "table.md").read_text() == markdown(table)
    for kind, begins in {"png": b"\x89PNG", "svg": b"<?xml"}.items():
        assert (story.runs / f"front.{kind}").read_bytes().startswith(begins)
