# SPDX-License-Identifier: Apache-2.0
"""Builds the description of a layer (`LayerSpec`) from which its Triton kernels are generated."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from edgernn.cell_program import trace_equations
from edgernn.cell_table import GATE, INPUT, STATE, VECTOR
from edgernn.cells.base import Cell
from edgernn.kernels.layer_spec import LayerSpec, Rule
from edgernn.kernels.pointwise import print_map
from edgernn.kernels.rule import GateRule, NeuronRule, SampleRule, TimeRule
from edgernn.rule_program import trace_rule
from edgernn.rules import ByGate, PerColumn, PerSample, UpdateRule
from edgernn.rules.kinds.scored import Scored

if TYPE_CHECKING:
    from edgernn.layer import RecurrentLayer


def describe_layer(layer: "RecurrentLayer") -> LayerSpec:
    """Build the description of a layer for the Triton kernels; raise ProgramError if its equations cannot be traced."""
    cell, rule = layer.cell, layer.rule
    with torch.no_grad():
        equations = trace_equations(cell, differentiable=True)
        constants = layer.constants(next(cell.parameters()).new_zeros(1, 1, cell.input_size))
    names = {GATE + i: gate.name for i, gate in enumerate(cell.gates)} | {INPUT: "x"}
    names |= {VECTOR + i: name for i, name in enumerate(equations.vectors)}
    names |= {STATE + i: f"s_{state}" for i, state in enumerate(cell.states)}
    update = print_map("update", equations.update, names)
    mid = None if equations.mid is None else print_map("mid", equations.mid, names)

    def size(name: str) -> str:
        return "1" if equations.vectors[name] == 1 else "M" if mid is not None and name in mid.arguments else "H"

    used = {*update.arguments, *(mid.arguments if mid is not None else ())}
    sends = isinstance(rule, PerColumn)
    threshold = list(rule.weights)[1] if sends else ""
    return LayerSpec(
        layer.kernel_name,
        cell.gates,
        cell.states,
        cell.hidden_size,
        cell.mid_size,
        cell.input_size * (1 + cell.reads_last),
        tuple((name, size(name)) for name in equations.vectors if name in used),
        tuple(key for key in ("bR", "bC", "bV") if key in constants),
        update,
        mid,
        _make_rule(rule, cell) if rule.can_skip and not sends else None,
        threshold,
        sends and isinstance(rule.weights[threshold], nn.Parameter),
        not isinstance(rule, PerColumn) or rule.straight_through,
    )


def _make_rule(rule: UpdateRule, cell: Cell) -> Rule:
    """Translate an update rule of a layer with a cell for the Triton kernels."""
    if rule.schedules:
        return TimeRule(blend_grad=any(p.requires_grad for p in rule.parameters()))
    if isinstance(rule, ByGate):
        gate = cell.update_gate
        assert gate is not None
        return GateRule(tuple((name, "1") for name in rule.weights), gate=gate.name, sign=gate.sign)
    assert isinstance(rule, Scored)
    equations = trace_rule(rule, cell.states)
    maps = [print_map(f"rule_{method}", program, equations.names) for method, program in equations.programs.items()]
    used = {name for part in maps for name in part.arguments}
    vectors = tuple((name, size) for name, size in equations.weights.items() if name in used)
    return (SampleRule if isinstance(rule, PerSample) else NeuronRule)(
        vectors,
        tuple(rule.memory),
        rule.inclusive,
        tuple(maps),
        group_size=rule.group_size,
        detaches_state=rule.detaches_state,
    )
