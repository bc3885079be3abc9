# SPDX-License-Identifier: Apache-2.0
"""Equations of an update rule as programs (lists of elementary operations), which become Triton and C++ code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.program import Program
from edgernn.rules import PerSample
from edgernn.rules.kinds.scored import Scored
from edgernn.tracing import check_gradient, trace

# number of neurons in the small tensors that a rule is traced on, different from all their other sizes
_WIDTH = 3


@dataclass(frozen=True)
class RuleEquations:
    """Equations of an update rule that decides per neuron or per sample, traced to programs.

    Attributes:
        programs: Dict from the name of a method of the rule to its program: `score` and `likelihood`; for a rule with
            own states (memories) also `evidence`, `drive` and `advance`.
        names: Dict from the integer key of an argument to the name of the argument. All programs use the same keys. A
            state of the cell has the name "s_" plus its own name. A state or weight of the rule has its own name. All
            other arguments have the names that they have in the methods of `Scored`: "e" (the result of `project`),
            "u" (the decision), "score", "drive", "evidence" and "slope".
        weights: Dict from the name of each weight that the programs may read to its size: "H" for one value per neuron
            or group of neurons, "1" for a single value.
    """

    programs: Mapping[str, Program]
    names: Mapping[int, str]
    weights: Mapping[str, str]


class _Method(nn.Module):
    """Module whose forward is one method of an update rule, so that functional_call can replace the weights."""

    def __init__(self, rule: Scored, method: str) -> None:
        super().__init__()
        self.rule, self.method = rule, method

    def forward(self, *values: Any) -> Any:
        return getattr(self.rule, self.method)(*values)


def trace_rule(rule: Scored, states: tuple[str, ...]) -> RuleEquations:
    """Trace the equations of an update rule to programs (lists of elementary operations).

    Args:
        rule: An update rule that decides per neuron or per sample.
        states: Names of the cell's states.

    Returns:
        The traced equations.

    Raises:
        ProgramError: The equations are not point-wise, use an operator that programs do not support, or have gradients
            in torch that differ from those of the programs.
    """
    sample = isinstance(rule, PerSample)
    decision_width = 1 if sample else _WIDTH
    # weights of other sizes belong to the projection, whose result is e
    weights = {
        name: "1" if weight.shape == (1,) else "H"
        for name, weight in rule.weights.items()
        if weight.shape in ((1,), (rule.groups,))
    }
    states_read, memories = [f"s_{name}" for name in states], rule.equation_memory
    inputs = ["e", *states_read, *memories, "u", "score", "drive", "evidence", "slope"]
    keys = {name: key for key, name in enumerate([*inputs, *weights])}
    programs = {}

    def add(method: str, names: list[str], width: int, call: Callable[[Mapping[str, Tensor]], tuple[Any, ...]]) -> None:
        equation = _Method(rule, method)
        # values of a whole sample (B, 1) cannot be combined with a vector (H,)
        read = [name for name, size in weights.items() if size == "1" or width == _WIDTH]

        def function(tiles: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
            values = {name: tiles[keys[name]] for name in (*names, *read)}
            replaced = {f"rule.{name}": values[name] for name in read}
            result = torch.func.functional_call(equation, replaced, call(values))
            return result if isinstance(result, tuple) else (result,)

        widths = {keys[name]: width for name in (*names, *read)}
        programs[method] = trace(method, function, widths, width)
        check_gradient(method, programs[method], function, widths)

    def all_states(values: Mapping[str, Tensor]) -> State:
        return tuple(values[name] for name in states_read)

    def all_memories(values: Mapping[str, Tensor]) -> State:
        return tuple(values[name] for name in memories)

    if sample:
        # a rule of this kind decides from its memory only
        add("score", list(memories), decision_width, lambda v: (torch.zeros(2, 0), (), all_memories(v)))
    else:
        names = ["e", *states_read, *memories]
        add("score", names, decision_width, lambda v: (v["e"], all_states(v), all_memories(v)))
    add("likelihood", ["score", "slope"], decision_width, lambda v: (v["score"], v["slope"]))
    if memories:
        names = ["u", "score", *memories, "drive"]
        add("evidence", states_read, _WIDTH, lambda v: (all_states(v),))
        add("drive", ["evidence"], decision_width, lambda v: (v["evidence"],))
        add("advance", names, decision_width, lambda v: (v["u"], v["score"], all_memories(v), v["drive"]))
    return RuleEquations(programs, {key: name for name, key in keys.items()}, weights)
