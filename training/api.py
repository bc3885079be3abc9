# SPDX-License-Identifier: Apache-2.0
"""The function `train`: training of a model in one call, as `edgernn train` does."""

import json
import math
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgernn.cell_files import differs, label, load_network, source_of, why_portable
from edgernn.config import NetworkConfig
from edgernn.costs import model_cost
from edgernn.errors import EdgernnError, EdgernnWarning, MissingPackageError, UsageError
from edgernn.files import CONFIG, EXAMPLE, FULL, SPLIT, read_json, write_arrays, write_json
from edgernn.kernels import attach
from edgernn.locks import LOCK, hold_folder
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.own_network import OwnNetwork
from edgernn.progress import Progress, Silent
from edgernn.runtime.answers import class_names, probabilities
from edgernn.settings import as_word
from edgernn.signals import Interrupted, delaying
from edgernn.steering import Steering
from edgernn.store import kept_cell, load_any, read_config, save_weights
from edgernn.training.config import Settings
from edgernn.training.evaluate import evaluate, scorer
from edgernn.training.frozen import freeze
from edgernn.training.loop import fit, steered_percent
from edgernn.training.optim import copy_weights, initialise, make_optimizer
from edgernn.training.parallel import Group, check_size, size_of, together
from edgernn.training.pictures import learning_curve, update_pattern
from edgernn.training.plan import Plan, first_difference, make_plan
from edgernn.training.run_directory import (
    DATA,
    LEARNING,
    PATTERN,
    RESULT,
    STATE,
    STATE_JSON,
    TENSORBOARD,
    Position,
    RunDirectory,
)
from edgernn.training.statistics import spread
from edgernn.training.tasks.base import Objective, Score, standardised
from edgernn.training.tasks.confusion import calibrate
from edgernn.training.tasks.output_layer import output_layer, scale_layer
from edgernn.training.tasks.own import OwnData
from edgernn.training.tasks.parts import finite
from edgernn.training.tasks.sources import Split

# number of test sequences that are saved in the run directory, to check and time the model
_EXAMPLES = 16
# a warning of overfitting needs this many evaluations, and this ratio of the last loss to the lowest one
_FEW_EVALUATIONS, _OVERFIT = 10, 1.2
# target numbers with a mean above this, or a deviation above it or below its inverse, are hardly learned as they are
_FAR = 10


@dataclass(frozen=True)
class Prediction:
    """Outputs of a trained model for N sequences; without the axis N for a single one.

    Attributes:
        y: Outputs (N, O), or (N, T, O) if the model has an output at every step.
        probabilities: Probabilities of the O classes, in the shape of y; None for a model of numbers.
        classes: Name of the likeliest class of each sequence (N,) or step (N, T); None for a model of numbers.
    """

    y: NDArray[np.float32]
    probabilities: NDArray[np.float64] | None = None
    classes: NDArray[np.str_] | None = None


