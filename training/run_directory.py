# SPDX-License-Identifier: Apache-2.0
"""The run directory. A kill at any moment leaves one that can be resumed.

config.json        everything to repeat the run
cell.py            the file of a user's own cell, where the run has one; its SHA-256 is in config.json
state.safetensors  the checkpoint, one file so that it is never half of one step and half of another: weights,
                   optimiser, torch's generator, what the steps carry on, and the position in its metadata
state.json         the position again, to read
best.safetensors   the weights of the best evaluation, where these are to be kept
model.safetensors  the weights again, for everything else that reads a run
example.npz        some test sequences, x (N, T, I)
metrics.jsonl      a line for each evaluation; on resume it is cut back to the checkpoint
series.json        rows of numbers that the task has measured on the trained network, for pictures
result.json        written last: with it the run is finished
latency.json       how long the exported model takes, measured afterwards (`edgernn.training.run_latency`)
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgernn.cell_files import KEPT
from edgernn.cells.base import State
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import EXAMPLE, naming, read_json, write_bytes, write_json, write_text
from edgernn.locks import LOCK
from edgernn.model import RecurrentModel
from edgernn.store import CONFIG, WEIGHTS, load_weights, read_config, save_weights, write_tensors
from edgernn.training.plan import MACHINE, first_difference
from edgernn.training.tasks.base import SAMPLES

STATE, STATE_JSON, METRICS, RESULT = "state.safetensors", "state.json", "metrics.jsonl", "result.json"
BEST = "best.safetensors"
LEARNING, PATTERN, SERIES, LATENCY = "learning.png", "pattern.png", "series.json", "latency.json"
_FILES = (CONFIG, KEPT, WEIGHTS, STATE, STATE_JSON, BEST, METRICS, EXAMPLE, RESULT, LEARNING, PATTERN, SAMPLES, SERIES)
_MODEL, _OPTIMIZER, _CARRY, _RNG, _GPU_RNG = "model.", "optimizer.", "carry.", "rng", "gpu_rng"


@dataclass
class Position:
    """How far a run is.

    step: done so far. loss_sum, loss_count: since the last line of metrics.jsonl. best, stale: the best validation
    metric, and the evaluations since. seconds: of training. stopped: why it ended: solved, patience, steps, or None.
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best: float | None = None
    stale: int = 0
    seconds: float = 0.0
    stopped: str | None = None


