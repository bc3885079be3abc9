# SPDX-License-Identifier: Apache-2.0
"""Tracing of point-wise torch functions to programs, so that equations of cells and rules are written only once.

A program is a list of elementary operations (`edgernn.program`). The function is traced with torch.fx on small random
tensors (rows, width), called tiles; vectors are broadcast to tiles beforehand. Each torch operator of the trace is
rewritten to operations of programs. An operator that these operations cannot express raises ProgramError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from edgernn.differentiate import gradient
from edgernn.program import OPS, Builder, Program, ProgramError

Function = Callable[[Mapping[int, Tensor]], tuple[Tensor, ...]]
# rows of a tile, different from all widths
_ROWS = 2


@dataclass(frozen=True)
class _Value:
    """Value of a program under construction. Its operators, as in `a + b`, add operations to that program."""

    builder: Builder
    number: int

    def op(self, name: str, *operands: "_Value | float") -> "_Value":
        numbers = [v.number if isinstance(v, _Value) else self.builder.constant(v) for v in operands]
        return _Value(self.builder, self.builder.op(name, *numbers))

    def __add__(self, other: "_Value | float") -> "_Value":
        return self.op("add", self, other)

    def __radd__(self, other: float) -> "_Value":
        return self.op("add", other, self)

    def __sub__(self, other: "_Value | float") -> "_Value":
        return self.op("sub", self, other)

    def __rsub__(self, other: float) -> "_Value":
        return self.op("sub", other, self)

    def __mul__(self, other: "_Value | float") -> "_Value":
        return self.op("mul", self, other)

    def __rmul__(self, other: float) -> "_Value":
        return self.op("mul", other, self)

    def __truediv__(self, other: "_Value | float") -> "_Value":
        return self.op("div", self, other)

    def __rtruediv__(self, other: float) -> "_Value":
        return self.op("div", other, self)

    def __neg__(self) -> "_Value":
        return self.op("neg", self)

    def select(self, then: "_Value | float", otherwise: "_Value | float") -> "_Value":
        """Return `then` where this value is not 0, else `otherwise`."""
        return self.op("select", self, then, otherwise)


def _clamp(a: _Value, low: _Value | float | None = None, high: _Value | float | None = None) -> _Value:
    # value first, so that gradients pass at both ends, as in torch; see `gradient`
    a = a if low is None else a.op("max", a, low)
    return a if high is None else a.op("min", a, high)


def _between(a: _Value, low: float = -1.0, high: float = 1.0) -> _Value:
    # number first, so that no gradient passes at the ends, as in torch; see `gradient`
    return a.op("min", high, a.op("max", low, a))


def _pow(a: _Value, exponent: Any) -> _Value:
    powers: dict[float, Callable[[_Value], _Value]] = {
        0.5: _unary("sqrt"),
        -0.5: lambda a: 1.0 / _unary("sqrt")(a),
        -1: lambda a: 1.0 / a,
    }
    powers |= {1: lambda a: a, 2: lambda a: a * a, 3: lambda a: a * a * a, 4: lambda a: a * a * (a * a)}
    powers[-2] = lambda a: 1.0 / (a * a)
    if isinstance(exponent, _Value) or exponent not in powers:
        exponent = "a tensor" if isinstance(exponent, _Value) else exponent
        raise ProgramError(
            f"torch's pow: expected the exponent -2, -1, -1/2, 1/2, 1, 2, 3 or 4, got {exponent}; use one of these, or "
            "write the power as a product"
        )
    return powers[exponent](a)


def _softplus(a: _Value, beta: float = 1.0, threshold: float = 20.0) -> _Value:
    scaled = a * beta
    # clamped, as exp must not overflow in the branch that is not selected
    soft = _unary("log")(1.0 + _unary("exp")(_clamp(scaled, None, threshold))) / beta
    return a.op("less", threshold, scaled).select(a, soft)


def _elu(a: _Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> _Value:
    negative = (_unary("exp")(_clamp(a, None, 0.0) * input_scale) - 1.0) * (scale * alpha)
    return a.op("less", 0.0, a).select(a * scale, negative)


def _unary(name: str) -> Callable[[_Value], _Value]:
    return lambda a: a.op(name, a)


def _binary(name: str) -> Callable[[_Value, _Value | float], _Value]:
    return lambda a, b: a.op(name, a, b)


def _swapped(name: str) -> Callable[[_Value, _Value | float], _Value]:
    return lambda a, b: a.op(name, b, a)


# torch operators in terms of the ops of programs; comparisons are 1 or 0
_REWRITES: dict[str, Callable[..., _Value]] = {
    "add": lambda a, b, alpha=1: a + b * alpha,
    "sub": lambda a, b, alpha=1: a - b * alpha,
    "rsub": lambda a, b, alpha=1: a.op("sub", b, a * alpha),
    "mul": _binary("mul"),
    "div": _binary("div"),
    "addcmul": lambda a, b, c, value=1: a + b * c * value,
    "addcdiv": lambda a, b, c, value=1: a + b / c * value,
    "minimum": _binary("min"),
    "maximum": _binary("max"),
    "clamp_min": _clamp,
    "clamp_max": lambda a, high: _clamp(a, None, high),
    "clamp": _clamp,
    "hardtanh": _between,
    "relu6": lambda a: _between(a, 0.0, 6.0),
    "relu": lambda a: a.op("max", 0.0, a),
    "leaky_relu": lambda a, slope=0.01: a.op("less", 0.0, a).select(a, a * slope),
    "threshold": lambda a, at, value: a.op("less", at, a).select(a, value),
    **{name: _unary(name) for name in ("neg", "abs", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid", "sign")},
    "sgn": _unary("sign"),
    "exp2": lambda a: _unary("exp")(a * 0.6931471805599453),
    "expm1": lambda a: _unary("exp")(a) - 1.0,
    "log1p": lambda a: _unary("log")(a + 1.0),
    "log2": lambda a: _unary("log")(a) * 1.4426950408889634,
    "tan": lambda a: _unary("sin")(a) / _unary("cos")(a),
    "reciprocal": lambda a: 1.0 / a,
    "square": lambda a: a * a,
    "rsqrt": lambda a: 1.0 / _unary("sqrt")(a),
    "pow": _pow,
    "silu": lambda a: a * _unary("sigmoid")(a),
    "mish": lambda a: a * _unary("tanh")(_softplus(a)),
    "softplus": _softplus,
    "log_sigmoid": lambda a: -_softplus(-a),
    "log_sigmoid_forward": lambda a: -_softplus(-a),
    "elu": _elu,
    "celu": lambda a, alpha=1.0: _elu(a, alpha, 1.0, 1.0 / alpha),
    "hardsigmoid": lambda a: _between(a + 3.0, 0.0, 6.0) / 6.0,
    "hardswish": lambda a: a * _between(a + 3.0, 0.0, 6.0) / 6.0,
    "lerp": lambda a, b, c: a.op("lerp", a, b, c),
    "event": lambda a, height, width: a.op("event", a, height, width),
    "lt": _binary("less"),
    "le": _binary("less_equal"),
    "gt": _swapped("less"),
    "ge": _swapped("less_equal"),
    "eq": _binary("equal"),
    "ne": lambda a, b: 1.0 - a.op("equal", a, b),
    "where": lambda a, b, c: a.select(b, c),
    "masked_fill": lambda a, mask, number: mask.select(number, a),
    **dict.fromkeys(("logical_and", "bitwise_and"), _binary("mul")),
    **dict.fromkeys(("logical_or", "bitwise_or"), _binary("max")),
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda a: a.op("equal", a, 0.0)),
    **dict.fromkeys(("logical_xor", "bitwise_xor"), lambda a, b: 1.0 - a.op("equal", a, b)),
    **dict.fromkeys(("detach", "alias", "clone", "lift_fresh", "view", "expand", "_unsafe_view"), lambda a, *_: a),
}
# torch operators that return a constant: the constant, or None if the operator's last argument holds it
_FILLS: dict[str, float | None] = {
    **dict.fromkeys(("zeros_like", "zeros", "new_zeros"), 0.0),
    **dict.fromkeys(("ones_like", "ones", "new_ones"), 1.0),
    **dict.fromkeys(("full_like", "full", "new_full", "scalar_tensor", "fill"), None),
}


def trace(name: str, function: Function, widths: Mapping[int, int], width: int) -> Program:
    """Trace a point-wise torch function to a program, a list of elementary operations.

    Args:
        name: Name of the function for errors.
        function: The function. It takes a dict from key to tensor (rows, widths[key]), where the integer key identifies
            an argument, and returns a tuple of tensors (rows, width).
        widths: Dict from the key of an argument to its number of columns.
        width: Number of columns of the results.

    Returns:
        The program. Its `arguments` are the keys in ascending order, without those that no result depends on.

    Raises:
        ProgramError: The function is not point-wise, or uses an operator that programs cannot express.
    """
    tiles = {key: torch.rand(_ROWS, size) for key, size in widths.items()}

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        return function(dict(zip(tiles, values, strict=True)))

    try:
        pure = torch.func.functionalize(flat, remove="mutations_and_views")
        graph = make_fx(pure)(*tiles.values()).graph
    except (RuntimeError, TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        remedy = "read only gates, states and the `vectors`"
        raise ProgramError(f"{name}: cannot be traced ({' '.join(str(error).split())}); {remedy}") from error
    graph.eliminate_dead_code()
    try:
        program = _rewrite(graph, list(tiles), width)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from None
    _compare(name, program, function, widths)
    return program


@torch.enable_grad()
def check_gradient(name: str, program: Program, function: Function, widths: Mapping[int, int]) -> None:
    """Check that a program's gradients equal those of the traced torch function.

    They differ, for example, if the function calls `detach`: a program has no such operation.

    Args:
        name: Name of the function for errors.
        program: Program from `trace`.
        function: The traced function.
        widths: Dict from argument key to width, as for `trace`.

    Raises:
        ProgramError: The gradients differ, or torch cannot differentiate the function.
    """
    values = {key: value.requires_grad_() for key, value in _points(widths).items()}
    keys = range(max(widths, default=0) + 1, max(widths, default=0) + 1 + len(program.results))
    try:
        results = function(values)
        grads = [torch.rand_like(result) for result in results]
        loss = torch.stack([(result * grad).sum() for result, grad in zip(results, grads, strict=True)]).sum()
        wanted = torch.autograd.grad(loss, [values[key] for key in program.arguments], materialize_grads=True)
    except RuntimeError as error:
        raise ProgramError(
            f"{name}: torch cannot differentiate this function ({' '.join(str(error).split())}); use other operators"
        ) from error
    inputs = {key: value.detach() for key, value in values.items()} | dict(zip(keys, grads, strict=True))
    derivative = gradient(program, keys)
    computed = derivative.run([inputs[key].numpy() for key in derivative.arguments])
    for grad, expected in zip(computed, wanted, strict=True):
        if not np.allclose(grad, expected.numpy(), rtol=1e-6, atol=1e-9, equal_nan=True):
            raise ProgramError(
                f"{name}: the gradient in torch differs from that of the traced equations; do not call detach"
            )


def _points(widths: Mapping[int, int]) -> dict[int, Tensor]:
    """Draw random test values with a fixed seed: a dict from argument key to a tensor (rows, widths[key])."""
    generator = torch.Generator().manual_seed(0)
    return {key: 2 * torch.randn(_ROWS, n, dtype=torch.float64, generator=generator) for key, n in widths.items()}


def _compare(name: str, program: Program, function: Function, widths: Mapping[int, int]) -> None:
    """Raise ProgramError if program and torch function differ, e.g. because of hidden state or branches on values."""
    points = _points(widths)
    with torch.no_grad():
        expected = function(points)
    if program.arguments:
        computed = program.run([points[key].numpy() for key in program.arguments])
        for result, wanted in zip(computed, expected, strict=True):
            if not np.allclose(result, wanted.numpy(), rtol=1e-6, atol=1e-9, equal_nan=True):
                raise ProgramError(
                    f"{name}: depends on more than its arguments, or branches on their values; use no random numbers, "
                    "hidden state or such branches"
                )


def _rewrite(graph: fx.Graph, keys: Sequence[int], width: int) -> Program:
    """Rewrite a torch.fx graph to a program, or raise ProgramError if programs cannot express it."""
    builder = Builder()
    values: dict[fx.Node, _Value] = {}
    argument_keys = iter(keys)
    results: Sequence[Any] = ()
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = _Value(builder, builder.argument(next(argument_keys)))
        elif node.op == "call_function":
            values[node] = _translate(node, values, builder, width)
        elif node.op == "output":
            outputs = node.args[0]
            results = [outputs] if isinstance(outputs, fx.Node) else outputs
        elif node.users:
            raise ProgramError(
                "constants in equations: expected Python numbers, got a tensor; declare it in the cell's `vectors`"
            )
    for result in results:
        if not isinstance(result, fx.Node) or tuple(result.meta["val"].shape) != (_ROWS, width):
            raise ProgramError(
                f"equations: expected to return tensors of shape (B, {width}), got another shape or no tensor; return "
                "one value for each sample and neuron, or one for each sample if the rule decides once per sample"
            )
    return builder.finish([values[result].number for result in results])


def _translate(node: fx.Node, values: Mapping[fx.Node, _Value], builder: Builder, width: int) -> _Value:
    """Rewrite one torch operator of a trace to operations of a program, and return the value of its result."""
    name = str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))
    # functionalisation turns views into operators with the suffix _copy
    name = name if name == "_to_copy" else name.removesuffix("_copy")
    if name == "getitem" and node.args[1] == 0:
        return values[node.args[0]]  # type: ignore[index]
    outputs = node.meta["val"]
    output = outputs[0] if isinstance(outputs, tuple) else outputs
    if tuple(output.shape) not in ((_ROWS, width), ()):
        raise ProgramError(f"torch's {name} is not point-wise here; use operators that act on each neuron separately")
    if output.dtype not in (torch.float32, torch.bool):
        raise ProgramError(
            f"torch's {name}: expected a result of float32 or bool, got {str(output.dtype).removeprefix('torch.')}; "
            "use operators with results of these types"
        )
    operands: list[Any] = [values[a] if isinstance(a, fx.Node) else a for a in node.args]
    if name in _FILLS:
        number = _FILLS[name]
        last = operands[-1] if number is None else number
        return last if isinstance(last, _Value) else _Value(builder, builder.constant(float(last)))
    if name == "_to_copy":
        value: _Value = operands[0]
        return value if output.dtype == torch.float32 else 1.0 - value.op("equal", value, 0.0)
    if name not in _REWRITES or node.kwargs.keys() - {"alpha", "value"}:
        raise ProgramError(f"torch's {name} is not supported; use operators that {', '.join(OPS)} can express")
    # the first operand may be a Python number, as in 1 - z
    first = operands[0] if isinstance(operands[0], _Value) else _Value(builder, builder.constant(operands[0]))
    return _REWRITES[name](first, *operands[1:], **node.kwargs)
