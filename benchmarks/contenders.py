# SPDX-License-Identifier: Apache-2.0
"""Measurement of a benchmark case: several runtimes compute the same layer; outputs are checked, then calls timed."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from benchmarks.peers import (
    OURS,
    PEERS,
    ROUNDING,
    SMALL,
    Peer,
    Problem,
    UnsupportedError,
    random_problem,
    reference,
    stepper_of,
)
from benchmarks.roofline import matvec, multiply_adds, steps_in_c
from edgernn.bench.case import (
    COMPILED,
    DENSE,
    EDGERNN,
    FLOAT32,
    PAUSE_MS,
    PORTABLE,
    PYTHON,
    ROOFLINE,
    ROUNDED,
    WITH_INPUT,
    Case,
    described,
)
from edgernn.bench.measure import verify
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError
from edgernn.model import SequenceModel
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, interleaved

ORT = PEERS[0].name
# absolute error of float32 contenders; wide enough for peers that trade accuracy for speed
TOLERANCE = 1e-3
# number of steps in the verification of a stream
_CHECKED = 12


@dataclass
class Contender:
    """A function that the benchmark times, such as a runtime's call or a lower bound.

    Attributes:
        call: The function.
        calls: Number of calls that equal the work of the case. It is below 1 if one call does more than that work.
        error: Largest absolute error of the outputs against the reference; None if they are not compared.
    """

    call: Callable[[], Any]
    calls: float = 1.0
    error: float | None = None


def measure(case: Case, settings: Rounds) -> dict[str, Any]:
    """Check the outputs of a case in each runtime, then time them."""
    build = _stream_in_c if case.in_c else _plain if case.is_plain else _ours_alone
    contenders, left_out, facts = build(case)
    if case.threads > 1:
        settings = replace(settings, pause_ms=PAUSE_MS)
    seconds = interleaved({name: each.call for name, each in contenders.items()}, settings)
    times = {
        name: np.array([np.median(block) for block in seconds[name]]) * 1e6 * each.calls / case.steps
        for name, each in contenders.items()
    }
    if WITH_INPUT in times:
        times[WITH_INPUT] = times[WITH_INPUT] + times[ROOFLINE]
    in_float32 = {peer.name for peer in PEERS} - {peer.name for peer in ROUNDING}
    report = described(case, times, {name: each.error for name, each in contenders.items()}, in_float32)
    return report | {"left_out": left_out} | facts


# dict from name to contender, dict from the name of a missing contender to the reason, and counts for the report
Contenders = tuple[dict[str, Contender], dict[str, str], dict[str, Any]]


def _plain(case: Case) -> Contenders:
    """Build the timed functions for a GRU or LSTM: edgernn and every other runtime, all with the same weights."""
    small, left_out = case.weights != "float32", {}
    ours = SMALL[case.weights] if small else OURS
    contenders = {EDGERNN: _verified(ours, case, ROUNDED if small else TOLERANCE)}
    if small:
        contenders[FLOAT32] = _verified(OURS, case)
    for peer in dict.fromkeys((*PEERS, *(ROUNDING if small else ()))):
        if peer.version() is None:
            left_out[peer.name] = "not installed"
            continue
        try:
            contenders[peer.name] = _verified(peer, case, ROUNDED if small and peer in ROUNDING else TOLERANCE)
        except (UnsupportedError, EdgernnError) as error:
            left_out[peer.name] = str(error)
        except Exception as error:  # a peer may raise any exception
            left_out[peer.name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    macs = _macs(case)
    contenders[ROOFLINE] = _roofline(case, macs)
    if case.batch == 1 and case.steps > 1:
        input_macs = macs * case.sizes[0] // sum(case.sizes)
        contenders[WITH_INPUT] = Contender(*multiply_adds(input_macs * case.steps, case.threads))
    return contenders, left_out, {"macs": macs}


def _problem(case: Case) -> Problem:
    """Draw a case's random layer and its input x (T, B, I)."""
    kind, stream = cast(Literal["gru", "lstm"], case.model.layer.name), case.steps == 1
    steps, start = (_CHECKED, 0.0) if stream else (case.steps, 0.5)
    return random_problem(kind, *case.sizes, steps, case.batch, case.threads, start=start)


def _macs(case: Case) -> int:
    I, H = case.sizes
    return case.gates * H * (I + H)


