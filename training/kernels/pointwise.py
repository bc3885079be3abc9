# SPDX-License-Identifier: Apache-2.0
"""Programs as text of Triton functions: a map, and its derivatives."""

from collections.abc import Mapping
from dataclasses import dataclass

from edgernn.program import Program, gradient

# each op as an expression of its operands {0}, {1}, ...; functions that Triton lacks are in PRELUDE
_EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "min": "tl.minimum({0}, {1})",
    "max": "tl.maximum({0}, {1})",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sqrt": "tl.sqrt({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "tanh({0})",
    "sigmoid": "tl.sigmoid({0})",
    "sign": "sign({0})",
    "less": "tl.where({0} < {1}, 1.0, 0.0)",
    "less_equal": "tl.where({0} <= {1}, 1.0, 0.0)",
    "equal": "tl.where({0} == {1}, 1.0, 0.0)",
    "select": "tl.where({0} != 0, {1}, {2})",
    "lerp": "lerp({0}, {1}, {2})",
}

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


def print_map(name: str, program: Program, names: Mapping[int, str]) -> Pointwise:
    """A program as the text of two functions; names: of its arguments."""
    results = len(program.results)
    grads = range(max(program.arguments) + 1, max(program.arguments) + 1 + results)
    parameters = [f"a{i}" for i in range(len(program.arguments))]
    back = [f"g{i}" for i in range(results)]
    known = dict(zip((*program.arguments, *grads), (*parameters, *back), strict=True))
    text = _function(name, parameters, program, known)
    text += _function(f"{name}_back", [*back, *parameters], gradient(program, grads), known)
    return Pointwise(name, tuple(names[key] for key in program.arguments), results, text)


def _function(name: str, parameters: list[str], program: Program, known: Mapping[int, str]) -> str:
    """One function; known: from a number of the program's arguments to a parameter."""
    values = [known[key] for key in program.arguments] + [repr(number) for number in program.constants]
    lines = []
    for instruction in program.instructions:
        operands = [values[number] for number in instruction.operands]
        values.append(f"v{len(values)}")
        lines.append(f"    {values[-1]} = {_EXPRESSIONS[instruction.op].format(*operands)}")
    results = ", ".join(values[number] for number in program.results)
    return "\n".join(
        ["", "", "@triton.jit", f"def {name}({', '.join(parameters)}):", *lines, f"    return {results}", ""]
    )
