# SPDX-License-Identifier: Apache-2.0
"""Layout of a nested state of a network, which files and sessions keep as tensors (B, n)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from edgernn.cells.base import State
from edgernn.errors import UsageError


@dataclass(frozen=True)
class StateLayout:
    """Layout of a network's state: its nesting, and each tensor's shape without the batch and axis of the batch."""

    spec: pytree.TreeSpec
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> "StateLayout":
        # nothing in it changes, and torch warns of copies of a TreeSpec
        return self

    @classmethod
    def of(cls, states: Sequence[Any], title: str) -> "StateLayout":
        """Find the layout from the states of two and of three sequences.

        Args:
            states: Both nested states.
            title: Beginning of error messages.

        Returns:
            The layout.

        Raises:
            UsageError: A state has other values than float tensors, or a tensor without an axis for the batch.
        """
        leaves = [pytree.tree_leaves(state) for state in states]
        specs = [pytree.tree_structure(state) for state in states]
        if specs[0] != specs[1] or not leaves[0] or not all(map(_is_floats, leaves[0])):
            raise UsageError(f"{title}: expected a state of float tensors, got {states[1]!r:.80}; return those")
        shapes, axes = [], []
        for two, three in zip(*leaves, strict=True):
            axis = [i for i, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if (a, b) == (2, 3)]
            shape = two.movedim(axis[0], 0).shape[1:] if len(axis) == 1 else None
            if shape is None or shape != three.movedim(axis[0], 0).shape[1:]:
                raise UsageError(
                    f"{title}: expected a state of one size for each sequence, got {tuple(two.shape)} for two and "
                    f"{tuple(three.shape)} for three sequences; give the batch an axis of its own"
                )
            shapes.append(tuple(shape))
            axes.append(axis[0])
        return cls(specs[0], tuple(shapes), tuple(axes))

    def flat(self, state: Any) -> State:
        """Return the tensors of a nested state as (B, n), without those of no numbers."""
        leaves = zip(pytree.tree_leaves(state), self.axes, strict=True)
        return tuple(leaf.movedim(axis, 0).flatten(1) for leaf, axis in leaves if leaf.numel())

    def initial_state(self, network: Any, batch: int, like: Tensor) -> State:
        """Return the state of a network before the first step, as `flat` does, in dtype and device of `like`.

        It is zeros, or the result of the network's method initial_state(batch, like). A layer that got another rule has
        more tensors than that method may know: those that it lacks at the end of a tuple are zeros.
        """
        zeros = tuple(like.new_zeros(batch, size) for shape in self.shapes if (size := math.prod(shape)))
        start = getattr(network, "initial_state", None)
        return zeros if start is None else self.flat(_completed(start(batch, like), self.nested(zeros, like, batch)))

    def nested(self, state: State, like: Tensor, batch: int) -> Any:
        """Return the nested state of tensors (B, n)."""
        tensors = iter(state)
        leaves = [
            (next(tensors).reshape(batch, *shape) if 0 not in shape else like.new_zeros(batch, *shape)).movedim(0, axis)
            for shape, axis in zip(self.shapes, self.axes, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)


def _completed(state: Any, zeros: Any) -> Any:
    """Return a nested state with the zeros of tensors that it lacks; a tensor may stand for a tuple that begins so."""
    if isinstance(zeros, dict) and isinstance(state, dict):
        return zeros | {key: _completed(value, zeros.get(key)) for key, value in state.items()}
    if not isinstance(zeros, tuple | list):
        return state
    parts = state if isinstance(state, tuple | list) else (state,)
    return (*(_completed(*pair) for pair in zip_longest(parts, zeros[: len(parts)])), *zeros[len(parts) :])


def _is_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
