# SPDX-License-Identifier: Apache-2.0
"""Options under which the file of another tool, or of a network of one's own, is packed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgernn.errors import UsageError
from edgernn.weight_types import WeightType


@dataclass(frozen=True)
class GraphOptions:
    """Facts about a file of another tool, from the caller; no packed file of a stack of layers takes any of them.

    Attributes:
        values: Inputs that become constants, by name.
        shapes: Shapes of inputs by name; a number is a fixed length, a name a variable one.
        states: For each input that is a state, the output with its next value. None: they are found by their shapes
            (`graph_states.pair_states`).
        weights: Storage type of the matrices. None: that of the file.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    states: Mapping[str, str] | None = None
    weights: WeightType | None = None

    def refuse(self, path: Path) -> None:
        """Raise UsageError if anything is given, for the file `path` of a stack of layers that edgernn exported."""
        options = {"--value": self.values, "--shape": self.shapes, "--state": self.states, "--weights": self.weights}
        for option, value in options.items():
            if value:
                kind = "a file of another tool" + " or a network of your own" * (option == "--weights")
                remedy = f"store its weights with: edgernn export RUN --weights {value}"
                raise UsageError(
                    f"{path}: {option}: expected {kind}, got a model that edgernn exported; "
                    + (remedy if option == "--weights" else "leave it out, as its shapes and states are fixed")
                )


# the user says nothing
PLAIN = GraphOptions()