class TrainedRun(dict[str, Any]):
    """Result of a training: the content of result.json as a dict, with the run directory as "run"."""

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(self["run"])

    @cached_property
    def model(self) -> RecurrentModel:
        """The trained model, on the CPU."""
        return load_any(self.path, allow_code=True)[0].eval()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, a dict for each evaluation: step, epoch, loss, metrics and others."""
        return RunDirectory(self.path).metrics()

    def evaluate(self, data: Any = None, **settings: object) -> dict[str, float]:
        """Compute the metrics on the test part, or on new data.

        Args:
            data: New data with targets, as `train` takes them as task. Default: the test part of the training's data.
            **settings: Settings of the task that replace those of the training.

        Returns:
            Dict from metric to value.

        Raises:
            UsageError: A setting is invalid, or the data are of another kind than those of the training.
            EdgernnError: The data are invalid, or have other classes or channels.
        """
        from edgernn.training.evaluate_model import evaluate_model
        from edgernn.training.tasks.arrays import save_data

        with tempfile.TemporaryDirectory() as folder:
            is_path = data is None or isinstance(data, str | Path)
            source = (data and Path(data)) if is_path else save_data(data, Path(folder))
            metrics: dict[str, float] = evaluate_model(self.path, settings, data=source)["metrics"]
        return metrics

    def export(self, out: str | Path | None = None, weights: str | None = None) -> Path:
        """Write the model as an ONNX file, with its card and an example beside it.

        Args:
            out: The file. Default: model.onnx in the run directory, or model-TYPE.onnx for other weights.
            weights: "float32", "bfloat16" or "int8". Default: the setting `weights` of the training.

        Returns:
            The path of the file.

        Raises:
            EdgernnError: The outputs of the file differ from torch's.
            UsageError: The type of weights does not fit the model.
        """
        from edgernn.export.run import export_run
        from edgernn.training.tasks.intended_use import use_rows

        file = None if out is None else Path(out)
        return Path(export_run(self.path, file, weights, scorer(self.path), notes=use_rows)["model"])

    @torch.no_grad()
    def predict(self, x: Any) -> Prediction:
        """Run the model on new sequences.

        Args:
            x: One sequence (T, I), N sequences (N, T, I), or a list of N sequences of unequal lengths (T, I). The
                columns of a DataFrame (T, I) are the channels, by name if those of the training have names.

        Returns:
            The outputs, with the names and the probabilities of classes if the model has classes. Outputs at steps
            after the end of a shorter sequence are NaN, and their classes "".

        Raises:
            UsageError: x has another shape, or the model cannot run sequences of unequal lengths.
            EdgernnError: A number is not finite.
        """
        from edgernn.runtime.input_check import in_order
        from edgernn.training.tasks.arrays import stacked

        channels = self._task["channels"]
        array, lengths = stacked("x", x if channels is None else in_order("x", x, channels))
        if array.dtype.kind not in "iubf" or array.ndim not in (2, 3):
            raise UsageError(
                f"x: expected numbers (T, I) or (N, T, I), or a list of sequences (T, I), got {array.dtype} "
                f"{array.shape}; reshape x, or run a file with `edgernn run`"
            )
        single = array.ndim == 2
        sequences = finite("x", array)[None] if single else finite("x", array)
        counts = None if lengths is None else torch.from_numpy(lengths)
        y = self.model.outputs(sequences.transpose(0, 1), counts)
        if y.ndim == 3:
            y = y.transpose(0, 1).clone()
            if counts is not None:
                y[torch.arange(y.shape[1]) >= counts[:, None]] = math.nan
        outputs = (y[0] if single else y).numpy()
        names = class_names({"classes": self._task["classes"], "metric": self["metric"]}, outputs.shape[-1])
        if names is None:
            return Prediction(outputs)
        classes = np.where(np.isnan(outputs[..., 0]), "", np.array(names)[outputs.argmax(-1)])
        return Prediction(outputs, probabilities(outputs), classes)

    @cached_property
    def _task(self) -> dict[str, Any]:
        task: dict[str, Any] = read_json(self.path / CONFIG)["task"]
        return task


def train(
    task: Any,
    cell: str | None = None,
    rule: str | None = None,
    *,
    network: str | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    data: str | Path | None = None,
    resume: bool = False,
    devices: int | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    numbered: bool = False,
    tensorboard: bool = False,
    wait: float = 0.0,
    **named: Unpack[Settings],
) -> TrainedRun:
    """Train a model and write a run directory.

    Args:
        task: The name of a task; the path of an npz, csv or parquet file, or of a folder of tables or wav files; or
            data in memory, which the run then has as data.npz or data.parquet: a pair (x, y) of arrays, tensors, or
            lists of arrays of unequal lengths; a torch Dataset of such pairs; a dict of arrays as an npz file has them;
            or a polars or pandas DataFrame, whose rows are time steps. y has the labels, names of classes or numbers
            of each sequence, or of each step; None with predict="next".
        cell: The name of a cell, or FILE.py:CLASS for a user-defined one. The file is executed and copied to the run
            directory; a resumed run executes the copy.
        rule: The name of an update rule. Default: the rule that the cell's name implies, else "always".
        network: FILE.py:CLASS of a network of one's own, in place of `cell`; see `edgernn.own_network`. The file is
            executed and copied like that of a cell.
        out: The run directory. Default: runs/TASK-CELL[-RULE].
        seed: Random seed of weights, data order and generated data.
        device: cpu, cuda, or auto, which means cuda if torch finds a GPU, else cpu.
        data: The folder of data sets. Default: the environment variable EDGERNN_DATA.
        resume: Continue the run in `out`. If that run is finished, only return its result.
        devices: Number of processes. Each computes a part of every batch, on a GPU of its own or on the CPU. The result
            equals that of one process, up to the order of sums. With random numbers in the forward pass, such as
            dropout, masks (mask_steps, mask_channels) or the rule `random`, it is equal in distribution only. Default:
            the processes started by torchrun, or one.
        settings: Settings of training, model, task, cell and rule, or of the network's constructor: a dict from name to
            value, such as {"lr": 0.01}. The
            names are those of the settings NAME=VALUE of `edgernn train`.
        progress: Progress bar. Default: none.
        on_epoch: Function that is called after each evaluation, by default one an epoch, with the line of metrics.jsonl
            as a dict: step, epoch, loss, the metrics of the validation part, and others.
        numbered: If `out` has files, write to OUT-2, OUT-3 or the like, the first one without.
        tensorboard: Also write the metrics of each evaluation to the folder tensorboard in the run, for TensorBoard.
        wait: Seconds to wait for another process that trains in `out`.
        **named: Settings by keyword, such as hidden_size=32, in place of `settings`; `lambda_` stands for lambda.

    Returns:
        The trained run: a dict with the content of result.json, and methods to evaluate, export and use the model.

    Raises:
        UsageError: An argument is invalid, `out` is in use, or the batches cannot be shared by the processes.
        EdgernnError: The data is invalid, the training diverged, or a process was lost.
        OSError: A file cannot be written; the run can be resumed.
        Interrupted: SIGINT (Ctrl-C), SIGTERM or SIGHUP was received; the run can be resumed. It is a KeyboardInterrupt.
    """
    settings = {**(settings or {}), **{name.rstrip("_"): value for name, value in named.items()}}
    # from an array or a range of numpy
    settings = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    seed = seed.item() if isinstance(seed, np.generic) else seed
    progress = progress or Silent()
    if numbered and resume:
        raise UsageError("numbered: expected false with resume, which goes on with the run in `out`; leave one out")
    if (cell is None) == (network is None):
        raise UsageError("cell, network: expected one of the two, got " + ("none; add one" if cell is None else "both"))
    cell = cell or network or ""
    with ExitStack() as stack:
        source, is_path = task, isinstance(task, str | Path)
        if not is_path:
            from edgernn.training.tasks.arrays import save_data

            source = save_data(task, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        path = Path(out) if out else default_out(source, cell, rule)
        path = _unused(path) if numbered else path
        cell_used = _resumed_cell(path, cell) if resume else cell
        if network is not None:
            load_network(cell_used)
        folder = Path(data) if data else None
        with nullcontext() if is_path else _naming_no_file(source):
            plan = make_plan(str(source), cell_used, rule, settings, seed=seed, device=device, data=folder)
        files = _extra_files(plan)
        if not is_path:
            files[source.name] = source.read_bytes()
            plan = replace(plan, source=path / source.name)
        size = size_of(devices)
        check_size(plan, size)
        logs = [log for log in (on_epoch, _tensorboard(path) if tensorboard else None) if log is not None]
        run = RunDirectory(path, lambda line: [log(line) for log in logs])
        option = "--network" if isinstance(plan.model, NetworkConfig) else "--cell"
        arguments = (rule, run.path, seed, device, data, settings, devices, option)
        command = command_words(str(source if is_path else plan.source), cell, *arguments)
        # further processes read the run's copy of a user-defined cell, as this one does
        child_command = command_words(str(source), cell_used, *arguments)
        group = stack.enter_context(together(plan, size, child_command))
        # the caller's random generator is restored at the end
        stack.enter_context(torch.random.fork_rng(devices=[]))
        record = plan.record(command, size)
        if resume and (path / CONFIG).is_file():
            kept = read_config(path)["task"]["fingerprint"]
            # runs of earlier versions have another hash of the same data
            if kept in plan.task.fingerprints:
                record["task"]["fingerprint"] = kept
        _check_same(group, record)
        group.first(lambda: stack.enter_context(hold_folder(run.path, wait)))
        resuming = shlex.join([*command, "--resume"])
        stack.enter_context(_explaining_full_disk(run, resuming))
        if note := group.first(lambda: run.open(record, resume, files)):
            progress.note(note)
        if group.leads:
            for line in plan.task.summary:
                progress.note(line)
            _warn_of_export(plan)
        result = group.first(run.result)
        if result is None:
            try:
                result = _train(plan, run, progress, group)
            except Interrupted as stop:
                raise Interrupted.by(stop.number, f"{stop}; resume with: {resuming}") from None
            except EdgernnError:
                if group.leads:
                    run.discard()
                raise
            finally:
                progress.close()
    return TrainedRun({**result, "run": str(run.path)})


def cross_validate(
    folds: int,
    task: Any,
    cell: str | None = None,
    rule: str | None = None,
    *,
    out: str | Path | None = None,
    network: str | None = None,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a model for each of k folds of the data, which it does not see (`Folds`).

    Args:
        folds: Number of folds k.
        task: As for `train`; a task with the setting folds.
        cell: As for `train`.
        rule: As for `train`.
        out: Folder of the run directories fold-0, fold-1 and so on. Default: that of `train`.
        network: As for `train`.
        seed: The run of fold i has the seed `seed` + i.
        settings: As for `train`.
        **options: Further arguments of `train`.

    Returns:
        Dict with "folds", "metric", "runs" (their directories), and "validation" and "test", which have the values of
        the metric, their mean, standard deviation "sd" and 95 % confidence "interval" (`spread`), which is approximate,
        as the training parts overlap. Each group is in the test part of one run. If the data have a test part of their
        own, it is that of all runs, and each group is in the validation part of one run.

    Raises:
        UsageError: The task has no folds, or an argument of `train` is invalid.
        EdgernnError: There are fewer groups than folds, or a training failed.
    """
    name = task if isinstance(task, str | Path) else DATA[0]
    folder = Path(out) if out else default_out(name, cell or network or "", rule)
    runs = [
        train(
            task,
            cell,
            rule,
            network=network,
            out=folder / f"fold-{i}",
            seed=seed + i,
            settings={**(settings or {}), "folds": folds},
            **options,
        )
        for i in range(folds)
    ]
    metric = runs[0]["metric"]
    return {
        "folds": folds,
        "metric": metric,
        "runs": [run["run"] for run in runs],
        "validation": spread([run["best_validation"] for run in runs]),
        "test": spread([run[metric] for run in runs]),
    }


