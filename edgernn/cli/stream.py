# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn stream`: give any recurrent ONNX file states, so that it runs in chunks."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.fixed_inputs import fixed_shapes, fixed_values, shape_option, split_pairs, state_option, value_option
from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH


def _text(result: dict[str, Any]) -> str:
    time, unit = result["time"], result["unit"]
    if time is None:
        calls = "each call is one step"
    else:
        calls = f"the length {time} of a call is any number" + f" that {unit} divides" * (unit > 1)
    lines = [f"{result['model']}: {result['bytes']:,} bytes; {calls}"]
    lines += [f"input {value['name']} {_axes(value['axes'])}" for value in result["inputs"]]
    lines += [f"output {value['name']} {_axes(value['axes'])}" for value in result["outputs"]]
    lines += [
        f"state {state['input']} {_axes(state['axes'])}: zeros at first, then the output {state['output']} of the call "
        "before"
        for state in result["states"]
    ]
    lines += [f"put together: {name}" for name in result["fused"]]
    lines += [f"{name}: no longer rounds its inputs; its weights stay integers" for name in result["quantised"]]
    lines += result["left"]
    if time is not None:
        lines.append(f"chunks against the whole sequence: worst difference {result['error']:.1e}")
    if result["change"] is not None:
        lines.append(f"against the original file: worst difference {result['change']:.1e}")
    return "\n".join(lines)


def _axes(axes: list[int | str]) -> str:
    return f"({', '.join(map(str, axes))}{',' * (len(axes) == 1)})"


@json_command(example="edgernn stream net.onnx --shape x=1,T,40", text=_text)
@click.argument("model", metavar="IN.onnx", type=PATH)
@click.argument("out", metavar="[OUT.onnx]", required=False, type=PATH)
@value_option
@shape_option
@state_option
@click.option(
    "--data",
    type=PATH,
    help="npz file with an array for each input that is no state, for the check.  [default: random numbers]",
)
def command(
    model: Path,
    out: Path | None,
    values: tuple[str, ...],
    shapes: tuple[str, ...],
    states: tuple[str, ...],
    data: Path | None,
) -> dict[str, Any]:
    """Write a copy of a recurrent ONNX file that runs in chunks, with its states as inputs and outputs.

    IN.onnx is a file of any tool. The states of its operators GRU, LSTM and RNN, and the last inputs of its causal
    convolutions, become inputs and outputs of OUT.onnx, which is NAME-stream.onnx beside NAME.onnx by default. States
    that the file has already stay as they are. The new file has ONNX's own operators only: any ONNX Runtime runs it.

    On the way constants are folded, an If with a constant condition becomes its branch, an LSTM or GRU that is written
    as single operators becomes one operator, and DynamicQuantizeLSTM becomes LSTM. If a condition depends on the value
    or length of an input, fix it with --value or --shape.

    Before the file is written, its outputs in chunks are compared with those of the whole sequence, and with those of
    the original file.
    """
    from edgernn.export.streaming.stream_file import stream_file

    return stream_file(
        model,
        out,
        values=fixed_values(values),
        shapes=fixed_shapes(shapes),
        pairs=split_pairs("--state", states, str, "INPUT=OUTPUT") or None,
        data=data,
    )
