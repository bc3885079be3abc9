# SPDX-License-Identifier: Apache-2.0
"""Check of an exported file against torch, in stock ONNX Runtime and with the native library."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from edgernn.cells.base import State
from edgernn.errors import EdgernnError, UsageError
from edgernn.layer import python_loop
from edgernn.model import SequenceModel
from edgernn.rules.base import Decision, UpdateRule
from edgernn.runtime.info import kernels
from edgernn.runtime.library import no_native
from edgernn.runtime.session import Session
from edgernn.tolerance import STEPS, TOLERANCE, WHOLE_NUMBERS, allowed_error

# allowed error in terms of torch's own difference between float32 and float64: another order of sums rounds otherwise
_ROUNDING = 8
_COARSE = (
    "the native library rounds the inputs of int8 weights to 16 bits, and rows of more than 512 to fewer, which is too "
    "coarse for these weights; use bfloat16 weights"
)


@dataclass(frozen=True)
class Check:
    """Result of comparing an exported file with torch, in one backend.

    Attributes:
        backend: "native" for the kernels of the native library, "portable" for standard ONNX operators.
        step_error: Largest absolute error of any output or state over single steps, each from torch's state.
        sequence_error: Largest absolute error of any output or state over whole sequences.
        steps: Number of compared steps, summed over the sequences.
        sequences: Number of whole sequences that are compared: those without ties.
        ties: Number of steps that are not compared, summed over the sequences. In such a step, a decision to update a
            neuron is so close to its threshold that rounding may flip it (`UpdateRule.tie`).
    """

    backend: str
    step_error: float
    sequence_error: float
    steps: int
    sequences: int
    ties: int

    @property
    def worst(self) -> float:
        return max(self.step_error, self.sequence_error)


def check(
    model: SequenceModel,
    path: str | Path,
    example: Tensor | None = None,
    *,
    tolerance: float = TOLERANCE,
    whole_numbers: bool = False,
) -> list[Check]:
    """Compare an exported file with torch, in stock ONNX Runtime and, if it is installed, with the native library.

    The input is random: normally distributed with the mean and standard deviation of the model's input, words of its
    vocabulary, or for a model that reads audio, noise after a beginning of each kind in `_audio`. If rounding flips the
    decision to update a neuron, all later states differ from torch's. Single steps are therefore compared from torch's
    state, and whole sequences only if no decision is near its threshold.

    Args:
        model: The model in torch.
        path: The exported file.
        example: Input (T, B, I) or word indices (T, B), in place of random ones. A model that reads audio is compared
            on both.
        tolerance: Allowed error of a single step, and of a sequence of up to 24 steps. It is absolute if no value
            is above 1, else relative to the largest value. For T > 24 it is multiplied by T / 24, as errors add up. A
            larger error is allowed if torch in float32 has one, too: up to `_rounding_factor` times the difference
            between torch in float32 and in float64 on the same input, as large recurrent weights amplify rounding.
        whole_numbers: True if the file has int8 weights, for which the native library multiplies integers. The allowed
            error of the native library is then 1e-3. Larger errors may flip more decisions to update a neuron, so that
            steps are left out if a decision is within a larger distance of its threshold.

    Returns:
        Results of the check, one per backend: portable (standard ONNX operators) and, if edgernn's native library has
        the kernels, native.

    Raises:
        EdgernnError: Outputs, states or update counts differ, or all steps were left out.
    """
    model.eval()
    generator = torch.Generator().manual_seed(0)
    if model.vocabulary is not None:
        x = torch.randint(model.vocabulary, (STEPS, 16), generator=generator)
    elif model.frontend is not None:
        x = _audio(model.input_size, generator)
    else:
        x = torch.randn(STEPS, 16, model.input_size, generator=generator) * model.input_std + model.input_mean
    examples = [] if example is None else [example]
    inputs = examples if examples and model.frontend is None else [x, *examples]
    results = []
    sessions = [Session(path, backend="portable")]
    if no_native(kernels(sessions[0].info)) is None:
        sessions.append(Session(path, backend="native"))
    for session in sessions:
        allowed = WHOLE_NUMBERS if whole_numbers and session.backend == "native" else tolerance
        # decisions are recorded step by step
        with python_loop(model):
            parts = [_compare(model, session, x, allowed, max(1.0, allowed / TOLERANCE)) for x in inputs]
        results.append(
            Check(
                session.backend,
                max(p.step_error for p in parts),
                max(p.sequence_error for p in parts),
                sum(p.steps for p in parts),
                sum(p.sequences for p in parts),
                sum(p.ties for p in parts),
            )
        )
    return results


def _audio(hop: int, generator: torch.Generator) -> Tensor:
    """Draw samples (STEPS, 16, hop): noise 20 dB below full scale, from whose beginning each stream differs.

    The beginnings are digital silence, parts of a bit, single bits, noise of a bit, a constant bit, quiet noise, noise
    at full scale, and a constant at full scale. Half of the streams have digital silence later on as well.
    """
    bit, begin, later = 2.0**-15, STEPS // 3, slice(STEPS // 2, STEPS * 2 // 3)
    x = 0.1 * torch.randn(STEPS, 16, hop, generator=generator)
    noise = torch.randn(begin, 2, hop, generator=generator)
    beginnings = (
        torch.zeros_like(noise),
        noise * bit / 100,
        bit * (torch.arange(hop) == hop // 2).expand_as(noise),
        (noise.sign() + 1) / 2 * bit,
        torch.full_like(noise, bit),
        noise * 30 * bit,
        noise.sign(),
        torch.ones_like(noise),
    )
    x[:begin] = torch.cat(beginnings, 1)
    x[later, 1::2] = 0
    return x


def _compare(model: SequenceModel, session: Session, x: Tensor, tolerance: float, ties_apart: float) -> Check:
    """Compare a session with torch on input x, except at steps where rounding may flip a decision to update a neuron.

    A step is left out if the distance of a decision from its threshold is at most `ties_apart` times `UpdateRule.tie`,
    the distance below which float32 rounding may flip it. An error above `allowed_error` of `tolerance` raises
    EdgernnError.
    """
    state = zero = model.initial_state(x.shape[1], model.input_mean)
    steps = ties = 0
    step_error = 0.0
    if model.bidirectional:
        margins = _margins(model, x, zero)
    else:
        margins = torch.full((x.shape[1],), torch.inf)
        for x_t in x.unsqueeze(1):
            clear = _margins(model, x_t, state) > ties_apart
            expected = _torch(model, x_t, state)
            step_error = max(step_error, _error(session, model, x_t, state, expected, clear, tolerance))
            margins = torch.where(clear, margins, 0)
            steps, ties = steps + int(clear.sum()), ties + int((~clear).sum())
            state = expected[1]
    clear = margins > ties_apart
    if not steps and not clear.any():
        raise EdgernnError(
            "check: no step can be compared with torch, because rounding may flip an update decision at each of them; "
            "pass another input as example"
        )
    sequence_error = _error(session, model, x, zero, _torch(model, x, zero), clear, tolerance)
    return Check(session.backend, step_error, sequence_error, steps, int(clear.sum()), ties)


def _torch(model: SequenceModel, x: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
    """Run the model in torch on x from a state; return y, the last state and the updated neurons (T, B), or None."""
    state = tuple(value.to(next(model.parameters()).dtype) for value in state)
    with torch.no_grad():
        y, new = model(x, state)
    counts = None
    for i, trace in enumerate(model.traces):
        if trace.decisions is not None:
            u = (trace.decisions != 0).sum(-1)
            u = u.flip(0) if model.bidirectional and i % 2 else u
            counts = u if counts is None else counts + u
    return y, new, counts


def _margins(model: SequenceModel, x: Tensor, state: State) -> Tensor:
    """Run the model on x (T, B, I) and return, for each sequence (B,), how close a decision came to its threshold.

    The result is the smallest distance of a decision to update a neuron from its threshold, over all layers and steps,
    divided by `UpdateRule.tie`, the distance below which float32 rounding may flip the decision.
    """
    with recorded_margins([layer.rule for layer in model.recurrent_layers()]) as margins, torch.no_grad():
        model(x, state)
    # a layer whose rule knows its updates beforehand decides nothing
    return torch.stack([torch.full((x.shape[1],), torch.inf), *margins]).amin(0)


@contextmanager
def recorded_margins(rules: Sequence[UpdateRule]) -> Iterator[list[Tensor]]:
    """Record how close decisions of these rules come to their thresholds in Python loops inside a `with` block.

    It yields a list to which each decision adds its distances (B,), divided by `UpdateRule.tie`. The method `decide` of
    the rules is wrapped in the block.
    """
    margins: list[Tensor] = []

    def recording(rule: UpdateRule) -> Callable[[Tensor, State, State], Decision]:
        decide = rule.decide

        def record(e: Tensor, state: State, memory: State) -> Decision:
            margins.append(rule.margin(e, state, memory) / rule.tie)
            return decide(e, state, memory)

        return record

    try:
        for rule in rules:
            rule.decide = recording(rule)  # type: ignore[method-assign, assignment]
        yield margins
    finally:
        for rule in rules:
            # a signal may have come before it was wrapped
            vars(rule).pop("decide", None)


def _error(
    session: Session,
    model: SequenceModel,
    x: Tensor,
    state: State,
    expected: tuple[Tensor, State, Tensor | None],
    clear: Tensor,
    tolerance: float,
) -> float:
    """Run a session on x from `state`, and compare its results with those of torch, `expected` (see `_torch`).

    Only sequences where `clear` (B,) is True are compared. Returns the largest absolute error. An error above
    `allowed_error`, or another number of updated neurons, raises EdgernnError.
    """
    named = {n: s.detach().numpy() for n, s in zip(model.state_names, state, strict=True)}
    y, new = session.run_from(x.numpy(), named)
    pick = clear.numpy()
    if not pick.any():
        return 0.0
    batch_axis = 0 if model.output == "last" else 1
    pairs = [("y", y, expected[0], batch_axis)]
    pairs += [(n, new[n], s, 0) for n, s in zip(model.state_names, expected[1], strict=True)]
    errors = [_distance(got, wanted, pick, axis) for _, got, wanted, axis in pairs]
    limits = [allowed_error(wanted.numpy(), len(x), tolerance) for _, _, wanted, _ in pairs]
    # not any of >, so that NaN is an error
    if not all(error <= limit for error, limit in zip(errors, limits, strict=True)):
        y32, state32, _ = _torch(model, x, state)
        again = [_distance(a, wanted, pick, axis) for a, (*_, wanted, axis) in zip((y32, *state32), pairs, strict=True)]
        if any(change > limit for change, limit in zip(again, limits, strict=True)):
            raise EdgernnError(
                "check: a second run in torch gives other results, so that the file cannot be compared; remove random "
                "numbers from the cell or rule"
            )
        y64, state64, _ = _torch(copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x, state)
        for (name, got, wanted, axis), limit, exact in zip(pairs, limits, (y64, *state64), strict=True):
            rounding, error = _distance(wanted, exact, pick, axis), _distance(got, exact, pick, axis)
            allowed = max(limit, _rounding_factor(model) * rounding)
            if not error <= allowed:
                if not np.isfinite(wanted.numpy()).all():
                    raise EdgernnError(
                        f"check: expected finite numbers of torch, got some in {name} that are not; the weights are "
                        "too large: train the model again, with a lower learning rate"
                    )
                raise EdgernnError(
                    f"{session.backend}: {name} differs from torch in float64 by {error:.3g}, and torch in float32 by "
                    f"{rounding:.3g}, expected at most {allowed:.3g}; "
                    + (_COARSE if tolerance > TOLERANCE else "the export is wrong; report a bug")
                )
        # rounding may flip decisions to update a neuron, so that counts differ
    elif expected[2] is not None:
        updates = session.updates
        if updates is None or (updates[:, pick] != expected[2].numpy()[:, pick]).any():
            raise EdgernnError(
                f"{session.backend}: the numbers of updated neurons differ from torch; the export is wrong; report a "
                "bug"
            )
    return max(errors)


def _rounding_factor(model: SequenceModel) -> float:
    """Return the largest allowed ratio of the rounding in a file to that in torch, which sums long rows in blocks."""
    return max(_ROUNDING, math.sqrt(_longest_row(model)))


def _longest_row(model: SequenceModel) -> int:
    return max((max(matrix.shape) for matrix in model.parameters() if matrix.dim() == 2), default=1)


def _distance(a: Any, b: Any, pick: NDArray[np.bool_], axis: int) -> float:
    """Return the largest absolute difference of two values in the sequences that `pick` (B,) selects."""
    return float(np.abs(np.compress(pick, np.asarray(a) - np.asarray(b), axis)).max(initial=0))


def check_numbers(module: nn.Module) -> None:
    """Raise UsageError unless all weights of a module are finite float32 numbers."""
    for name, weight in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(weight):
            raise UsageError(f"weights: expected known sizes, got {name} without one; call the module once before")
        if weight.is_meta:
            raise UsageError(
                f"weights: expected numbers, got {name} on the device meta, which has none; load the weights with "
                "load_state_dict(weights, assign=True)"
            )
        if not weight.is_floating_point():
            continue
        if weight.dtype != torch.float32:
            got = str(weight.dtype).removeprefix("torch.")
            raise UsageError(f"dtype: expected float32 weights, got {got} in {name}; use model.float()")
        if not (finite := weight.isfinite()).all():
            raise UsageError(
                f"weights: expected finite numbers, got {weight[~finite][0].item()} in {name}; train the model again, "
                "with a lower learning rate if it diverged"
            )