class RunDirectory:
    """The files of one run; whoever writes to them holds the directory (see `edgernn.locks`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, record: dict[str, Any], resume: bool, files: Mapping[str, bytes] | None = None) -> str | None:
        """Begin a run here, or go on with the one that is here; returns what the user should know of it.

        files: what a new run keeps beside config.json.
        Raises UsageError where the directory holds anything but is not to be resumed, or is of another config.
        """
        if resume:
            self._sweep()
        names = {p.name for p in self.path.iterdir()} - {LOCK} if self.path.exists() else set()
        kept = files or {}
        if CONFIG not in names:
            # written first, so a kill may have left them alone
            names -= {name for name in names & kept.keys() if (self.path / name).read_bytes() == kept[name]}
        if names and not resume:
            hint = "--resume goes on with the run there" if CONFIG in names else "--out names another"
            raise UsageError(f"out: expected a new or empty directory, got {self.path} with {len(names)} files; {hint}")
        if CONFIG in names:
            return self._check_same(record)
        if names:
            raise UsageError(f"out: {self.path} is not a run directory: it has no {CONFIG}")
        for name, content in kept.items():
            write_bytes(self.path / name, content)
        write_json(self.path / CONFIG, record)
        return f"nothing to resume in {self.path}: starting there" if resume else None

    def result(self) -> dict[str, Any] | None:
        """Of a finished run; half a file is as none, and is written anew."""
        try:
            result = read_json(self.path / RESULT)
        except EdgernnError:
            return None
        return result if isinstance(result, dict) and result.get("metric") in result else None

    def latency(self) -> dict[str, Any] | None:
        """What `measure_latency` has found of a finished run, if it was asked."""
        try:
            found = read_json(self.path / LATENCY)
        except EdgernnError:
            return None
        return found if isinstance(found, dict) else None

    def discard(self) -> None:
        """Remove a run that failed before its first checkpoint, so that it can be started again."""
        if not (self.path / STATE).exists():
            for name in _FILES:
                (self.path / name).unlink(missing_ok=True)
            self._sweep()

    def _sweep(self) -> None:
        # what a kill left of files that were being written
        for name in _FILES:
            for leftover in self.path.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)

    def _check_same(self, record: dict[str, Any]) -> str | None:
        old = read_config(self.path)
        if found := first_difference(old, record):
            name, there, now = found
            hint = "resume with the settings it was started with, or give another --out"
            raise UsageError(f"{name}: the run in {self.path} has {there!r}, got {now!r}; {hint}")
        if self.result() is not None:
            return f"{self.path} is finished: nothing to do"
        changed = [
            f"{key} {old[key]}, now {record[key]}" for key in MACHINE if old.get(key, record[key]) != record[key]
        ]
        return f"started with {'; '.join(changed)}: the last digits may differ" if changed else None

    # the checkpoint

    def save(
        self, model: RecurrentModel, optimizer: torch.optim.Optimizer, position: Position, carry: State | None = None
    ) -> None:
        tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
        for i, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{i}.{name}": torch.as_tensor(value) for name, value in slots.items()}
        tensors |= {f"{_CARRY}{i}": tensor for i, tensor in enumerate(carry or ())}
        tensors[_RNG] = torch.get_rng_state()
        if _is_on_gpu(model):
            tensors[_GPU_RNG] = torch.cuda.get_rng_state()
        metadata = {"position": json.dumps(asdict(position)), "tensors": str(len(tensors))}
        write_tensors(self.path / STATE, tensors, metadata)
        write_json(self.path / STATE_JSON, asdict(position))
        save_weights(model, self.path)

    def load(
        self,
        model: RecurrentModel,
        optimizer: torch.optim.Optimizer,
        device: str,
        send: Callable[[bytes | None], bytes | None] = lambda content: content,
    ) -> tuple[Position, State | None]:
        """The position of the checkpoint and what was carried on, with model, optimiser and generator set to it.

        Step 0 where there is none. send: gives the file's content to the processes that train together.

        Raises EdgernnError where the checkpoint is corrupt or of another model.
        """
        path = self.path / STATE
        if (self.path / STATE_JSON).exists():
            read_json(self.path / STATE_JSON)
        content = send(path.read_bytes() if path.exists() else None)
        if content is None:
            return Position(), None
        try:
            tensors = safetensors.torch.load(content)
            metadata = _metadata(content)
            position = Position(**json.loads(metadata["position"]))
            # a parameter that no loss has reached has no slots of the optimiser, so only their number can tell
            if len(tensors) != int(metadata["tensors"]):
                raise ValueError(f"{len(tensors)} tensors of {metadata['tensors']}")
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise EdgernnError(f"{path}: corrupt or cut checkpoint ({error})") from None
        _load_model(path, model, tensors)
        _load_optimizer(path, model, optimizer, tensors)
        torch.set_rng_state(tensors[_RNG])
        # a run that goes on elsewhere, as config.json then says, has no numbers of that generator to go on with
        if _GPU_RNG in tensors and _is_on_gpu(model):
            torch.cuda.set_rng_state(tensors[_GPU_RNG])
        count = sum(name.startswith(_CARRY) for name in tensors)
        return position, tuple(tensors[f"{_CARRY}{i}"].to(device) for i in range(count)) or None

    def save_best(self, model: RecurrentModel) -> None:
        save_weights(model, self.path, BEST)

    def load_best(self, model: RecurrentModel) -> None:
        load_weights(model, self.path, BEST)

    # metrics.jsonl

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines; a last one that a kill cut short is left out."""
        path = self.path / METRICS
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        found = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                entry["step"] + 0
                found.append(entry)
            except (TypeError, KeyError, ValueError):
                if number < len(lines) or line.endswith(b"\n"):
                    raise EdgernnError(f"{path}: line {number} is not JSON") from None
        return found

    def cut_metrics(self, step: int) -> None:
        """Forget the lines after a step."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in kept))

    def log(self, line: dict[str, Any]) -> None:
        path = self.path / METRICS
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            # the checkpoint that follows must not outlive this line
            file.flush()
            os.fsync(file.fileno())


def _metadata(content: bytes) -> dict[str, str]:
    """Of a safetensors file, whose first 8 bytes say how long the JSON that follows is."""
    size = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + size])
    return header.get("__metadata__", {})


def _is_on_gpu(model: RecurrentModel) -> bool:
    return next(model.parameters()).is_cuda


def _load_model(path: Path, model: RecurrentModel, tensors: dict[str, Tensor]) -> None:
    expected = model.state_dict()
    found = {name.removeprefix(_MODEL): t for name, t in tensors.items() if name.startswith(_MODEL)}
    if found.keys() != expected.keys() or any(found[n].shape != t.shape for n, t in expected.items()):
        raise EdgernnError(f"{path}: not a checkpoint of this model: names or shapes of its weights differ")
    model.load_state_dict(found)


def _load_optimizer(
    path: Path, model: RecurrentModel, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_OPTIMIZER):
            index, slot = name.removeprefix(_OPTIMIZER).split(".")
            state.setdefault(int(index), {})[slot] = tensor
    shapes = dict(enumerate(p.shape for p in model.parameters()))
    wrong = any(t.ndim and t.shape != shapes.get(i) for i, slots in state.items() for t in slots.values())
    # a parameter that no loss has reached has no slots
    if _RNG not in tensors or wrong or not state.keys() <= shapes.keys():
        raise EdgernnError(f"{path}: not a checkpoint of this model: the optimiser's state does not fit")
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
