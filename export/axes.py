# SPDX-License-Identifier: Apache-2.0
"""Variable axes of an exported network, and the sizes for which its trace holds.

torch.export records what the code of a module asked about sizes, such as `x.shape[0] > 3`. The graph has only the
branch that was taken, so it computes something else for a size with another answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import onnx
import sympy  # type: ignore[import-untyped]
from torch import SymInt, Tensor

# sizes at which an answer is compared with that for the example
_SMALL, _LARGE = (2, 3, 4, 5, 6, 7, 8, 9), (64, 65, 66, 67, 69, 101, 1000, 1 << 20)


def name_axes(
    proto: onnx.ModelProto,
    exported: Any,
    states: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    fits: Callable[[Mapping[str, Sequence[int]], Sequence[int]], bool],
) -> dict[str, list[int | None]]:
    """Name the variable axes of inputs and outputs axis0, axis1, ..., and give all others their size in the example.

    An axis is fixed if the trace holds for no other size, and if it is one of a state that no other input has.

    Args:
        proto: The model, which is changed.
        exported: The ExportedProgram that it was made of.
        states: Names of the inputs that are states.
        shapes: Shapes of all inputs in the example, by name in the order of the trace.
        fits: Function that returns True if the model is right where some axes of its inputs, a dict from name to their
            indices, have other sizes, or those of a list if it is not empty. It judges what torch.export does not tell:
            why an axis is fixed, and whether the network or torch itself asked if a size is 1.

    Returns:
        The smallest and the largest size (None: any) of each variable axis that may not have all sizes, by name.
    """
    symbols = _symbols(exported, shapes)
    ranges = exported.range_constraints

    def fits_at(symbol: sympy.Symbol, *other: int) -> bool:
        places = {name: [i for i, (s, _) in enumerate(axes) if s == symbol] for name, axes in symbols.items()}
        return fits(places, other)

    example = {symbol: size for axes in symbols.values() for symbol, size in axes if symbol}
    fixed = {
        symbol: sympy.Integer(size)
        for symbol, size in example.items()
        if symbol in ranges and ranges[symbol].is_singleton() and not fits_at(symbol)
    }
    fixed = _with_answers(exported, example, fixed)
    asked = {s for answer in _answers(exported) if isinstance(answer, sympy.Ne) for s in answer.free_symbols}
    several = {symbol for symbol in sorted(asked & example.keys() - fixed.keys(), key=str) if not fits_at(symbol, 1)}
    free = {axis.dim_param for v in proto.graph.input if v.name not in states for axis in axes_of(v)}
    sizes: dict[str, int] = {}
    limits: dict[str, list[int | None]] = {}
    for value in proto.graph.input:
        for axis, (symbol, size) in zip(axes_of(value), symbols.get(value.name, ()), strict=False):
            if axis.dim_param and (symbol in fixed or axis.dim_param not in free):
                sizes[axis.dim_param] = size
            elif axis.dim_param and symbol in ranges and not ranges[symbol].is_singleton():
                least, most = (_whole(bound) for bound in (ranges[symbol].lower, ranges[symbol].upper))
                limits[axis.dim_param] = [max(least or 0, 2) if symbol in several else least, most]
    names: dict[str, str] = {}
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in axes_of(value):
            if axis.dim_param in sizes:
                axis.dim_value = sizes[axis.dim_param]
            elif axis.dim_param.isidentifier():
                axis.dim_param = names.setdefault(axis.dim_param, f"axis{len(names)}")
    return {names[name]: [low, high] for name, (low, high) in limits.items() if (low or 0) > 1 or high is not None}


def axes_of(value: onnx.ValueInfoProto) -> Any:
    """Return the axes of an input or output."""
    return value.type.tensor_type.shape.dim


def _symbols(exported: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[tuple[sympy.Symbol | None, int]]]:
    """Return for each input its axes: the symbol of a variable one or None, and the size in the example."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    arguments = [v for name in exported.graph_signature.user_inputs if isinstance(v := values.get(name), Tensor)]

    def symbol(size: Any) -> sympy.Symbol | None:
        return size.node.expr if isinstance(size, SymInt) and size.node.expr.is_Symbol else None

    return {
        name: [(symbol(traced), size) for traced, size in zip(value.shape, shape, strict=True)]
        for (name, shape), value in zip(shapes.items(), arguments, strict=True)
    }


def _with_answers(
    exported: Any, example: Mapping[sympy.Symbol, int], fixed: dict[sympy.Symbol, sympy.Integer]
) -> dict[sympy.Symbol, sympy.Integer]:
    """Add the sizes without which an answer that the trace took could be another one, as few as possible."""
    ranges = exported.range_constraints
    sizes = {symbol: sympy.Integer(size) for symbol, size in example.items()}
    for answer in _answers(exported):
        asked = sorted(answer.free_symbols - fixed.keys(), key=str)
        # sizes that depend on values are checked by ONNX Runtime
        if not (sizes.keys() & ranges.keys()) >= {*asked}:
            continue
        choices = (chosen for count in range(len(asked) + 1) for chosen in combinations(asked, count))
        fixed |= next(
            (
                new
                for chosen in choices
                if _holds(answer.xreplace(fixed | (new := {s: sizes[s] for s in chosen})), ranges)
            ),
            {s: sizes[s] for s in asked},
        )
    return fixed


def _answers(exported: Any) -> Iterator[Any]:
    """Iterate over the conditions on sizes that were true for the example."""
    values = (node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder")
    modes = {value.fake_mode for value in values if hasattr(value, "fake_mode")}
    for environment in {mode.shape_env for mode in modes} - {None}:
        for asserts in environment.deferred_runtime_asserts.values():
            for entry in asserts:
                yield environment.replace(entry.expr)


def _holds(answer: Any, ranges: Mapping[Any, Any]) -> bool:
    """Return True if a condition is true for many sizes within the ranges."""
    symbols = sorted(answer.free_symbols, key=str)
    limits = [ranges[symbol] for symbol in symbols]
    # torch itself asks whether sizes are other than 0 or 1, for its own ends
    sizes = _LARGE if isinstance(answer, sympy.Ne) else _SMALL + _LARGE
    tried = [[size for size in sizes if size in limit] or [limit.lower, limit.upper] for limit in limits]
    cases = (dict(zip(symbols, map(sympy.Integer, case), strict=True)) for case in product(*tried))
    return all(answer.xreplace(case) == sympy.true for case in cases)


def _whole(bound: Any) -> int | None:
    return int(bound) if isinstance(bound, sympy.Integer) else None
