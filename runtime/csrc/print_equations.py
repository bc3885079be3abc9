# SPDX-License-Identifier: Apache-2.0
"""Print point-wise programs, the equations of cells and rules, as C++ member functions."""

import re
from collections.abc import Mapping

import numpy as np

from edgernn.program import Program, ProgramError
from edgernn.program_printer import ProgramPrinter

# precedence of an expression
_SUM, _PRODUCT, _ATOM = 1, 2, 3
_CALLS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "min": "Min"}


def member_function(
    signature: str,
    parameters: Mapping[str, str],
    program: Program,
    arguments: Mapping[int, str],
    results: Mapping[str, str] | None = None,
    names: Mapping[int, str] | None = None,
) -> list[str]:
    """Print the equations of a cell or rule as a C++ member function.

    Args:
        signature: The return type and the name of the function.
        parameters: Dict from the name of each C++ parameter to its declaration. Unused ones are declared without name.
        program: The equations of the function.
        arguments: Dict from the integer key of each argument of the program to its C++ expression.
        results: Dict whose keys are the C++ expressions that the code assigns the results to, such as state[0]. The
            values are the results' names, such as h. None if the function returns its only result.
        names: Dict from the key of an argument to a name, such as i for an input gate. If an operation reads this
            argument alone, such as the gate's sigmoid, its result becomes a C++ variable of this name.

    Returns:
        The lines of the function's C++ code.
    """
    floats = {name for name, declaration in parameters.items() if declaration.startswith("float ")}
    reserved = {"p", "q", "x", "state", *parameters}
    printer = _Printer(program, arguments, results, names or {}, reserved, floats)
    body = printer.body()
    text = "\n".join(body)
    declared = [
        declaration if re.search(rf"\b{name}\b", text) else declaration.removesuffix(name).strip()
        for name, declaration in parameters.items()
    ]
    return ["template <class V>", f"static constexpr {signature}({', '.join(declared)}) {{", *body, "}"]


