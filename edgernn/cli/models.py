# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn models`: list the trained models that come with edgernn."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import CommandGroup, json_command
from edgernn.cli.options import PATH


class _Models(CommandGroup):
    """Click group of `edgernn models`, which runs its command `list` if the command line names no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Models, example="edgernn models")
def command() -> None:
    """List the trained models that come with edgernn.

    `edgernn run NAME`, `edgernn bench NAME` and `edgernn pack NAME` accept the names; NAME-int8 is the model with int8
    weights.
    """


def model_rows(models: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Format entries of trained models, from `edgernn.runtime.zoo.entries`, as table rows, after a row of headings."""
    heading = ("name", "task", "cell + rule", "test metric", "skipped", "multiply-adds a step", "bytes", "int8")
    return [heading, *map(_row, models)]


def notes(models: list[dict[str, Any]]) -> list[str]:
    """Return lines on what models are not for, and on those of several seeds (`edgernn.runtime.zoo.seed_note`)."""
    from edgernn.runtime.zoo import seed_note

    return [f"{entry['name']}: {note}" for entry in models for note in (entry.get("limits"), seed_note(entry)) if note]


def _list_text(result: list[dict[str, Any]]) -> str:
    rows = model_rows(result)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *notes(result)])


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    from edgernn.runtime.zoo import seed_mean

    bytes_of = {file["weights"]: f"{file['bytes']:,}" for file in entry["files"].values()}
    # metric and work on the same test sequences: on a part of them, if the card names one
    ((part, figures),) = list(entry.get("parts", {}).items())[:1] or [("", entry)]
    name, interval = f"{entry['metric']}_{part}" if part else entry["metric"], figures["interval"]
    metric = f"{name} {figures['value']:.4g}"
    if interval is not None:
        metric += f" ({interval['low']:.4g} to {interval['high']:.4g})"
    if (mean := seed_mean(entry)) is not None:
        metric += f", mean of {len(entry['seeds']['test'])} seeds {mean:.4g}"
    return (
        entry["name"],
        entry["task"],
        entry["cell"] if entry["rule"] == "always" else f"{entry['cell']} + {entry['rule']}",
        metric,
        f"{figures['skip_percent']:.1f} %",
        f"{figures['macs_executed']:,.0f} of {entry['macs']:,}",
        bytes_of.get("float32", "-"),
        bytes_of.get("int8", "-"),
    )


@json_command(example="edgernn models list", text=_list_text)
@click.option(
    "--folder",
    type=PATH,
    help="Folder of the models.  [default: $EDGERNN_MODELS, else the models that come with edgernn]",
)
def _list(folder: Path | None) -> list[dict[str, Any]]:
    """List the trained models: task, metric on the test data with its 95 % interval, multiply-adds, and file sizes.

    The column "skipped" has the percentage of neuron updates that are skipped, or under the rule delta of values of h
    that are not sent. The column "multiply-adds a step" shows two counts: the mean per step on the test data, with what
    the rule skips, and the count for a step that skips nothing. They do not include the audio front end of a model that
    has one. For word models, metric and work are those of the test clips that have a word: accuracy_words leaves out
    silence, whose number is a setting. The model's card, the file model.md in its folder, says more.

    The interval is one of other test data from the same speakers or other origins, and does not cover other training
    seeds. Where the card says that it was taken over records, it is one of other records, such as other patients.

    If a model is one of several trained seeds, the column also has their mean on the test data. Lines below the table
    say which seed the model has, which one the validation split prefers, and what a model must not be used for.
    """
    from edgernn.runtime.zoo import entries

    return entries(folder)


command.add_command(_list, "list")
