# SPDX-License-Identifier: Apache-2.0
"""Generates C99 code for point-wise equations, numbers and constant arrays."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import UsageError
from edgernn.program_printer import ARITHMETIC, COMPARISONS, ProgramPrinter
from edgernn.runtime.firmware.equations import Equation


def identifier(name: str) -> str:
    """Convert a name such as "gate 0" or gru+selective to a C identifier."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)


def float_literal(number: float) -> str:
    """Format a float32 number as a C literal with exactly this value."""
    text = f"{float(np.float32(number)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


class ExpressionPrinter(ProgramPrinter):
    """Prints a program in C; operations of more than one instruction are functions of engine/edgernn_math.h."""

    expressions: ClassVar[Mapping[str, str]] = {
        **ARITHMETIC,
        **{op: f"{form} ? 1.0f : 0.0f" for op, form in COMPARISONS.items()},
        "select": "{0} != 0.0f ? {1} : {2}",
        "lerp": "(1.0f - {2}) * {0} + {2} * {1}",
        **{op: f"edgernn_{op}" for op in ("min", "max", "abs", "sqrt", "exp", "log", "sin", "cos", "tanh")},
        **{op: f"edgernn_{op}" for op in ("sigmoid", "sign")},
    }
    declaration = "const float {0} = {1};"

    @staticmethod
    def literal(number: float) -> str:
        text = float_literal(number)
        return f"({text})" if text.startswith("-") else text


class LanesPrinter(ExpressionPrinter):
    """Prints a program of a few operations for neighbouring neurons, see EdgernnLanes in engine/edgernn_products.h."""

    expressions: ClassVar[Mapping[str, str]] = {
        **ARITHMETIC,
        "lerp": ExpressionPrinter.expressions["lerp"],
        **{op: f"edgernn_lanes_{op}" for op in ("sigmoid", "tanh")},
    }
    declaration = "const EdgernnLanes {0} = {1};"


def function(name: str, comment: str, equation: Equation, *, lanes: bool = False) -> str:
    """Generate a C function for an equation, which returns a single result or writes several to pointers.

    Args:
        name: Name of the function.
        comment: Comment above the function.
        equation: The equation, whose arguments become parameters in their order.
        lanes: Compute neighbouring neurons at once, if the processor has vectors.

    Returns:
        The definition of the function.
    """
    arguments = [identifier(argument) for argument in equation.arguments]
    number = "EdgernnLanes" if lanes else "float"
    printer = (LanesPrinter if lanes else ExpressionPrinter)(equation.program, arguments)
    results = printer.results()
    parameters = [f"{number} {argument}" for argument in arguments]
    if len(results) == 1:
        kind, ending = number, [f"return {results[0]};"]
    else:
        kind, ending = "void", [f"*new_{i} = {result};" for i, result in enumerate(results)]
        parameters += [f"{number}* new_{i}" for i in range(len(results))]
    head = f"static inline {kind} {name}({', '.join(parameters) or 'void'}) {{"
    head = "\n".join(textwrap.wrap(head, 100, subsequent_indent=" " * 4))
    body = "\n".join(f"  {line}" for line in [*printer.lines, *ending])
    return f"{block_comment(comment)}\n{head}\n{body}\n}}\n"


def call(name: str, equation: Equation, places: Mapping[str, str], pointers: Sequence[str] = ()) -> str:
    """Return the C call of the function that `function` generates for an equation, by the place of each argument."""
    return f"{name}({', '.join([*(places[argument] for argument in equation.arguments), *pointers])})"


def assign(targets: Sequence[str], name: str, equation: Equation, places: Mapping[str, str]) -> str:
    """Return the C statement that assigns the results of such a call to `targets`."""
    if len(targets) == 1:
        return f"{targets[0]} = {call(name, equation, places)};"
    return f"{call(name, equation, places, [f'&{target}' for target in targets])};"


def block_comment(text: str) -> str:
    """Format a C comment, wrapped at 100 characters; */ in the text becomes * /."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).replace("*/", "* /")
    return "\n".join(textwrap.wrap(f"/* {words} */", 100, subsequent_indent=" * ", break_on_hyphens=False))


def array(type: str, name: str, values: NDArray[Any]) -> str:
    """Format the definition of a constant one-dimensional C array.

    Args:
        type: C type of an element: float, int8_t, uint16_t or int32_t.
        name: Name of the array.
        values: Values of any shape, in row-major order.

    Returns:
        The C code.

    Raises:
        UsageError: A float is NaN or infinite, which C has no literal for.
    """
    flat = values.ravel()
    if type == "float" and not np.isfinite(flat).all():
        raise UsageError(
            f"array {name}: expected finite numbers for C code, got a NaN or an infinity; train the model again"
        )
    words: Iterable[str] = map(float_literal, flat.tolist()) if type == "float" else map(str, flat.tolist())
    text = textwrap.fill(", ".join(words), 110, initial_indent="  ", subsequent_indent="  ")
    aligned = " EDGERNN_ALIGNED" if type == "int8_t" else ""
    return f"static const {type} {name}[{flat.size}]{aligned} = {{\n{text}}};\n"
