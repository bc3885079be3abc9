# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of point-wise programs (`edgernn.program`): a gradient is such a program, too."""

from collections.abc import Sequence

from edgernn.program import Builder, Program


def gradient(program: Program, grads: Sequence[int], *, with_results: bool = False) -> Program:
    """Build the program that computes the gradients of a program's arguments, by reverse-mode differentiation.

    The new program reads the arguments of `program`, and for each result of `program` one argument more: the gradient
    of the loss with respect to this result. It leaves out arguments that none of its own results depends on.

    If the two operands of min or max are equal variables, each gets half of the gradient, as in torch. If one of two
    equal operands is a constant, the variable gets all of the gradient if it is the first operand, else none. For
    x = 0, the derivative of max(x, 0) is thus 1, as in torch.clamp, and that of max(0, x) is 0, as in torch.relu.
    The derivative of `event` is its surrogate; see `edgernn.surrogate`. The new program has only operations that files
    can store (`Program.lowered`).

    Args:
        program: The program to differentiate.
        grads: For each result of `program`, the integer key that names its gradient among the arguments of the new
            program. The keys must differ from those in `program.arguments`.
        with_results: True to return the results of `program` as well, after the gradients.

    Returns:
        A program whose results are the gradients of the arguments of `program`, in their order.
    """
    builder = Builder()
    values = builder.include(program, [builder.argument(key) for key in program.arguments])
    sums: dict[int, int] = {}

    def accumulate(number: int, grad: int) -> None:
        sums[number] = builder.op("add", sums[number], grad) if number in sums else grad

    for number, key in zip(program.results, grads, strict=True):
        accumulate(number, builder.argument(key))
    first = len(program.arguments) + len(program.constants)
    for number in range(program.size - 1, first - 1, -1):
        if number not in sums:
            continue
        instruction = program.instructions[number - first]
        operands = [values[i] for i in instruction.operands]
        operand_grads = _backward(builder, instruction.op, sums[number], values[number], operands)
        for operand, grad in zip(instruction.operands, operand_grads, strict=True):
            if grad is not None:
                accumulate(operand, grad)
    zero = builder.constant(0.0)
    results = [values[number] for number in program.results] if with_results else []
    return builder.finish([*(sums.get(i, zero) for i in range(len(program.arguments))), *results]).lowered()


def _backward(builder: Builder, name: str, grad: int, y: int, operands: Sequence[int]) -> Sequence[int | None]:
    """Add to a program the operations that compute the gradients of one operation's operands."""
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
            quotient = op("div", grad, b)
            return quotient, op("neg", op("mul", quotient, y))
        case "min" | "max":
            order = (a, b) if name == "min" else (b, a)
            if builder.number(a) is None and builder.number(b) is None:
                selects_a = op("select", op("equal", a, b), builder.constant(0.5), op("less", *order))
            else:
                selects_a = op("less_equal", *order)
            return times(selects_a), times(op("sub", one, selects_a))
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
        case "event":
            height, width = b, c
            distance = op("div", op("abs", a), width)
            return times(op("mul", height, op("max", builder.constant(0.0), op("sub", one, distance)))), None, None
        case "lerp":
            return times(op("sub", one, c)), times(c), times(op("sub", b, a))
    return (None,) * len(operands)
