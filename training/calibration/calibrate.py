# SPDX-License-Identifier: Apache-2.0
"""Search of thresholds of the update rule delta for a trained dense model, without further training."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from edgernn.costs import executed_macs
from edgernn.errors import UsageError
from edgernn.export.delta_graph import delta_config
from edgernn.export.graph import layer_names
from edgernn.export.run import export_model, read_result
from edgernn.locks import hold_file
from edgernn.model import SequenceModel
from edgernn.own_network import OwnNetwork
from edgernn.progress import Progress, Silent
from edgernn.rules import Delta
from edgernn.store import load_any
from edgernn.training.calibration.threshold_search import (
    ROUNDING,
    MeasuredPoint,
    Scales,
    described,
    mean_changes,
    scaled,
    search_thresholds,
    warn_of_fine_loss,
)
from edgernn.training.evaluate import evaluate, open_task
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.intended_use import use_rows


@dataclass(frozen=True)
class CalibrationPoint(MeasuredPoint):
    """Cost and quality of a model, and the thresholds of x and h of each layer, changes that the rule delta ignores."""

    thresholds: list[tuple[float, float]]


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration: a trained model that now has the rule delta, and the thresholds that were measured.

    Attributes:
        model: The model with the rule delta and the thresholds of `point`.
        point: The measured point with the fewest multiply-adds among those within the allowed loss of the metric, or
            the allowed change of the output.
        curve: All measured points with a finite value, from the most to the fewest multiply-adds.
        dense: Metric of the model before it got the rule delta; 0 if changes of the output are measured.
    """

    model: SequenceModel | OwnNetwork
    point: CalibrationPoint
    curve: list[CalibrationPoint]
    dense: float


Model = TypeVar("Model", bound=SequenceModel | OwnNetwork)


def with_thresholds(model: Model, thresholds: Sequence[tuple[float, float]]) -> Model:
    """Return a copy of a dense model with the rule delta and these thresholds, in evaluation mode.

    Args:
        model: The dense model.
        thresholds: Thresholds of x and of h of each recurrent layer. Products of weights and x are updated only for
            values of x that changed by more than the first one (see `Delta`), and products with h likewise.

    Returns:
        The copy, which shares no tensor with the model.

    Raises:
        UsageError: `model` is not dense: it already has an update rule that skips work.
    """
    _check_dense(model)
    if isinstance(model, OwnNetwork):
        layers = zip(model.recurrent_layers(), thresholds, strict=True)
        rules = [Delta(layer.input_size, layer.cell.hidden_size, *pair) for layer, pair in layers]
        return model.with_rules(rules).eval()  # type: ignore[return-value]
    layer = model.config.layer
    config = dataclasses.replace(model.config, layer=dataclasses.replace(layer, rule=delta_config(thresholds)))
    copy = SequenceModel(config).to(next(model.parameters()))
    copy.load_state_dict(model.state_dict())
    return copy.eval()  # type: ignore[return-value]


def _check_dense(model: SequenceModel | OwnNetwork) -> None:
    """Raise UsageError unless the model is dense, that is, updates every neuron at every step."""
    for rule in (type(layer.rule) for layer in model.recurrent_layers()):
        if not rule.is_dense():
            raise UsageError(
                f"model: expected one with the rule 'always', which updates every neuron at every step, got the rule "
                f"{rule.name!r}; train a model with the rule 'always'"
            )


def calibrate_output(model: SequenceModel, x: Tensor, loss: float = 0.02) -> Calibration:
    """Find thresholds of the rule delta for a dense model from inputs alone, without labels.

    The thresholds are chosen on x, so that the change of the output may be larger on other inputs: keep some to check.

    Args:
        model: A dense model, such as the result of `from_torch`. It is put into evaluation mode.
        x: Inputs (T, B, I), or word indices (T, B).
        loss: Largest allowed change of the output: RMS(y' - y) / RMS(y), with the outputs y of `model` and y' of the
            model with the rule delta. RMS is the root mean square.

    Returns:
        The model with the best thresholds, and all measured points.

    Raises:
        UsageError: `model` is not dense, or `loss` is not above 0.
        EdgernnError: Even the smallest thresholds change the output by more than `loss`.
    """
    model.eval()
    with torch.no_grad():
        expected = model(x)[0]

    def measure(candidate: SequenceModel) -> tuple[float, float]:
        with torch.no_grad():
            y = candidate(x)[0]
        change = (y - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-12)
        return executed_macs(candidate), float(change)

    return _search(model, x, measure, 0.0, lambda value: value <= loss, loss, Silent())


def calibrate_on(
    model: SequenceModel | OwnNetwork, task: Task, *, loss: float = 0.5, progress: Progress | None = None
) -> Calibration:
    """Find thresholds of the rule delta for a dense model on the validation sequences of a task.

    Args:
        model: The dense model.
        task: The task, opened.
        loss: Largest allowed loss of the task's metric: percentage points if higher is better, else percent of its
            value.
        progress: Progress bar. Default: none.

    Returns:
        The model with the best thresholds, and all measured points.

    Raises:
        UsageError: The model is not dense, or `loss` is not above 0.
        EdgernnError: Even the smallest thresholds lose more than `loss`.
    """
    metric, higher = task.objective.metric, task.objective.higher_is_better

    def measure(candidate: SequenceModel | OwnNetwork) -> tuple[float, float]:
        metrics = evaluate(candidate, task, task.validation)
        return metrics["macs_executed"], metrics[metric]

    _check_dense(model)
    _, dense = measure(model)
    limit = dense - loss / 100 if higher else dense + loss / 100 * abs(dense)
    if higher:
        warn_of_fine_loss(loss, sum(_labels(batch.target) for batch in task.validation.chunks()))
    sample = next(task.validation.chunks(64)).x
    return _search(
        model,
        sample,
        measure,
        dense,
        lambda value: value >= limit - ROUNDING if higher else value <= limit,
        loss,
        progress or Silent(),
    )