def _verified(peer: Peer, case: Case, tolerance: float = TOLERANCE) -> Contender:
    """Run a runtime once, compare its outputs with the reference, and build the function to time."""
    problem = _problem(case)
    expected = reference(problem)
    call: Callable[[], Any]
    if case.steps == 1:
        step = peer.stream(problem)
        error = max(float(np.abs(step(x) - y).max()) for x, y in zip(problem.x, expected, strict=True))
        x = problem.x[0]

        def call() -> Any:
            return step(x)
    else:
        call = peer.sequence(problem)
        y, h = call()
        error = max(float(np.abs(y - expected).max()), float(np.abs(h - expected[-1]).max()))
    if not error <= tolerance:
        raise EdgernnError(
            f"not timed: y of {peer.name} differs from the float64 reference by {error:.1e}, expected at most "
            f"{tolerance:g}; report a bug"
        )
    return Contender(call, error=error)


def _stream_in_c(case: Case) -> Contenders:
    """Build the functions to time for single steps (T = 1), called from C and from Python."""
    problem = _problem(case)
    stepper, error = stepper_of(problem), 0.0
    for x, y in zip(problem.x, reference(problem), strict=True):
        stepper.x[...] = x
        if not stepper.step():
            raise EdgernnError(f"not timed: the packed model rejects the input: {stepper.refusal()}; report a bug")
        error = max(error, float(np.abs(stepper.y - y).max()))
    if not error <= TOLERANCE:
        raise EdgernnError(
            f"not timed: y of the packed model differs from the float64 reference by {error:.1e}, expected at most "
            f"{TOLERANCE:g}; report a bug"
        )
    macs = _macs(case)
    call, calls = steps_in_c(stepper, macs)
    contenders = {
        EDGERNN: Contender(call, calls, error),
        PYTHON: _verified(OURS, case),
        ROOFLINE: _roofline(case, macs),
    }
    return contenders, {}, {"macs": macs}


def _ours_alone(case: Case) -> Contenders:
    """Build the functions to time for a cell that other runtimes lack: the cell itself, and GRUs of the same sizes."""
    from edgernn.export import to_onnx
    from edgernn.random_models import random_model

    random = np.random.default_rng(0)
    x = random.standard_normal((case.steps, case.batch, case.sizes[0])).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = random_model(case.model, skip=case.skip or 0.0, x=torch.from_numpy(x))
        to_onnx(model, path)
        session = Session(path, backend="native", threads=case.threads)
        portable = Session(path, backend="portable")
        compiled = None
        if case.compiled is not None:
            twin = SequenceModel(_with_cell(case.model, case.compiled)).eval()
            twin.load_state_dict(model.state_dict())
            to_onnx(twin, path)
            compiled = Session(path, backend="native", threads=case.threads)
    start = session.initial_state(case.batch)
    error = verify(session, portable, x)
    session.run_from(x, start)
    executed = float(session.info["cost"]["macs_executed"])
    facts: dict[str, Any] = {"macs": session.info["macs"]}
    if session.macs is not None and session.updates is not None:
        executed = float(session.macs.mean()) / case.steps
        facts["skip_percent"] = 100 * (1 - float(session.updates.mean()) / session.neurons)
    plain = Case(case.group, ModelConfig.of("gru", *case.sizes), case.steps, case.batch, case.threads)
    contenders = {
        EDGERNN: Contender(lambda: session.run_from(x, start), error=error),
        DENSE: _verified(OURS, plain),
        ORT: _verified(PEERS[0], plain),
        ROOFLINE: _roofline(case, executed),
    }
    if compiled is not None:
        error = verify(compiled, portable, x)
        contenders[COMPILED] = Contender(lambda: compiled.run_from(x, start), error=error)
        contenders[PORTABLE] = Contender(lambda: portable.run_from(x, start))
    return contenders, {}, {**facts, "macs_executed": executed}


def _with_cell(model: ModelConfig, cell: str) -> ModelConfig:
    layer = model.layer
    return replace(model, layer=replace(layer, cell=replace(layer.cell, name=cell)))


def _roofline(case: Case, macs: float) -> Contender:
    """Build the function whose time is the lower bound of a case: it does only multiply-adds."""
    I, H = case.sizes
    if case.batch > 1:
        return Contender(*multiply_adds(macs * case.steps * case.batch, case.threads))
    if case.is_plain:
        return Contender(*matvec(case.gates * H, H + I * (case.steps == 1), case.steps))
    rows = max(1, round(macs / H))
    return Contender(*matvec(rows, H, case.steps))
