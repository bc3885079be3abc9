# SPDX-License-Identifier: Apache-2.0
"""The equations of an update rule as programs, from which Triton and C++ are printed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.program import Program
from edgernn.rules import Kind, UpdateRule
from edgernn.tracing import check_gradient, trace

# tiles of neurons are traced with this width, which no other size has
_WIDTH = 3


@dataclass(frozen=True)
class RuleEquations:
    """The programs of a rule of the kinds NEURON and SAMPLE.

    Attributes:
        programs: By method: `score` and `likelihood`; with a memory `evidence`, `drive` and `advance` too.
        names: What each argument of the programs is, the same for all of them: "e", "s_STATE", a memory, "u", "score",
            "drive", "evidence", "slope" or a weight.
        weights: The sizes, "H" or "1", of the weights that the programs may read, by name.
    """

    programs: Mapping[str, Program]
    names: Mapping[int, str]
    weights: Mapping[str, str]


class _Method(nn.Module):
    """One method of a rule as a function of its weights."""

    def __init__(self, rule: UpdateRule, method: str) -> None:
        super().__init__()
        self.rule, self.method = rule, method

    def forward(self, *values: Any) -> Any:
        return getattr(self.rule, self.method)(*values)


def trace_rule(rule: UpdateRule, states: tuple[str, ...]) -> RuleEquations:
    """The equations of a rule for a cell with these states.

    Raises:
        ProgramError: They are not point-wise, use operators that programs lack, or have other gradients in torch.
    """
    sample = rule.kind is Kind.SAMPLE
    narrow = 1 if sample else _WIDTH
    # weights of other sizes are in the projection, which comes as e
    weights = {
        name: "1" if weight.shape == (1,) else "H"
        for name, weight in rule.weights.items()
        if weight.shape in ((1,), (rule.hidden_size,))
    }
    states_read, memories = [f"s_{name}" for name in states], list(rule.memory)
    inputs = ["e", *states_read, *memories, "u", "score", "drive", "evidence", "slope"]
    keys = {name: key for key, name in enumerate([*inputs, *weights])}
    programs = {}

    def add(method: str, names: list[str], width: int, call: Callable[[Mapping[str, Tensor]], tuple[Any, ...]]) -> None:
        """call: the arguments of the method from tiles by name."""
        equation = _Method(rule, method)
        # a vector has no place among the numbers of a whole sample
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
        # it decides from its memory alone
        add("score", memories, narrow, lambda v: (torch.zeros(2, 0), (), all_memories(v)))
    else:
        names = ["e", *states_read, *memories]
        add("score", names, narrow, lambda v: (v["e"], all_states(v), all_memories(v)))
    add("likelihood", ["score", "slope"], narrow, lambda v: (v["score"], v["slope"]))
    if memories:
        names = ["u", "score", *memories, "drive"]
        add("evidence", states_read, _WIDTH, lambda v: (all_states(v),))
        add("drive", ["evidence"], narrow, lambda v: (v["evidence"],))
        add("advance", names, narrow, lambda v: (v["u"], v["score"], all_memories(v), v["drive"]))
    return RuleEquations(programs, {key: name for name, key in keys.items()}, weights)
