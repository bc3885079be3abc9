# SPDX-License-Identifier: Apache-2.0
"""Search of thresholds of the update rule delta for a trained dense model, without further training."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.config import RuleConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.export_run import export_model, read_result
from edgernn.locks import hold_file
from edgernn.model import SequenceModel
from edgernn.progress import Progress, Silent
from edgernn.rules import Delta
from edgernn.store import load_model
from edgernn.training.evaluate import evaluate
from edgernn.training.score import open_task

# thresholds in units of the mean change of x and of h from step to step: those of the curve, the number of halvings of
# the interval in which the loss is reached, and the factor by which one threshold alone is then raised
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_HALVINGS = 3
_FACTOR, _RAISES = 1.5, 3


@dataclass(frozen=True)
class CalibrationPoint:
    """Cost and quality of a model under the rule delta with two thresholds.

    Attributes:
        theta_x: Threshold of changes of x (see `Delta`).
        theta_h: Threshold of changes of h.
        executed: Multiply-adds of the recurrent layers, as a share of those of the dense model.
        value: The metric of the task. Without labels: the root mean square of the change of the output, divided by that
            of the dense model's output.
    """

    theta_x: float
    theta_h: float
    executed: float
    value: float


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration: a trained model that now has the rule delta, and the thresholds that were measured.

    Attributes:
        model: The model with the rule delta and the thresholds of `point`.
        point: The measured point with the fewest multiply-adds among those whose metric is worse than `dense` by at
            most the allowed amount.
        curve: All measured points, from the most to the fewest multiply-adds.
        dense: Metric of the model before it got the rule delta.
    """

    model: SequenceModel
    point: CalibrationPoint
    curve: list[CalibrationPoint]
    dense: float


def with_thresholds(model: SequenceModel, theta_x: float, theta_h: float) -> SequenceModel:
    """Return a copy of a dense model with the rule delta and these thresholds, in evaluation mode.

    Args:
        model: The dense model.
        theta_x: Threshold of x. Products read a new value only if it changed by more than this (see `Delta`).
        theta_h: Threshold of h, likewise.

    Returns:
        The copy, which shares no tensor with the model.

    Raises:
        UsageError: The model has another update rule already.
    """
    _check_dense(model)
    layer = model.config.layer
    rule = RuleConfig(Delta.name, {"theta_x": theta_x, "theta_h": theta_h})
    config = dataclasses.replace(model.config, layer=dataclasses.replace(layer, rule=rule))
    copy = SequenceModel(config).to(next(model.parameters()))
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def _check_dense(model: SequenceModel) -> None:
    """Raise UsageError unless the model is dense, that is, has the rule always."""
    if not model.rule_type.is_dense():
        raise UsageError(
            f"model: expected one that updates every neuron (the rule always), got the rule {model.rule_type.name}; "
            "train a dense model"
        )


