# SPDX-License-Identifier: Apache-2.0
"""Sweeps on Ray: neither kills nor a full disk lose finished runs, and a cluster gives the results of one machine."""

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
from pathlib import Path

import pytest

from edgernn.locks import LOCK
from edgernn.training import train
from edgernn.training.sweep.table import markdown
from edgernn.training.tables.statistics import spread
from tests.test_sweep import SWEEP
from tests.training_helpers import command_line, leftovers, snapshot

pytestmark = pytest.mark.check("cluster")
pytest.importorskip("ray")


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
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


def test_nothing_finished_is_lost_and_nothing_is_run_twice(tmp_path):
    story = Story(tmp_path)
    # a worker is killed and, once a run is finished, the driver too
    process = story.start()
    killed, worker = wait_for(story.at_work)
    os.kill(worker, signal.SIGKILL)
    wait_for(story.finished)
    process.kill()
    _, error = process.communicate()
    assert f"{killed.name}: its worker died; resuming it" in error
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
    interrupted, _ = wait_for(lambda: story.at_work(begun))
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
    assert not (tmp_path / "home/.ray").exists()
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


class Cluster:
    """A Ray cluster of two nodes on the loopback interface, started by the commands of docs/how-to/sweep.md.

    The head has no processors, so only the second node can train.
    """

    def __init__(self, folder):
        page = (Path(__file__).resolve().parent.parent / "docs/how-to/sweep.md").read_text(encoding="utf-8")
        section = page.split("## A sweep on a cluster")[1]
        self.token, self.head, self.join, self.sweep = re.findall(r"^ {4}(\S.*?)(?:\s+#.*)?$", section, re.MULTILINE)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.home, self.nodes = folder / "home", []
        self.home.mkdir()

    def shell(self, command, *words, home=None):
        """Return the environment of a user's shell, without variables of Ray."""
        host, port = self.address.split(":")
        command = command.replace("HOST", host).replace("6379", port)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**kept, "PATH": path, "HOME": str(home or self.home), "OMP_NUM_THREADS": "1"}
        return {"args": " ".join([command, *words]), "shell": True, "env": environment, "text": True}

    def run(self, command, *words, home=None, cwd=None):
        process = subprocess.run(**self.shell(command, *words, home=home), cwd=cwd, capture_output=True, timeout=180)
        return process.returncode, process.stdout, process.stderr

    def start(self, command, *words):
        """Start a node and wait until it is up."""
        command = self.shell(command, *words, "--node-ip-address=127.0.0.1", "--block", "--disable-usage-stats")
        log = self.home / f"node{len(self.nodes)}.log"
        with log.open("w") as file:
            process = subprocess.Popen(**command, stdout=file, stderr=file, start_new_session=True)
        self.nodes.append(process)
        wait_for(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()

    def stop(self):
        # a node stops its processes; leftovers belong to its process group
        for process in self.nodes:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        status, _, error = cluster.run(cluster.token)
        assert status == 0, error
        cluster.start(cluster.head, "--num-cpus=0", "--include-dashboard=false")
        cluster.start(cluster.join, "--num-cpus=2")
        yield cluster
    finally:
        cluster.stop()


def test_who_has_not_copied_the_token_is_refused(tmp_path, cluster):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "runs").mkdir()
    status, _, error = cluster.run(cluster.sweep, home=tmp_path, cwd=tmp_path)
    assert status == 1
    assert f"edgernn: error: address: {cluster.address} could not be joined" in error
    assert "the token of this machine is missing or differs from the cluster's" in error
    assert not list((tmp_path / "runs").glob("*/*/config.json"))
    status, _, error = cluster.run(cluster.join, home=tmp_path)
    assert status == 1
    assert "token" in error


def test_a_cluster_trains_what_one_machine_would(tmp_path, cluster):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    status, out, error = cluster.run(cluster.sweep, "--no-latency", "--json", cwd=tmp_path)
    assert status == 0, error
    table = json.loads(out)
    assert [row["seeds"] for row in table["rows"]] == [[0, 1]] * 6
    assert sum(row["chosen"] for row in table["rows"]) == 3
    row = table["rows"][2]
    assert row["settings"] == {"lambda": 0.0, "lr": 0.01}
    # the command in the table trains the row again, seed by seed
    command = row["command"].replace("edgernn train", shlex.join([sys.executable, "-m", "edgernn", "train"]))
    process = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    again = [json.loads((tmp_path / f"again/{row['name']}-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    assert [result["mse"] for result in again] == row["test"]["values"]