class _Printer(ProgramPrinter):
    """Prints a point-wise program (a list of elementary operations) as C++ statements."""

    declaration = "const V {0} = {1};"

    def __init__(
        self,
        program: Program,
        arguments: Mapping[int, str],
        results: Mapping[str, str] | None,
        names: Mapping[int, str],
        reserved: set[str],
        floats: set[str],
    ) -> None:
        super().__init__(program, [arguments[key] for key in program.arguments])
        self._places, self._names, self._reserved = results, names, reserved
        self._floats = {number for number, key in enumerate(program.arguments) if arguments[key] in floats}
        # precedence of each value's expression
        self._precedence = [_ATOM] * program.size

    @staticmethod
    def literal(number: float) -> str:
        digits = np.format_float_positional(np.float32(number), unique=True, trim="0")
        return f"{digits}f"

    def body(self) -> list[str]:
        results = self.results()
        if self._places is None:
            return [*self.lines, f"return {results[0]};"]
        places, names = list(self._places), list(self._places.values())
        # a destination must not be overwritten before it is read
        for i, result in enumerate(results):
            if any(place in result for place in places[:i]):
                results[i] = self._free(f"new_{names[i]}")
                self.lines.append(f"const V {results[i]} = {result};")
        writes = zip(places, results, strict=True)
        return [*self.lines, *(f"{place} = {result};" for place, result in writes if result != place)]

    def read_by(self, op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
        if op == "lerp":
            return (*operands, operands[2])
        if op == "cos":
            return (self._quarter(operands[0]),)
        clamped = self._clamped(op, operands)
        return operands if clamped is None else clamped[:1]

    def _quarter(self, number: int) -> int:
        """Return the index of v if value `number` of the program is clamp(v, 0, pi / 2); else raise ProgramError."""
        if number >= self._first:
            instruction = self._program.instructions[number - self._first]
            clamped = self._clamped(instruction.op, instruction.operands)
            if clamped is not None and clamped[1] == 0 and abs(clamped[2] - np.pi / 2) < 1e-7:
                return clamped[0]
        raise ProgramError("cos: expected an argument clamped to [0, pi / 2], the range of Cos in cpu/simd.h; clamp it")

    def _clamped(self, op: str, operands: tuple[int, ...]) -> tuple[int, float, float] | None:
        """Return the operand's index and the bounds if an op is a clamp, min(max(operand, low), high), else None."""
        if op != "min" or operands[0] < self._first or not self._is_literal(operands[1]):
            return None
        inner = self._program.instructions[operands[0] - self._first]
        if inner.op != "max" or not self._is_literal(inner.operands[1]):
            return None
        low, high = (
            self._program.constants[i - len(self._program.arguments)] for i in (inner.operands[1], operands[1])
        )
        return inner.operands[0], low, high

    def name(self, number: int) -> str | None:
        """Return the name of the C++ variable for a value, or None if it needs none.

        A value gets a variable if it is read more than once, or if the argument `names` of `member_function` has a name
        for it. Other values are written as a part of the expression that reads them.
        """
        operands = self._program.instructions[number - self._first].operands
        if len(operands) == 1 and operands[0] < len(self._program.arguments):
            key = self._program.arguments[operands[0]]
            if key in self._names:
                return self._free(self._names[key])
        if self._uses[number] < 2:
            return None
        if number in self._program.results and self._places is not None:
            name = list(self._places.values())[self._program.results.index(number)]
            return self._free(f"new_{name}")
        return self._free(f"v{number - self._first}")

    def _free(self, name: str) -> str:
        """Return a C++ variable name that is not in use: `name`, with the prefix new_ as often as needed."""
        declared = {line.split()[2] for line in self.lines} | self._reserved
        while name in declared:
            name = f"new_{name}"
        return name

    def expression(self, op: str, operands: tuple[int, ...]) -> str:
        text, self._precedence[len(self._values)] = self._expression(op, operands)
        return text

    def _expression(self, op: str, operands: tuple[int, ...]) -> tuple[str, int]:
        """Return the C++ expression of an op, and its precedence."""

        def text(operand: int, least_precedence: int) -> str:
            value = self._values[operand]
            is_whole = value.isidentifier() or self._precedence[operand] >= least_precedence
            return value if is_whole else f"({value})"

        first, *others = operands
        if op in ("add", "mul") and (self._is_literal(first) or first in self._floats):
            # the operators + and * of the SIMD vector type V take a float only as their right operand
            first, others = others[0], [first]
        if op == "add":
            return f"{text(first, _SUM)} + {text(others[0], _PRODUCT)}", _SUM
        if op == "sub":
            return f"{text(first, _SUM)} - {text(others[0], _PRODUCT)}", _SUM
        if op == "mul":
            return f"{text(first, _PRODUCT)} * {text(others[0], _ATOM)}", _PRODUCT
        if op == "div" and self._is_literal(others[0]):
            number = self._program.constants[others[0] - len(self._program.arguments)]
            if np.frexp(number)[0] != 0.5:
                raise ProgramError(
                    f"div: expected a divisor that is a power of 2, got {number:g}; multiply by its reciprocal instead"
                )
            return f"{text(first, _PRODUCT)} * {self.literal(1 / number)}", _PRODUCT
        if op == "div":
            return f"{text(first, _PRODUCT)} / {text(others[0], _ATOM)}", _PRODUCT
        if op == "neg":
            return f"0.0f - {text(first, _PRODUCT)}", _SUM
        if op == "lerp":
            start, end = first, others[0]
            weight = text(others[1], _PRODUCT)
            return f"(1.0f - {weight}) * {text(start, _ATOM)} + {weight} * {text(end, _ATOM)}", _SUM
        if op == "cos":
            return f"Cos({self._values[self._quarter(first)]})", _ATOM
        clamped = self._clamped(op, operands)
        if clamped is not None:
            number, low, high = clamped
            return f"Clamp({self._values[number]}, {self.literal(low)}, {self.literal(high)})", _ATOM
        if op not in _CALLS:
            raise ProgramError(
                f"{op}: expected an op with a C++ function; add one to cpu/simd.h, train/dual.h and cuda/scalar.h"
            )
        return f"{_CALLS[op]}({', '.join(text(operand, _SUM) for operand in (first, *others))})", _ATOM

    def _is_literal(self, number: int) -> bool:
        return len(self._program.arguments) <= number < self._first