def _labels(target: Tensor) -> int:
    """Count the labels of a batch; a negative one marks a step without a label."""
    return len(target) if target.is_floating_point() else int((target >= 0).sum())


def calibrate(
    run: Path,
    out: Path | None = None,
    *,
    loss: float = 0.5,
    data: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Add the rule delta to the dense model of a run, with thresholds that cost little accuracy, and export the model.

    The thresholds are chosen on validation sequences. The metric on test sequences is reported.

    Args:
        run: The run directory.
        out: The ONNX file to write. Default: RUN/model-delta.onnx.
        loss: Largest allowed loss of the metric. The unit is percentage points if a higher metric is better, else
            percent of the dense model's metric.
        data: Folder of data sets. Default: that of the training.
        progress: Progress bar. Default: none.

    Returns:
        JSON-compatible dict: "metric" (its name), "higher_is_better", "dense" (validation metric of the dense model),
        "curve" (a list of all measured points, each a dict of `CalibrationPoint`), "chosen" (the measured
        point with the thresholds of the exported file), "layers" (name, cell, sizes and thresholds of each layer),
        "validation" and "test" (on each: the metric, and "executed", the multiply-adds as a share of those of the dense
        model), and the keys of the export's result (see `export_run`).

    Raises:
        UsageError: The model is not dense, `loss` is not above 0, or another process is writing `out`.
        EdgernnError: The run is not finished, its data are missing, or even the smallest thresholds lose more than
            `loss`.
    """
    progress = progress or Silent()
    model, config = load_any(run, allow_code=True)
    out = out or run / "model-delta.onnx"
    # refused before the data are read
    _check_dense(model)
    trained = read_result(run)
    task = open_task(run, data)
    metric, higher = task.objective.metric, task.objective.higher_is_better
    with hold_file(out, *(file for file in run.iterdir() if file.suffix != ".onnx")):
        try:
            calibration = calibrate_on(model, task, loss=loss, progress=progress)
        finally:
            progress.close()
        metrics = evaluate(calibration.model, task, task.test)
        share = metrics["macs_executed"] / trained["macs"]
        result = trained | metrics | {"rule": Delta.name}
        exported = export_model(run, calibration.model, config, result, out, use_rows)
    return {
        "metric": metric,
        "higher_is_better": higher,
        "dense": calibration.dense,
        "curve": [dataclasses.asdict(point) for point in calibration.curve],
        "chosen": dataclasses.asdict(calibration.point),
        "layers": [
            described(name, layer.cell, pair)
            for name, layer, pair in zip(
                _names(model), model.recurrent_layers(), calibration.point.thresholds, strict=True
            )
        ],
        "validation": {"executed": calibration.point.executed, metric: calibration.point.value},
        "test": {"executed": share, metric: metrics[metric], "dense": trained[metric]},
        **exported,
    }


def _names(model: SequenceModel | OwnNetwork) -> list[str]:
    if isinstance(model, SequenceModel):
        return layer_names(model)
    return [f"layer{i}" for i in range(len(model.recurrent_layers()))]


def _search(
    model: SequenceModel | OwnNetwork,
    sample: Tensor,
    measure: Callable[[Any], tuple[float, float]],
    dense: float,
    good: Callable[[float], bool],
    loss: float,
    progress: Progress,
) -> Calibration:
    """Search the thresholds of the rule delta with the fewest multiply-adds among those whose loss is allowed."""
    units = _mean_changes(model, sample)
    if isinstance(model, OwnNetwork):
        # the network must carry the states of the rule from part to part
        with_thresholds(model, units).check(sample)
    dense_macs = sum(layer.macs() for layer in model.recurrent_layers())

    def measured(scales: Scales) -> tuple[float, float]:
        macs, value = measure(with_thresholds(model, scaled(scales, units)))
        return macs / dense_macs, value

    def point(measurement: MeasuredPoint) -> CalibrationPoint:
        return CalibrationPoint(**vars(measurement), thresholds=scaled(measurement.scales, units))

    best, curve = search_thresholds(measured, len(units), good, loss, dense, progress)
    chosen = point(best)
    return Calibration(with_thresholds(model, chosen.thresholds), chosen, [point(one) for one in curve], dense)


def _mean_changes(model: SequenceModel | OwnNetwork, x: Tensor) -> list[tuple[float, float]]:
    """Return the unit of the thresholds of each layer: the mean changes (see `mean_changes`) of the first layer."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    layers = model.recurrent_layers()
    watched = layers if isinstance(model, OwnNetwork) else layers[:1]
    handles = [
        layer.register_forward_hook(lambda m, inputs, outputs: seen.update({m: (inputs[0], outputs[0])}))
        for layer in watched
    ]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return [mean_changes(*seen[layer]) for layer in watched] * (len(layers) // len(watched))
