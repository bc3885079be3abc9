# SPDX-License-Identifier: Apache-2.0
"""Check an exported model, then time it beside ONNX Runtime's GRU and LSTM, in shuffled order in each round."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.bench.baseline import baseline, is_same, parameters, zero_states
from edgernn.bench.provenance import machine
from edgernn.errors import EdgernnError, UsageError
from edgernn.files import EXAMPLE
from edgernn.npz import read_npz
from edgernn.progress import Progress
from edgernn.runtime.info import frontend, is_network, kernels, read_model, step_samples
from edgernn.runtime.library import no_native
from edgernn.runtime.open_model import open_session
from edgernn.runtime.session import Session
from edgernn.runtime.timing import Rounds, at_rate, interleaved
from edgernn.runtime.weights import parse, read_weights
from edgernn.tolerance import TOLERANCE, WHOLE_NUMBERS, allowed_error

Array = NDArray[np.float32]
NATIVE, PORTABLE, GRU, LSTM = "edgernn native", "edgernn portable", "ONNX Runtime GRU", "ONNX Runtime LSTM"
FASTER_THAN_GRU, FASTER_THAN_PORTABLE = "times_faster_than_gru", "times_faster_than_portable"

# calls of a step at the rate of a sensor
_COLD_CALLS = 50


@dataclass(frozen=True)
class Settings:
    """Settings of `edgernn bench MODEL`: sizes, threads and rounds.

    Attributes:
        batch: B, the number of sequences of a call.
        steps: T, the number of steps of a call. Default: the number in the example input, else 500.
        threads: Number of threads of each runtime.
        rounds: Number of interleaved rounds.
        warmup: Warm-up calls before the first round.
        block_ms: Approximate time of the calls of one runtime in a round, in milliseconds.
        rate: Calls of a step per second for the time with cold caches. Default: the rate of the steps of a model with
            an audio front end, else 50.
    """

    batch: int = 1
    steps: int | None = None
    threads: int = 1
    rounds: int = 15
    warmup: int = 3
    block_ms: float = 20.0
    rate: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and value < (0 if field.name == "warmup" else 1):
                raise UsageError(f"{field.name}: expected at least {0 if field.name == 'warmup' else 1}, got {value}")


def bench(
    path: str | Path,
    settings: Settings | None = None,
    *,
    x: NDArray[Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check an exported model, then time it beside ONNX Runtime's GRU and LSTM.

    A network of one's own is timed in the native library and as standard operators alone.

    Args:
        path: The exported file.
        settings: Settings of the benchmark.
        x: Example input (T, B, I), or int64 (T, B) for a model with a vocabulary. It is repeated, or cut, to the batch
            and steps of the settings. Default: `example.npz` beside the model, else random: word indices, or normal
            numbers with the mean and standard deviation of the model's inputs.
        progress: Progress bar. Default: none.

    Returns:
        The JSON-compatible report; `report.markdown` formats it.

    Raises:
        EdgernnError: The outputs of the native library differ from those of the standard ONNX operators, or from those
            of ONNX Runtime's GRU or LSTM with the same weights. Nothing is timed then.
    """
    settings = settings or Settings()
    path = Path(path)
    sessions = {PORTABLE: Session(path, backend="portable", threads=settings.threads)}
    missing = no_native(kernels(sessions[PORTABLE].info))
    if missing is None:
        sessions = {NATIVE: Session(path, backend="native", threads=settings.threads)} | sessions
    info = sessions[PORTABLE].info
    x, source = example_input(path, sessions[PORTABLE], settings, x)
    verified = {}
    if NATIVE in sessions:
        # the file of a network of one's own is computed with as float32 in every type
        tolerance = TOLERANCE if is_network(info) else tolerance_of(path)
        verified["native against portable"] = verify(sessions[NATIVE], sessions[PORTABLE], x, tolerance=tolerance)
    skipping = next(iter(sessions.values()))
    skipping.run(x)
    calls, baselines_verified = _contenders(path, sessions, info, x, settings)
    plan = Rounds(settings.rounds, settings.warmup, settings.block_ms)
    timings = interleaved(calls, plan, progress)
    rate = 1.0 if skipping.updates is None else float(skipping.updates.mean()) / skipping.neurons
    if skipping.macs is not None:
        executed = float(skipping.macs.mean()) / x.shape[0]
    else:
        executed = float(info["macs"] if missing else info["cost"]["macs_executed"])
    return {
        "model": path.name,
        "info": info,
        "machine": machine(),
        "settings": {**dataclasses.asdict(settings), "batch": x.shape[1], "steps": x.shape[0]},
        "input": source,
        "native_missing": missing,
        "verified": {**verified, **baselines_verified},
        "step": _step_times(skipping, x, settings, plan),
        "skip_percent": 100 * (1 - rate),
        "costs": _costs(info, rate, executed, skipping.backend),
        "timings": _summary(timings, x.shape[0] * x.shape[1], x.shape[0]),
    }


