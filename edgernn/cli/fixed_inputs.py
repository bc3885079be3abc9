# SPDX-License-Identifier: Apache-2.0
"""Options of commands that read ONNX files of other tools: inputs with fixed values and shapes."""

from collections.abc import Callable
from typing import Any

import click

from edgernn.errors import UsageError
from edgernn.runtime.graph_options import GraphOptions
from edgernn.weight_types import WEIGHT_TYPES, WeightType


def split_pairs(option: str, words: tuple[str, ...], convert: Callable[[str], Any], expected: str) -> dict[str, Any]:
    """Split words NAME=VALUE of an option, and convert the values."""
    result = {}
    for word in words:
        # a name may hold the sign as well
        name, _, text = word.rpartition("=")
        if name in result:
            raise UsageError(f"{option}: expected {name} once, got {word}, too; leave one out")
        try:
            result[name] = convert(text)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{option}: expected {expected}, got {word}")
    return result


def _length(text: str) -> int | str:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text.isidentifier():
        return text
    raise ValueError(text)


def fixed_values(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse the words of --value: inputs that become constants, by name."""
    import numpy as np

    return split_pairs("--value", words, lambda text: np.array(float(text)), "NAME=NUMBER, such as sr=16000")


def fixed_shapes(words: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Parse the words of --shape: shapes of inputs, by name."""
    return split_pairs(
        "--shape", words, lambda text: list(map(_length, text.split(","))), "NAME=LENGTH,LENGTH, such as x=1,T,40"
    )


def graph_options(
    values: tuple[str, ...], shapes: tuple[str, ...], states: tuple[str, ...], weights: WeightType | None
) -> GraphOptions:
    """Return the options of a file of another tool from the words of --value, --shape and --state."""
    pairs = split_pairs("--state", states, str, "INPUT=OUTPUT") or None
    return GraphOptions(fixed_values(values), fixed_shapes(shapes), pairs, weights)


value_option = click.option(
    "--value", "values", multiple=True, metavar="NAME=NUMBER", help="Make an input a constant, such as sr=16000."
)
shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=LENGTH,...",
    help="Declare the shape of an input: a number for a fixed length, a name for a variable one, such as x=1,T,40.",
)
state_option = click.option(
    "--state",
    "states",
    multiple=True,
    metavar="INPUT=OUTPUT",
    help="Name an input that is a state already, and the output with its next value.  [default: inputs after the first "
    "one, each with an output of the same shape]",
)
weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHT_TYPES),
    help="Storage type of the weight matrices of a file of another tool or of a network of your own.  "
    "[default: that of the file]",
)
