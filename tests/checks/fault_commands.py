# SPDX-License-Identifier: Apache-2.0
"""The commands of tests/checks/faults.py: their arguments, old files, and results that faults must not change."""

import contextlib
import hashlib
import http.server
import importlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from tests.checks.fault_tasks import TRAIN, TRAININGS, Training, write_data
from tests.training_helpers import snapshot, words

TABLE = """
title = "T"
paper = "P"
task = "adding"
columns = ["mse"]
seeds = 1
[settings]
T = 8
test_size = 50
hidden_size = 4
batch_size = 10
steps = 40
[quick]
steps = 12
eval_every = 4
checkpoint_every = 2
[rows.gru]
cell = "gru"
[rows.sarnn]
cell = "sarnn"
"""
SWEEP = """
task = "adding"
cells = ["gru"]
seeds = 2
settings = { T = 8, test_size = 50, hidden_size = 4, batch_size = 10, steps = 12, eval_every = 4, checkpoint_every = 2 }
"""
# packages that the commands import, loaded once
PACKAGES = (
    *(f"edgernn.cli.{verb}" for verb in ("train", "export", "calibrate", "pack", "data", "reproduce", "sweep")),
    *("edgernn.training", "edgernn.export", "edgernn.export.run", "edgernn.training.datasets"),
    *("edgernn.training.papers.run_pictures", "matplotlib.figure", "matplotlib.backends.backend_agg", "torch._dynamo"),
    *("onnxruntime", "onnxscript", "onnx.checker", "pooch", "edgernn.runtime.firmware", "edgernn.training.evaluate"),
    *(
        "edgernn.training.calibration.calibrate",
        "edgernn.training.calibration.calibrate_file",
        "onnxscript.function_libs.torch_lib.ops",
    ),
)
# the folder of a run of tests/checks/faults.py, and in it the inputs of the commands
FOLDER = "FAULT_WORK"
_INPUTS = Path(os.environ.get(FOLDER, ".")) / "inputs"
_CONTENT = np.random.default_rng(0).bytes(600_000)


@dataclass(frozen=True)
class Command:
    """A command.

    main: Runs it on a folder and returns the exit status. prepare: Writes the old files. result: Reads the part of the
    files that faults must not change. exact: Ends of the names of files with the same bytes at every run.
    """

    name: str
    main: Callable[[Path], int]
    result: Callable[[Path], Any]
    prepare: Callable[[Path], None] = lambda folder: None
    exact: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        return self.name.split()[0]


def _edgernn(*arguments: object) -> int:
    from edgernn.cli.frame import main

    return main([str(argument) for argument in arguments])


def _train(training: Training) -> Command:
    def main(folder: Path) -> int:
        from edgernn.training import api
        from edgernn.training.tasks import TASKS

        if not training.pictures:
            # drawing takes longer than all else
            api.learning_curve = api.update_pattern = lambda path, *_: path.touch()
        data = _INPUTS / "data"
        task = training.task if training.task in TASKS else data / training.task
        options = ("--task", task, "--cell", training.cell, "--data", data, "--out", folder / "run", "--resume")
        return _edgernn("train", *options, *words(training.all_settings()))

    return Command(training.name, main, _run_of)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _only(*ends: str) -> Callable[[Path], dict[str, bytes]]:
    return lambda folder: {name: content for name, content in _files(folder).items() if name.endswith(ends)}


def _old(*names: str) -> Callable[[Path], None]:
    """Copy old files from the inputs."""

    def prepare(folder: Path) -> None:
        for name in names:
            shutil.copy2(_INPUTS / "old" / name, folder / name)

    return prepare


def _old_folder(folder: Path) -> None:
    shutil.copytree(_INPUTS / "old" / "c", folder / "c")


def _fetch(folder: Path) -> int:
    return _edgernn("data", "fetch", "small", "--data", folder)


def _reproduce(folder: Path) -> int:
    from edgernn.training.papers import recipe

    recipe.RECIPES = _INPUTS / "recipes"
    return _edgernn("reproduce", "t", "--quick", "--jobs", "1", "--out", folder)


def _sweep(folder: Path) -> int:
    options = ("--jobs", "1", "--no-latency", "--export", "--out", folder)
    return _edgernn("sweep", _INPUTS / "s.toml", *options)


def _calibrate(model: str, *options: object) -> Callable[[Path], int]:
    def main(folder: Path) -> int:
        return _edgernn("calibrate", _INPUTS / model, *options, "--loss", "50", "--out", folder / "m.onnx")

    return main


def _table(folder: Path) -> Any:
    """The runs of a table, and the figures of its rows."""
    runs = {run.name: snapshot(run) for run in sorted(folder.iterdir()) if (run / "result.json").exists()}
    rows = json.loads((folder / "table.json").read_text())["rows"]
    return runs, [(row.get("name"), row.get("columns"), row.get("test")) for row in rows]


def _run_of(folder: Path) -> Any:
    return snapshot(folder / "run")


