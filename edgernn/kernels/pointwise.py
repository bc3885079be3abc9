# SPDX-License-Identifier: Apache-2.0
"""Triton functions generated from a program (a list of elementary operations): the function and its derivative."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgernn.differentiate import gradient
from edgernn.program import Program
from edgernn.program_printer import ARITHMETIC, COMPARISONS, ProgramPrinter

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
def lerp(start, end, weight):
    """Like torch.lerp: exactly start at weight 0 and end at weight 1."""
    difference = end - start
    return tl.where(weight < 0.5, start + weight * difference, end - difference * (1.0 - weight))
'''


class _Printer(ProgramPrinter):
    # PRELUDE defines functions that Triton lacks
    expressions: ClassVar[Mapping[str, str]] = {
        **ARITHMETIC,
        **{op: f"tl.where({form}, 1.0, 0.0)" for op, form in COMPARISONS.items()},
        **{op: f"tl.{op}" for op in ("abs", "sqrt", "exp", "log", "sin", "cos", "sigmoid")},
        **{op: op for op in ("tanh", "sign", "lerp")},
        "min": "tl.minimum",
        "max": "tl.maximum",
        "select": "tl.where({0} != 0, {1}, {2})",
    }
    declaration = "{0} = {1}"


@dataclass(frozen=True)
class Pointwise:
    """Source of two Triton functions: a point-wise function NAME, and its derivative NAME_back for the backward pass.

    NAME_back takes the gradients of all results, then the arguments, and returns the gradients of the arguments.

    Attributes:
        name: Name of the function.
        arguments: Names of the arguments of the function, in order.
        results: Number of values that the function returns.
        text: Source of both functions.
    """

    name: str
    arguments: tuple[str, ...]
    results: int
    text: str


def print_map(name: str, program: Program, names: Mapping[int, str]) -> Pointwise:
    """Generate the Triton functions of a program: the function and its derivative.

    Args:
        name: Name of the function; the derivative has the suffix _back.
        program: The program, a list of elementary operations.
        names: Name of each argument. The keys are the integers that stand for the arguments in the program.

    Returns:
        The source of the function and its derivative.
    """
    results = len(program.results)
    grads = range(max(program.arguments) + 1, max(program.arguments) + 1 + results)
    parameters = [f"a{i}" for i in range(len(program.arguments))]
    back = [f"g{i}" for i in range(results)]
    known = dict(zip((*program.arguments, *grads), (*parameters, *back), strict=True))
    text = _function(name, parameters, program.lowered(), known)
    text += _function(f"{name}_back", [*back, *parameters], gradient(program, grads), known)
    return Pointwise(name, tuple(names[key] for key in program.arguments), results, text)


def _function(name: str, parameters: list[str], program: Program, known: Mapping[int, str]) -> str:
    printer = _Printer(program, [known[key] for key in program.arguments])
    results = ", ".join(printer.results())
    lines = [f"    {line}" for line in printer.lines]
    return "\n".join(
        ["", "", "@triton.jit", f"def {name}({', '.join(parameters)}):", *lines, f"    return {results}", ""]
    )
