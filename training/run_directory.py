# SPDX-License-Identifier: Apache-2.0
"""The directory of a training run. The training can be resumed after a kill at any moment.

config.json        everything needed to repeat the run
cell.py            the file of a user's own cell, if the run has one; its SHA-256 is in config.json
network.py         the file of a user's own network, if the run has one; its SHA-256 is in config.json
state.safetensors  the checkpoint, a single file so that it always belongs to one step: weights, optimiser state,
                   torch's random generator, the recurrent state from which the next batch continues, the state of the
                   task, and in the metadata the progress of the run (`Position`)
state.json         the progress alone, for people to read
best.safetensors   the weights of the best evaluation, with keep=best
model.safetensors  the weights at the last checkpoint; in a finished run, the final weights (with keep=best: those of
                   the best evaluation). All other code reads this file
example.npz        some test sequences: an array x (N, T, I)
metrics.jsonl      one line per evaluation; a resumed run first cuts it back to the checkpoint
learning.png       plots of the loss and the metric
pattern.png        the neurons that are updated at each step of a test sequence, for a rule that skips
samples.png        pictures that the network drew, or the loss curves of a learned optimiser, by task
samples.txt        sentences that the network of the task sentence-vae completed
detections.png     DET curve of a keyword model that was trained on streams
room.wav           the first minute of the recording on which a keyword model is tested at detecting words;
                   room.csv lists the words in it
tensorboard/       the same metrics for TensorBoard, with --tensorboard
confusion.png      the confusion matrix of the test part of a user's own data with labels; confusion.csv has its counts
                   and the precision, recall and F1 of each class, with 95 % confidence intervals
series.json        the task's series (`Task.series`) of the trained network, for pictures
data.npz           the data of a training in memory (`edgernn.training.train`), or data.parquet
split.json         the persons or recordings of a user's own tables in each part, and what they are split by
result.json        the result, written last: it marks the run as finished
latency.json       latency of the exported model, measured afterwards (`edgernn.training.papers.run_latency`)
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from safetensors import SafetensorError
from torch import Tensor

from edgernn.cell_files import COPIES
from edgernn.cells.base import State
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import (
    CONFIG,
    EXAMPLE,
    SPLIT,
    naming,
    output_file,
    read_bytes,
    read_json,
    remove_leftovers,
    write_bytes,
    write_json,
    write_text,
)
from edgernn.locks import LOCK
from edgernn.model import RecurrentModel
from edgernn.steering import SteeringState
from edgernn.store import WEIGHTS, load_weights, read_config, resume_command, save_weights, write_tensors
from edgernn.training.plan import MACHINE, first_difference, with_defaults
from edgernn.training.tasks.base import (
    CONFUSION,
    CONFUSION_TABLE,
    DETECTIONS,
    ROOM,
    ROOM_WORDS,
    SAMPLES,
    SCORES,
    Task,
)

STATE, STATE_JSON, METRICS, RESULT = "state.safetensors", "state.json", "metrics.jsonl", "result.json"
BEST = "best.safetensors"
# data of a training that were in memory: arrays, or a table
DATA = ("data.npz", "data.parquet")
TENSORBOARD = "tensorboard"
LEARNING, PATTERN, SERIES, LATENCY = "learning.png", "pattern.png", "series.json", "latency.json"
_PICTURES = (LEARNING, PATTERN, SAMPLES, DETECTIONS, SCORES, ROOM, ROOM_WORDS, CONFUSION, CONFUSION_TABLE)
_FILES = (CONFIG, *DATA, SPLIT, *COPIES, WEIGHTS, STATE, STATE_JSON, BEST, METRICS, EXAMPLE, RESULT, SERIES, *_PICTURES)
_MODEL, _OPTIMIZER, _CARRY, _RNG, _GPU_RNG = "model.", "optimizer.", "carry.", "rng", "gpu_rng"
_TASK = "task."


@with_config(ConfigDict(allow_inf_nan=False))
@dataclass
class Position:
    """Progress of a training run, which a checkpoint saves.

    Some evaluations do not count for `best` and `stale`: those before the end of pruning and, if the setting skip (the
    wanted share of skipped updates) is given, those in the first half of the training, its warm-up. If the
    training rounds the weights (setting `weights`), it raises the strength of the rounding from 0 to 1. Evaluations
    before the strength is 1 do not count for `stale`.

    Attributes:
        step: Number of training steps done.
        loss_sum: Sum of the losses since the last line of metrics.jsonl.
        loss_count: Number of these losses.
        best: Value of the main metric at the best evaluation; None before the first one that counts. With the
            settings skip and skip_target, an evaluation with a smaller `missed` is better; the metric decides between
            equal ones.
        tie: Value of the metric `Score.tie` at the best evaluation, which decides between equal ones, or None.
        lowest: Lowest value of the metric `Score.tie` in an evaluation that counts, or None.
        stale: Number of evaluations since the best one, or since the last one with a new `lowest`.
        missed: With the setting skip: how far the percentage of skipped neuron updates was from the wanted percentage
            at the best evaluation. It is in percentage points beyond a tolerance of 2; 0 means that the percentage was
            within the tolerance. With the setting skip_target: 1 if the best evaluation skipped less, else 0. Without
            both settings: 0. By how much the metrics miss `Score.least`, as a share, is added.
        seconds: Seconds of training.
        steering: With the setting skip: state of the controller of λ, the weight of the penalty on updates in the loss.
            None without that setting and before the first step.
        stopped: Reason why the training ended: solved, patience or steps; None before the end.
    """

    step: Annotated[int, Field(ge=0)] = 0
    loss_sum: float = 0.0
    loss_count: Annotated[int, Field(ge=0)] = 0
    best: float | None = None
    tie: float | None = None
    lowest: float | None = None
    stale: int = 0
    missed: float = 0.0
    seconds: float = 0.0
    steering: SteeringState | None = None
    stopped: str | None = None


_POSITION = TypeAdapter(Position)


class RunDirectory:
    """Reader and writer of the files of one training run.

    A process that writes must hold the lock of the directory (see `edgernn.locks`).

    Args:
        path: The directory.
        on_log: Function that gets each line of metrics.jsonl, as a dict, after it is written.
    """

    def __init__(self, path: Path, on_log: Callable[[dict[str, Any]], object] | None = None) -> None:
        self.path, self._on_log = path, on_log

    def open(self, record: dict[str, Any], resume: bool, files: Mapping[str, bytes] | None = None) -> str | None:
        """Begin a new training run, or resume the run in this directory.

        Args:
            record: Content of config.json, which a new run writes and a resumed run compares with its file.
            resume: Resume the run in this directory; if it has none, begin a new one.
            files: Further files that a new run writes: a dict from name to content.

        Returns:
            A message for the user, such as that the run is finished already; None if there is nothing to tell.

        Raises:
            UsageError: The directory is not empty and `resume` is false, or it has a run with other settings.
        """
        self._sweep()
        names = {p.name for p in self.path.iterdir()} - {LOCK} if self.path.exists() else set()
        extra = files or {}
        if CONFIG not in names:
            # these files are written before config.json, and a kill may come between
            names -= {name for name in names & extra.keys() if read_bytes(self.path / name, "a copy") == extra[name]}
        if names and not resume:
            raise UsageError(f"--out: expected a new or empty directory, got {self.path} with {self._content(names)}")
        if CONFIG in names:
            return self._check_same(record)
        if names:
            raise UsageError(
                f"out: expected a run directory, got {self.path} without {CONFIG}; choose another with --out"
            )
        for name, content in extra.items():
            write_bytes(self.path / name, content)
        write_json(self.path / CONFIG, record)
        return f"nothing to resume in {self.path}: starting a new run there" if resume else None

    def _content(self, names: Collection[str]) -> str:
        """Describe the content of the directory, which has files of these names, and what to do about it."""
        result = self.result()
        if result is not None:
            trained = f"{result['task']}, {result['cell']}: {result['metric']} {result[result['metric']]:.4g}"
            return f"a finished run ({trained}); choose another with --out"
        if CONFIG in names:
            return f"an unfinished run; resume it: {resume_command(self.path)}; or choose another with --out"
        return f"{len(names)} files that are no run; choose another with --out"

    def result(self) -> dict[str, Any] | None:
        """Return the content of result.json, which only a finished run has; None if it is missing or incomplete."""
        try:
            result = read_json(self.path / RESULT)
        except EdgernnError:
            return None
        return result if isinstance(result, dict) and result.get("metric") in result else None

    def latency(self) -> dict[str, Any] | None:
        """Return the content of latency.json, which `measure_latency` writes; None if it is missing or damaged."""
        try:
            latency = read_json(self.path / LATENCY)
        except EdgernnError:
            return None
        return latency if isinstance(latency, dict) else None

    def discard(self) -> None:
        """Remove the files of the run if it has no checkpoint, so that it can be started again."""
        if not (self.path / STATE).exists():
            for name in _FILES:
                (self.path / name).unlink(missing_ok=True)
            self._sweep()

    def _sweep(self) -> None:
        for name in _FILES:
            remove_leftovers(self.path / name)

    def _check_same(self, record: dict[str, Any]) -> str | None:
        old = with_defaults(read_config(self.path))
        if difference := first_difference(old, record):
            name, expected, got = difference
            hint = "resume with the settings it was started with, or give another --out"
            if name.endswith("fingerprint"):
                hint = "the data have changed since; restore them, or give another --out"
            raise UsageError(f"{name}: the run in {self.path} has {_as_text(expected)}, got {_as_text(got)}; {hint}")
        if self.result() is not None:
            return f"{self.path} is finished: nothing to do"
        changed = [
            f"{key} {old[key]}, now {record[key]}" for key in MACHINE if old.get(key, record[key]) != record[key]
        ]
        return f"started with {'; '.join(changed)}: the last digits may differ" if changed else None

    # the checkpoint

    def save(
        self,
        model: RecurrentModel,
        optimizer: torch.optim.Optimizer,
        position: Position,
        carry: State | None = None,
        task: Task | None = None,
    ) -> None:
        """Write the checkpoint, with torch's random state, and model.safetensors.

        Args:
            model: The network.
            optimizer: Its optimiser.
            position: Progress of the run.
            carry: Last recurrent state of the batch's sequences, if the next batch may continue them; else None.
            task: The task, if its `state_dict` belongs to the checkpoint.
        """
        tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
        for i, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{i}.{name}": torch.as_tensor(value) for name, value in slots.items()}
        tensors |= {f"{_CARRY}{i}": tensor for i, tensor in enumerate(carry or ())}
        tensors |= {} if task is None else {_TASK + name: tensor for name, tensor in task.state_dict().items()}
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
        task: Task | None = None,
    ) -> tuple[Position, State | None]:
        """Restore model, optimiser and torch's random generators from the checkpoint, if there is one.

        Args:
            model: The network.
            optimizer: Its optimiser.
            device: Device to which the recurrent state of the last batch is copied.
            send: Function that broadcasts the file's content from process 0 to all processes that train together, and
                returns it. Default: for a single process.
            task: The task whose `state_dict` is restored.

        Returns:
            The progress of the run, at step 0 without a checkpoint; and the last recurrent state of the sequences of a
            batch, if the next batch may continue them, else None.

        Raises:
            EdgernnError: The checkpoint is corrupt or belongs to another model.
        """
        path = self.path / STATE
        if (self.path / STATE_JSON).exists():
            read_json(self.path / STATE_JSON)
        content = send(read_bytes(path, "a checkpoint") if path.exists() else None)
        if content is None:
            return Position(), None
        try:
            tensors = safetensors.torch.load(content)
            metadata = _metadata(content)
            position = _POSITION.validate_json(metadata["position"], strict=True)
            # a parameter without a gradient so far has no optimiser state, so only the number of tensors can be checked
            if len(tensors) != int(metadata["tensors"]):
                raise ValueError(f"the file has {len(tensors)} tensors, but its header lists {metadata['tensors']}")
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise EdgernnError(
                f"{path}: expected a whole checkpoint, got a corrupt one ({error}); train again, with another --out"
            ) from None
        _load_model(path, model, tensors)
        _load_optimizer(path, model, optimizer, tensors)
        torch.set_rng_state(tensors[_RNG])
        # a run resumed on another device has no state of that generator
        if _GPU_RNG in tensors and _is_on_gpu(model):
            torch.cuda.set_rng_state(tensors[_GPU_RNG])
        if task is not None:
            task.load_state_dict({n.removeprefix(_TASK): t for n, t in tensors.items() if n.startswith(_TASK)})
        count = sum(name.startswith(_CARRY) for name in tensors)
        return position, tuple(tensors[f"{_CARRY}{i}"].to(device) for i in range(count)) or None

    def save_best(self, model: RecurrentModel) -> None:
        save_weights(model, self.path, BEST)

    def load_best(self, model: RecurrentModel) -> None:
        load_weights(model, self.path, BEST)

    def save_series(self, series: Mapping[str, Sequence[float]]) -> None:
        """Write series.json, if a task has measured series of numbers (`Task.series`), a dict from name to values."""
        if series:
            write_json(self.path / SERIES, {name: list(values) for name, values in series.items()})

    # metrics.jsonl

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl as dicts, one per evaluation; an empty list without this file.

        Before the run is finished, a damaged last line without a line end is dropped, because a kill has cut it short.
        Any other damaged line raises EdgernnError, and so does a finished run without its last evaluation.
        """
        path, result = self.path / METRICS, self.result()
        lines = read_bytes(path, "a log of metrics").splitlines(keepends=True) if path.exists() else []
        entries = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                entry["step"] + 0
                entries.append(entry)
            except (TypeError, KeyError, ValueError):
                if result is not None or number < len(lines) or line.endswith(b"\n"):
                    start = line[:40].decode(errors="replace")
                    raise EdgernnError(
                        f"{path}: line {number}: expected a JSON object with the key 'step', got {start!r}; "
                        f"{'remove the line' if result is None else 'restore the file'}"
                    ) from None
        last = entries[-1]["step"] if entries else 0
        if result is not None and last != result.get("steps", last):
            raise EdgernnError(
                f"{path}: expected evaluations up to step {result['steps']}, got the last one at {last}; "
                "restore the file"
            )
        return entries

    def cut_metrics(self, step: int) -> None:
        """Remove those lines of metrics.jsonl whose evaluation came after the training step `step`."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in kept))

    def log(self, line: dict[str, Any]) -> None:
        path = output_file(self.path / METRICS)
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            # the line must be on disk before the checkpoint that follows
            file.flush()
            os.fsync(file.fileno())
        if self._on_log is not None:
            self._on_log(line)


def kept_path(run: Path, config: Mapping[str, Any], path: str) -> str:
    """Return the path of a training's data, which may be relative to the folder in which it was started.

    Data that were in memory are in the run itself, which may be moved. `config` is the content of its config.json.
    """
    kept = run / Path(path).name
    started = kept if kept.name in DATA and kept.is_file() else Path(config["folder"] or "", path)
    return str(started) if started.exists() else path


def _as_text(value: Any) -> str:
    """Format the value of a setting for an error message; None, a setting that is not set, becomes "no value"."""
    return "no value" if value is None else repr(value)


def _metadata(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + size])
    return header.get("__metadata__", {})


def _is_on_gpu(model: RecurrentModel) -> bool:
    return next(model.parameters()).is_cuda


def _load_model(path: Path, model: RecurrentModel, tensors: dict[str, Tensor]) -> None:
    expected = model.state_dict()
    weights = {name.removeprefix(_MODEL): t for name, t in tensors.items() if name.startswith(_MODEL)}
    if weights.keys() != expected.keys() or any(weights[n].shape != t.shape for n, t in expected.items()):
        raise EdgernnError(
            f"{path}: expected the checkpoint of this model, got weights of other names or shapes; "
            "train again, with another --out"
        )
    model.load_state_dict(weights)


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
    # a parameter without a gradient so far has no state
    if _RNG not in tensors or wrong or not state.keys() <= shapes.keys():
        raise EdgernnError(
            f"{path}: expected the checkpoint of this model, got an optimiser state of other shapes; "
            "train again, with another --out"
        )
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