def _step_times(session: Session, x: NDArray[Any], settings: Settings, plan: Rounds) -> dict[str, float] | None:
    """Return the times of calls of `Session.step`, or None for a model that needs whole sequences."""
    if not session.info["streaming"]:
        return None
    times = itertools.count()

    def step() -> None:
        t = next(times) % len(x)
        if t == 0:
            session.reset()
        session.step(x[t])

    audio = frontend(session.info)
    rate = settings.rate or (50.0 if audio is None else audio["sample_rate"] / step_samples(audio))
    warm = interleaved({"step": step}, plan)["step"]
    cold = at_rate(step, rate, _COLD_CALLS)
    session.reset()
    medians = [np.median(block) for block in warm]
    return {"rate": rate, "warm_us": 1e6 * float(np.median(medians)), "cold_us": 1e6 * float(np.median(cold))}


def read_example(path: Path) -> NDArray[Any]:
    """Read the array x from an npz file, N sequences (N, T, I); return it as float32 with the axes (T, N, I).

    Integers (N, T) are word indices; they are returned as (T, N). Another shape raises UsageError.
    """
    x = read_npz(path, ("x",))["x"]
    if x.ndim == 2 and x.dtype.kind in "iu":
        return x.swapaxes(0, 1)
    if x.ndim != 3:
        raise UsageError(f"{path}: expected x of shape (N, T, I), or integers (N, T), got {x.dtype} {x.shape}")
    return x.swapaxes(0, 1).astype(np.float32)


def example_input(path: Path, session: Session, settings: Settings, x: NDArray[Any] | None) -> tuple[NDArray[Any], str]:
    """Choose the input that a benchmark runs a model on.

    Args:
        path: The exported file; `example.npz` beside it is the default input.
        session: A session of the file.
        settings: Settings with the batch and steps.
        x: Inputs (T, B, I), or word indices (T, B). None: `example.npz`, else random numbers.

    Returns:
        The input, repeated or cut to the batch and steps of the settings, and a text that names its source.

    Raises:
        UsageError: The shape of x does not fit the model.
    """
    info, source = session.info, "given"
    example = path.parent / EXAMPLE
    if x is None and example.is_file():
        x, source = read_example(example), example.name
    if x is None:
        random, shape = np.random.default_rng(0), (settings.steps or 500, settings.batch)
        if session.vocabulary is not None:
            x, source = random.integers(session.vocabulary, size=shape), "random words"
        elif frontend(info) is not None:
            noise = 0.1 * random.standard_normal((*shape, session.input_size))
            x, source = noise.astype(np.float32), "noise of -20 dB"
        else:
            normal = random.standard_normal((*shape, session.input_size))
            x, source = (
                (normal * info["model"]["input"]["std"] + info["model"]["input"]["mean"]).astype(np.float32),
                "standard normal",
            )
    if x.ndim != 2 + len(session.channels) or x.shape[2:] != session.channels:
        name, remedy = "x", "pass such an array"
        if source == example.name:
            name, remedy = f"{example}: x", "it is of another model in this folder: export the run again"
        raise UsageError(f"{name}: expected shape {session.shape('T', 'B')}, got {x.shape}; {remedy}")
    x = session.checked(x)
    steps = settings.steps or x.shape[0]
    x = np.take(x, np.arange(steps) % x.shape[0], axis=0)
    return np.ascontiguousarray(np.take(x, np.arange(settings.batch) % x.shape[1], axis=1)), source


