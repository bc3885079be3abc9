# SPDX-License-Identifier: Apache-2.0
"""Puts a step of an LSTM or GRU that is written as single operators together as one operator LSTM or GRU.

The single operators are products of x and h with constants (MatMul or Gemm), sums, parts of them (Split or Slice),
Sigmoid and Tanh. The equations are matched, not the order of the nodes. A step that an exporter wrote in another way
stays as it is.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edgernn.export.delta_graph import remove_unused
from edgernn.export.streaming.simplify import constant, first_axis_node
from edgernn.runtime.graph_queries import MOVES, ancestors, constant_of, names_in

Array = NDArray[Any]


def fuse_cells(proto: onnx.ModelProto) -> list[str]:
    """Replace each step of an LSTM or GRU in a folded graph (`simplify.folded`) by an operator; return their names."""
    names: list[str] = []
    while (cell := _Graph(proto).find()) is not None:
        names.append(_replace(proto, cell))
    if names:
        remove_unused(proto.graph, {tensor.name for tensor in proto.graph.initializer})
    return names


@dataclass
class _Linear:
    """A sum of products of values (B, ·) with matrices (inputs, outputs), and a bias (outputs,)."""

    products: dict[str, Array] = field(default_factory=dict)
    bias: Array | float = 0.0

    def columns(self, part: Any) -> "_Linear":
        products = {name: matrix[:, part] for name, matrix in self.products.items()}
        return _Linear(products, self.bias[part] if isinstance(self.bias, np.ndarray) and self.bias.ndim else self.bias)

    def plus(self, other: "_Linear") -> "_Linear":
        products = dict(self.products)
        for name, matrix in other.products.items():
            products[name] = products[name] + matrix if name in products else matrix
        return _Linear(products, self.bias + other.bias)


@dataclass
class _Step:
    """A step of a cell in a graph: names of its values, and its weights in the order of the operator.

    Attributes:
        kind: LSTM or GRU.
        x: The input (B, I).
        states: h, and c of an LSTM, before the step.
        results: h, and c of an LSTM, after the step.
        gates: For each gate of the operator, products of x and of h, and the biases.
        reset_after: For a GRU: the reset gate multiplies the product of h, and not h itself.
    """

    kind: str
    x: str
    states: list[str]
    results: list[str]
    gates: list[tuple[Array, Array, Array, Array]]
    reset_after: bool = False


class _Graph:
    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = proto
        self._producers = {output: node for node in proto.graph.node for output in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        inferred = onnx.shape_inference.infer_shapes(proto).graph
        values = [*inferred.value_info, *inferred.input, *inferred.output]
        self._ranks = {
            v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")
        }

    def find(self) -> _Step | None:
        """Return the first step that no operator computes yet."""
        for node in self._proto.graph.node:
            if node.op_type == "Mul" and (step := self._lstm(node)) is not None:
                return step
            if node.op_type == "Add" and (step := self._gru(node)) is not None:
                return step
        return None

    def _node(self, name: str, op_type: str) -> onnx.NodeProto | None:
        node = self._producers.get(name)
        return node if node is not None and node.op_type == op_type and node.domain == "" else None

    def _inner(self, name: str, op_type: str) -> str | None:
        """Return the input of the operator of one input that computes a value."""
        node = self._node(name, op_type)
        return None if node is None else node.input[0]

    def _pairs(self, name: str, op_type: str) -> list[tuple[str, str]]:
        """Return the two inputs, in both orders, of the operator that computes a value."""
        node = self._node(name, op_type)
        return [] if node is None else [(node.input[0], node.input[1]), (node.input[1], node.input[0])]

    def _lstm(self, node: onnx.NodeProto) -> _Step | None:
        """Match h' = o · tanh(c') and c' = f · c + i · g."""
        for gate, squashed in self._pairs(node.output[0], "Mul"):
            o, new = self._inner(gate, "Sigmoid"), self._inner(squashed, "Tanh")
            if o is None or new is None:
                continue
            for kept, added in self._pairs(new, "Add"):
                for (f_gate, c), (i_gate, g_gate) in (
                    (a, b) for a in self._pairs(kept, "Mul") for b in self._pairs(added, "Mul")
                ):
                    names = [
                        self._inner(i_gate, "Sigmoid"),
                        o,
                        self._inner(f_gate, "Sigmoid"),
                        self._inner(g_gate, "Tanh"),
                    ]
                    gates = [None if name is None else self._linear(name) for name in names]
                    if any(gate is None for gate in gates) or self._ranks.get(c) != 2:
                        continue
                    found = self._weights([gate for gate in gates if gate is not None], c)
                    if found is not None:
                        x, h, weights = found
                        return _Step("LSTM", x, [h, c], [node.output[0], new], weights)
        return None

    def _gru(self, node: onnx.NodeProto) -> _Step | None:
        """Match h' = (1 - z) · n + z · h, or n + z · (h - n); n = tanh(W x + r · (R h)), or tanh(W x + R (r · h))."""
        for z_gate, h, n in self._blends(node.output[0]):
            z, candidate = self._inner(z_gate, "Sigmoid"), self._inner(n, "Tanh")
            update = None if z is None else self._linear(z)
            if update is None or candidate is None or self._ranks.get(h) != 2 or len(update.products) != 2:
                continue
            if h not in update.products:
                continue
            (x,) = update.products.keys() - {h}
            for r_gate, after, inputs, hidden in self._candidates(candidate, x, h):
                r = self._inner(r_gate, "Sigmoid")
                reset = None if r is None else self._linear(r)
                if reset is None or reset.products.keys() != {x, h}:
                    continue
                gates = [
                    (
                        gate.products[x].T,
                        gate.products[h].T,
                        _row(gate.bias, len(gate.products[h])),
                        _row(0.0, len(gate.products[h])),
                    )
                    for gate in (update, reset)
                ]
                H = len(hidden.products[next(iter(hidden.products))])
                gates.append(
                    (
                        inputs.products[x].T,
                        next(iter(hidden.products.values())).T,
                        _row(inputs.bias, H),
                        _row(hidden.bias, H),
                    )
                )
                if all(W.shape[0] == R.shape[0] == R.shape[1] == H for W, R, *_ in gates):
                    return _Step("GRU", x, [h], [node.output[0]], gates, after)
        return None

    def _blends(self, name: str) -> list[tuple[str, str, str]]:
        """Return the ways in which a value is a blend of h and n by z: (z, h, n)."""
        blends = []
        for first, second in self._pairs(name, "Add"):
            for z, h in self._pairs(first, "Mul"):
                # (1 - z) · n
                for rest, n in self._pairs(second, "Mul"):
                    minus = self._node(rest, "Sub")
                    if minus is not None and minus.input[1] == z and _is_one(constant_of(self._proto, minus.input[0])):
                        blends.append((z, h, n))
                minus = self._node(h, "Sub")
                if minus is not None and minus.input[1] == second:
                    blends.append((z, minus.input[0], second))
        return blends

    def _candidates(self, name: str, x: str, h: str) -> list[tuple[str, bool, _Linear, _Linear]]:
        """Return the ways in which a value is W x + r · (R h) or W x + R (r · h): (r, whether after, W x, R h)."""
        ways = []
        for product, other in self._pairs(name, "Add"):
            inputs = self._linear(other)
            if inputs is None or inputs.products.keys() != {x}:
                continue
            for r, inner in self._pairs(product, "Mul"):
                hidden = self._linear(inner)
                if hidden is not None and hidden.products.keys() == {h}:
                    ways.append((r, True, inputs, hidden))
        linear = self._linear(name)
        if linear is not None and len(linear.products) == 2 and x in linear.products:
            (masked,) = linear.products.keys() - {x}
            for r, value in self._pairs(masked, "Mul"):
                if value == h:
                    inputs, hidden = (
                        _Linear({x: linear.products[x]}, linear.bias),
                        _Linear({h: linear.products[masked]}),
                    )
                    ways.append((r, False, inputs, hidden))
        return ways

    def _weights(self, gates: list[_Linear], c: str) -> tuple[str, str, list[tuple[Array, Array, Array, Array]]] | None:
        """Return x, h and the weights of the gates of an LSTM, if all are sums of products of the same two values."""
        names = list(gates[0].products)
        if len(names) != 2 or any(set(gate.products) != set(names) for gate in gates):
            return None
        H = gates[0].products[names[0]].shape[1]
        # h is what comes from where c comes from, and has H values
        origin = ancestors(self._proto.graph, c, MOVES)[1]
        fits = [name for name in names if all(gate.products[name].shape == (H, H) for gate in gates)]
        fits.sort(key=lambda name: not origin & ancestors(self._proto.graph, name, MOVES)[1])
        if not fits:
            return None
        h = fits[0]
        (x,) = set(names) - {h}
        return x, h, [(g.products[x].T, g.products[h].T, _row(g.bias, H), _row(0.0, H)) for g in gates]

    def _linear(self, name: str) -> _Linear | None:
        """Return a value as a sum of products of other values with constants, or None if it is none."""
        node = self._producers.get(name)
        if node is None or node.domain:
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Add":
            parts = [self._term(part) for part in node.input]
            return None if parts[0] is None or parts[1] is None else parts[0].plus(parts[1])
        if node.op_type == "Split":
            whole = self._linear(node.input[0])
            if whole is None or not whole.products or attributes.get("axis", 0) not in (1, -1):
                return None
            width = next(iter(whole.products.values())).shape[1]
            sizes = attributes.get("split") or (
                constant_of(self._proto, node.input[1]) if len(node.input) > 1 else None
            )
            count = len(node.output)
            sizes = [width // count] * count if sizes is None else [int(size) for size in sizes]
            if sum(sizes) != width:
                return None
            i = list(node.output).index(name)
            return whole.columns(slice(sum(sizes[:i]), sum(sizes[: i + 1])))
        if node.op_type == "Slice":
            return self._part(node)
        if node.op_type in ("MatMul", "Gemm"):
            matrix = constant_of(self._proto, node.input[1])
            if matrix is None or matrix.ndim != 2 or attributes.get("transA"):
                return None
            matrix = matrix.T if attributes.get("transB") else matrix
            result = _Linear({node.input[0]: matrix * np.float32(attributes.get("alpha", 1.0))})
            if len(node.input) < 3 or not node.input[2]:
                return result
            bias = self._bias(node.input[2])
            return None if bias is None else result.plus(_Linear({}, bias * np.float32(attributes.get("beta", 1.0))))
        return None

    def _term(self, name: str) -> _Linear | None:
        bias = self._bias(name)
        return self._linear(name) if bias is None else _Linear({}, bias)

    def _bias(self, name: str) -> Array | None:
        """Return a constant row, or one number without an axis, or None."""
        value = constant_of(self._proto, name)
        if value is None or value.size != math.prod(value.shape[-1:]):
            return None
        return value.reshape(() if value.size == 1 else -1)

    def _part(self, node: onnx.NodeProto) -> _Linear | None:
        inputs = [constant_of(self._proto, name) if name else None for name in node.input[1:]]
        if len(inputs) < 3 or any(value is None or value.size != 1 for value in inputs):
            return None
        start, end, axis, step = [int(value.reshape(())) for value in inputs if value is not None] + [1] * (
            4 - len(inputs)
        )
        whole = self._linear(node.input[0])
        return None if whole is None or axis not in (1, -1) or step != 1 else whole.columns(slice(start, end))


def _row(bias: Array | float, width: int) -> Array:
    return np.broadcast_to(np.asarray(bias, np.float32), (width,))


def _is_one(value: Array | None) -> bool:
    return value is not None and bool((value == 1).all())


def _replace(proto: onnx.ModelProto, step: _Step) -> str:
    """Put an operator of one step in the place of the nodes that compute a step; return its name."""
    graph, taken = proto.graph, names_in(proto.graph)
    name = next(
        n for n in (f"{step.kind.lower()}{i}" for i in range(len(taken) + 1)) if not any(t.startswith(n) for t in taken)
    )
    W, R, b, c = (np.concatenate([gate[k] for gate in step.gates])[None].astype(np.float32) for k in range(4))
    weights = [
        constant(proto, f"{name}.W", W),
        constant(proto, f"{name}.R", R),
        constant(proto, f"{name}.B", np.concatenate([b, c], 1)),
    ]
    before = [first_axis_node(proto, "Unsqueeze", step.x, f"{name}.X")]
    before += [first_axis_node(proto, "Unsqueeze", s, f"{name}.{n}0") for s, n in zip(step.states, "hc", strict=False)]
    results = [f"{name}.Y_{n}" for n, _ in zip("hc", step.results, strict=False)]
    inputs = [f"{name}.X", *weights, "", *(f"{name}.{n}0" for n, _ in zip("hc", step.states, strict=False))]
    options = {"linear_before_reset": int(step.reset_after)} if step.kind == "GRU" else {}
    layer = helper.make_node(step.kind, inputs, ["", *results], name, hidden_size=R.shape[2], **options)
    after = [first_axis_node(proto, "Squeeze", r, n) for r, n in zip(results, step.results, strict=True)]
    nodes: list[onnx.NodeProto] = []
    is_placed = False
    for node in graph.node:
        if set(node.output) & set(step.results):
            if not is_placed:
                nodes += [*before, layer, *after]
                is_placed = True
            continue
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)
    return name
