# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn calibrate`: make a trained dense model cheaper without training."""

import shlex
from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import following, json_command
from edgernn.cli.options import PATH
from edgernn.errors import UsageError


def _text(result: dict[str, Any]) -> str:
    rows = [("x", "h", "executed", result["metric"]), ("0", "0", "1.000", f"{result['dense']:.5g}")]
    for point in result["curve"]:
        x, h = (_scale([pair[axis] for pair in point["scales"]]) for axis in (0, 1))
        mark = "  <- chosen" * (point == result["chosen"])
        rows.append((x, h, f"{point['executed']:.3f}", f"{point['value']:.5g}{mark}"))
    widths = [max(9, *(len(row[column]) for row in rows)) for column in range(2)]
    lines = ["thresholds as multiples of the mean change of a value per step:"]
    lines += [f"{x:>{widths[0]}} {h:>{widths[1]}} {executed:>9}  {value}" for x, h, executed, value in rows]
    lines.append("")
    for layer in result["layers"]:
        sizes = f"{layer['cell']} ({layer['input_size']}, {layer['hidden_size']})"
        lines.append(f"{layer['name']}: {sizes}, theta_x {layer['theta_x']:.3g}, theta_h {layer['theta_h']:.3g}")
    return "\n".join(lines + (_run_lines(result) if "test" in result else _file_lines(result)))


def _scale(multiples: list[float]) -> str:
    """Return the multiple of all layers, or one for each layer, joined by slashes, if they differ."""
    return "/".join(f"{multiple:.3g}" for multiple in (multiples if len(set(multiples)) > 1 else multiples[:1]))


def _run_lines(result: dict[str, Any]) -> list[str]:
    metric, test = result["metric"], result["test"]
    return [
        f"test sequences: {metric} {test[metric]:.5g} (dense {test['dense']:.5g}) with {test['executed']:.1%} of the "
        "multiply-adds",
        f"{result['model']}: {result['bytes']:,} bytes; model card: {result['card']}",
        f"{following('bench', result['model'])} --device cpu",
    ]


def _file_lines(result: dict[str, Any]) -> list[str]:
    lines = [f"not replaced: {reason}" for reason in result["left"]]
    if result["fixed"]:
        lines.append(f"inputs that became constants, as in the data: {', '.join(result['fixed'])}")
    lines += [f"{name}: the states of the rule start at 0 in each call" for name in result["restarted"]]
    if result["states"]:
        lines.append(f"inputs that were added, 0 at first: {', '.join(result['states'])}")
    lines.append(f"{result['model']}: {result['bytes']:,} bytes")
    lines.append("only edgernn's library skips work; in ONNX Runtime alone, the file takes longer than the original")
    return lines


@json_command(example="edgernn calibrate runs/adding-gru --loss 2", text=_text)
@click.argument("model", type=PATH)
@click.option(
    "--data",
    type=PATH,
    help="For a run directory: folder in which to look for data sets.  [default: $EDGERNN_DATA]  For an exported file: "
    "npz file with sequences x (N, T, I), and perhaps labels y. For another ONNX file: npz file with an array for each "
    "input of its graph that is no state, and perhaps labels y; a further axis in front counts calls.",
)
@click.option(
    "--frames",
    metavar="RATE,LENGTH,HOP",
    help="If --data is a folder of wav files: their sample rate, the samples of a frame, which is the first input of "
    "each call, and the samples from one frame to the next, such as 16000,512,256.",
)
@click.option(
    "--loss",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Largest amount by which the metric may get worse than that of MODEL: in percentage points for a metric such "
    "as accuracy, where higher is better, else in percent of its value. If MODEL is an ONNX file and --data has "
    "no labels: largest change of the outputs y to y', in percent: 100 RMS(y' - y) / RMS(y).",
)
@click.option(
    "--linear",
    is_flag=True,
    help="Also give linear maps and 1×1 convolutions of a file of another tool the rule, with a threshold for x.",
)
@click.option(
    "--out",
    type=PATH,
    help="ONNX file to write.  [default: model-delta.onnx in the run directory, NAME-delta.onnx beside NAME.onnx, or "
    "NAME-delta.onnx in the current folder for a NAME that `edgernn models` lists]",
)
def command(
    model: Path, data: Path | None, frames: str | None, loss: float, linear: bool, out: Path | None
) -> dict[str, Any]:
    """Make a trained dense model cheaper with the update rule delta, without training; write an ONNX file.

    MODEL is the run directory of a training, or an ONNX file: one that edgernn exported, a name that `edgernn models`
    lists, or a file with the operators GRU or LSTM, such as one that torch.onnx exported. All other operators of the
    file stay as they are, unless --linear is given.

    A dense model updates every neuron at every step. Under the rule delta, matrix products read a value of the input
    x or of the state h only if it changed by more than a threshold since it was last read. Each layer has a threshold
    for x and another for h. The command tries thresholds on the task's validation sequences, or on the data of --data,
    and prints the multiply-adds and the metric of each try. Among the tries whose metric is worse than that of the
    dense model by at most --loss, it writes the model with the fewest multiply-adds.
    """
    from edgernn.files import EXAMPLE
    from edgernn.progress import Progress
    from edgernn.runtime.zoo import find_model

    named, model = model, find_model(model)
    if named != model:
        # a model of the zoo stays as it is
        out = out or Path(f"{named.name}-delta.onnx")
    if model.suffix != ".onnx" and model.is_file():
        from edgernn.runtime.info import read_model
        from edgernn.runtime.weights import parse

        # says what another file is
        parse(read_model(model), model, external="check")
    elif model.suffix != ".onnx":
        from edgernn.training.calibration.calibrate import calibrate

        if frames is not None:
            raise UsageError("--frames: expected only with an ONNX file; leave it out for a run directory")
        if linear:
            raise UsageError("--linear: expected only with an ONNX file; leave it out for a run directory")
        return calibrate(model, out, loss=loss, data=data, progress=Progress())
    from edgernn.training.calibration.audio_frames import Frames
    from edgernn.training.calibration.calibrate_file import calibrate_file

    if data is None:
        example = model.parent / EXAMPLE
        remedy = f"give --data {shlex.quote(str(example))}" if example.is_file() else "write it with numpy.savez"
        raise UsageError(f"--data: expected an npz file with the inputs of {named}, got none; {remedy}")
    return calibrate_file(
        model,
        data,
        out,
        loss=loss,
        linear=linear,
        frames=None if frames is None else Frames(*_numbers(frames)),
        progress=Progress(),
    )


def _numbers(text: str) -> list[int]:
    """Parse the word of --frames: rate, length and hop."""
    words = text.split(",")
    numbers = [int(word) if word.isdecimal() and len(word) < 10 else 0 for word in words]
    if len(numbers) != 3 or min(numbers) < 1 or numbers[2] > numbers[1]:
        raise UsageError(
            f"--frames: expected RATE,LENGTH,HOP with a hop of at most the length, such as 16000,512,256, got {text}"
        )
    return numbers
