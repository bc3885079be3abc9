# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn pack`: convert an ONNX file for C programs."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command


def _text(result: dict[str, Any]) -> str:
    return (
        f"{result['packed']}: {result['bytes']:,} bytes; a stream takes {result['memory']:,} more bytes of memory\n"
        f"run it from C with {result['library']} and the header edgernn.h in the same folder"
    )


@json_command(example="edgernn pack runs/adding-sarnn/model.onnx", text=_text)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write the packed model to.  [default: MODEL with the suffix .edgernn]",
)
def command(model: Path, out: Path | None) -> dict[str, Any]:
    """Convert the exported ONNX file MODEL to a packed model, a file that C programs run without ONNX Runtime.

    The header edgernn.h, in the folder of the native library, declares the C functions.
    """
    from edgernn.runtime.packed import pack_file

    return pack_file(model, out or model.with_suffix(".edgernn"))
