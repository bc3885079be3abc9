# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn run`: run a model on a file of inputs, or detect words in a recording."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import COUNT, PATH, inference_backend, inference_device
from edgernn.errors import counted


def _text(result: dict[str, Any]) -> str:
    if result.get("output") == "-":
        return _csv(result)
    if "detections" in result:
        lines = _detections(result)
    elif "example" in result:
        lines = [
            f"{result['example']}: x {tuple(result['shape'])}; median difference from the stored outputs "
            f"{result['difference']:.1e}"
        ]
    elif "y" in result:
        lines = _answers(result)
    else:
        lines = [f"{result['output']}: y {tuple(result['shape'])}"]
    lines[-1] += f" ({result['backend']} backend)"
    if result["skip_percent"] is not None:
        lines.append(f"updates skipped: {result['skip_percent']:.1f} %")
    if "macs_a_second" in result:
        blocks = f", {result['block_macs_a_second']:,.0f} of the blocks" if result["block_macs_a_second"] else ""
        lines.append(
            f"a second: {result['updates_a_second']:,.0f} updates, {result['macs_a_second']:,.0f} multiply-adds"
            f"{blocks}, and {result['frontend_macs_a_second']:,.0f} of the front end"
        )
    return "\n".join(lines)


def _detections(result: dict[str, Any]) -> list[str]:
    lines = [f"{word['seconds']:9.2f} s  {word['word']}  {word['score']:.2f}" for word in result["detections"]]
    return [*lines, f"{result['recording']}: {counted(len(lines), 'word')} in {result['seconds']:.1f} s"]


def _answers(result: dict[str, Any]) -> list[str]:
    from edgernn.runtime.answers import answer_table

    values, names = result["probabilities"] or result["y"], result.get("files") or result.get("sequences")
    lines = answer_table(result["axes"], values, result["classes"], names, result.get("targets"))
    return [*lines, f"y {tuple(result['shape'])}"]


def _csv(result: dict[str, Any]) -> str:
    import numpy as np

    from edgernn.runtime.run_file import STDOUT, csv_text

    # sequences of several lengths are no array, and no table
    y = np.array(result["y"]) if len(result["y"]) == 1 or len(result["axes"]) < 2 else np.empty(result["shape"])
    return csv_text(STDOUT, y).rstrip("\n")


@json_command(example="edgernn run runs/adding-sarnn/model.onnx --input x.npz --output y.npz", text=_text)
@click.argument("model", type=PATH)
@click.option(
    "--input",
    "source",
    type=PATH,
    help="Input file: npz with an array x, npy, csv, or wav with a clip of sound; or a folder of wav files.",
)
@click.option(
    "--output",
    "target",
    type=PATH,
    help="Output file to write: npz, npy or csv; - prints y as csv.  [default: print a table]",
)
@click.option(
    "--stream",
    "recording",
    type=PATH,
    help="Wav file to detect words in, step by step, in place of --input and --output.",
)
@click.option(
    "--threshold",
    type=float,
    help="With --stream, report a word when its mean probability (0 to 1) over the last --smoothing seconds reaches "
    "this value.  [default: that of the file, else 0.5]",
)
@click.option(
    "--smoothing",
    type=float,
    help="With --stream, length in seconds of the window over which probabilities are averaged.  [default: that "
    "of the file, else 0.3]",
)
@click.option(
    "--refractory",
    type=float,
    help="With --stream, number of seconds after each detection during which no further word is detected.  "
    "[default: that of the file, else 0.8]",
)
@inference_backend
@inference_device
@click.option(
    "--threads", type=COUNT, default=1, show_default=True, help="Number of threads that ONNX Runtime may use."
)
def command(
    model: Path,
    source: Path | None,
    target: Path | None,
    recording: Path | None,
    threshold: float | None,
    smoothing: float | None,
    refractory: float | None,
    **options: Any,
) -> dict[str, Any]:
    """Run the exported ONNX file MODEL on a file of inputs and print or write its outputs, or detect words.

    MODEL is a file, or a name that `edgernn models` lists. Without options, a model with example.npz in its folder runs
    on that example.

    The input x has shape (T, I) for one sequence or (N, T, I) for N sequences. A row of a csv file is a time step. A
    language model reads integer word indices of shape (T,) or (N, T).

    The output y has O numbers per sequence: shape (O,) or (N, O). If the model has an output at every step, the shape
    is (T, O) or (N, T, O). Without --output, the numbers are printed, or the three likeliest classes with their
    probabilities (softmax of y) if y is the scores of classes. With --json, all of them are printed.

    A model of sounds tells the class of a wav file, or of each one in a folder and its subfolders. As in the training,
    a longer file is cut to its loudest stretch.

    With --stream, a keyword model (trained on the task keywords or on your own wav files) reads a recording step by
    step, as in an app. The detected words are printed with their times.
    """
    from edgernn.errors import UsageError
    from edgernn.files import EXAMPLE
    from edgernn.runtime.info import read_model
    from edgernn.runtime.run_file import STDOUT, run_example, run_file
    from edgernn.runtime.run_stream import run_stream
    from edgernn.runtime.zoo import find_model

    for option, path in (("--input", source), ("--stream", recording)):
        if path == Path(STDOUT):
            raise UsageError(f"{option}: expected a file, got {path}; write what is on standard input to a file first")
    model = find_model(model)
    settings = {"threshold": threshold, "smoothing": smoothing, "refractory": refractory}
    chosen = {name: value for name, value in settings.items() if value is not None}
    if recording is not None:
        if source is not None or target is not None:
            raise UsageError(
                "--stream: expected neither --input nor --output; leave out these two, or leave out --stream"
            )
        return run_stream(model, recording, chosen, **options)
    if source is None and target is None and not chosen and (model.parent / EXAMPLE).is_file() and model.is_file():
        return run_example(model, **options)
    if source is None:
        # the model may be the misspelled word
        read_model(model)
        raise UsageError(
            "expected --input FILE with the inputs x, or --stream FILE.wav with a recording; add one of them"
        )
    if chosen:
        raise UsageError(
            f"--{next(iter(chosen))}: expected together with --stream; add --stream, or leave the option out"
        )
    return run_file(model, source, target, **options)
