# SPDX-License-Identifier: Apache-2.0
"""Generates C code for update rules, such as delta, that keep the sums W x + R h + b from step to step (kind COLUMN).

A step adds to the sums only the effect of those values of x and h that changed by more than a threshold: it reads only
the columns of W and R that belong to these values.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.layer_parts import LayerKind, depth
from edgernn.runtime.firmware.model_content import LayerContent, biased_gates, gate_rows
from edgernn.runtime.firmware.pointwise_c import float_literal
from edgernn.runtime.weights import Weight


def column_members(kind: LayerKind) -> list[str]:
    """Return the members of a layer's C struct for sums that its update rule keeps from step to step.

    They are C declarations. The list is empty if the rule, unlike delta, keeps no sums.
    """
    if not kind.moving:
        return []
    matrix = f"Edgernn{kind.weights.capitalize()}Columns"
    members = [f"{matrix} columns_{name};" for name in kind.moving]
    members += ["const float* sum_bias;"] * kind.sums_biased
    return [
        *members,
        f"int32_t sums[{len(kind.cell.gates)}]; /* first kept sum of each gate */",
        "int32_t sum_count;",
        "float theta_x, theta_h;",
    ]


def send_values(kind: LayerKind) -> Iterator[str]:
    """Generate the C code that updates the sums W x + R h + b, which a rule such as delta keeps from step to step.

    The code adds to the sums the effect of the values of x and h that changed by more than a threshold. After a fixed
    number of steps, or a very large change, it computes the sums in full instead. It also declares `count`, the number
    of values of h that changed by more than the threshold.
    """
    functions = f"edgernn_{kind.weights}_columns"
    largest = float_literal(kind.rule.largest_change)
    yield "int anew = !(*rule_age > 0.0f);"
    for name in kind.moving:
        vector = {"x": "x", "last": "last", "h": "state_0"}[name]
        theta = "theta_h" if name == "h" else "theta_x"
        yield f"{'const int32_t count = ' * (name == 'h')}{functions}_send(&layer->columns_{name}, {vector},"
        yield f"    layer->{theta}, {largest}, {_sent(name)}, rule_p, &anew);"
    yield "if (anew) {"
    bias = "layer->sum_bias[k]" if kind.sums_biased else "0.0f"
    yield f"  for (int32_t k = 0; k < layer->sum_count; ++k) rule_p[k] = {bias};"
    for name in kind.moving:
        yield f"  {functions}_sum(&layer->columns_{name}, {_sent(name)}, rule_p);"
    yield "}"
    yield f"*rule_age = *rule_age + 1.0f < {float_literal(kind.rule.period)} ? *rule_age + 1.0f : 0.0f;"


def _sent(name: str) -> str:
    """Return the C expression of the array with the values of a vector that are part of the sums W x + R h + b."""
    return {"x": "rule_x", "last": "rule_x + layer->inputs", "h": "rule_h"}[name]


def column_matrix(layer: LayerContent, kind: LayerKind, name: str) -> tuple[Weight, NDArray[np.int32]]:
    """Store the weight matrix of a vector column by column, for C code that reads only some of the columns.

    An update rule such as delta has such code. It keeps the sums W x + R h + b from step to step: one sum for each row
    of each gate (pre-activation) that reads x or h.

    Args:
        layer: The layer with the weights.
        kind: The layer's cell, update rule and other properties on which its C code depends.
        name: Name of the vector that the matrix multiplies: x, last (x of the previous step) or h.

    Returns:
        The transposed matrix (columns, rows), with the scales (rows, 1) of int8 weights, and an array (N, 3) for N
        blocks of successive rows. The array has for each block: its first row, the index of the sum to which the
        product of this row is added, and its number of rows. The products of the next rows go to the next sums.
        If the cell has no matrix for the vector, there are no rows and no blocks.
    """
    weight, term = kind.moving[name]
    if weight not in layer.weights:
        return Weight(np.zeros((depth(layer, name), 0), np.float32)), np.zeros((0, 3), np.int32)
    matrix, first = layer.weights[weight], layer.inputs if name == "last" else 0
    values = matrix.values[:, first : first + depth(layer, name)].T
    starts = dict(zip(kind.kept_gates, _first_sums(layer, kind), strict=True))
    parts: list[list[int]] = []
    for gate, (row, count) in gate_rows(layer, weight, term).items():
        if parts and parts[-1][0] + parts[-1][2] == row and parts[-1][1] + parts[-1][2] == starts[gate]:
            parts[-1][2] += count
        else:
            parts.append([row, starts[gate], count])
    return Weight(np.ascontiguousarray(values), matrix.scales), np.array(parts, np.int32)


def rows_table(name: str, parts: NDArray[np.int32]) -> str:
    """Return the definition of a constant C array of structs EdgernnRows, one for each block of rows of a matrix.

    `name` is the name of the array. The C code keeps an array of sums from step to step, and adds to it the product of
    the matrix and a vector. `parts` (N, 3) has three numbers for each of the N blocks: its first row, the index of the
    sum to which the product of that row is added (those of the next rows go to the next sums), and its number of rows.
    """
    text = ", ".join(f"{{{', '.join(map(str, part))}}}" for part in parts.tolist())
    return f"static const EdgernnRows {name}[{len(parts)}] = {{{text}}};\n"


def _first_sums(layer: LayerContent, kind: LayerKind) -> list[int]:
    """Return the index of the first sum of each gate, among all the sums that the rule keeps from step to step."""
    counts = [layer.cell.rows(gate, layer.hidden, layer.inputs) for gate in kind.kept_gates]
    return [sum(counts[:i]) for i in range(len(counts))]


def sum_places(layer: LayerContent, kind: LayerKind) -> dict[str, str]:
    """Return C initialisers for a layer whose rule, such as delta, keeps the sums W x + R h + b from step to step.

    The dict maps the name of a struct member to its initialiser: sums, the index of the first sum of each gate;
    sum_count, the number of sums; theta_x and theta_h, the rule's thresholds for changes of x and h.
    """
    places = dict(zip(kind.kept_gates, _first_sums(layer, kind), strict=True))
    count = sum(layer.cell.rows(gate, layer.hidden, layer.inputs) for gate in kind.kept_gates)
    theta_x, theta_h = (float(layer.weights[f"rule_theta_{name}"].floats[0]) for name in "xh")
    return {
        "sums": f"{{{', '.join(str(places.get(gate, 0)) for gate in range(len(kind.cell.gates)))}}}",
        "sum_count": str(count),
        "theta_x": float_literal(theta_x),
        "theta_h": float_literal(theta_h),
    }


def sum_biases(layer: LayerContent, kind: LayerKind) -> NDArray[np.float32]:
    """Return the biases (P,) of the P sums that a rule such as delta keeps from step to step; 0 for no bias."""
    rows, biased, parts = gate_rows(layer, "b", 0), biased_gates(layer), []
    for gate in kind.kept_gates:
        count = layer.cell.rows(gate, layer.hidden, layer.inputs)
        if gate in biased:
            first, _ = rows[gate]
            parts.append(layer.weights["b"].floats[first : first + count])
        else:
            parts.append(np.zeros(count, np.float32))
    return np.concatenate(parts)
