# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from pathlib import Path

import click

training_device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device to train on: auto is cuda if a GPU is available.",
)
inference_device = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device that runs the model: cuda is the first GPU.",
)
training_threads = click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of each training."
)
data_folder = click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of data sets.  [default: $EDGERNN_DATA]"
)
