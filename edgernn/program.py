# SPDX-License-Identifier: Apache-2.0
"""Point-wise programs: the equations of a cell or an update rule as data.

A program has no branches. It computes a list of float32 values: first its arguments, then its constants, then the
result of each elementary operation (op). It is translated to Triton, C++ and C, stored in exported files, and
interpreted by the native library. This module needs NumPy alone.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError

# limits of a serialised program, checked by the native library as well
MOST_VALUES, MOST_RESULTS = 128, 4


class ProgramError(EdgernnError):
    """Raised for equations that cannot become a point-wise program, or for an invalid serialised program."""


@dataclass(frozen=True)
class Op:
    """Elementary operation of a program, such as add or tanh.

    Attributes:
        name: Name in `OPS`.
        code: Number that stands for the operation in serialised programs. It is -1 for an operation that is not stored:
            `Program.lowered` replaces the operation by one with the same result and another derivative.
        arity: Number of operands.
        compute: The operation on float64 arrays.
    """

    name: str
    code: int
    arity: int
    compute: Callable[..., Any]


# (name, arity, NumPy's function) of each op; the index is the op's code in files, so append only
_TABLE: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("add", 2, np.add),
    ("sub", 2, np.subtract),
    ("mul", 2, np.multiply),
    ("div", 2, np.divide),
    ("min", 2, np.minimum),
    ("max", 2, np.maximum),
    ("neg", 1, np.negative),
    ("abs", 1, np.abs),
    ("sqrt", 1, np.sqrt),
    ("exp", 1, np.exp),
    ("log", 1, np.log),
    ("sin", 1, np.sin),
    ("cos", 1, np.cos),
    ("tanh", 1, np.tanh),
    ("sigmoid", 1, lambda a: 1 / (1 + np.exp(-a))),
    ("sign", 1, np.sign),
    ("less", 2, lambda a, b: np.less(a, b) * 1.0),
    ("less_equal", 2, lambda a, b: np.less_equal(a, b) * 1.0),
    ("equal", 2, lambda a, b: np.equal(a, b) * 1.0),
    ("select", 3, lambda a, b, c: np.where(a != 0, b, c)),
    ("lerp", 3, lambda a, b, c: (1 - c) * a + c * b),
)
STORED_OPS = {name: Op(name, code, arity, compute) for code, (name, arity, compute) in enumerate(_TABLE)}
_NAMES = {op.code: op.name for op in STORED_OPS.values()}
# operands: v, and height and width of the surrogate derivative, which are constants
_EVENT = Op("event", -1, 3, lambda v, height, width: np.greater(v, 0) * 1.0)
OPS = STORED_OPS | {"event": _EVENT}
_COMMUTATIVE = ("add", "mul", "min", "max", "equal")


@dataclass(frozen=True)
class Instruction:
    """Computation of one value of a program: the name of its operation in `OPS`, and the indices of its operands.

    The operands are earlier values of the program.
    """

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Point-wise function as a list of elementary operations, in static single-assignment form.

    Values are numbered consecutively: arguments, then constants, then instructions. Inconsistent fields, such as
    an operand that is not an earlier value, raise ProgramError.

    Attributes:
        arguments: Integer key of each argument, at least 0. The caller defines which variable a key stands for.
        constants: Finite float32 numbers.
        instructions: Instructions in the order of execution.
        results: Indices of the values that the program returns.
    """

    arguments: tuple[int, ...]
    constants: tuple[float, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        first = len(self.arguments) + len(self.constants)
        if len(set(self.arguments)) != len(self.arguments) or min(self.arguments, default=0) < 0:
            raise ProgramError(f"arguments: expected integers that differ, each 0 or larger, got {self.arguments}")
        if not all(_is_float32(number) for number in self.constants):
            raise ProgramError(
                f"constants: expected finite float32 numbers, got {self.constants}; replace inf, NaN and numbers "
                "beyond the range of float32"
            )
        for value, (op, operands) in enumerate(((i.op, i.operands) for i in self.instructions), first):
            if op not in OPS or len(operands) != OPS[op].arity:
                raise ProgramError(
                    f"instruction {value - first}: expected an operation of OPS and one index per operand, got "
                    f"{op} {operands}"
                )
            if not all(0 <= number < value for number in operands):
                raise ProgramError(
                    f"instruction {value - first}: expected operands that are indices of earlier values, below "
                    f"{value}, got {operands}"
                )
        if not self.results or not all(0 <= number < self.size for number in self.results):
            raise ProgramError(f"results: expected indices of values, below {self.size}, got {self.results}")

    @property
    def size(self) -> int:
        """Number of values: arguments, constants and results of operations."""
        return len(self.arguments) + len(self.constants) + len(self.instructions)

    def run(self, values: Sequence[NDArray[Any]]) -> tuple[NDArray[np.float64], ...]:
        """Compute the results in float64 from `values`, one array per argument; the results have their common shape."""
        if len(values) != len(self.arguments):
            raise ProgramError(f"values: expected {len(self.arguments)} arrays, one per argument, got {len(values)}")
        arrays = [np.asarray(value, np.float64) for value in values]
        with np.errstate(all="ignore"):
            results = self.evaluate([*arrays, *self.constants], {name: op.compute for name, op in OPS.items()})
        shape = np.broadcast_shapes(*(value.shape for value in arrays))
        return tuple(np.broadcast_to(result, shape) for result in results)

    def evaluate(self, values: Sequence[Any], functions: Mapping[str, Callable[..., Any]]) -> tuple[Any, ...]:
        """Compute the results from the values of arguments and constants, by a function for each operation."""
        computed = list(values)
        for instruction in self.instructions:
            computed.append(functions[instruction.op](*(computed[number] for number in instruction.operands)))
        return tuple(computed[number] for number in self.results)

    def lowered(self) -> "Program":
        """Return the program with stored operations only: less(0, v) in place of event(v), which has the same result.

        The new program must not be differentiated, as the derivative of less is 0.
        """
        if all(instruction.op in STORED_OPS for instruction in self.instructions):
            return self
        builder = Builder()
        values = [builder.argument(key) for key in self.arguments]
        values += [builder.constant(number) for number in self.constants]
        for instruction in self.instructions:
            operands = [values[number] for number in instruction.operands]
            if instruction.op == "event":
                values.append(builder.op("less", builder.constant(0.0), operands[0]))
            else:
                values.append(builder.op(instruction.op, *operands))
        return builder.finish([values[number] for number in self.results])

    def serialise(
        self, most_values: int = MOST_VALUES, most_results: int = MOST_RESULTS
    ) -> tuple[list[int], list[float]]:
        """Serialise the program, after `lowered`, to a list of integers and a list of float32 constants.

        The integers are: the numbers of arguments, constants, instructions and results; the integer key by which
        each argument is known; code and three operands (padded with 0) of each instruction; the indices of the
        results.

        Args:
            most_values: Limit on arguments, constants and instructions together. Default: that of exported files.
            most_results: Limit on the number of results. Default: the limit of exported files.

        Returns:
            The integers, and the constants rounded to float32.

        Raises:
            ProgramError: The program exceeds a limit.
        """
        stored = self.lowered()
        if stored.size > most_values:
            raise ProgramError(
                f"equations: expected at most {most_values} values (arguments, constants and operations), got "
                f"{stored.size}; simplify them"
            )
        if len(stored.results) > most_results:
            raise ProgramError(
                f"equations: expected at most {most_results} returned values, got {len(stored.results)}; return fewer"
            )
        ints = [len(part) for part in (stored.arguments, stored.constants, stored.instructions, stored.results)]
        ints += stored.arguments
        for op, operands in ((i.op, i.operands) for i in stored.instructions):
            ints += (STORED_OPS[op].code, *operands, *[0] * (3 - len(operands)))
        return [*ints, *stored.results], [_float32(number) for number in stored.constants]

    @classmethod
    def deserialise(cls, ints: Sequence[int], numbers: Sequence[float]) -> "Program":
        """Restore a program from the numbers that `serialise` returned.

        Args:
            ints: Integers from `serialise`.
            numbers: Constants from `serialise`.

        Returns:
            The program.

        Raises:
            ProgramError: The numbers are not a serialised program.
        """
        counts = ints[:4]
        if len(counts) < 4 or min(counts) < 0:
            raise ProgramError(
                f"serialised equations: expected four counts of at least 0 at the start, got {list(counts)}; export "
                "the model again"
            )
        arguments, constants, instructions, results = counts
        length = 4 + arguments + 4 * instructions + results
        if len(ints) != length or len(numbers) != constants:
            expected, sizes = f"{length} whole numbers and {constants} constants", f"{len(ints)} and {len(numbers)}"
            raise ProgramError(f"serialised equations: expected {expected}, got {sizes}; export the model again")
        if arguments + constants + instructions > MOST_VALUES or results > MOST_RESULTS:
            raise ProgramError(
                f"serialised equations: expected at most {MOST_VALUES} values and {MOST_RESULTS} results, got "
                f"{arguments + constants + instructions} and {results}; export the model again"
            )
        first, last = 4 + arguments, length - results
        decoded = []
        for code, *operands in zip(*[iter(ints[first:last])] * 4, strict=True):
            if code not in _NAMES:
                raise ProgramError(
                    f"serialised equations: expected operation codes below {len(_NAMES)}, got {code}; export the model "
                    "again"
                )
            arity = OPS[_NAMES[code]].arity
            if any(operands[arity:]):
                raise ProgramError(
                    f"serialised equations: {_NAMES[code]} expects {arity} operands, got {operands}; export the "
                    "model again"
                )
            decoded.append(Instruction(_NAMES[code], tuple(operands[:arity])))
        return cls(tuple(ints[4:first]), tuple(numbers), tuple(decoded), tuple(ints[last:]))


def _float32(number: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.inf
    return rounded


def _is_float32(number: float) -> bool:
    return math.isfinite(number) and math.isfinite(_float32(number))


class Builder:
    """Builder of a program, with common subexpression elimination and constant folding.

    Methods identify a value by its index in the builder, an integer. `finish` renumbers the values.
    """

    def __init__(self) -> None:
        # an argument's key (int), a constant (float), or an instruction
        self._values: list[int | float | Instruction] = []
        self._numbers: dict[Any, int] = {}

    def argument(self, key: int) -> int:
        """Add an argument, unless the program has it already, and return the index of its value.

        `key` is an integer that identifies the argument, as in `Program.arguments`.
        """
        return self._value(("argument", key), key)

    def constant(self, number: float) -> int:
        """Add a constant, unless the program has it already, and return the index of its value."""
        return self._value(("constant", math.copysign(1, number), float(number)), float(number))

    def op(self, name: str, *operands: int) -> int:
        """Add the operation `name` of `OPS`, simplified if possible, and return the index of its value.

        `operands` are indices of values.
        """
        simpler = self._simplify(name, operands)
        if simpler is not None:
            return simpler
        numbers = [self.number(value) for value in operands]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            with np.errstate(all="ignore"):
                return self.constant(float(OPS[name].compute(*map(np.float64, known))))
        key = (name, *(sorted(operands) if name in _COMMUTATIVE else operands))
        return self._value(key, Instruction(name, operands))

    def number(self, value: int) -> float | None:
        """Return the constant with the index `value`, or None if the value with this index is not a constant."""
        entry = self._values[value]
        return entry if isinstance(entry, float) else None

    def include(self, program: Program, arguments: Sequence[int]) -> list[int]:
        """Inline another program: add its constants and operations to this builder.

        Args:
            program: The program.
            arguments: Indices in this builder of the values to use as the program's arguments.

        Returns:
            The index in this builder of each value of the program, in the order of the program.
        """
        values = [*arguments, *(self.constant(number) for number in program.constants)]
        for instruction in program.instructions:
            values.append(self.op(instruction.op, *(values[number] for number in instruction.operands)))
        return values

    def finish(self, results: Sequence[int]) -> Program:
        """Return the program with the results at the indices `results`; values that no result needs are left out."""
        needed = set(results)
        for value in range(len(self._values) - 1, -1, -1):
            entry = self._values[value]
            if value in needed and isinstance(entry, Instruction):
                needed.update(entry.operands)
        kept = [(value, self._values[value]) for value in sorted(needed)]
        arguments = sorted((entry, value) for value, entry in kept if isinstance(entry, int))
        constants = [(entry, value) for value, entry in kept if isinstance(entry, float)]
        instructions = [(entry, value) for value, entry in kept if isinstance(entry, Instruction)]
        places = {value: place for place, (_, value) in enumerate((*arguments, *constants, *instructions))}
        return Program(
            tuple(entry for entry, _ in arguments),
            tuple(entry for entry, _ in constants),
            tuple(Instruction(e.op, tuple(places[number] for number in e.operands)) for e, _ in instructions),
            tuple(places[value] for value in results),
        )

    def _value(self, key: Any, entry: int | float | Instruction) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(entry)
        return self._numbers[key]

    def _simplify(self, name: str, operands: tuple[int, ...]) -> int | None:
        """Return the index of a simpler value that equals the operation's result, or None if there is none.

        x + 0, x - 0, x · 1, x / 1 and -(-x) become x; 0 - x and x · -1 become -x; (1 / x) · c becomes c / x for a
        constant c.
        """
        last = self.number(operands[-1])
        if (name in ("add", "sub") and last == 0) or (name in ("mul", "div") and last == 1):
            return operands[0]
        first = self.number(operands[0])
        if (name == "add" and first == 0) or (name == "mul" and first == 1):
            return operands[1]
        if name == "sub" and first == 0:
            return self.op("neg", operands[1])
        if name == "mul" and -1 in (first, last):
            return self.op("neg", operands[1] if first == -1 else operands[0])
        entry = self._values[operands[0]]
        if not isinstance(entry, Instruction):
            return None
        if name == "neg" and entry.op == "neg":
            return entry.operands[0]
        if name == "mul" and last is not None and entry.op == "div" and self.number(entry.operands[0]) == 1:
            return self.op("div", operands[1], entry.operands[1])
        return None
