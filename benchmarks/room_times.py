# SPDX-License-Identifier: Apache-2.0
"""Times word models on a recording: `python -m benchmarks.room_times WAV --out FILE`, with room.wav of a run.

Writes the microseconds for a second of audio to the JSON file FILE, medians of interleaved rounds on one thread. All
models are run by edgernn, the dense one by ONNX Runtime, too: in one call from Python, and in a call from Python for
each step. Compare times of the same language and number of calls only. The packed models are also run step by step from
C. Models are timed with and without their audio front end. Nothing else may run on the machine.
"""

import ctypes
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

import edgernn
from benchmarks import command_of, parser_of
from benchmarks.step_times import run_steps, timer
from edgernn.bench.baseline import baseline
from edgernn.export.exported_model import read_exported
from edgernn.export.graph import build
from edgernn.files import write_json
from edgernn.frontends import FrontendConfig
from edgernn.machine import processor
from edgernn.model import SequenceModel
from edgernn.runtime import Session
from edgernn.runtime.info import read_info
from edgernn.runtime.library import instruction_set
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.runtime.weights import read_weights
from edgernn.runtime.zoo import zoo_folder
from tests.models import packed_alone

DENSE = "arabic-room-gru"
MODELS = (DENSE, "arabic-room-sarnn", "arabic-room-delta")
ROUNDS = 15
# how a model runs: the library, and how it is called
IN_C = "edgernn, a call from C for each step"
ONE_CALL, EACH_STEP = "one call from Python", "a call from Python for each step"
OURS, THEIRS = "edgernn", "ONNX Runtime"

Array = NDArray[np.float32]


@dataclass(frozen=True)
class TimedRow:
    """A row of the report.

    Attributes:
        model: Name of the model.
        way: How it runs: IN_C, or a library and a call, such as "edgernn, one call from Python".
        timed: Functions that run the recording and return microseconds: of the "whole" model, and of its "recurrent"
            part alone.
    """

    model: str
    way: str
    timed: Mapping[str, Callable[[], float]]


def without_frontend(model: SequenceModel) -> SequenceModel:
    """Return a copy of a model that reads the features that the front end computes."""
    assert model.frontend is not None
    config = dataclasses.replace(model.config, frontend=FrontendConfig(name=None))
    config = dataclasses.replace(config, input=dataclasses.replace(config.input, size=model.input_mean.numel()))
    copy = SequenceModel(config)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def in_c(library: ctypes.CDLL, model: SequenceModel, x: Array) -> Callable[[], float]:
    """Return a function that runs all steps of x (T, I) in C and returns their microseconds."""
    stepper, taken = Stepper(packed_alone(model), 1), np.zeros(len(x), np.uint32)

    def run() -> float:
        run_steps(library, stepper, x, taken)
        return float(taken.sum()) / 1000

    return run


def in_python(model: SequenceModel, x: Array, *, steps: bool) -> Callable[[], float]:
    """Return a function that runs x (T, I) in edgernn, in one call or a call for each step, and times it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(build(model, portable=False), str(path))
        session = Session(path)
        # reads the file
        session.step(x[0])

    def run() -> float:
        session.reset()
        begin = time.perf_counter()
        if steps:
            for row in x:
                session.step(row)
        else:
            session.run(x)
        return 1e6 * (time.perf_counter() - begin)

    return run


def in_onnxruntime(content: bytes, x: Array, *, steps: bool) -> Callable[[], float]:
    """Return a function that runs x (T, I) in ONNX Runtime, in one call or a call for each step, and times it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options)
    starts = {
        value.name: np.zeros([size if isinstance(size, int) else 1 for size in value.shape], np.float32)
        for value in session.get_inputs()
        if value.name != "x"
    }
    parts = [row[None, None] for row in x] if steps else [x[:, None]]

    def run() -> float:
        state = dict(starts)
        begin = time.perf_counter()
        for part in parts:
            _, *last = session.run(None, {"x": part, **state})
            state = dict(zip(starts, last, strict=True))
        return 1e6 * (time.perf_counter() - begin)

    return run


def timed_rows(library: ctypes.CDLL, name: str, model: SequenceModel, x: Array) -> list[TimedRow]:
    """Prepare the functions that time a model on samples, with and without its front end."""
    front, bare = model.frontend, without_frontend(model)
    assert front is not None
    with torch.no_grad():
        start = front.initial_state(1, torch.zeros(1))
        features = front(torch.from_numpy(x[:, None]), start)[0][:, 0].contiguous().numpy()
    inputs = {"whole": (model, x), "recurrent": (bare, features)}
    rows = []
    for call in (ONE_CALL, EACH_STEP):
        steps = call == EACH_STEP
        if not model.rule_type.can_skip:
            theirs = {
                part: in_onnxruntime(reference(timed, front=timed is model), data, steps=steps)
                for part, (timed, data) in inputs.items()
            }
            rows.append(TimedRow(name, f"{THEIRS}, {call}", theirs))
        ours = {part: in_python(timed, data, steps=steps) for part, (timed, data) in inputs.items()}
        rows.append(TimedRow(name, f"{OURS}, {call}", ours))
    in_steps = {part: in_c(library, timed, data) for part, (timed, data) in inputs.items()}
    return [*rows, TimedRow(name, IN_C, in_steps)]


def prepare(wav: Path) -> tuple[list[TimedRow], float]:
    """Prepare what is timed on a recording."""
    folder = zoo_folder()
    assert folder is not None
    library = timer()
    rows: list[TimedRow] = []
    for name in MODELS:
        model, _ = read_exported(folder / name / "model.onnx")
        assert model.frontend is not None
        rate, hop = model.frontend.config.sample_rate, model.frontend.config.hop
        samples = read_wav(wav, rate)
        x = samples[: len(samples) // hop * hop].reshape(-1, hop).astype(np.float32) / FULL_SCALE
        rows += timed_rows(library, name, model, x)
    return rows, len(samples) / rate


def report(rows: Sequence[TimedRow], seconds: float, command: str) -> dict[str, Any]:
    """Time all rows in interleaved rounds."""
    times: dict[tuple[int, str], list[float]] = {}
    for _ in range(ROUNDS):
        for i, row in enumerate(rows):
            for part, run in row.timed.items():
                times.setdefault((i, part), []).append(run() / seconds)
    return {
        "command": command,
        "edgernn": edgernn.__version__,
        "processor": processor(),
        "instruction_set": instruction_set(),
        "rounds": ROUNDS,
        "rows": [
            {"model": row.model, "way": row.way}
            | {part: round(float(np.median(times[i, part])), 1) for part in row.timed}
            for i, row in enumerate(rows)
        ],
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("wav", type=Path, help="Recording: mono, with the sample rate of the models.")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = command_of("room_times")
    write_json(arguments.out, report(*prepare(arguments.wav), command))


def reference(model: SequenceModel, *, front: bool) -> bytes:
    """Return a dense model with ONNX's own GRU operators, with or without its audio front end."""
    proto = build(model, portable=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(proto, str(path))
        info: dict[str, Any] = read_info({entry.key: entry.value for entry in proto.metadata_props}["edgernn"], path)
        return baseline("gru", info, read_weights(path), proto.graph if front else None).SerializeToString()


if __name__ == "__main__":
    main()
