# SPDX-License-Identifier: Apache-2.0
"""Point-wise, moving and summing operators of ONNX as steps of a plan."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edgernn.errors import UsageError
from edgernn.runtime.step_graph.builder import Builder, Tensor
from edgernn.runtime.step_graph.steps import Gather, Lookup, Operand
from edgernn.runtime.step_graph.views import Pieces, View, dense, outside
from edgernn.runtime.weights import Weight

Array = NDArray[Any]
# copies of a tensor side by side
_MOST_COPIES = 1 << 10
# numbers of a table, as the engine counts them
_MOST_NUMBERS = 1 << 28
# floats from here on are integers
_WHOLE = float(1 << 23)


@dataclass(frozen=True)
class Node:
    """A node of the graph with the tensors that it reads.

    Attributes:
        proto: The node.
        inputs: Its inputs; None for one that is left out.
        title: Type and name for messages.
        alone: For each input, True if no other node reads the value in which it lies.
        opset: Version of the operator set of ONNX.
        is_integer: True if its result is integers that steps compute.
    """

    proto: onnx.NodeProto
    inputs: list[Tensor | None]
    title: str
    alone: list[bool]
    opset: int
    is_integer: bool = False

    def attribute(self, name: str, default: Any = None) -> Any:
        value = next((helper.get_attribute_value(a) for a in self.proto.attribute if a.name == name), default)
        return value.decode() if isinstance(value, bytes) else value

    def tensor(self, index: int) -> Tensor:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.refuse(f"input {index}", "none", "export the model again")
        return value

    def constant(self, index: int) -> Array | None:
        """Return an input that must be constant, or None if it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is not None and not isinstance(value, np.ndarray):
            raise self.refuse(
                f"a constant input {self.proto.input[index]}",
                "one that the graph computes",
                "export the model with fixed shapes and weights",
            )
        return value

    def integers(self, name: str, index: int) -> list[int] | None:
        """Return the integers of an attribute, or in a newer operator set of a constant input."""
        value = self.attribute(name)
        if value is None:
            value = self.constant(index)
        return None if value is None else [int(n) for n in np.ravel(value)]

    def axis(self, value: int, rank: int) -> int:
        if not -rank <= value < rank:
            raise self.refuse(f"an axis below {rank}", str(value), "export the model again")
        return value % rank

    def refuse(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(f"{self.title}: expected {expected}, got {got}; {remedy}")


Operator = Callable[[Builder, Node], Tensor | list[Tensor]]


def broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the shape to which tensors are broadcast."""
    return np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))


def _pointwise(expression: Callable[..., Any], count: int, builder: Builder, node: Node) -> Tensor:
    tensors = [node.tensor(k) for k in range(count)]
    return builder.compute(expression(*tensors), shape=broadcast(tensors))[0]


def _fold_affine(builder: Builder, node: Node, scale: Array | None, shift: Array | None, index: int) -> Tensor | None:
    """Change the weights of the steps that computed an input by a scale and shift, if they can take them."""
    tensor = node.tensor(index)
    known = [array for array in (scale, shift) if array is not None]
    if (
        not isinstance(tensor, View)
        or not node.alone[index]
        or not all(np.isfinite(array).all() for array in known)
        or broadcast([tensor, *known]) != tensor.shape
    ):
        return None
    return tensor if builder.fold(tensor, scale, shift) else None


def _arithmetic(op: str, builder: Builder, node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    folded = None
    if op == "div" and node.is_integer:
        # by the quotient, as a product with the reciprocal may be just below a whole number
        return builder.compute(whole(("div", a, b)), shape=broadcast([a, b]))[0]
    if isinstance(b, np.ndarray):
        with np.errstate(divide="ignore"):
            scale = b if op == "mul" else 1 / np.asarray(b, np.float64) if op == "div" else None
        folded = _fold_affine(builder, node, scale, b if op == "add" else -b if op == "sub" else None, 0)
    elif isinstance(a, np.ndarray) and op in ("add", "mul"):
        folded = _fold_affine(builder, node, a if op == "mul" else None, a if op == "add" else None, 1)
    return _pointwise(lambda x, y: (op, x, y), 2, builder, node) if folded is None else folded


def _variadic(op: str, builder: Builder, node: Node) -> Tensor:
    tensors = [node.tensor(k) for k in range(len(node.inputs))]
    expression: Any = tensors[0]
    for tensor in tensors[1:]:
        expression = (op, expression, tensor)
    return builder.compute(expression, shape=broadcast(tensors))[0]


def _power(builder: Builder, node: Node) -> Tensor:
    x, exponent = node.tensor(0), np.asarray(node.constant(1), np.float64)
    numbers = np.unique(exponent)
    forms = {
        0.5: ("sqrt", x),
        1.0: x,
        2.0: ("mul", x, x),
        3.0: ("mul", x, ("mul", x, x)),
        4.0: ("mul", ("mul", x, x), ("mul", x, x)),
        -1.0: ("div", 1.0, x),
        -0.5: ("div", 1.0, ("sqrt", x)),
        -2.0: ("div", 1.0, ("mul", x, x)),
    }
    if len(numbers) == 1 and numbers[0] in forms:
        return builder.compute(forms[float(numbers[0])], shape=x.shape)[0]
    if (numbers == np.rint(numbers)).any():
        raise node.refuse(
            f"a fraction as exponent, or {', '.join(f'{n:g}' for n in forms)}",
            ", ".join(f"{n:g}" for n in numbers[:4]),
            "write the power as products in the model",
        )
    # NaN for a base below 0, as in ONNX
    return builder.compute(("exp", ("mul", exponent, ("log", x))), shape=broadcast([x, exponent]))[0]


def _clip(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    low, high = (
        node.attribute(name) if node.attribute(name) is not None else node.constant(k)
        for k, name in ((1, "min"), (2, "max"))
    )
    expression: Any = x
    if low is not None:
        expression = ("max", expression, np.asarray(low))
    if high is not None:
        expression = ("min", expression, np.asarray(high))
    return x if expression is x else builder.compute(expression, shape=x.shape)[0]


def _prelu(builder: Builder, node: Node) -> Tensor:
    x, slope = node.tensor(0), node.tensor(1)
    return builder.compute(("select", ("less", x, 0.0), ("mul", slope, x), x), shape=broadcast([x, slope]))[0]


def _leaky(builder: Builder, node: Node) -> Tensor:
    x, slope = node.tensor(0), float(node.attribute("alpha", 0.01))
    return builder.compute(("select", ("less", x, 0.0), ("mul", slope, x), x), shape=x.shape)[0]


def _elu(builder: Builder, node: Node) -> Tensor:
    x, alpha = node.tensor(0), float(node.attribute("alpha", 1.0))
    below = ("mul", alpha, ("sub", ("exp", ("min", x, 0.0)), 1.0))
    return builder.compute(("select", ("less", x, 0.0), below, x), shape=x.shape)[0]


def _selu(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    alpha, gamma = (float(node.attribute(n, d)) for n, d in (("alpha", 1.67326319), ("gamma", 1.05070102)))
    below = ("mul", alpha * gamma, ("sub", ("exp", ("min", x, 0.0)), 1.0))
    return builder.compute(("select", ("less", x, 0.0), below, ("mul", gamma, x)), shape=x.shape)[0]


def _hard_sigmoid(builder: Builder, node: Node) -> Tensor:
    alpha, beta = float(node.attribute("alpha", 0.2)), float(node.attribute("beta", 0.5))
    return _pointwise(lambda x: ("max", 0.0, ("min", 1.0, ("add", ("mul", alpha, x), beta))), 1, builder, node)


def _softplus(x: Tensor) -> Any:
    return ("add", ("max", x, 0.0), ("log", ("add", 1.0, ("exp", ("neg", ("abs", x))))))


def _erf_of_size(size: Any) -> Any:
    """Return erf of a number of at least 0, to 1.5e-7: Abramowitz and Stegun 1964, 7.1.26."""
    t = ("div", 1.0, ("add", 1.0, ("mul", 0.3275911, size)))
    total: Any = 0.0
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = ("mul", t, ("add", total, factor))
    return ("sub", 1.0, ("mul", total, ("exp", ("neg", ("mul", size, size)))))


def _gelu(builder: Builder, node: Node) -> Tensor:
    def exact(x: Tensor) -> Any:
        size = ("abs", x)
        # x erf(x / √2) is even
        return ("mul", 0.5, ("add", x, ("mul", size, _erf_of_size(("mul", math.sqrt(0.5), size)))))

    def by_tanh(x: Tensor) -> Any:
        inner = ("mul", x, ("add", 1.0, ("mul", 0.044715, ("mul", x, x))))
        return ("mul", ("mul", 0.5, x), ("add", 1.0, ("tanh", ("mul", math.sqrt(2 / math.pi), inner))))

    return _pointwise(exact if node.attribute("approximate", "none") == "none" else by_tanh, 1, builder, node)


def whole(x: Any) -> Any:
    """Return the expression of a number, a tensor or an expression, without its fraction."""
    size = ("abs", x)
    # adding 2^23 rounds to an integer
    nearest = ("sub", ("add", size, _WHOLE), _WHOLE)
    whole = ("sub", nearest, ("less", size, nearest))
    return ("mul", ("sign", x), ("select", ("less", size, _WHOLE), whole, size))


def _cast(builder: Builder, node: Node) -> Tensor:
    target = node.attribute("to")
    if target in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        x = node.tensor(0)
        return builder.compute(whole(x), shape=x.shape)[0]
    if target not in (onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL):
        name = onnx.TensorProto.DataType.Name(target).lower()
        raise node.refuse("float, integers or bool", name, "compute with float32 in the model")
    x = node.tensor(0)
    if target == onnx.TensorProto.FLOAT:
        return x
    return builder.compute(("sub", 1.0, ("equal", x, 0.0)), shape=x.shape)[0]


def _batch_normalisation(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    if node.attribute("training_mode", 0):
        raise node.refuse("training_mode 0", "1", "export the model in evaluation mode")
    scale, shift, mean, variance = (np.asarray(node.constant(k), np.float64) for k in range(1, 5))
    factor = scale / np.sqrt(variance + node.attribute("epsilon", 1e-5))
    summand = shift - mean * factor
    axes = (-1, *(1,) * (len(x.shape) - 2))
    factor, summand = factor.reshape(axes), summand.reshape(axes)
    folded = _fold_affine(builder, node, factor, summand, 0)
    if folded is not None:
        return folded
    return builder.compute(("add", ("mul", x, factor), summand), shape=x.shape)[0]


def _normalised(builder: Builder, x: Tensor, axes: Sequence[int], epsilon: float, scale: Any, shift: Any) -> Tensor:
    """Subtract the mean of a tensor over some axes and divide by the deviation, then scale and shift."""
    count = math.prod(x.shape[axis] for axis in axes)
    mean = builder.compute(("mul", builder.reduce("sum", x, axes), 1.0 / count), shape=_one(x, axes))[0]
    (centred,) = builder.compute(("sub", x, mean), shape=x.shape)
    (square,) = builder.compute(("mul", centred, centred), shape=x.shape)
    variance = ("add", ("mul", builder.reduce("sum", square, axes), 1.0 / count), epsilon)
    (inverse,) = builder.compute(("div", 1.0, ("sqrt", variance)), shape=_one(x, axes))
    expression: Any = ("mul", centred, inverse)
    if scale is not None:
        expression = ("mul", expression, scale)
    if shift is not None:
        expression = ("add", expression, shift)
    return builder.compute(expression, shape=x.shape)[0]


def _one(x: Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if k in axes else n for k, n in enumerate(x.shape))


def _layer_normalisation(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    first = node.axis(node.attribute("axis", -1), len(x.shape))
    axes = range(first, len(x.shape))
    return _normalised(builder, x, axes, node.attribute("epsilon", 1e-5), node.constant(1), node.constant(2))


def _instance_normalisation(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    tail = (-1, *(1,) * (len(x.shape) - 2))
    scale, shift = (np.asarray(node.constant(k)).reshape(tail) for k in (1, 2))
    return _normalised(builder, x, range(2, len(x.shape)), node.attribute("epsilon", 1e-5), scale, shift)


def _reduction(kind: str, builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    if kind == "square":
        (x,) = builder.compute(("mul", x, x), shape=x.shape)
    axes = node.integers("axes", 1)
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({node.axis(axis, len(x.shape)) for axis in axes or range(len(x.shape))})
    result: View = builder.reduce(kind if kind in ("max", "min") else "sum", x, axes)
    shape = _one(x, axes)
    if kind == "mean":
        (result,) = builder.compute(("mul", result, 1.0 / math.prod(x.shape[k] for k in axes)), shape=shape)
    if node.attribute("keepdims", 1):
        return result
    return reshaped(builder, result, [n for k, n in enumerate(shape) if k not in axes])


def _global_pool(kind: str, builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    axes = range(2, len(x.shape))
    result = builder.reduce("max" if kind == "max" else "sum", x, axes)
    if kind == "max":
        return result
    return builder.compute(("mul", result, 1.0 / math.prod(x.shape[2:])), shape=_one(x, axes))[0]


def _softmax(logarithm: bool, builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    # before operator set 13, all axes from `axis` on are one
    is_old = node.opset < 13
    axis = node.axis(node.attribute("axis", 1 if is_old else -1), len(x.shape))
    axes = range(axis, len(x.shape)) if is_old else [axis]
    (shifted,) = builder.compute(("sub", x, builder.reduce("max", x, axes)), shape=x.shape)
    (e,) = builder.compute(("exp", shifted), shape=x.shape)
    total = builder.reduce("sum", e, axes)
    if logarithm:
        return builder.compute(("sub", shifted, ("log", total)), shape=x.shape)[0]
    return builder.compute(("div", e, total), shape=x.shape)[0]


def reshaped(builder: Builder, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor in another shape, copied only if strides do not express it."""
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    result = x.reshaped(shape)
    if result is None and isinstance(x, Pieces):
        result = builder.copy(x).reshaped(shape)
    if result is None:
        result = builder.copy(x, range(len(x.shape))).reshaped(shape)
    assert result is not None
    return result


def _reshape(builder: Builder, node: Node) -> Tensor:
    x, shape = node.tensor(0), node.integers("shape", 1) or []
    if not node.attribute("allowzero", 0):
        shape = [x.shape[k] if n == 0 else n for k, n in enumerate(shape)]
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape = [math.prod(x.shape) // max(known, 1) if n == -1 else n for n in shape]
    if math.prod(shape) != math.prod(x.shape):
        raise node.refuse(f"a shape of {math.prod(x.shape)} elements", str(shape), "fix the shapes with --shape")
    return reshaped(builder, x, shape)


def _flatten(builder: Builder, node: Node) -> Tensor:
    x, axis = node.tensor(0), node.attribute("axis", 1)
    return reshaped(builder, x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


def _squeeze(builder: Builder, node: Node) -> Tensor:
    x, axes = node.tensor(0), node.integers("axes", 1)
    chosen = (
        [k for k, n in enumerate(x.shape) if n == 1]
        if axes is None
        else [node.axis(axis, len(x.shape)) for axis in axes]
    )
    if any(x.shape[k] != 1 for k in chosen):
        raise node.refuse("axes of length 1", str(tuple(x.shape)), "fix the shapes with --shape")
    return reshaped(builder, x, [n for k, n in enumerate(x.shape) if k not in chosen])


def _unsqueeze(builder: Builder, node: Node) -> Tensor:
    x, axes = node.tensor(0), node.integers("axes", 1) or []
    rank = len(x.shape) + len(axes)
    chosen = {node.axis(axis, rank) for axis in axes}
    lengths = iter(x.shape)
    return reshaped(builder, x, [1 if k in chosen else next(lengths) for k in range(rank)])


def _transpose(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    axes = list(range(len(x.shape)))
    order = list(node.attribute("perm") or axes[::-1])
    if sorted(order) != axes:
        raise node.refuse(f"each of {len(axes)} axes once", str(order), "export the model again")
    return x.transpose(order) if isinstance(x, np.ndarray) else x.transposed(order)


def sliced(builder: Builder, x: Tensor, axis: int, start: int, count: int, step: int = 1) -> Tensor:
    """Return `count` elements of an axis from `start` on, copied only if strides do not express it."""
    if isinstance(x, np.ndarray):
        return np.take(x, start + step * np.arange(count), axis)
    result = x.sliced(axis, start, count, step)
    if result is None:
        result = builder.copy(x, range(len(x.shape))).sliced(axis, start, count, step)
    assert result is not None
    return result.simple() if isinstance(result, Pieces) else result


def _slice(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    starts, ends = node.integers("starts", 1) or [], node.integers("ends", 2) or []
    axes = node.integers("axes", 3)
    steps = (node.integers("steps", 4) if len(node.inputs) > 4 else None) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes or range(len(starts)), steps, strict=True):
        k = node.axis(axis, len(x.shape))
        first, last, stride = slice(start, end, step).indices(x.shape[k])
        count = len(range(first, last, stride))
        if count == 0:
            raise node.refuse("at least one element", f"{start}:{end} of {x.shape[k]}", "fix the shapes with --shape")
        x = sliced(builder, x, k, first, count, stride)
    return x


def _split(builder: Builder, node: Node) -> list[Tensor]:
    x = node.tensor(0)
    axis = node.axis(node.attribute("axis", 0), len(x.shape))
    sizes = node.integers("split", 1)
    if sizes is None:
        parts = len(node.proto.output)
        whole = -(-x.shape[axis] // parts)
        sizes = [min(whole, x.shape[axis] - k * whole) for k in range(parts)]
    if len(sizes) != len(node.proto.output) or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        expected = f"{len(node.proto.output)} parts of {x.shape[axis]} elements"
        raise node.refuse(expected, str(sizes), "export the model again")
    starts = np.cumsum([0, *sizes])
    return [sliced(builder, x, axis, int(start), n) for start, n in zip(starts, sizes, strict=False)]


def boxes_of(builder: Builder, tensor: Tensor) -> Pieces:
    """Return a tensor as the boxes in which it lies."""
    if isinstance(tensor, Pieces):
        return tensor
    view = builder.view(tensor)
    return Pieces(view.shape, (((0,) * len(view.shape), view),))


def joined(builder: Builder, tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Return tensors one behind the other along an axis, without a copy."""
    boxes, start = [], 0
    for tensor in tensors:
        for first, view in boxes_of(builder, tensor).boxes:
            boxes.append(((*first[:axis], first[axis] + start, *first[axis + 1 :]), view))
        start += tensor.shape[axis]
    shape = (*tensors[0].shape[:axis], start, *tensors[0].shape[axis + 1 :])
    return Pieces(shape, tuple(boxes)).simple()


def _concat(builder: Builder, node: Node) -> Tensor:
    tensors = [node.tensor(k) for k in range(len(node.inputs))]
    tensors = [tensor for tensor in tensors if 0 not in tensor.shape]
    return joined(builder, tensors, node.axis(node.attribute("axis"), len(tensors[0].shape)))


def padded(builder: Builder, x: Tensor, axis: int, before: int, after: int, number: float = 0.0) -> Tensor:
    """Put a number before and after the elements of an axis; negative counts take elements away."""
    low, high = max(-before, 0), max(-after, 0)
    kept = x.shape[axis] - low - high
    if kept <= 0:
        shape = [*x.shape[:axis], x.shape[axis] + before + after, *x.shape[axis + 1 :]]
        return builder.view(np.full(shape, number, np.float32))
    if low or high:
        x = sliced(builder, x, axis, low, kept)
    ends = [np.full([*x.shape[:axis], max(n, 0), *x.shape[axis + 1 :]], number, np.float32) for n in (before, after)]
    parts = [part for part in (ends[0], x, ends[1]) if part.shape[axis]]
    return joined(builder, parts, axis) if len(parts) > 1 else x


def _reflected(builder: Builder, x: Tensor, axis: int, before: int, after: int) -> Tensor:
    length, parts = x.shape[axis], [x]
    if before:
        parts.insert(0, sliced(builder, x, axis, before, before, -1))
    if after:
        parts.append(sliced(builder, x, axis, length - 2, after, -1))
    return joined(builder, parts, axis)


def _pad(builder: Builder, node: Node) -> Tensor:
    x, mode = node.tensor(0), node.attribute("mode", "constant")
    pads = node.integers("pads", 1) or []
    number = node.attribute("value")
    if number is None:
        number = node.constant(2)
    axes = [node.axis(axis, len(x.shape)) for axis in node.integers("axes", 3) or range(len(x.shape))]
    if len(pads) != 2 * len(axes) or len({*axes}) < len(axes):
        raise node.refuse(f"two pads for each of the axes {axes}", str(pads), "export the model again")
    for axis, before, after in zip(axes, pads, pads[len(axes) :], strict=False):
        if mode == "constant":
            x = padded(builder, x, axis, before, after, 0.0 if number is None else float(np.ravel(number)[0]))
        elif mode == "reflect" and min(before, after) >= 0 and max(before, after) < x.shape[axis]:
            x = _reflected(builder, x, axis, before, after)
        elif mode == "edge" and min(before, after) >= 0:
            first, last = (sliced(builder, x, axis, n, 1) for n in (0, x.shape[axis] - 1))
            x = joined(builder, [*[first] * before, x, *[last] * after], axis)
        elif before or after:
            raise node.refuse(
                f"padding by constant or edge, or by reflect with fewer than {x.shape[axis]} elements",
                f"{mode} with {before} and {after}",
                "pad with zeros in the model",
            )
    return x


def _expand(builder: Builder, node: Node) -> Tensor:
    x, shape = node.tensor(0), node.integers("shape", 1) or []
    wanted = np.broadcast_shapes(x.shape, tuple(shape))
    return builder.view(x).expanded(wanted)


def _tile(builder: Builder, node: Node) -> Tensor:
    x = node.tensor(0)
    for axis, count in zip(range(len(x.shape)), node.integers("repeats", 1) or [], strict=True):
        if not 0 < count <= _MOST_COPIES:
            raise node.refuse(f"1 to {_MOST_COPIES} copies", str(count), "export the model again")
        x = joined(builder, [x] * count, axis)
    return x


def _look_up(builder: Builder, node: Node, depth: int) -> Tensor:
    """Return the part of a constant at an index that the graph computes; the last `depth` axes of it are one index."""
    table, index = node.tensor(0), builder.view(node.tensor(1))
    if not isinstance(table, np.ndarray) or math.prod(index.shape) != 1 or node.attribute("batch_dims", 0):
        raise node.refuse(
            "one index of a constant, or constant indices",
            f"shapes {tuple(table.shape)} and {index.shape}",
            "look up one row a step in the model",
        )
    if table.size > _MOST_NUMBERS:
        raise node.refuse(
            f"a table of at most {_MOST_NUMBERS:,} numbers", f"{table.size:,}", "use fewer rows, or shorter ones"
        )
    rows = table.reshape(len(table), -1)
    # an index below 0 counts from the end; one outside of the table, or NaN, leads into it
    first = ("add", index, ("mul", ("less", index, 0.0), float(len(rows))))
    inside = ("min", ("select", ("less", 0.0, first), first, 0.0), float(len(rows) - 1))
    (place,) = builder.compute(inside, shape=index.shape)
    target = builder.arena(rows.shape[1])
    matrix = Weight(np.asarray(rows, np.float32))
    builder.add(Lookup(Operand(place.value, place.offset, []), Operand(target, 0, []), matrix))
    return dense(target, [*index.shape[: len(index.shape) - depth], *table.shape[1:]])


def _gather_nd(builder: Builder, node: Node) -> Tensor:
    if node.tensor(1).shape[-1:] != (1,):
        raise node.refuse("indices along one axis", str(tuple(node.tensor(1).shape)), "use Gather in the model")
    return _look_up(builder, node, 1)


def _gather(builder: Builder, node: Node) -> Tensor:
    x, indices = node.tensor(0), node.inputs[1]
    if not isinstance(indices, np.ndarray) and not node.attribute("axis", 0):
        return _look_up(builder, node, 0)
    if not isinstance(indices, np.ndarray) or isinstance(x, np.ndarray):
        raise node.refuse("constant indices", "words that the caller gives", "look the words up before the model")
    axis = node.axis(node.attribute("axis", 0), len(x.shape))
    length = x.shape[axis]
    invalid = indices[(indices < -length) | (indices >= length)]
    if invalid.size:
        raise node.refuse(f"indices from {-length} to {length - 1}", str(invalid[0]), "export the model again")
    indices = indices % length
    if indices.size == 1:
        part = sliced(builder, x, axis, int(indices.ravel()[0]), 1)
        return reshaped(builder, part, [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])
    # an index that grows evenly along each of its axes is a view
    first = int(indices.ravel()[0])
    steps = [int(indices.take(1, k).ravel()[0]) - first if n > 1 else 0 for k, n in enumerate(indices.shape)]
    even = first + sum(
        np.arange(n).reshape([-1 if j == k else 1 for j in range(indices.ndim)]) * steps[k]
        for k, n in enumerate(indices.shape)
    )
    if (indices == even).all():
        view = builder.view(x)
        if len(view.axes[axis]) > 1:
            view = builder.copy(view, range(len(view.shape)))
        ((_, stride),) = view.axes[axis] or ((1, 0),)
        new = tuple(((n, stride * s),) if n > 1 else () for n, s in zip(indices.shape, steps, strict=True))
        offset = view.offset + first * stride
        return View(view.value, offset, (*view.axes[:axis], *new, *view.axes[axis + 1 :]))
    order = [axis, *(k for k in range(len(x.shape)) if k != axis)]
    rows = builder.rows(x if axis == 0 else builder.view(x).transposed(order))
    result = _gathered(builder, rows, math.prod(rows.shape[1:]), [int(n) for n in indices.ravel()])
    shape = [*indices.shape, *rows.shape[1:]]
    back = dense(result.value, shape)
    count = indices.ndim
    places = [*range(count, count + axis), *range(count), *range(count + axis, len(shape))]
    return back.transposed(places)


def _gathered(builder: Builder, rows: View, inner: int, indices: list[int]) -> View:
    """Copy rows of `inner` floats each; the index -1 stands for zeros."""
    target = builder.arena(inner * len(indices))
    builder.add(Gather(Operand(rows.value, rows.offset, []), Operand(target, 0, []), inner, indices))
    return dense(target, (inner * len(indices),))


def _scatter(builder: Builder, node: Node) -> Tensor:
    """ScatterND with constant indices: a box of them replaces a part of the tensor, others are gathered."""
    x, indices, updates = node.tensor(0), node.constant(1), node.tensor(2)
    if indices is None or node.attribute("reduction", "none") != "none":
        raise node.refuse("indices that replace elements", "a sum of them", "export the model without it")
    shape, depth = tuple(x.shape), indices.shape[-1]
    lengths = np.array(shape[:depth])
    invalid = indices[(indices < -lengths) | (indices >= lengths)]
    if invalid.size:
        raise node.refuse(f"indices within the shape {shape[:depth]}", str(invalid[0]), "export the model again")
    flat = (indices % lengths).reshape(-1, depth)
    first, size = flat.min(0), flat.max(0) - flat.min(0) + 1
    box = np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), -1).reshape(-1, depth) + first
    if len(box) != len(flat) or (box != flat).any():
        raise node.refuse("indices of a box in order", "others", "write the assignment with Concat in the model")
    inner = shape[depth:]
    start, count = [*map(int, first), *(0 for _ in inner)], [*map(int, size), *inner]
    new = reshaped(builder, updates, count)
    boxes = []
    for low, length in outside(shape, start, count):
        part: Tensor = x
        for axis, (begin, n) in enumerate(zip(low, length, strict=True)):
            part = sliced(builder, part, axis, begin, n)
        boxes += [_shifted(one, low) for one in boxes_of(builder, part).boxes]
    boxes += [_shifted(one, start) for one in boxes_of(builder, new).boxes]
    return Pieces(shape, tuple(boxes)).simple()


def _shifted(box: tuple[tuple[int, ...], View], by: Sequence[int]) -> tuple[tuple[int, ...], View]:
    return tuple(a + b for a, b in zip(box[0], by, strict=True)), box[1]


def _matmul(builder: Builder, node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    if isinstance(b, np.ndarray) and math.prod(b.shape[:-2]) == 1 and b.ndim >= 2:
        W = b.reshape(b.shape[-2:]).T
        result = builder.multiply(a, W)
        # a vector is a matrix of one row, which the result lacks
        extra = b.ndim - max(len(a.shape), 2)
        return result if extra <= 0 else reshaped(builder, result, [*(1,) * extra, *result.shape])
    if isinstance(a, np.ndarray) and a.ndim == 2 and len(b.shape) >= 2 and not isinstance(b, np.ndarray):
        order = [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2]
        result = builder.multiply(b.transposed(order), a)
        return result.transposed(order)
    raise node.refuse(
        "one factor that is a constant matrix",
        f"shapes {tuple(a.shape)} and {tuple(b.shape)}",
        "leave attention out of the model",
    )


def _gemm(builder: Builder, node: Node) -> Tensor:
    a, b, c = node.tensor(0), node.tensor(1), node.constant(2)
    if not isinstance(b, np.ndarray) or isinstance(a, np.ndarray):
        raise node.refuse("a constant matrix B", "one that the graph computes", "leave attention out of the model")
    if node.attribute("transA", 0):
        a = a.transposed([1, 0])
    W = np.asarray(b if node.attribute("transB", 0) else b.T, np.float64) * node.attribute("alpha", 1.0)
    if c is None:
        return builder.multiply(a, W)
    bias = np.asarray(c, np.float64) * node.attribute("beta", 1.0)
    if math.prod(bias.shape[:-1]) == 1:
        return builder.multiply(a, W, np.broadcast_to(bias.reshape(-1), len(W)))
    result = builder.multiply(a, W)
    return builder.compute(("add", result, bias), shape=result.shape)[0]


def _identity(builder: Builder, node: Node) -> Tensor:
    return node.tensor(0)


def _dropout(builder: Builder, node: Node) -> Tensor:
    training = node.constant(2)
    if training is not None and training.any():
        raise node.refuse("training_mode false", "true", "export the model in evaluation mode")
    return node.tensor(0)


def _comparison(op: str, swapped: bool, builder: Builder, node: Node) -> Tensor:
    return _pointwise(lambda a, b: (op, b, a) if swapped else (op, a, b), 2, builder, node)


_UNARY: dict[str, Callable[..., Any]] = {
    "Relu": lambda x: ("max", x, 0.0),
    "Sigmoid": lambda x: ("sigmoid", x),
    "Tanh": lambda x: ("tanh", x),
    "Neg": lambda x: ("neg", x),
    "Abs": lambda x: ("abs", x),
    "Sqrt": lambda x: ("sqrt", x),
    "Exp": lambda x: ("exp", x),
    "Log": lambda x: ("log", x),
    "Sin": lambda x: ("sin", x),
    "Cos": lambda x: ("cos", x),
    # the step gives 0 for NaN
    "Sign": lambda x: ("select", ("equal", x, x), ("sign", x), x),
    "Erf": lambda x: ("mul", ("sign", x), _erf_of_size(("abs", x))),
    "Reciprocal": lambda x: ("div", 1.0, x),
    "Softplus": _softplus,
    "Softsign": lambda x: ("div", x, ("add", 1.0, ("abs", x))),
    "HardSwish": lambda x: ("mul", x, ("max", 0.0, ("min", 1.0, ("add", ("mul", 1 / 6, x), 0.5)))),
    "Mish": lambda x: ("mul", x, ("tanh", _softplus(x))),
    "Not": lambda x: ("sub", 1.0, x),
}
_BINARY = {"And": "mul", "Or": "max"}
OPERATORS: dict[str, Operator] = {
    **{name: partial(_pointwise, expression, 1) for name, expression in _UNARY.items()},
    **{name: partial(_arithmetic, name.lower()) for name in ("Add", "Sub", "Mul", "Div")},
    **{name: partial(_variadic, op) for name, op in (("Max", "max"), ("Min", "min"), ("Sum", "add"), *_BINARY.items())},
    "Where": partial(_pointwise, lambda c, a, b: ("select", c, a, b), 3),
    "Less": partial(_comparison, "less", False),
    "LessOrEqual": partial(_comparison, "less_equal", False),
    "Greater": partial(_comparison, "less", True),
    "GreaterOrEqual": partial(_comparison, "less_equal", True),
    "Equal": partial(_comparison, "equal", False),
    "Pow": _power,
    "Clip": _clip,
    "PRelu": _prelu,
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Gelu": _gelu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "Cast": _cast,
    "BatchNormalization": _batch_normalisation,
    "LayerNormalization": _layer_normalisation,
    "InstanceNormalization": _instance_normalisation,
    "ReduceSum": partial(_reduction, "sum"),
    "ReduceMean": partial(_reduction, "mean"),
    "ReduceMax": partial(_reduction, "max"),
    "ReduceMin": partial(_reduction, "min"),
    "ReduceSumSquare": partial(_reduction, "square"),
    "GlobalAveragePool": partial(_global_pool, "mean"),
    "GlobalMaxPool": partial(_global_pool, "max"),
    "Softmax": partial(_softmax, False),
    "LogSoftmax": partial(_softmax, True),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ScatterND": _scatter,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Identity": _identity,
    "Dropout": _dropout,
}