def tolerance_of(path: Path) -> float:
    """Return the allowed error of the native library on a CPU for the file of a SequenceModel, as in its export."""
    types = {weight.values.dtype for weight in read_weights(path).values()}
    return WHOLE_NUMBERS if np.dtype(np.int8) in types else TOLERANCE


def verify(
    native: Session, portable: Session, x: NDArray[Any], steps: int = 1, *, tolerance: float = TOLERANCE
) -> float:
    """Compare the outputs of the native library with those of standard ONNX operators, on chunks of a sequence.

    Each chunk starts, in both sessions, from the state that `portable` has reached. A model that needs whole sequences
    has a single chunk. If the two sessions update different numbers of neurons of a sequence in a chunk,
    that sequence does not count in the error.

    Args:
        native: Session with the native library.
        portable: Session with standard ONNX operators, the reference.
        x: Inputs (T, B, I), or word indices (T, B).
        steps: Number of steps of a chunk.
        tolerance: Allowed error of a chunk of up to 24 steps, see `allowed_error`.

    Returns:
        The largest absolute error of outputs and states.

    Raises:
        EdgernnError: An error exceeds `allowed_error`, shapes differ, the numbers of updated neurons differ too often
            to be due to rounding, or they differ in every sequence, so that none could be compared.
    """
    worst, disagreements = 0.0, 0
    state = portable.initial_state(x.shape[1])
    frames = [x[t : t + steps] for t in range(0, len(x), steps)] if portable.info["streaming"] else [x]
    for frame in frames:
        before = state
        y, state = portable.run_from(frame, before)
        got_y, got = native.run_from(frame, before)
        for name, value, wanted in (("y", got_y, y), *((n, got[n], state[n]) for n in state)):
            if value.shape != wanted.shape:
                raise EdgernnError(
                    f"not timed: {name} is {value.shape} from the native library and {wanted.shape} from the standard "
                    "ONNX operators of the file, which is damaged; export the model again"
                )
        same = np.ones(x.shape[1], bool)
        if portable.updates is not None and native.updates is not None:
            same = (portable.updates == native.updates).all(0)
        disagreements += int((~same).sum())
        batch_axis = 0 if portable.info["model"]["head"]["output"] == "last" else 1
        for name, value, wanted in (("y", got_y, y), *((n, got[n], state[n]) for n in state)):
            axis = batch_axis if name == "y" else 0
            error = float(np.compress(same, np.abs(value - wanted), axis).max(initial=0.0))
            allowed = allowed_error(np.compress(same, wanted, axis), len(frame), tolerance)
            # NaN is not at most the allowed error
            if not error <= allowed:
                raise EdgernnError(
                    "not timed: the native library and the standard ONNX operators disagree: the largest error of "
                    f"{name} is {error:.3g}, expected at most {allowed:.3g}; report a bug"
                )
            worst = max(worst, error)
    chunks = len(frames) * x.shape[1]
    # rounding may flip a decision at its threshold; frequent flips mean a wrong kernel
    if disagreements > max(1, 0.002 * x.shape[0] * x.shape[1]):
        raise EdgernnError(
            "not timed: the native library and the standard ONNX operators disagree: the numbers of updated neurons "
            f"differ in {disagreements} of {chunks} chunks; report a bug"
        )
    if disagreements == chunks:
        raise EdgernnError(
            "not timed: the outputs of the native library cannot be checked, because the numbers of updated neurons "
            "differ from those of the standard ONNX operators in every sequence; pass several sequences (--batch), or "
            "another input as example, and report a bug if they differ again"
        )
    return worst


