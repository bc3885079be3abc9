# SPDX-License-Identifier: Apache-2.0
"""Export of a run directory: the ONNX file, its model card and an example."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.export.card import card, split_rows
from edgernn.export.latency import latency
from edgernn.export.native_kernels import without_kernel
from edgernn.export.rounding import Loss, rounded
from edgernn.files import EXAMPLE, MODEL, SPLIT, read_json, write_arrays, write_text
from edgernn.locks import hold_file
from edgernn.model import SequenceModel
from edgernn.npz import read_npz
from edgernn.own_network import OwnNetwork
from edgernn.runtime.info import kernels
from edgernn.runtime.library import no_native
from edgernn.runtime.session import Session
from edgernn.store import load_any, resume_command

# limit on the numbers in y of example.npz; a model with many outputs gets fewer sequences
_NUMBERS = 1 << 22

# returns a model's metric on the test sequences, and True if higher is better
Score = Callable[[Any], tuple[float, bool]]
# returns rows of a card, pairs of name and text, from the key "task" of config.json
Notes = Callable[[Mapping[str, Any]], Sequence[tuple[str, str]]]


def export_run(
    run: Path,
    out: Path | None = None,
    weights: str | None = None,
    score: Score | None = None,
    *,
    notes: Notes | None = None,
    allow_code: bool = True,
) -> dict[str, Any]:
    """Export the model of a run directory to an ONNX file, and write its card (.md) and example.npz beside it.

    Args:
        run: The run directory, in which a training stored its model and results.
        out: The ONNX file to write. Default: model.onnx in the run directory, or model-TYPE.onnx if the type of weights
            is not float32.
        weights: Type of stored matrices: "float32", "bfloat16" or "int8". Default: the value of the training setting
            `weights`.
        score: Function that returns a model's metric on the test sequences of the run's task, and True if higher is
            better. It is called if the export rounds weights that the training did not round, to report the change of
            the metric.
        notes: Function that returns further rows of the card, such as the licence of the data. Default: none.
        allow_code: True if the run's cell.py or network.py, code of its user, may be executed.

    Returns:
        JSON-compatible dict with the paths `model` and `card`, and the size of the ONNX file in `bytes`. `weights` is
        the type of weights in the file, `trained_weights` the one in training. `latency` is a dict with the fields of
        `Latency`. `checks` is a list of dicts with the fields of `Check` and its `worst` error, one per backend.
        `loss` is a dict with the fields of `Loss` and `is_large`, or None if the metric was not measured again.
        `native_missing` is the reason why the native library cannot run the file, or None if it can.

    Raises:
        EdgernnError: The training is not finished, or the outputs of the file differ from torch's.
        UsageError: Another process is writing `out`, or the type of weights is unknown or does not fit the model.
    """
    model, config = load_any(run, allow_code=allow_code)
    result = read_result(run)
    weights = weights or model.rounding.weights
    out = out or default_file(run, weights)
    with hold_file(out, *(file for file in run.iterdir() if file.suffix != ".onnx")):
        return _export(run, model, config, result, out, weights, score, notes)


def default_file(run: Path, weights: str) -> Path:
    """Return the path of the ONNX file that an export of the directory `run` with this type of weights writes."""
    return run / (MODEL if weights == "float32" else f"model-{weights}.onnx")


def read_result(run: Path) -> dict[str, Any]:
    """Read the result.json of a run directory.

    Args:
        run: The run directory.

    Returns:
        Its content, a dict with the metrics and costs of the trained model.

    Raises:
        EdgernnError: The training is not finished, or the file cannot be read.
    """
    result_file = run / "result.json"
    if not result_file.is_file():
        raise EdgernnError(
            f"{run}: expected a finished training, got one that runs or was interrupted; wait for it, or resume it: "
            f"{resume_command(run)}"
        )
    result: dict[str, Any] = read_json(result_file)
    return result


def export_model(
    run: Path,
    model: SequenceModel | OwnNetwork,
    config: dict[str, Any],
    result: dict[str, Any],
    out: Path,
    notes: Notes | None = None,
) -> dict[str, Any]:
    """Export a modified model of a run to an ONNX file, and write its card and example.npz.

    The type of weights in the file is the value of the training setting `weights`.

    The caller must hold the lock of `out` (`hold_file`).

    Args:
        run: The run directory, whose example.npz has the inputs for the new example.
        model: The modified model.
        config: Content of the run's config.json.
        result: Content of the run's result.json, but with the metrics and costs of the modified model.
        out: The ONNX file to write.
        notes: As for `export_run`.

    Returns:
        Dict with the same keys as that of `export_run`.
    """
    return _export(run, model, config, result, out, model.rounding.weights, None, notes)


def _export(
    run: Path,
    model: SequenceModel | OwnNetwork,
    config: dict[str, Any],
    result: dict[str, Any],
    out: Path,
    weights: str,
    score: Score | None,
    notes: Notes | None,
) -> dict[str, Any]:
    x = torch.from_numpy(read_npz(run / EXAMPLE, ("x",))["x"].swapaxes(0, 1))
    x = x.long() if model.vocabulary is not None else x.float()
    width = model.output_size or (model.width if isinstance(model, SequenceModel) else 0)
    x = x[:, : max(1, _NUMBERS // (len(x) * width))]
    metadata = {
        "task": config["task"]["name"],
        "classes": config["task"]["classes"],
        "channels": config["task"]["channels"],
        "reading": config["task"].get("reading"),
        "detector": result.get("detector", config["task"].get("detector")),
        "metric": result["metric"],
        "metric_value": result[result["metric"]],
        "skip_percent": result["skip_percent"],
        "macs_executed": result["macs_executed"],
        "seed": config["seed"],
    }
    loss = None
    trained = model.rounding.weights
    model = rounded(model, weights)
    # the metric of the run is that of its rounded weights, which a float32 file stores as they are
    if weights not in ("float32", trained) and score is not None:
        loss = Loss(result["metric"], result[result["metric"]], *score(model))
        metadata |= {"metric_value": loss.after, f"metric_{trained}": loss.before}
    checks = to_onnx(model, out, metadata=metadata, example=x, weights=weights)
    session = Session(out, backend="portable")
    with torch.no_grad():
        y, _ = model(x)
    if model.output == "all":
        y = y.transpose(0, 1)
    # the example is that of model.onnx, also after the export of other versions beside it
    owner = MODEL if (out.parent / MODEL).is_file() and (out.parent / EXAMPLE).is_file() else out.name
    if owner == out.name:
        write_arrays(out.parent / EXAMPLE, {"x": x.transpose(0, 1).numpy(), "y": y.numpy()})
    rows = [*([] if notes is None else notes(config["task"])), *split_rows(run / SPLIT)]
    has_counts = any(value.name == "updates" for value in session.onnx.get_outputs())
    card_file, took = out.with_suffix(".md"), latency(out, x.numpy())
    write_text(
        card_file, card(model, config, result, checks, out, took, (trained, weights), loss, rows, owner, has_counts)
    )
    return {
        "model": str(out),
        "card": str(card_file),
        "bytes": out.stat().st_size,
        "latency": dataclasses.asdict(took),
        "checks": [{**dataclasses.asdict(c), "worst": c.worst} for c in checks],
        "weights": weights,
        "trained_weights": trained,
        "loss": None if loss is None else {**dataclasses.asdict(loss), "is_large": loss.is_large},
        "native_missing": without_kernel(model.recurrent_layers()) or no_native(kernels(session.info)),
    }
