# SPDX-License-Identifier: Apache-2.0
"""The equations of all built-in cells and update rules as JSON, from which `edgernn pack --target c` generates C code.

The equations are traced with torch. `runtime/csrc/generate.py` stores them in a file, so that packing needs no torch.
"""

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

from edgernn.cell_program import gate_terms, joined_maps, mixes, trace_equations
from edgernn.cell_table import OPTIONAL_BIAS, SIZES, TERMS, CellTable
from edgernn.cells import COMPILED, Cell
from edgernn.rule_program import trace_rule
from edgernn.rules import RULES, PerColumn, PerSample, UpdateRule
from edgernn.rules.kinds.scored import Scored

# I and H of the rules that are described; they differ, so that a weight's shape tells them apart
_INPUT, _HIDDEN = 5, 7
Projection = Callable[[UpdateRule], tuple[str | None, str | None]]


def equation_tables(projection: Projection) -> str:
    """Describe all built-in cells and update rules as JSON: an object "cells" and an object "rules", an entry a line.

    `projection` takes an update rule, and returns the names of its parameters W and b in `UpdateRule.project`, which
    computes W x + b. A name is None if the rule lacks the parameter.
    """
    cells = {forms[0].form: _cell(forms) for cell in COMPILED.values() for forms in cell_forms(cell)}
    rules = {name: _rule(rule(_INPUT, _HIDDEN), projection) for name, rule in RULES.items()}
    tables: dict[str, dict[str, Any]] = {
        "cells": cells,
        "rules": rules,
    }
    parts = []
    for title, entries in tables.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        parts.append(f' "{title}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def cell_forms(cell: type[Cell]) -> list[list[Cell]]:
    """Create a cell with all combinations of its options, and group the results by the name of their equations.

    The name is `Cell.form`, such as sru-projected; the first has no variant. The cells of a group differ only in which
    gates have biases.
    """
    ordered = sorted(cell.forms(), key=lambda form: (bool(form.variant), form.form))
    return [list(forms) for _, forms in groupby(ordered, key=lambda form: form.form)]


def _cell(forms: list[Cell]) -> dict[str, Any]:
    """Return the JSON entry of a cell: its equations, in the format of the ONNX attributes of a user-defined cell."""
    cell, *_ = forms
    equations, sizes = trace_equations(cell), [vector.size for vector in cell.vectors.values()]
    gates = []
    for gate in zip(*(form.gates for form in forms), strict=True):
        terms = {gate_terms(one) for one in gate}
        optional = len({bool(one & TERMS["bias"]) for one in terms}) > 1
        gates.append(min(terms) | OPTIONAL_BIAS if optional else min(terms))
    program = CellTable(
        tuple(gates),
        tuple(SIZES[size] for size in sizes),
        len(cell.states),
        equations.mid_is_input,
        cell.reads_last,
        mixes(equations, sizes, equations.mid_is_input),
        cell.mid_vanishes,
        equations.update,
        equations.mid,
        joined_maps(cell),
    )
    return program.attributes() | {"constants": sum(vector.steps for vector in cell.vectors.values())}


def _rule(rule: UpdateRule, projection: Projection) -> dict[str, Any]:
    """Return the JSON entry of an update rule: its kind, weights, states and equations."""
    described: dict[str, Any] = {
        "kind": rule.kind,
        "dense": rule.is_dense(),
        "inclusive": rule.inclusive,
        "memories": {name: memory.size for name, memory in rule.memory.items()},
        "weights": list(rule.weights),
        "programs": {},
    }
    if isinstance(rule, PerColumn):
        described |= {"period": rule.period, "largest_change": rule.largest_change}
    if not isinstance(rule, Scored) or not rule.has_equations():
        # decisions of this rule are C++ code written by hand
        return described
    if isinstance(rule, PerSample) and rule.pool:
        described["pool"] = rule.pool
    matrix, bias = projection(rule)
    equations = trace_rule(rule, ("h", "c"))
    described |= {
        "matrix": matrix,
        "bias": bias,
        "numbers": [n for n, size in equations.weights.items() if size == "1"],
    }
    for method, program in equations.programs.items():
        if method != "likelihood":
            ints, numbers = program.serialise()
            names = {str(key): equations.names[key] for key in program.arguments}
            described["programs"][method] = {"names": names, "ints": ints, "numbers": numbers}
    return described
