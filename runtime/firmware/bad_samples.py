# SPDX-License-Identifier: Apache-2.0
"""Generates the C code with which a step handles NaN and infinite numbers of its input x."""

from collections.abc import Iterator

from edgernn.runtime.input_check import OnNonfinite

_COMMENTS = {
    "error": "Bad input leaves the state unchanged.",
    "hold": "The last finite number at its place, or {start} before the first,\n"
    " * replaces a number of x that is NaN or infinite.",
    "reset": "If a number of x is NaN or infinite, the state is reset, and the\n"
    " * last finite number at its place, or {start} before the first, replaces it.",
}


def step_comment(action: OnNonfinite, has_mean: bool) -> str:
    """Return a sentence for the C header about what a step does with NaN and infinite numbers in x.

    Args:
        action: "error": the step refuses such an x. "hold": the last finite number replaces a NaN or infinite one.
            "reset": as "hold", and the state is reset.
        has_mean: True if the model subtracts a mean from x. Before the first finite number, "hold" and "reset" replace
            a NaN or infinite number by the mean if `has_mean` is True, else by 0.

    Returns:
        The sentence.
    """
    return _COMMENTS[action].format(start="the mean" if has_mean else "0")


def check(action: OnNonfinite, size: str, refusal: str) -> Iterator[str]:
    """Generate the C code that checks x for NaN and infinite numbers at the start of a step.

    With the action "error", the code ends the step at such a number. With "hold" and "reset", it copies the finite
    numbers to the array `held`, which then has the last finite number at each place and is read instead of x. It also
    counts the steps at which x has a NaN or infinite number. With "reset", it resets the state at these steps.

    Args:
        action: What the step does if x has a NaN or infinite number: "error", "hold" or "reset".
        size: C expression of the number of values in x.
        refusal: C statement that ends the step.

    Yields:
        Lines of C.
    """
    if action != "error":
        yield "int bad = 0;"
    yield f"for (int32_t i = 0; i < {size}; ++i) {{"
    if action == "error":
        yield f"  if (!edgernn_is_finite(x[i])) {refusal}"
        yield "}"
        return
    yield "  const int finite = edgernn_is_finite(x[i]);"
    yield "  if (finite) model->held[i] = x[i];"
    yield "  bad |= !finite;"
    yield "}"
    yield "if (bad) {"
    yield "  if (model->nonfinite < INT32_MAX) ++model->nonfinite;"
    if action == "reset":
        yield "  reset_state(model);"
    yield "}"
