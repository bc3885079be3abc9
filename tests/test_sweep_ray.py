# SPDX-License-Identifier: Apache-2.0
"""Sweeps on Ray: neither kills nor a full disk cost what is finished, and a cluster trains what one machine would."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from edgernn.training import train
from edgernn.training.sweep.statistics import spread
from edgernn.training.sweep.table import markdown
from tests.test_sweep import SWEEP
from tests.training_helpers import command_line, leftovers, snapshot

pytestmark = pytest.mark.slow
pytest.importorskip("ray")


# who has no token may not join
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


def wait_for(found, seconds=90):
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


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
# a disk that is full as long as a file is there
FULL = """import errno, os
fsync = os.fsync
def full(handle):
    if os.path.exists({flag!r}):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(handle)
os.fsync = full
"""


class Story:
    """A sweep that is started over and over in one folder."""

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
        """A run that has saved a checkpoint since then and goes on, and the process that trains it."""
        for path in self.runs.glob("*/state.json"):
            lock = path.parent.with_name(f".{path.parent.name}.lock")
            if path.stat().st_mtime > after and lock.exists() and lock.read_text():
                return path.parent, int(lock.read_text())
        return None


def test_nothing_finished_is_lost_and_nothing_is_run_twice(tmp_path):
    story = Story(tmp_path)
    # a worker is killed, and once something is finished the driver, too
    process = story.start()
    killed, worker = wait_for(story.at_work)
    os.kill(worker, signal.SIGKILL)
    wait_for(story.finished)
    process.kill()
    _, error = process.communicate()
    assert f"{killed.name}: its worker died; it is gone on with" in error
    before = story.finished()
    # on a full disk
    (tmp_path / "full").touch()
    process = story.start()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(r"edgernn: error: .*No space left on device: [1-3] of 4 runs are finished and stay", error)
    assert "Traceback" not in error
    (tmp_path / "full").unlink()
    # Ctrl-C on a terminal
    begun = time.time()
    process = story.start()
    interrupted, _ = wait_for(lambda: story.at_work(begun))
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "edgernn: interrupted; what ran is saved, and the same command goes on" in error
    assert "Traceback" not in error
    assert not leftovers(story.runs)
    between = story.finished()
    assert between.items() >= before.items()
    # half a result
    damaged = min(between)
    damaged.write_text(damaged.read_text()[:100])
    process = story.start("--json", "--export")
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    after = story.finished()
    assert len(after) == 4
    assert {path for path, when in between.items() if after[path] != when} == {damaged}
    check_table(story, json.loads(out))
    assert not (tmp_path / "home/.ray").exists()
    # as if nothing had happened
    for run in {killed, interrupted}:
        config = json.loads((run / "config.json").read_text())
        words = dict(word.split("=") for word in config["command"] if "=" in word and "/" not in word)
        train("adding", config["model"]["cell"], out=tmp_path / run.name, seed=config["seed"], settings=words)
        assert snapshot(run) == snapshot(tmp_path / run.name)


def check_table(story, table):
    assert [row["name"] for row in table["rows"]] == ["gru", "sarnn"]
    assert any(row["front"] == ["work", "latency"] for row in table["rows"])
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


@pytest.fixture
def address(tmp_path):
    """Of a Ray cluster of its own, on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *words, "--include-dashboard=false", "--disable-usage-stats"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **TOKEN, "OMP_NUM_THREADS": "1"},
    )
    yield f"127.0.0.1:{port}"
    # it ends what it has started; what it leaves is of its process group
    process.terminate()
    try:
        process.wait(20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_cluster_trains_what_one_machine_would(tmp_path, address):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = ["sweep", "sweep.toml", "--address", address, "--no-latency", "--json"]
    process = command_line(*words, cwd=tmp_path, env=TOKEN)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    table = json.loads(out)
    assert [row["seeds"] for row in table["rows"]] == [[0, 1]] * 6
    assert sum(row["chosen"] for row in table["rows"]) == 3
    row = table["rows"][2]
    assert row["settings"] == {"lambda": 0.0, "lr": 0.01}
    # the command in the table trains the row again, seed by seed
    command = row["command"].replace("edgernn train", shlex.join([sys.executable, "-m", "edgernn", "train"]))
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    again = [json.loads((tmp_path / f"again/{row['name']}-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    assert [result["mse"] for result in again] == row["test"]["values"]
