# SPDX-License-Identifier: Apache-2.0
"""Small data and small runs for the tests of training."""

import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from edgernn.progress import Silent
from edgernn.training.papers.recipe import load_recipe

# a run takes one second
SMALL = {"T": 10, "hidden_size": 8, "batch_size": 10}
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def words(settings):
    return [f"{key}={value}" for key, value in settings.items()]


def linear(module, v):
    """Return W v + b of an nn.Linear, in NumPy."""
    return v @ module.weight.detach().numpy().T + module.bias.detach().numpy()


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=24, test=6, suffix=""):
    """Write four idx files of random images to `folder`; return the arrays by file name."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(256, size=(count, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(10, size=count, dtype=np.uint8)
    for name, array in arrays.items():
        (folder / (name + suffix)).write_bytes(PACK[suffix](idx_bytes(array)))
    return arrays


def snapshot(run):
    """Return everything of a finished run that must not depend on interruptions: weights, metrics, result."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((run / "result.json").read_text())
    for entry in (*lines, result):
        for key in ("seconds", "seconds_per_epoch"):
            entry.pop(key, None)
    weights = {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model.safetensors").items()}
    return weights, lines, result


def without_pictures(monkeypatch):
    """Write empty pictures: drawing takes longer than a small run."""
    for name in ("learning_curve", "update_pattern"):
        monkeypatch.setattr(f"edgernn.training.api.{name}", lambda path, *_: path.touch())
    monkeypatch.setattr("edgernn.training.pictures.confusion_matrix", lambda path, *_: path.touch())


class Stop(Silent):
    """Stops a run at a step without a checkpoint, as a kill would."""

    def __init__(self, at):
        self.at = at

    def update(self, step, line="", **figures):
        if step == self.at and not line:
            raise RuntimeError("stopped by the test")


def leftovers(run):
    return [p.name for p in run.iterdir() if p.name.startswith(".")]


def command_line(*args, **kwargs):
    """Run `python -m edgernn` outside the source tree."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **kwargs.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "edgernn", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **kwargs,
    )


def wait_until(condition, seconds=120):
    """Call a function until it returns a true value, and return this value; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited for {seconds} s"
        time.sleep(0.02)
    return value


def of_each_kind(names, kind=lambda recipe: (recipe.task, recipe.cell, recipe.rule, *sorted(recipe.settings))):
    """Choose one of the recipes of each kind: by default, of those that differ in the values of settings alone."""
    return list({kind(load_recipe(name)): name for name in reversed(names)}.values())


def data_folder():
    """The folder of the user's data sets, or None."""
    value = os.environ.get("EDGERNN_DATA")
    return Path(value) if value else None
