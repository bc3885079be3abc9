# SPDX-License-Identifier: Apache-2.0
"""Prints point-wise programs, the equations of cells and rules, as statements of a programming language."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from edgernn.program import Program

# operations that C and Python write alike
ARITHMETIC = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}"}
COMPARISONS = {"less": "{0} < {1}", "less_equal": "{0} <= {1}", "equal": "{0} == {1}"}


class ProgramPrinter:
    """Prints a program as one statement per operation; a subclass holds what is particular to a language.

    Values that no result depends on are left out.

    Args:
        program: The program.
        arguments: Expression of each argument.

    Attributes:
        expressions: Expression of each operation, with operands {0}, {1}, ..., or the name of a function of them.
        declaration: Statement that gives a value a name, with {0} for the name and {1} for the expression.
    """

    expressions: ClassVar[Mapping[str, str]]
    declaration: ClassVar[str]

    def __init__(self, program: Program, arguments: Sequence[str]) -> None:
        self._program = program
        self._first = len(program.arguments) + len(program.constants)
        self._values = [*arguments, *map(self.literal, program.constants)]
        self._uses = self._count_uses()
        self.lines: list[str] = []

    @staticmethod
    def literal(number: float) -> str:
        """Format a constant."""
        return repr(number)

    def results(self) -> list[str]:
        """Append the statements of all values to `lines`, and return the expression of each result."""
        for number, instruction in enumerate(self._program.instructions, self._first):
            text = self.expression(instruction.op, instruction.operands) if self._uses[number] else ""
            if text and (name := self.name(number)) is not None:
                self.lines.append(self.declaration.format(name, text))
                text = name
            self._values.append(text)
        return [self._values[number] for number in self._program.results]

    def expression(self, op: str, operands: tuple[int, ...]) -> str:
        """Return the expression of an operation, whose operands are given by their indices."""
        form, texts = self.expressions[op], [self._values[number] for number in operands]
        return form.format(*texts) if "{" in form else f"{form}({', '.join(texts)})"

    def name(self, number: int) -> str | None:
        """Return the name of the variable for a value, or None to print the value where it is read."""
        return f"v{number}"

    def read_by(self, op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
        """Return the operands that occur in the expression of an operation, one entry per occurrence."""
        return operands

    def _count_uses(self) -> list[int]:
        uses = [0] * self._program.size
        for number in self._program.results:
            uses[number] += 1
        for number in range(self._program.size - 1, self._first - 1, -1):
            instruction = self._program.instructions[number - self._first]
            if uses[number]:
                for operand in self.read_by(instruction.op, instruction.operands):
                    uses[operand] += 1
        return uses
