# SPDX-License-Identifier: Apache-2.0
"""Work and time of word models over the share of background: `python -m benchmarks.room_shares [RUN ...]`.

The packed models run step by step in a C loop, in rooms of which words take 50 to 1 % of the time, for one stream and
for 64. EDGERNN_DATA is the folder of data sets; speech-noise, the folder with recordings of noise, must be in the
current folder. Each RUN, a run directory, is measured beside the trained models. Writes docs/results/room-shares.json,
and goes on with the language that it lacks.
"""

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT, command_of, parser_of
from benchmarks.room_times import Array, without_frontend
from benchmarks.step_times import run_steps, timer
from edgernn.bench.provenance import machine
from edgernn.export.exported_model import read_exported
from edgernn.files import write_json
from edgernn.model import SequenceModel
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.timing import wall
from edgernn.runtime.zoo import ENTRY, find_model
from edgernn.store import load_model
from edgernn.training.evaluate_model import open_entry
from edgernn.training.tasks.rooms import Room
from tests.models import packed_alone

# models by language; the first is the dense one, with whose data all are measured
MODELS = (
    ("arabic-room-gru", "arabic-room-sarnn", "arabic-room-delta"),
    ("english-room-gru", "english-room-delta"),
)
# shares of the time in which a word is spoken
TALK = (0.5, 0.2, 0.05, 0.01)
HOURS, STREAMS = 1 / 12, 64
# share of the streams that have words, half of their time, where the others have digital silence
TALKING = 0.05


def heard(room: Room, talk: float) -> tuple[Array, float]:
    """Return samples (T, hop) of a room, and the share of the time in which no word is spoken."""
    recordings = [*replace(room, hours=HOURS, talk=talk).recordings()]
    samples = np.concatenate([recording.samples for recording in recordings])
    spoken = sum(word.end - word.begin for recording in recordings for word in recording.words)
    return samples.reshape(-1, room.acoustics.hop), 1 - spoken / len(samples)


def streams(x: Array, speaking: int = STREAMS) -> Array:
    """Cut a recording (T, hop) into parallel streams (T, B, hop), of which the first `speaking` are not silenced."""
    steps = len(x) // STREAMS
    parts = x[: steps * STREAMS].reshape(STREAMS, steps, -1).swapaxes(0, 1).copy()
    parts[:, speaking:] = 0
    return parts


def features(model: SequenceModel, x: Array) -> Array:
    """Return what the front end of a model computes from x (T, B, hop)."""
    assert model.frontend is not None
    with torch.no_grad():
        start = model.frontend.initial_state(x.shape[1], torch.zeros(1))
        computed: Array = model.frontend(torch.from_numpy(x), start)[0].contiguous().numpy()
    return computed


def work(stepper: Stepper, model: SequenceModel, x: Array) -> dict[str, float]:
    """Count the updates and the multiply-adds of the layers in a step of a stream, means over x (T, B, I)."""
    layers = model.recurrent_layers()
    neurons = sum(layer.cell.hidden_size for layer in layers)
    dense = sum(layer.macs() for layer in layers)
    macs = updates = 0.0
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        macs += dense if stepper.macs is None else stepper.macs.mean()
        updates += neurons if stepper.updates is None else stepper.updates.mean()
    stepper.restart()
    return {"updated": updates / len(x) / neurons, "work": macs / len(x) / dense}


def measure(library: ctypes.CDLL, models: Mapping[str, SequenceModel], x: Array, rounds: int) -> list[dict[str, Any]]:
    """Time models on x (T, B, hop) in interleaved rounds.

    Returns:
        For each model its work, and for the "whole" model and its "recurrent" part the microseconds for a second of
        audio of one stream, and under "whole_time" and "recurrent_time" the time relative to the first model.
    """
    calls, rows = {}, []
    for name, model in models.items():
        bare = without_frontend(model)
        inputs = {"whole": (model, x), "recurrent": (bare, features(model, x))}
        steppers = {part: Stepper(packed_alone(timed), x.shape[1]) for part, (timed, _) in inputs.items()}
        rows.append({"model": name, **work(steppers["recurrent"], bare, inputs["recurrent"][1])})
        for part, (_, data) in inputs.items():
            flat, nanoseconds = data.reshape(len(data), -1), np.zeros(len(data), np.uint32)
            calls[f"{name} {part}"] = partial(run_steps, library, steppers[part], flat, nanoseconds)
    config = models[next(iter(models))].frontend
    assert config is not None
    seconds = x.shape[1] * len(x) * config.config.hop / config.config.sample_rate
    taken = [{name: wall(run, 1) for name, run in calls.items()} for _ in range(rounds + 1)][1:]
    dense = next(iter(models))
    for row in rows:
        for part in ("whole", "recurrent"):
            times, whole = (np.array([took[f"{name} {part}"] for took in taken]) for name in (row["model"], dense))
            row[part] = 1e6 / seconds * float(np.median(times))
            row[f"{part}_time"] = float(np.median(times / whole))
    return rows


def rows_of(models: Sequence[str], runs: Sequence[Path], rounds: int) -> list[dict[str, Any]]:
    """Measure the models of one language in all rooms."""
    library = timer()
    room = open_entry(find_model(Path(models[0])).with_name(ENTRY), {})._room  # type: ignore[attr-defined]
    loaded = {name: read_exported(find_model(Path(name)))[0] for name in models}
    loaded |= {run.name: load_model(run)[0].eval() for run in runs}
    rows = []
    for talk in TALK:
        x, background = heard(room, talk)
        cases = {(1, 1): x[:, None]} | ({(STREAMS, STREAMS): streams(x)} if talk == TALKING else {})
        if talk == max(TALK):
            speaking = round(TALKING * STREAMS)
            cases[STREAMS, speaking] = streams(x, speaking)
        for (count, speaking), part in cases.items():
            setting = {"streams": count, "speaking": speaking, "talk": talk, "background": background}
            rows += [setting | row for row in measure(library, loaded, part, rounds)]
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="Run directories of further Arabic models.")
    parser.add_argument("--rounds", type=int, default=7, help="Number of timing rounds.  [default: 7]")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "room-shares.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.is_file() else {"rows": []}
    report |= {"command": command_of("room_shares"), "machine": machine(), "rounds": arguments.rounds}
    measured = {row["model"] for row in report["rows"]}
    for models, runs in zip(MODELS, (arguments.runs, []), strict=True):
        if models[0] not in measured:
            report["rows"] += rows_of(models, runs, arguments.rounds)
            write_json(arguments.out, report)


if __name__ == "__main__":
    main()
