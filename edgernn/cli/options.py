# SPDX-License-Identifier: Apache-2.0
"""Click options that several commands share, as decorators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# sizes are 32-bit numbers in exported files
COUNT = click.IntRange(1, 2**31 - 1)
PATH = click.Path(path_type=Path)

inference_backend = click.option(
    "--backend",
    type=click.Choice(["auto", "native", "portable"]),
    default="auto",
    show_default=True,
    help="Implementation: native library, portable (standard ONNX operators), or auto: native if possible.",
)
inference_device = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to run the model on: cuda is the first GPU.",
)
training_jobs = click.option(
    "--jobs",
    type=COUNT,
    help="Number of trainings to run at the same time.  [default: the number of processors divided by "
    "--threads; 1 on a GPU]",
)
training_threads = click.option(
    "--threads", type=COUNT, default=1, show_default=True, help="CPU threads of each training process."
)
data_folder = click.option("--data", type=PATH, help="Folder in which to look for data sets.  [default: $EDGERNN_DATA]")


def training_device(default: str = "auto") -> Callable[[F], F]:
    """Return the option --device of commands that train."""
    return click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default=default,
        show_default=True,
        help="Device to train on: auto is cuda if a GPU is available.",
    )