@contextmanager
def _naming_no_file(path: Path) -> Iterator[None]:
    """Leave the temporary file of data in memory out of errors and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        except EdgernnError as error:
            error.args = (str(error).replace(f"{path}: ", ""), *error.args[1:])
            raise
        finally:
            texts = [(str(entry.message).replace(f"{path}: ", ""), entry.category) for entry in caught]
    for text, category in texts:
        warnings.warn(text, category, stacklevel=4)


def _unused(path: Path) -> Path:
    """Return the first of PATH, PATH-2, PATH-3 and so on that has no files."""
    names = chain([path.name], (f"{path.name}-{i}" for i in count(2)))
    return next(p for p in map(path.with_name, names) if not p.exists() or not {f.name for f in p.iterdir()} - {LOCK})


def _tensorboard(run: Path) -> Callable[[dict[str, Any]], None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingPackageError("tensorboard", "needs tensorboard; pip install tensorboard") from error
    writers: list[SummaryWriter] = []

    def log(line: dict[str, Any]) -> None:
        step = line["step"]
        if not writers:
            # of a resumed run, later lines are written again
            writers.append(SummaryWriter(str(run / TENSORBOARD), purge_step=step))
        for name, value in line.items():
            if name != "step":
                writers[0].add_scalar(name, value, step)
        writers[0].flush()

    return log


def _resumed_cell(run: Path, cell: str) -> str:
    """Return the cell with which a run is resumed, and warn if the user's file has changed since the run began.

    For a user-defined cell FILE.py:CLASS, the path is replaced by that of the copy of FILE.py in the run directory
    `run`. Any other cell is returned unchanged.
    """
    kept = kept_cell(run, cell)
    if kept != cell and differs(cell, kept):
        text = (
            f"cell: {cell} differs from the copy in {run}, which the resumed run uses; "
            "to train the new version, give another --out"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=3)
    return kept


def _extra_files(plan: Plan) -> dict[str, bytes]:
    """Return the files that a new run stores beside config.json: the code of the user, and the split of own data."""
    source, split = source_of(plan.kind), plan.task.division
    files = {} if source is None else {source.kept: source.content}
    return files if split is None else files | {SPLIT: json.dumps(split, indent=1).encode()}


def _warn_of_export(plan: Plan) -> None:
    if isinstance(plan.model, NetworkConfig):
        return
    cell_type, options = plan.model.layer.types[0], plan.model.layer.cell.options
    if why := why_portable(cell_type, options, plan.model.input.size, plan.model.hidden_size):
        text = f"{why}; it can be trained, but an exported file runs it as a portable function, which is slow"
        if refusal := _why_not_exported(plan):
            text = f"{cell_type.name}: {refusal}; it can be trained and tested, but `edgernn export` refuses it"
        warnings.warn(text, EdgernnWarning, stacklevel=3)


def _why_not_exported(plan: Plan) -> str | None:
    """Return why an export of the plan's network will fail, or None; found before the training, which takes long."""
    # loads onnx and torch's exporter, which no other training needs
    from edgernn.export.layer_functions import why_not_exported

    with torch.random.fork_rng(devices=[]):
        network = plan.network().cpu().eval()
    return why_not_exported(network.recurrent_layers()[0]) if isinstance(network, SequenceModel) else None


