# SPDX-License-Identifier: Apache-2.0
"""Generates the C code of a step for numbers of x that are not finite."""

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
    """Return the sentence of the header that says what a step does with a number that is not finite."""
    return _COMMENTS[action].format(start="the mean" if has_mean else "0")


def check(action: OnNonfinite, size: str, refusal: str) -> Iterator[str]:
    """Generate the lines of a step that check x for numbers that are not finite.

    With "error" they refuse such a step. With "hold" and "reset" they copy the finite numbers to `held`, and count the
    steps that had others.

    Args:
        action: What the step does if a number is not finite.
        size: Number of values in x, a C expression.
        refusal: Statement that ends the step.

    Yields:
        Lines of C.
    """
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