COMMANDS = (
    *map(_train, TRAININGS),
    Command(
        "export",
        lambda folder: _edgernn("export", _INPUTS / "run", "--out", folder / "m.onnx"),
        _only(".onnx", ".npz"),
        _old("m.onnx"),
        (".onnx", ".npz"),
    ),
    Command("calibrate", _calibrate("dense"), _only(".onnx", ".npz"), _old("m.onnx"), (".onnx", ".npz")),
    Command(
        "calibrate gru.onnx",
        _calibrate("gru.onnx", "--data", _INPUTS / "gru.npz"),
        _only(".onnx"),
        _old("m.onnx"),
        (".onnx",),
    ),
    Command(
        "pack",
        lambda folder: _edgernn("pack", _INPUTS / "run" / "model.onnx", "--out", folder / "m.edgernn"),
        _only(".edgernn"),
        _old("m.edgernn"),
        (".edgernn",),
    ),
    Command(
        "pack --target c",
        lambda folder: _edgernn("pack", _INPUTS / "run" / "model.onnx", "--target", "c", "--out", folder / "c"),
        _files,
        _old_folder,
        (".c", ".h", ".cmake", ".flags"),
    ),
    Command("data fetch", _fetch, _only(".bin"), exact=(".bin",)),
    Command("reproduce --quick", _reproduce, _table),
    Command("sweep", _sweep, _table),
)
# these start processes of their own
SLOW = ("reproduce --quick", "sweep")


class Turns:
    """Chooses the command of each trial, so that verbs get equal shares of the time, and so do the commands of a verb.

    commands: The commands. seed: Decides the order of those that had no turn.
    """

    def __init__(self, commands: Sequence[Command], seed: int = 0) -> None:
        self.seconds = dict.fromkeys(random.Random(seed).sample(commands, len(commands)), 0.0)

    def next(self) -> Command:
        """Return the command that had the least time, of the verb that had the least."""
        verbs = dict.fromkeys((command.verb for command in self.seconds), 0.0)
        for command, seconds in self.seconds.items():
            verbs[command.verb] += seconds
        verb = min(verbs, key=lambda verb: verbs[verb])
        return min((c for c in self.seconds if c.verb == verb), key=lambda command: self.seconds[command])


def in_child(function: Callable[[], Any]) -> None:
    """Call a function in a forked process, so that this process starts no thread that a fork would lose."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0


def prepare() -> None:
    """Load all modules, and write the inputs of the commands to their folder."""
    import torch

    torch.set_num_threads(1)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    (_INPUTS / "old").mkdir(parents=True)
    (_INPUTS / "recipes").mkdir()
    (_INPUTS / "recipes" / "t.toml").write_text(TABLE)
    (_INPUTS / "s.toml").write_text(SWEEP)
    in_child(lambda: write_data(_INPUTS / "data"))
    in_child(lambda: _quiet(_write_models))
    _trace_layers()


def _trace_layers() -> None:
    """Trace the layers that the commands export, which takes longer than all else; later processes find the traces."""
    import onnx

    from edgernn.export.delta_graph import with_delta
    from edgernn.export.graph import build
    from edgernn.export.recurrent_nodes import find_recurrent_nodes
    from edgernn.store import load_model
    from edgernn.training.calibration.calibrate import with_thresholds

    build(load_model(_INPUTS / "run")[0])
    dense, _ = load_model(_INPUTS / "dense")
    for model in (dense, with_thresholds(dense, [(0.1, 0.1)])):
        build(model)
    with_delta(find_recurrent_nodes(onnx.load(_INPUTS / "gru.onnx"), "gru.onnx"), [(0.1, 0.1)], False)


def _quiet(function: Callable[[], None]) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    function()


def _write_models() -> None:
    from edgernn.training import train
    from tests.test_calibrate_file import data, operator

    for name, seed in (("run", 0), ("other", 1)):
        train("adding", "sarnn", out=_INPUTS / name, seed=seed, settings=TRAIN)
        assert _edgernn("export", _INPUTS / name) == 0
    train("adding", "gru", out=_INPUTS / "dense", settings=TRAIN)
    # the operator GRU of ONNX
    (_INPUTS / "gru.onnx").write_bytes(operator("GRU", initial=False, linear_before_reset=1).SerializeToString())
    np.savez(_INPUTS / "gru.npz", **data(steps=40))
    shutil.copy2(_INPUTS / "other" / "model.onnx", _INPUTS / "old" / "m.onnx")
    assert _edgernn("pack", _INPUTS / "other" / "model.onnx", "--out", _INPUTS / "old" / "m.edgernn") == 0
    assert _edgernn("pack", _INPUTS / "other" / "model.onnx", "--target", "c", "--out", _INPUTS / "old" / "c") == 0


class _Content(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        begin = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") :].rstrip("-"))
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(_CONTENT) - 1}/{len(_CONTENT)}")
        self.send_header("Content-Length", str(len(_CONTENT) - begin))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(_CONTENT[begin:])

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def file_server() -> Iterator[None]:
    """Serve the file of a data set named small, and register the set."""
    from edgernn.training.datasets import SETS, DataSet, Download, File

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Content) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        digest, size = hashlib.sha256(_CONTENT).hexdigest(), len(_CONTENT)
        url = f"http://127.0.0.1:{server.server_port}/f.bin"
        download = Download((url,), (File("f.bin", size, digest),), size, digest)
        SETS["small"] = DataSet("Small", "here", "none", (), "small", (("f.bin",),), (download,))
        yield
        server.shutdown()


def unfinished(name: str, content: bytes) -> str | None:
    """Say why the content of a file is not whole, or return None."""
    import safetensors.numpy

    suffix = Path(name).suffix
    try:
        if suffix == ".json":
            json.loads(content)
        elif suffix == ".jsonl":
            # readers leave out a last line that was cut
            for line in content.split(b"\n")[:-1]:
                json.loads(line)
        elif suffix == ".safetensors":
            safetensors.numpy.load(content)
        elif suffix == ".png" and content and not content.endswith(b"IEND\xaeB`\x82"):
            return "cut picture"
        elif suffix == ".npz":
            import io

            np.load(io.BytesIO(content)).close()
        elif suffix == ".md" and not content.endswith(b"\n"):
            return "cut text"
    except (ValueError, OSError, SafetensorError) as error:
        return str(error)
    return None
