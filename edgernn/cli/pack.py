# SPDX-License-Identifier: Apache-2.0
"""`edgernn pack`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    return (
        f"{result['packed']}: {result['bytes']:,} bytes; a stream takes {result['memory']:,} bytes of memory besides\n"
        f"step it with {result['library']} and edgernn.h beside that"
    )


@verb(example="edgernn pack runs/adding-sarnn/model.onnx", text=_text)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [MODEL with .edgernn]")
def command(model: Path, out: Path | None) -> dict[str, Any]:
    """Turn the exported file MODEL into a packed model, which C programs step without ONNX Runtime.

    The functions are in edgernn.h, beside the native library.
    """
    from edgernn.runtime.packed import pack_file

    return pack_file(model, out or model.with_suffix(".edgernn"))
