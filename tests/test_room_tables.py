# SPDX-License-Identifier: Apache-2.0
"""The times of word models in a room: the report that their command writes, and its table."""

import json
import sys

import pytest

from tests.measure_room_times import DENSE, EACH_STEP, IN_C, MODELS, ONE_CALL, ROUNDS, TimedRow, report
from tests.source_tree import ROOT, load_script

FILE = "docs/results/room-times.json"


@pytest.fixture(scope="module")
def tables():
    load_script(ROOT / "docs" / "generate.py")
    return sys.modules["room_tables"]


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


def test_the_stored_times_have_the_form_of_the_report():
    times = stored()
    assert times.keys() == report([], 1.0, "").keys()
    assert times["command"].startswith("python -m tests.measure_room_times ")
    assert times["command"].endswith(f" --out {FILE}")
    expected = [(DENSE, ONE_CALL), (DENSE, EACH_STEP), *((name, IN_C) for name in MODELS)]
    assert [(row["model"], row["way"]) for row in times["rows"]] == expected
    for row in times["rows"]:
        assert row.keys() - {"model", "way"} == {"whole", "recurrent"}


def test_the_table_has_the_stored_times(tables):
    text, times = tables.rooms()["room-times"], stored()
    rows = {(row["model"], row["way"]): row for row in times["rows"]}
    assert f"`{times['command']}`" in " ".join(text.split())
    assert rows.keys() == {(DENSE, ONE_CALL), (DENSE, EACH_STEP), *((name, IN_C) for name in MODELS)}
    for (name, way), row in rows.items():
        assert f"| `{name}`, {way} | {row['whole']:,.0f} | {row['recurrent']:,.0f} |" in text
    slowest, fastest = (
        choose(rows[DENSE, EACH_STEP]["recurrent"] / rows[name, IN_C]["recurrent"] for name in MODELS[1:])
        for choose in (min, max)
    )
    assert f"is {slowest:.0f} to {fastest:.0f} times faster than that of the dense model" in " ".join(text.split())


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