@contextmanager
def _explaining_full_disk(run: RunDirectory, resuming: str) -> Iterator[None]:
    """Add a note to an OSError that reports a full disk: the last saved step, and `resuming`, the command to resume."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            state = run.path / STATE_JSON
            saved = f"step {read_json(state)['step']} is saved" if state.is_file() else "no step is saved yet"
            error.add_note(f"{saved}; free some space and resume with: {resuming}")
        raise


def _check_same(group: Group, record: dict[str, Any]) -> None:
    """Raise UsageError if a process of a data-parallel training has another config.json than process 0."""
    difference = first_difference(group.first(lambda: record), record)
    if group.any(difference is not None):
        name, expected, got = difference or ("settings", "the same values", "other values in another process")
        raise UsageError(
            f"{name}: expected {expected} as in process 0, got {got}; start all processes with the same settings"
        )


def default_out(task: str | Path, cell: str, rule: str | None) -> Path:
    """Return the default run directory: runs/TASK-CELL[-RULE], or runs/TASK-NETWORK."""
    return Path("runs") / "-".join([Path(task).stem, label(cell), *([rule] if rule else [])])


def _train(plan: Plan, run: RunDirectory, progress: Progress, group: Group) -> dict[str, Any]:
    torch.manual_seed(plan.seed)
    model = plan.network()
    backend = attach(model, plan.config.backend, plan.device, plan.replays)
    if group.size > 1 and any(layer.cell.counts_steps for layer in model.recurrent_layers()):
        # batch statistics are summed over processes, which only the torch loop does
        backend = "torch"
    initialise(model, plan.config)
    scaled, objective = _scaled_layer(plan, model), plan.task.objective
    freeze(model, plan.config.start.frozen)
    if note := group.first(lambda: _copy_start(plan, model, run, scaled)):
        progress.note(note)
    optimizer = make_optimizer(model, plan.config)
    if scaled is not None and isinstance(objective, Objective):
        plan.task.objective = standardised(objective, scaled.mean, scaled.std)
    position = fit(plan, model, optimizer, run, progress, group)
    progress.close()
    if scaled is not None:
        scale_layer(scaled.layer, scaled.std, scaled.mean)
        plan.task.objective = objective
    return group.first(lambda: _finish(plan, model, backend, run, position))


class _Scaled(NamedTuple):
    """A layer with outputs that are standardised target numbers in training, and in the units of the data after it."""

    layer: nn.Linear
    mean: Tensor
    std: Tensor


def _scaled_layer(plan: Plan, model: RecurrentModel) -> _Scaled | None:
    """Return the output layer whose targets are standardised, or None if they are taken as they are."""
    if plan.task.target_scale is None:
        return None
    mean, std = plan.task.target_scale
    layer = output_layer(model, next(plan.task.validation.chunks()).to(plan.device))
    if layer is not None and layer.bias is not None:
        return _Scaled(layer, mean, std)
    if float(mean.abs().max()) > _FAR or not 1 / _FAR < float(std.min()) <= float(std.max()) < _FAR:
        text = (
            f"targets: means up to {float(mean.abs().max()):.3g} and deviations up to {float(std.max()):.3g} are hard "
            "to learn for a network whose outputs are not those of an nn.Linear with a bias; scale the targets to "
            "about 1, or end the network with such a layer"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=3)
    return None


def _copy_start(plan: Plan, model: RecurrentModel, run: RunDirectory, scaled: _Scaled | None) -> str | None:
    """Copy weights of the model that start_run names to that of a new run; return a sentence on them, or None."""
    if plan.config.start.run is None or (run.path / STATE).exists():
        return None
    before = None if scaled is None else scaled.layer.weight.clone()
    note = copy_weights(model, Path(plan.config.start.run))
    if scaled is not None and before is not None and not torch.equal(before, scaled.layer.weight):
        scale_layer(scaled.layer, 1 / scaled.std, -scaled.mean / scaled.std)
    return note


def _finish(plan: Plan, model: RecurrentModel, backend: str, run: RunDirectory, position: Position) -> dict[str, Any]:
    """Write the weights, plots, example sequences and result.json of a finished run; return the last."""
    calibration = calibrate(model, plan.task, plan.device) if plan.task.calibrates else {}
    save_weights(model, run.path)
    lines = run.metrics()
    result = _result(plan, model.eval(), position, lines[-1]["loss"]) | {"backend": backend} | calibration
    result |= _steered(plan, model, position)
    task = plan.task
    if task.detector is not None:
        result["detector"] = dict(task.detector)
    if isinstance(task, OwnData):
        _warn_of_overfitting(lines, task.objective, plan.config.keep)
    with delaying():
        learning_curve(run.path / LEARNING, {plan.cell: lines}, task.objective.metric, task.solved, plan.can_skip)
    if isinstance(model, SequenceModel | OwnNetwork):
        batch = next(task.test.chunks(_EXAMPLES))
        write_arrays(run.path / EXAMPLE, {"x": batch.x.transpose(0, 1).numpy()})
        if plan.can_skip and isinstance(model, SequenceModel):
            with delaying():
                first = batch.part(0, len(batch.x[0]))
                steps = first.x if first.lengths is None else first.x[: int(first.lengths)]
                update_pattern(run.path / PATTERN, model, steps.to(plan.device))
    task.pictures(model, run.path, plan.device)
    with torch.no_grad():
        run.save_series(task.series(model, plan.device))
    write_json(run.path / RESULT, result)
    return result


def _warn_of_overfitting(lines: list[dict[str, Any]], objective: Score, keep: str) -> None:
    """Warn if the loss on the validation part has risen for most of the training, while that on training data fell."""
    metric = objective.tie or objective.metric
    best, last = min(lines, key=lambda line: line[metric]), lines[-1]
    rose = last[metric] > _OVERFIT * best[metric] and last["loss"] < best["loss"]
    if len(lines) >= _FEW_EVALUATIONS and rose and best["step"] < last["step"] / 2:
        kept = "the best weights are kept" if keep == "best" else "keep=best keeps the best weights"
        text = (
            f"{metric} of the validation part was lowest at step {best['step']}, {best[metric]:.3g}, and rose to "
            f"{last[metric]:.3g} at step {last['step']} while the training loss fell: the model overfits. {kept}; more "
            "data, a lower hidden_size, or dropout_output=0.3 may help"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=3)


def _result(plan: Plan, model: RecurrentModel, position: Position, training_loss: float) -> dict[str, Any]:
    task = plan.task
    metrics = evaluate(model, task, task.test, plan.device)
    cost = model_cost(model, 1 - metrics["skip_percent"] / 100)
    value = metrics[task.objective.metric]
    return {
        "task": plan.task_name,
        "cell": plan.cell,
        "rule": model.recurrent_layers()[0].rule.name,
        "network": type(model).__name__,
        "seed": plan.seed,
        "metric": task.objective.metric,
        "higher_is_better": task.objective.higher_is_better,
        **metrics,
        "solved": None if task.solved is None else task.is_solved(value),
        "threshold": task.solved,
        "best_validation": position.best,
        "stopped": position.stopped,
        "steps": position.step,
        "epochs_done": round(position.step / plan.steps_per_epoch, 3),
        "training_loss": training_loss,
        "seconds": round(position.seconds, 3),
        "seconds_per_epoch": round(position.seconds / (position.step / plan.steps_per_epoch), 6),
        "steps_a_sequence": _steps_a_sequence(task.test) if isinstance(model, SequenceModel | OwnNetwork) else None,
        "neurons": sum(layer.cell.hidden_size for layer in model.recurrent_layers()),
        "parameters": cost.parameters,
        "weights": model.rounding.weights,
        "weight_bytes": cost.weight_bytes,
        "macs": cost.macs,
        "macs_executed": metrics["macs_executed"],
        "flops_paper": cost.flops_paper,
        "frontend_macs": cost.frontend_macs,
        "block_macs": cost.block_macs,
    }


def _steps_a_sequence(test: Split) -> float:
    """Return the number of steps of a test sequence, or the mean of a batch if the sequences differ in length."""
    first = next(test.chunks(1))
    if first.lengths is None:
        return len(first.x)
    batch = next(test.chunks())
    return batch.steps / batch.x.shape[1]


def _steered(plan: Plan, model: RecurrentModel, position: Position) -> dict[str, Any]:
    """Return the entries of result.json for the setting skip, the share of neuron updates that the user wants to skip.

    The entries are "skip_percent_wanted", "skip_percent_validation" (reached on the validation split), "skip_missed"
    (the reason if the two percentages differ too much, else None) and "lambda" (the final weight of the penalty on
    updates). The reason is also given as a warning. The dict is empty if the setting skip is not used.
    """
    if plan.config.skip is None or position.steering is None:
        return {}
    steering = Steering(plan.config.skip, position.step, position.steering)
    reached = steered_percent(plan, evaluate(model, plan.task, plan.task.validation, plan.device))
    why = steering.why_missed(reached)
    if why is not None:
        warnings.warn(why, EdgernnWarning, stacklevel=2)
    return {
        "skip_percent_wanted": 100 * plan.config.skip,
        "skip_percent_validation": reached,
        "skip_missed": why,
        "lambda": steering.weight,
    }


def command_words(
    task: str,
    cell: str,
    rule: str | None,
    out: Path,
    seed: int,
    device: str,
    data: str | Path | None,
    settings: Mapping[str, object],
    devices: int | None = None,
    option: str = "--cell",
) -> list[str]:
    """Build the command line of `edgernn train` that is equivalent to a call of `train`, as a list of words.

    `option` is that for `cell`: --cell, or --network for a network of one's own.
    """
    options = {"--task": task, option: cell, "--rule": rule, "--out": out, "--seed": seed, "--data": data}
    options["--devices"] = devices
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    device_words = [] if device == "auto" else ["--device", device]
    values = [f"{key}={as_word(value)}" for key, value in settings.items()]
    return ["edgernn", "train", *words, *device_words, *values]