def calibrate_output(model: SequenceModel, x: Tensor, loss: float = 0.02) -> Calibration:
    """Find thresholds of the rule delta for a dense model from inputs alone, without labels.

    Args:
        model: A dense model, such as the result of `from_torch`. It is put into evaluation mode.
        x: Inputs (T, B, I), or words (T, B).
        loss: Largest root mean square of the change of the output, divided by that of the output.

    Returns:
        The model with the best thresholds, and all measured points.

    Raises:
        UsageError: The model has another update rule, or `loss` is not above 0.
        EdgernnError: Even the smallest thresholds change the output by more than `loss`.
    """
    model.eval()
    with torch.no_grad():
        expected = model(x)[0]

    def measure(candidate: SequenceModel) -> float:
        with torch.no_grad():
            y = candidate(x)[0]
        return float((y - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-12))

    return _search(model, x, measure, 0.0, lambda value: value <= loss, loss, Silent())


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
        loss: Largest loss of the metric: in percentage points if higher is better, else in percent of its value.
        data: Folder of data sets. Default: that of the training.
        progress: Progress bar. Default: none.

    Returns:
        JSON-compatible dict: all measured points ("curve"), the thresholds, the share of multiply-adds that remains and
        the metric on validation and test sequences, and the result of the export.

    Raises:
        UsageError: The model has another update rule, `loss` is not above 0, or another process is writing `out`.
        EdgernnError: Data are missing, or even the smallest thresholds lose more than `loss`.
    """
    progress = progress or Silent()
    model, config = load_model(run)
    out = out or run / "model-delta.onnx"
    # refused before the data are read
    _check_dense(model)
    trained = read_result(run)
    task = open_task(run, data)
    metric, higher = task.objective.metric, task.objective.higher_is_better

    def measure(candidate: SequenceModel) -> float:
        return evaluate(candidate, task, task.validation)[metric]

    dense = measure(model)
    limit = dense - loss / 100 if higher else dense + loss / 100 * abs(dense)
    sample = next(task.validation.chunks(64)).x
    with hold_file(out):
        try:
            calibration = _search(
                model, sample, measure, dense, lambda v: v >= limit if higher else v <= limit, loss, progress
            )
        finally:
            progress.close()
        with _counting(calibration.model) as executed:
            metrics = evaluate(calibration.model, task, task.test)
        share = executed()
        result = trained | metrics | {"rule": Delta.name, "macs_executed": share * trained["macs"]}
        exported = export_model(run, calibration.model, config, result, out)
    return {
        "metric": metric,
        "higher_is_better": higher,
        "dense": calibration.dense,
        "curve": [dataclasses.asdict(point) for point in calibration.curve],
        "thresholds": {"theta_x": calibration.point.theta_x, "theta_h": calibration.point.theta_h},
        "validation": {"executed": calibration.point.executed, metric: calibration.point.value},
        "test": {"executed": share, metric: metrics[metric], "dense": trained[metric]},
        **exported,
    }


def _search(
    model: SequenceModel,
    sample: Tensor,
    measure: Callable[[SequenceModel], float],
    dense: float,
    good: Callable[[float], bool],
    loss: float,
    progress: Progress,
) -> Calibration:
    """Search the thresholds with the fewest multiply-adds whose loss is allowed.

    Thresholds are multiples of the mean changes of x and h per step: first the same multiple of CURVE for both, then a
    bisection between the largest good one and the next, then a higher multiple for x or h alone.

    Args:
        model: The dense model.
        sample: Inputs from which the mean changes are measured.
        measure: Function that returns the `value` of a model (see `CalibrationPoint`).
        dense: The `value` of the dense model.
        good: Function that returns True if a `value` is within the allowed loss.
        loss: The allowed loss, for errors.
        progress: Progress bar.

    Returns:
        The model with the best thresholds, and all measured points.

    Raises:
        UsageError: `loss` is not above 0, or the model has another update rule.
        EdgernnError: Even the smallest thresholds lose more than the allowed loss.
    """
    if not loss > 0:
        raise UsageError(f"loss: expected above 0, got {loss:g}")
    unit_x, unit_h = _mean_changes(model, sample)
    points: dict[tuple[float, float], CalibrationPoint] = {}
    total = len(CURVE) + _HALVINGS + 2 * _RAISES
    progress.begin("calibrating", total, line=f"calibrating: at most {total} pairs of thresholds")

    def point(scale_x: float, scale_h: float) -> CalibrationPoint:
        key = scale_x, scale_h
        if key not in points:
            candidate = with_thresholds(model, scale_x * unit_x, scale_h * unit_h)
            with _counting(candidate) as executed:
                value = measure(candidate)
            points[key] = CalibrationPoint(scale_x * unit_x, scale_h * unit_h, executed(), value)
            progress.update(len(points))
        return points[key]

    low = 0.0
    for scale in CURVE:
        if good(point(scale, scale).value):
            low = scale
    high = next((scale for scale in CURVE if scale > low), None)
    if low == 0:
        raise EdgernnError(
            f"loss: expected thresholds that lose at most {loss:g}, found none: the smallest ones give "
            f"{point(CURVE[0], CURVE[0]).value:.5g} in place of {dense:.5g}; raise the loss"
        )
    for _ in range(_HALVINGS if high is not None else 0):
        middle = (low + high) / 2  # type: ignore[operator]
        low, high = (middle, high) if good(point(middle, middle).value) else (low, middle)
    best = (low, low)
    for axis in (0, 1):
        for _ in range(_RAISES):
            raised = (best[0] * (_FACTOR if axis == 0 else 1), best[1] * (_FACTOR if axis else 1))
            if not good(point(*raised).value):
                break
            best = raised
    chosen = min((p for p in points.values() if good(p.value)), key=lambda p: p.executed)
    curve = sorted(points.values(), key=lambda p: -p.executed)
    return Calibration(with_thresholds(model, chosen.theta_x, chosen.theta_h), chosen, curve, dense)


def _mean_changes(model: SequenceModel, x: Tensor) -> tuple[float, float]:
    """Return the mean absolute change per step of the first layer's input and of its state h; 1e-6 in place of 0."""
    seen: list[tuple[Tensor, Tensor]] = []
    layer = model.recurrent_layers()[0]
    handle = layer.register_forward_hook(lambda _, inputs, outputs: seen.append((inputs[0], outputs[0])))
    try:
        with torch.no_grad():
            model(x)
    finally:
        handle.remove()
    changes = [float(part.diff(dim=0).abs().mean()) if len(part) > 1 else 0.0 for part in seen[0]]
    # a constant input has no changes, and any threshold does for it
    return changes[0] or 1e-6, changes[1] or 1e-6


@contextmanager
def _counting(model: SequenceModel) -> Iterator[Callable[[], float]]:
    """Count the multiply-adds that a model with the rule delta executes in forward passes inside the block.

    Args:
        model: The model.

    Yields:
        A function that returns them as a share of those of dense layers.
    """
    done = whole = 0.0

    def count(*_: object) -> None:
        nonlocal done, whole
        for layer, trace in zip(model.recurrent_layers(), model.traces, strict=True):
            rule = layer.rule
            assert isinstance(rule, Delta)
            assert trace.sent_inputs is not None
            assert trace.decisions is not None
            steps = trace.decisions.shape[0] * trace.decisions.shape[1]
            rates = (float(sent.double().mean()) for sent in (trace.sent_inputs, trace.decisions))
            done += steps * rule.column_macs(layer.cell, *rates)
            whole += steps * sum(layer.cell.macs())

    handle = model.register_forward_hook(count)
    try:
        yield lambda: done / whole
    finally:
        handle.remove()
