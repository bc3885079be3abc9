# SPDX-License-Identifier: Apache-2.0
"""The point-wise program: equations of a cell or a rule as data, and the derivative of a program as a program.

A program is a list of float32 values without branches: first its arguments, then its constants, then one value for each
instruction. It is printed as Triton and C++, carried by the nodes of exported files, and run by the native library.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgernn.errors import EdgernnError

# limits of a serialised program, which the native library checks too
MOST_VALUES, MOST_RESULTS = 128, 4


class ProgramError(EdgernnError):
    """Equations that are not a point-wise program, or numbers that are none."""


@dataclass(frozen=True)
class Op:
    """An operation of programs.

    code: its number in serialised programs. compute: the same in torch, of `arity` tensors.
    """

    name: str
    code: int
    arity: int
    compute: Callable[..., Any]


# (name, arity, torch's function) of each op, by its code in files: append only
_TABLE: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("add", 2, torch.add),
    ("sub", 2, torch.sub),
    ("mul", 2, torch.mul),
    ("div", 2, torch.div),
    ("min", 2, torch.minimum),
    ("max", 2, torch.maximum),
    ("neg", 1, torch.neg),
    ("abs", 1, torch.abs),
    ("sqrt", 1, torch.sqrt),
    ("exp", 1, torch.exp),
    ("log", 1, torch.log),
    ("sin", 1, torch.sin),
    ("cos", 1, torch.cos),
    ("tanh", 1, torch.tanh),
    ("sigmoid", 1, torch.sigmoid),
    ("sign", 1, torch.sign),
    ("less", 2, lambda a, b: (a < b).to(a.dtype)),
    ("less_equal", 2, lambda a, b: (a <= b).to(a.dtype)),
    ("equal", 2, lambda a, b: (a == b).to(a.dtype)),
    ("select", 3, lambda a, b, c: torch.where(a != 0, b, c)),
    ("lerp", 3, lambda a, b, c: (1 - c) * a + c * b),
)
OPS = {name: Op(name, code, arity, compute) for code, (name, arity, compute) in enumerate(_TABLE)}
_NAMES = {op.code: op.name for op in OPS.values()}
_COMMUTATIVE = ("add", "mul", "min", "max", "equal")


@dataclass(frozen=True)
class Instruction:
    """One value: an op of OPS, and the numbers of its operands, which are lower than its own."""

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A point-wise map.

    arguments: what each argument is, as a number whose meaning is up to the reader. constants: finite numbers.
    results: numbers of values. Values are numbered through arguments, constants and instructions.
    Raises ProgramError where the parts do not fit together.
    """

    arguments: tuple[int, ...]
    constants: tuple[float, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        first = len(self.arguments) + len(self.constants)
        if len(set(self.arguments)) != len(self.arguments) or min(self.arguments, default=0) < 0:
            raise ProgramError(f"arguments: expected different numbers of at least 0, got {self.arguments}")
        if not all(_is_float32(number) for number in self.constants):
            raise ProgramError(f"constants: expected finite float32 numbers, got {self.constants}")
        for value, (op, operands) in enumerate(((i.op, i.operands) for i in self.instructions), first):
            if op not in OPS or len(operands) != OPS[op].arity:
                raise ProgramError(f"instruction {value - first}: expected an op and its operands, got {op} {operands}")
            if not all(0 <= number < value for number in operands):
                raise ProgramError(f"instruction {value - first}: expected operands below {value}, got {operands}")
        if not self.results or not all(0 <= number < self.size for number in self.results):
            raise ProgramError(f"results: expected numbers of values below {self.size}, got {self.results}")

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.arguments) + len(self.constants) + len(self.instructions)

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for values of the arguments, in their dtype; for tests and checks."""
        if len(values) != len(self.arguments):
            raise ProgramError(f"values: expected {len(self.arguments)}, one an argument, got {len(values)}")
        like = values[0] if values else torch.zeros(())
        computed = [*values, *(like.new_tensor(number) for number in self.constants)]
        for instruction in self.instructions:
            operands = [computed[number] for number in instruction.operands]
            computed.append(OPS[instruction.op].compute(*operands))
        shape = np.broadcast_shapes(*(value.shape for value in values))
        return tuple(computed[number].expand(shape) for number in self.results)

    def serialise(
        self, most_values: int = MOST_VALUES, most_results: int = MOST_RESULTS
    ) -> tuple[list[int], list[float]]:
        """The program as whole numbers, and its constants as float32.

        Whole numbers: counts of arguments, constants, instructions and results; the arguments; the code and three
        operands of each instruction, 0 where an op has fewer; the results. Raises ProgramError beyond the limits, which
        are those of files unless given.
        """
        if self.size > most_values:
            raise ProgramError(f"equations: expected at most {most_values} values, got {self.size}; simplify them")
        if len(self.results) > most_results:
            raise ProgramError(f"results: expected at most {most_results}, got {len(self.results)}")
        ints = [len(part) for part in (self.arguments, self.constants, self.instructions, self.results)]
        ints += self.arguments
        for instruction in self.instructions:
            ints += (OPS[instruction.op].code, *instruction.operands, *[0] * (3 - len(instruction.operands)))
        return [*ints, *self.results], [_float32(number) for number in self.constants]

    @classmethod
    def deserialise(cls, ints: Sequence[int], numbers: Sequence[float]) -> "Program":
        """The program of what `serialise` returned. Raises ProgramError for anything else."""
        counts = ints[:4]
        if len(counts) < 4 or min(counts) < 0:
            raise ProgramError(f"program: expected four counts, got {list(counts)}")
        arguments, constants, instructions, results = counts
        length = 4 + arguments + 4 * instructions + results
        if len(ints) != length or len(numbers) != constants:
            expected, sizes = f"{length} whole numbers and {constants} constants", f"{len(ints)} and {len(numbers)}"
            raise ProgramError(f"program: expected {expected}, got {sizes}")
        if arguments + constants + instructions > MOST_VALUES or results > MOST_RESULTS:
            raise ProgramError(f"program: expected at most {MOST_VALUES} values and {MOST_RESULTS} results")
        first, last = 4 + arguments, length - results
        decoded = []
        for code, *operands in zip(*[iter(ints[first:last])] * 4, strict=True):
            if code not in _NAMES:
                raise ProgramError(f"program: expected codes of ops below {len(OPS)}, got {code}")
            arity = OPS[_NAMES[code]].arity
            if any(operands[arity:]):
                raise ProgramError(
                    f"program: expected 0 for operands that {_NAMES[code]} lacks, got {operands[arity:]}"
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
    """A program while it is put together: each distinct value once, constants folded.

    Values are ints, which are not those of the program that `finish` returns.
    """

    def __init__(self) -> None:
        # an argument's number, a constant, or an instruction
        self._values: list[int | float | Instruction] = []
        self._numbers: dict[Any, int] = {}

    def argument(self, key: int) -> int:
        """An argument, by what it is."""
        return self._value(("argument", key), key)

    def constant(self, number: float) -> int:
        """A number."""
        return self._value(("constant", math.copysign(1, number), float(number)), float(number))

    def op(self, name: str, *operands: int) -> int:
        """The value of an op of OPS."""
        simpler = self._simplify(name, operands)
        if simpler is not None:
            return simpler
        numbers = [self.number(value) for value in operands]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            tensors = [torch.tensor(number, dtype=torch.float64) for number in known]
            return self.constant(float(OPS[name].compute(*tensors)))
        key = (name, *(sorted(operands) if name in _COMMUTATIVE else operands))
        return self._value(key, Instruction(name, operands))

    def number(self, value: int) -> float | None:
        """The number that a value is, None where it is no constant."""
        entry = self._values[value]
        return entry if isinstance(entry, float) else None

    def include(self, program: Program, arguments: Sequence[int]) -> list[int]:
        """Add all values of a program, of values for its arguments, and return them in its order."""
        values = [*arguments, *(self.constant(number) for number in program.constants)]
        for instruction in program.instructions:
            values.append(self.op(instruction.op, *(values[number] for number in instruction.operands)))
        return values

    def finish(self, results: Sequence[int]) -> Program:
        """The program of these results, without what they do not need."""
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
        """An older value that is the same, for operands 0 and 1, double negation, a number over a value."""
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


def gradient(program: Program, grads: Sequence[int], *, with_results: bool = False) -> Program:
    """The gradients of a program's arguments, one result each, from those of its results, by reverse mode.

    grads: what the arguments that hold the gradients of the results are called. with_results: the results of the
    program itself follow the gradients. Of two equal operands min and max pass
    half each, as torch does; of an operand and an equal constant the first, so that the order tells clamp from relu.
    """
    builder = Builder()
    values = builder.include(program, [builder.argument(key) for key in program.arguments])
    sums: dict[int, int] = {}

    def give(number: int, grad: int) -> None:
        sums[number] = builder.op("add", sums[number], grad) if number in sums else grad

    for number, key in zip(program.results, grads, strict=True):
        give(number, builder.argument(key))
    first = len(program.arguments) + len(program.constants)
    for number in range(program.size - 1, first - 1, -1):
        if number not in sums:
            continue
        instruction = program.instructions[number - first]
        operands = [values[i] for i in instruction.operands]
        pulled = _pull(builder, instruction.op, sums[number], values[number], operands)
        for operand, grad in zip(instruction.operands, pulled, strict=True):
            if grad is not None:
                give(operand, grad)
    zero = builder.constant(0.0)
    results = [values[number] for number in program.results] if with_results else []
    return builder.finish([*(sums.get(i, zero) for i in range(len(program.arguments))), *results])


def _pull(builder: Builder, name: str, grad: int, y: int, operands: Sequence[int]) -> Sequence[int | None]:
    """The gradients of an op's operands, None where they are 0; y: the op's value."""
    op, one = builder.op, builder.constant(1.0)
    a, b, c = (*operands, one, one)[:3]

    def times(*factors: int) -> int:
        product = grad
        for factor in factors:
            product = op("mul", product, factor)
        return product

    match name:
        case "add":
            return grad, grad
        case "sub":
            return grad, op("neg", grad)
        case "mul":
            return times(b), times(a)
        case "div":
            share = op("div", grad, b)
            return share, op("neg", op("mul", share, y))
        case "min" | "max":
            ahead = op("less", *((a, b) if name == "min" else (b, a)))
            if builder.number(a) is None and builder.number(b) is None:
                ahead = op("select", op("equal", a, b), builder.constant(0.5), ahead)
            else:
                ahead = op("less_equal", *((a, b) if name == "min" else (b, a)))
            return times(ahead), times(op("sub", one, ahead))
        case "neg":
            return (op("neg", grad),)
        case "abs":
            return (times(op("sign", a)),)
        case "sqrt":
            return (op("div", grad, op("add", y, y)),)
        case "exp":
            return (times(y),)
        case "log":
            return (op("div", grad, a),)
        case "sin":
            return (times(op("cos", a)),)
        case "cos":
            return (op("neg", times(op("sin", a))),)
        case "tanh":
            return (times(op("sub", one, op("mul", y, y))),)
        case "sigmoid":
            return (times(op("sub", one, y), y),)
        case "select":
            zero = builder.constant(0.0)
            return None, op("select", a, grad, zero), op("select", a, zero, grad)
        case "lerp":
            return times(op("sub", one, c)), times(c), times(op("sub", b, a))
    return (None,) * len(operands)
