# SPDX-License-Identifier: Apache-2.0
"""A cell's point-wise equations, written once in torch, as text of Triton functions: the map, and its derivatives.

`mid` and `update` are traced on a tile of values, the cell's own vectors spread out to it, so that nothing is summed up
inside; torch's own derivatives (`torch.func.vjp`) are traced in the same way.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

# each op of torch as an expression of its arguments {0}, {1}, ...; functions that Triton lacks are in PRELUDE
_EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "square": "{0} * {0}",
    "sigmoid": "tl.sigmoid({0})",
    "tanh": "tanh({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "abs": "tl.abs({0})",
    "sgn": "sign({0})",
    "sign": "sign({0})",
    "relu": "tl.maximum({0}, 0.0)",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "clamp_min": "tl.maximum({0}, {1})",
    "clamp_max": "tl.minimum({0}, {1})",
    "lerp": "lerp({0}, {1}, {2})",
    "where": "tl.where({0}, {1}, {2})",
    "masked_fill": "tl.where({1}, {2}, {0})",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "le": "{0} <= {1}",
    "lt": "{0} < {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_not": "not {0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "sigmoid_backward": "{0} * (1.0 - {1}) * {1}",
    "tanh_backward": "{0} * (1.0 - {1} * {1})",
    "threshold_backward": "tl.where({1} > {2}, {0}, 0.0)",
    "detach": "{0}",
    "alias": "{0}",
    "clone": "{0}",
    "lift_fresh_copy": "{0}",
}
# numbers take the place of tiles that hold one
_FULL = {"zeros_like": "0.0", "ones_like": "1.0", "empty_like": "0.0"}
_FILLED = ("full_like", "fill", "full", "scalar_tensor")
_FUNCTIONS = ("tanh", "sign", "lerp")

PRELUDE = '''
@triton.jit
def tanh(v):
    e = tl.exp(-2.0 * tl.abs(v))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(v < 0, -size, size)


@triton.jit
def sign(v):
    return tl.where(v > 0, 1.0, tl.where(v < 0, -1.0, 0.0))


@triton.jit
def lerp(start, end, share):
    """As in torch: exactly start at 0 and end at 1."""
    way = end - start
    return tl.where(share < 0.5, start + share * way, end - way * (1.0 - share))
'''


class UntranslatedError(ValueError):
    """What in a map has no translation."""


@dataclass(frozen=True)
class Pointwise:
    """A map and its derivatives as text.

    arguments: those that the map reads, by name. results: how many it gives. text: of two functions, NAME, of the
    arguments, and NAME_back, of the gradients of all results and the arguments, which gives those of the arguments.
    """

    name: str
    arguments: tuple[str, ...]
    results: int
    text: str


def translate(
    name: str, function: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]], widths: Mapping[str, int], width: int
) -> Pointwise:
    """A map of tiles, by name, of such widths, to tiles of one width; raises UntranslatedError."""
    tiles = {key: torch.rand(2, size) for key, size in widths.items()}

    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        return function(dict(zip(names, values, strict=True)))

    names = tuple(tiles)
    try:
        graph = _graph(forward, *tiles.values())
        places = [node for node in graph.nodes if node.op == "placeholder"]
        # the others, held at some value, are gone from the graph
        names = tuple(key for key, node in zip(tiles, places, strict=True) if node.users)
        results = len(_results(graph))
        rest = tiles

        def of_used(*values: Tensor) -> tuple[Tensor, ...]:
            return function({**rest, **dict(zip(names, values, strict=True))})

        def back(*values: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(of_used, *values[results:])[1]
            pulled: tuple[Tensor, ...] = pull(values[:results])
            return pulled

        used = [tiles[key] for key in names]
        text = _print(name, list(names), _graph(of_used, *used), width)
        grads = [torch.rand(2, width) for _ in range(results)]
        text += _print(f"{name}_back", [*(f"g{i}" for i in range(results)), *names], _graph(back, *grads, *used), width)
    except UntranslatedError:
        raise
    except (RuntimeError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise UntranslatedError(f"{name} cannot be traced ({' '.join(str(error).split())})") from error
    return Pointwise(name, names, results, text)


def _graph(function: Callable[..., Any], *tiles: Tensor) -> fx.Graph:
    pure = torch.func.functionalize(function, remove="mutations_and_views")
    graph = make_fx(pure)(*tiles).graph
    graph.eliminate_dead_code()
    return graph


def _results(graph: fx.Graph) -> list[fx.Node]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    found = output.args[0]
    return [found] if isinstance(found, fx.Node) else list(found)


def _print(name: str, arguments: list[str], graph: fx.Graph, width: int) -> str:
    """A graph as one function, with a name for what has one in torch."""
    lines = []
    names: dict[fx.Node, str] = {}
    places = iter(arguments)
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = next(places)
        elif node.op == "call_function":
            shape = tuple(node.meta["val"].shape)
            if shape not in ((2, width), ()):
                raise UntranslatedError(f"{_op(node)} in {name} is not point-wise")
            # names of arguments and of functions are taken
            names[node] = f"{node.name}_0" if node.name in (*arguments, *_FUNCTIONS) else node.name
            lines.append(f"    {names[node]} = {_expression(node, names)}")
        elif node.op != "output":
            raise UntranslatedError(f"a constant tensor in {name}")
    given = [names[node] for node in _results(graph)]
    return "\n".join(
        ["", "", "@triton.jit", f"def {name}({', '.join(arguments)}):", *lines, f"    return {', '.join(given)}", ""]
    )


def _op(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", node.target))


def _expression(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    op = _op(node)
    values = [_value(a, names) for a in node.args if a is None or isinstance(a, fx.Node | bool | int | float)]
    if op in _FULL:
        return _FULL[op]
    if op in _FILLED:
        return values[-1]
    if op in ("clamp", "hardtanh"):
        low, high = (*values[1:], "None", "None")[:2]
        text = values[0] if low == "None" else f"tl.maximum({values[0]}, {low})"
        return text if high == "None" else f"tl.minimum({text}, {high})"
    if op == "pow" and node.args[1] in (1, 2, 3, 4):
        return " * ".join([values[0]] * int(float(values[1])))
    if op == "_to_copy":
        return f"{values[0]} + 0.0" if node.meta["val"].dtype == torch.float32 else _unknown(op)
    if op in ("add", "sub") and node.kwargs.get("alpha", 1) != 1:
        values[1] = f"{_value(node.kwargs['alpha'], names)} * {values[1]}"
    return _EXPRESSIONS[op].format(*values) if op in _EXPRESSIONS else _unknown(op)


def _unknown(op: str) -> str:
    raise UntranslatedError(f"torch's {op} has no translation")


def _value(value: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if value is None:
        return "None"
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(float(value))