def _contenders(
    path: Path, sessions: dict[str, Session], info: dict[str, Any], x: NDArray[Any], settings: Settings
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """Return two dicts: from name to timed function, and from name of a comparison of outputs to its error."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, session in sessions.items():
        calls[name] = _caller(session.onnx, x, session.initial_state(x.shape[1]), ("updates", "macs"))
    if is_network(info):
        return calls, {}
    weights = read_weights(path)
    source = None if frontend(info) is None else parse(read_model(path), path).graph
    verified = {}
    for name, kind in ((GRU, "gru"), (LSTM, "lstm")):
        content = baseline(kind, info, weights, source).SerializeToString()
        session = open_session(path, content, None, settings.threads)
        calls[name] = _caller(session, x, zero_states(session, x.shape[1]), ())
        if is_same(kind, info):
            y = calls[PORTABLE]()[0]
            error, allowed = float(np.abs(calls[name]()[0] - y).max()), allowed_error(y, len(x))
            if not error <= allowed:
                raise EdgernnError(
                    f"not timed: y of {name} differs from y of the measured model, although both have the same "
                    f"weights: the largest error is {error:.3g}, expected at most {allowed:.3g}; report a bug"
                )
            verified[f"against {name}"] = error
    return calls, verified


def _caller(session: Any, x: NDArray[Any], state: dict[str, Array], unread: tuple[str, ...]) -> Callable[[], Any]:
    outputs = [o.name for o in session.get_outputs() if o.name not in unread]
    feeds = {"x": x, **state}
    return lambda: session.run(outputs, feeds)


def _summary(timings: dict[str, list[list[float]]], samples: int, steps: int) -> dict[str, dict[str, float]]:
    medians = {name: np.array([np.median(block) for block in rounds]) for name, rounds in timings.items()}
    reference, faster = (GRU, FASTER_THAN_GRU) if GRU in timings else (PORTABLE, FASTER_THAN_PORTABLE)
    summary = {}
    for name, rounds in timings.items():
        calls = np.concatenate([np.array(block) for block in rounds]) * 1e6
        quartiles = np.percentile(medians[name] * 1e6 / steps, (25, 50, 75))
        ratios = np.percentile(medians[reference] / medians[name], (25, 50, 75))
        summary[name] = {
            "us_per_step": float(quartiles[1]),
            "us_per_step_q1": float(quartiles[0]),
            "us_per_step_q3": float(quartiles[2]),
            "call_p50_us": float(np.percentile(calls, 50)),
            "call_p90_us": float(np.percentile(calls, 90)),
            "call_p99_us": float(np.percentile(calls, 99)),
            "steps_per_second": float(samples / np.median(calls) * 1e6),
            faster: float(ratios[1]),
            f"{faster}_q1": float(ratios[0]),
            f"{faster}_q3": float(ratios[2]),
        }
    return summary


def _costs(info: dict[str, Any], rate: float, executed: float, backend: str) -> dict[str, Any]:
    """Return a model's costs as a dict: its work per step, and its parameters beside those of a GRU and an LSTM."""
    cost = info["cost"]
    idle = cost["flops_paper_idle"]
    # files of earlier versions lack the keys frontend_macs and block_macs
    costs = {"macs": info["macs"], "macs_executed": executed, "macs_executed_by": backend}
    costs |= {name: cost.get(name, 0) for name in ("frontend_macs", "block_macs")}
    costs |= {"parameters": cost["parameters"], "flops_paper": idle + rate * (cost["flops_paper"] - idle)}
    for kind in () if is_network(info) else ("gru", "lstm"):
        costs[f"parameters_{kind}"] = parameters(kind, info)
        costs[f"parameters_saved_percent_{kind}"] = 100 * (1 - cost["parameters"] / costs[f"parameters_{kind}"])
    return costs
