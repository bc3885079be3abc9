# SPDX-License-Identifier: Apache-2.0
"""The times of word models in a room: the report that their command writes, and its table."""

import importlib
import json

import numpy as np
import pytest

from benchmarks import room_times
from benchmarks.room_times import (
    DENSE,
    EACH_STEP,
    IN_C,
    MODELS,
    ONE_CALL,
    OURS,
    ROUNDS,
    THEIRS,
    TimedRow,
    report,
)
from edgernn.runtime.wav import write_wav
from tests.source_tree import ROOT

FILE = "docs/results/room-times.json"
# models and ways to run them
ALL = {(name, way) for name in MODELS for way in (f"{OURS}, {ONE_CALL}", f"{OURS}, {EACH_STEP}", IN_C)}
ALL |= {(DENSE, f"{THEIRS}, {call}") for call in (ONE_CALL, EACH_STEP)}


@pytest.fixture(scope="module")
def tables():
    return importlib.import_module("benchmarks.tables.rooms")


def stored():
    return json.loads((ROOT / FILE).read_text(encoding="utf-8"))


def test_the_report_has_medians_for_a_second_of_audio():
    assert ROUNDS % 2 == 1
    turns = []

    def timed(name, first):
        microseconds = iter([first, *(100.0,) * (ROUNDS // 2), *(800.0,) * (ROUNDS // 2)])

        def run():
            turns.append(name)
            return next(microseconds)

        return run

    rows = [
        TimedRow("a", ONE_CALL, {"whole": timed("a", 300.0), "recurrent": timed("b", 200.0)}),
        TimedRow("c", IN_C, {"recurrent": timed("c", 250.0)}),
    ]
    times = report(rows, 2.0, "python -m x")
    assert times["rows"] == [
        {"model": "a", "way": ONE_CALL, "whole": 150.0, "recurrent": 100.0},
        {"model": "c", "way": IN_C, "recurrent": 125.0},
    ]
    # in turns, so that a slow minute of the machine meets all of them
    assert turns == ["a", "b", "c"] * ROUNDS
    assert (times["command"], times["rounds"]) == ("python -m x", ROUNDS)


def test_all_models_are_timed_in_all_ways(tmp_path):
    samples = 0.1 * np.random.default_rng(0).standard_normal(3200)
    write_wav(tmp_path / "noise.wav", samples.astype(np.float32), 16_000)
    rows, seconds = room_times.prepare(tmp_path / "noise.wav")
    assert seconds == 0.2
    assert {(row.model, row.way) for row in rows} == ALL
    for row in rows:
        assert row.timed.keys() == {"whole", "recurrent"}
        assert all(run() > 0 for run in row.timed.values())


def test_the_stored_times_have_the_form_of_the_report():
    times = stored()
    assert times.keys() == report([], 1.0, "").keys()
    assert times["command"].startswith("python -m benchmarks.room_times ")
    assert times["command"].endswith(f" --out {FILE}")
    rows = {(row["model"], row["way"]) for row in times["rows"]}
    # reports of an earlier version lack the times of edgernn from Python
    assert ALL - {(name, f"{OURS}, {call}") for name in MODELS for call in (ONE_CALL, EACH_STEP)} <= rows <= ALL
    for row in times["rows"]:
        assert row.keys() - {"model", "way"} == {"whole", "recurrent"}


def test_the_table_has_the_stored_times(tables):
    text, times = tables.rooms()["room-times"], stored()
    rows = {(row["model"], row["way"]): row for row in times["rows"]}
    assert f"`{times['command']}`" in " ".join(text.split())
    for (name, way), row in rows.items():
        assert f"| `{name}`, {way} | {row['whole']:,.0f} | {row['recurrent']:,.0f} |" in text
    low, high = (
        choose(rows[DENSE, IN_C]["recurrent"] / rows[name, IN_C]["recurrent"] for name in MODELS[1:])
        for choose in (min, max)
    )
    assert f"the dense model takes {low:.1f} to {high:.1f} times as long as the models that skip" in " ".join(
        text.split()
    )


def test_the_page_has_ratios_of_the_same_language_alone(tables, monkeypatch):
    names = ("IN_C", "ONE_CALL", "EACH_STEP", "OURS", "THEIRS")
    assert all(getattr(tables, name) == getattr(room_times, name) for name in names)

    def timed(model, way, recurrent, whole):
        return {"model": model, "way": way, "recurrent": recurrent, "whole": whole}

    rows = [timed(DENSE, f"{THEIRS}, {ONE_CALL}", 40.0, 90.0), timed(DENSE, f"{THEIRS}, {EACH_STEP}", 990.0, 1980.0)]
    rows += [timed(DENSE, IN_C, 30.0, 60.0), timed("skipping", IN_C, 10.0, 30.0)]
    times = {**stored(), "rows": rows}
    monkeypatch.setattr(tables, "read_report", lambda name: times)
    text = " ".join(tables._times().split())
    assert "3.0 to 3.0 times as long as the models that skip in the recurrent part, and 2.0 to 2.0 times as a" in text
    assert "4.0 to 4.0 times as long as these loops in C in the recurrent part, and 3.0 to 3.0 times as a whole" in text
    assert "99.0" not in text
    assert "do not compare with those from C" in text
    times["rows"] = [*rows, timed("skipping", f"{OURS}, {EACH_STEP}", 99.0, 198.0)]
    text = " ".join(tables._times().split())
    assert "With a call from Python for each step in both, the dense model in ONNX Runtime takes 10.0 to 10.0" in text
    assert "do not compare" not in text


def test_the_tables_of_calibration_have_the_stored_figures(tables):
    figures = json.loads((ROOT / "docs/results/calibration.json").read_text(encoding="utf-8"))
    texts = tables.calibrated()
    lines = [line.strip("| ").split(" | ") for line in texts["calibrated"].splitlines() if line.startswith("|")]
    times = {row["model"]: row for row in figures["times"] if row["way"] == IN_C}
    assert [cells[0] for cells in lines[2:]] == ["dense", *(str(row["loss"]) for row in figures["rows"][1:])]
    for cells, row in zip(lines[2:], figures["rows"], strict=True):
        words = row["words"]
        assert cells[2:4] == [f"{100 * row['accuracy']:.1f} %", f"{100 * words['value']:.1f} %"]
        assert cells[4:6] == [f"{100 * part['macs_executed'] / figures['macs']:.1f} %" for part in (row, words)]
        assert cells[6:] == [f"{times[cells[0]][part]:.0f}" for part in ("recurrent", "whole")]
    room = json.loads((ROOT / "docs/results/room.json").read_text(encoding="utf-8"))
    last = room["untrained"][-1]
    share = last["room_macs_a_second"] / room["models"][DENSE]["room"]["room_macs_a_second"]
    assert f"| {last['theta_x']}, {last['theta_h']} | {100 * last['room_hits']:.1f} % |" in texts["calibrated-room"]
    assert f"| {100 * share:.1f} % |" in texts["calibrated-room"]
