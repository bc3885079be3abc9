# SPDX-License-Identifier: Apache-2.0
"""Does the file compute what torch computes? With stock ONNX Runtime, and with the native library."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import EdgernnError
from edgernn.export.rounding import WHOLE_NUMBERS
from edgernn.model import SequenceModel
from edgernn.rules.base import Decision, UpdateRule
from edgernn.runtime.info import kernels
from edgernn.runtime.library import no_native
from edgernn.runtime.session import Session

# float32 paths that add in another order differ by rounding alone
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """The worst absolute error of one backend against torch, over all outputs.

    steps: how many single steps, each from torch's own state, were compared; ties: how many more were left out because
    a decision in them was closer than the rule's `tie` to its threshold.
    sequences: how many whole sequences from the zero state were compared; those with a tie are left out.
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
    """Run torch against the file in stock ONNX Runtime and, where it is installed, with the native library.

    Both run random normal input in the model's own input scale, or random words of its vocabulary, and, where it is
    given, example (T, B, I) or (T, B). A model with binary decisions may leave torch's path for good at a decision that
    rounding turns over, so every single step is compared from torch's own state, and whole sequences where no decision
    is that close.
    whole_numbers: the native library multiplies with whole numbers, whose rounding is allowed WHOLE_NUMBERS instead of
    `tolerance`, and decisions so much nearer to their threshold count as close.
    Raises EdgernnError if outputs or states differ by more than `tolerance`, times the largest of them if that is above
    1, or if update counts differ.
    """
    model.eval()
    generator = torch.Generator().manual_seed(0)
    if model.vocabulary is None:
        x = torch.randn(24, 16, model.input_size, generator=generator) * model.input_std + model.input_mean
    else:
        x = torch.randint(model.vocabulary, (24, 16), generator=generator)
    inputs = [x] if example is None else [x, example]
    results = []
    sessions = [Session(path, backend="portable")]
    if no_native(kernels(sessions[0].info)) is None:
        sessions.append(Session(path, backend="native"))
    for session in sessions:
        allowed = WHOLE_NUMBERS if whole_numbers and session.backend == "native" else tolerance
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


def _compare(model: SequenceModel, session: Session, x: Tensor, tolerance: float, ties_apart: float) -> Check:
    """ties_apart: how many times the rule's `tie` a decision must be away from its threshold."""
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
        raise EdgernnError("check: every step has a decision at its threshold; give other inputs")
    sequence_error = _error(session, model, x, zero, _torch(model, x, zero), clear, tolerance)
    return Check(session.backend, step_error, sequence_error, steps, int(clear.sum()), ties)


def _torch(model: SequenceModel, x: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
    """y, the next state and the number of updates (T, B) in torch."""
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
    """(B,): the closest decision of any layer at any step of x (T, B, I), in units of the rule's `tie`.

    Found by watching the rules decide.
    """
    found: list[Tensor] = []

    def watch(rule: UpdateRule) -> Callable[[Tensor, State, State], Decision]:
        decide = rule.decide

        def watched(e: Tensor, state: State, memory: State) -> Decision:
            found.append(rule.margin(e, state, memory) / rule.tie)
            return decide(e, state, memory)

        return watched

    rules = [layer.rule for layer in model.recurrent_layers()]
    try:
        for rule in rules:
            rule.decide = watch(rule)  # type: ignore[method-assign, assignment]
        with torch.no_grad():
            model(x, state)
    finally:
        for rule in rules:
            del rule.decide
    return torch.stack(found).amin(0)


def _error(
    session: Session,
    model: SequenceModel,
    x: Tensor,
    state: State,
    expected: tuple[Tensor, State, Tensor | None],
    clear: Tensor,
    tolerance: float,
) -> float:
    """The worst error over the samples that are `clear`; raises EdgernnError beyond the tolerance."""
    named = {n: s.detach().numpy() for n, s in zip(model.state_names, state, strict=True)}
    y, new = session.run_from(x.numpy(), named)
    pick = clear.numpy()
    if not pick.any():
        return 0.0
    batch_axis = 0 if model.output == "last" else 1
    pairs = [("y", y, expected[0], batch_axis)]
    pairs += [(n, new[n], s, 0) for n, s in zip(model.state_names, expected[1], strict=True)]
    worst = 0.0
    for name, got, wanted, axis in pairs:
        error = float(np.abs(np.compress(pick, got - wanted.numpy(), axis)).max())
        # of large numbers, as a head's may be, a share of the largest
        allowed = tolerance * max(1.0, float(wanted.abs().max()))
        if not error <= allowed:
            raise EdgernnError(
                f"{session.backend}: {name} differs from torch by {error:.3g}, "
                f"allowed are {allowed:.3g}; the export is wrong"
            )
        worst = max(worst, error)
    if expected[2] is not None:
        counted = session.updates
        if counted is None or (counted[:, pick] != expected[2].numpy()[:, pick]).any():
            raise EdgernnError(f"{session.backend}: update counts differ from torch; the export is wrong")
    return worst
