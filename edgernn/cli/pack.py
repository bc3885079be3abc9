# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn pack`: convert an ONNX file to a packed model for C programs."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.fixed_inputs import graph_options, shape_option, state_option, value_option, weights_option
from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH
from edgernn.errors import UsageError
from edgernn.runtime.input_check import ACTIONS, OnNonfinite
from edgernn.weight_types import WeightType


def _text(result: dict[str, Any]) -> str:
    if "folder" in result:
        return (
            f"{result['folder']}: {', '.join(result['files'])}; {result['weights']:,} bytes of weights, "
            f"{result['state']:,} bytes of memory for a stream\n"
            "a firmware includes the .cmake file there, or compiles the .c file with the options in gcc.flags"
        )
    lines = [f"{result['packed']}: {result['bytes']:,} bytes; a stream takes {result['memory']:,} more bytes of memory"]
    if "operations" in result:
        from edgernn.runtime.step_graph.pack import work_text

        lines.append(work_text(result))
        lines += [
            f"{letter}: {', '.join(f'{name} {tuple(shape)}' for name, shape in result[key].items())}"
            for letter, key in (("x", "inputs"), ("y", "outputs"))
        ]
    if "reading" in result:
        duties = {"rate": "gives it {:g} rows a second", "window": "resets it every {} rows"}
        listed = " and ".join(duties[name].format(value) for name, value in result["reading"].items())
        lines.append(f"as in the training, the program {listed}")
    return "\n".join([*lines, f"run it from C with {result['library']} and the header edgernn.h in the same folder"])


@json_command(example="edgernn pack runs/adding-sarnn/model.onnx", text=_text)
@click.argument("model", type=PATH)
@click.option(
    "--target",
    type=click.Choice(["library", "c"]),
    default="library",
    show_default=True,
    help="What to write: library, a packed model, which the native library runs; or c, C files for a microcontroller.",
)
@click.option(
    "--out",
    type=PATH,
    help="File to write the packed model to; with --target c, the folder to write C files to.  [default: the "
    "name of the .onnx file with the suffix .edgernn; with --target c, this name without a suffix]",
)
@click.option(
    "--name", help="With --target c, name of the C files and prefix of the names of their functions.  [default: model]"
)
@weights_option
@value_option
@shape_option
@state_option
@click.option(
    "--on-nonfinite",
    type=click.Choice(list(ACTIONS)),
    help="With --target c, action of the C step function if its input x has a NaN or infinite number. error: return an "
    "error code and keep the state. hold: replace the number by the last finite number of the same input channel. "
    "reset: reset the state, then replace the number in the same way.  [default: error]",
)
def command(
    model: Path,
    target: str,
    out: Path | None,
    name: str | None,
    weights: WeightType | None,
    values: tuple[str, ...],
    shapes: tuple[str, ...],
    states: tuple[str, ...],
    on_nonfinite: OnNonfinite | None,
) -> dict[str, Any]:
    """Convert the ONNX file MODEL to a packed model, a file that C programs run without ONNX Runtime.

    MODEL is a file that edgernn exported, or a name that `edgernn models` lists; with a name, NAME.edgernn is written
    to the current folder. A file of another tool is packed, too, if each call is a step and its states are inputs and
    outputs; `edgernn stream` gives it those. A call of the packed model reads all its other inputs as one row x, and
    writes its other outputs as one row y. If a condition depends on the value or length of an input, fix it with
    --value or --shape; --state names the states that are not found by their shapes.

    The header edgernn.h, in the folder of the native library, declares the C functions.

    With --target c, the result is a folder of C99 files for a microcontroller: the weights, which stay in flash, and
    the code that this model needs. The code calls no library and allocates no memory.

    With --weights int8, the smallest matrices, up to a sixteenth of all weights, stay bfloat16.
    """
    from edgernn.files import default_output
    from edgernn.runtime.zoo import find_model

    named, model = model, find_model(model)
    options = graph_options(values, shapes, states, weights)
    if named != model:
        # a model of the zoo is packed into this folder
        out = out or Path(named.name if target == "c" else f"{named.name}.edgernn")
    if target == "c":
        from edgernn.runtime.firmware import pack_folder

        return pack_folder(
            model,
            out or default_output(model.with_suffix("")),
            name or "model",
            on_nonfinite or "error",
            options,
        )
    if name is not None:
        raise UsageError("--name: expected only together with --target c; add --target c, or leave out --name")
    if on_nonfinite is not None:
        raise UsageError(
            "--on-nonfinite: expected only together with --target c; add --target c, or leave out --on-nonfinite and "
            "call the function edgernn_on_nonfinite in the C program"
        )
    from edgernn.runtime.packed import pack_file

    out = out or default_output(model.with_suffix(".edgernn"))
    return pack_file(model, out, options)
