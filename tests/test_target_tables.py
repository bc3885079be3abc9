# SPDX-License-Identifier: Apache-2.0
"""The table of targets: its accuracies, losses and verdicts follow from the entries of the trained models."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.room_times import DENSE, EACH_STEP, IN_C, OURS, THEIRS
from edgernn.runtime.zoo import entries
from edgernn.training.tasks.clips import Clips
from tests.source_tree import ROOT

# official test split of the Arabic words: clips of each word
CLIPS = 60


@pytest.fixture(scope="module")
def tables():
    return importlib.import_module("benchmarks.tables.targets")


@pytest.fixture(scope="module")
def models():
    return {entry["name"]: entry for entry in entries(ROOT / "models")}


def right(entry):
    """Return the number of words that a model of Arabic words classifies right, from the recalls of its classes."""
    hits = [CLIPS * figures["recall"] for name, figures in entry["classes"].items() if name != "_silence_"]
    assert len(hits) == 40
    assert np.allclose(hits, np.round(hits))
    return round(sum(hits))


def test_accuracy_over_words_is_that_of_the_recalls(models):
    arabic = [entry for name, entry in models.items() if name.startswith("arabic-")]
    assert len(arabic) == 5
    for entry in arabic:
        words = entry["parts"]["words"]
        assert words["sequences"] == 40 * CLIPS
        assert words["value"] == right(entry) / words["sequences"]
        assert words["interval"]["low"] < words["value"] < words["interval"]["high"]
        assert entry["files"]["model.onnx"]["accuracy_words"] == words["value"]
        # with silence, the right clips are those of words and of silence
        silence = entry["sequences"] - words["sequences"]
        heard = round(silence * entry["classes"]["_silence_"]["recall"])
        assert (right(entry) + heard) / entry["sequences"] == pytest.approx(entry["value"])
        card = (Path(entry["folder"]) / "model.md").read_text(encoding="utf-8")
        assert f"accuracy_words, over the 2,400 sequences of `words` alone: {words['value']:.4g}," in card


def test_verdicts_follow_from_the_entries(tables, models):
    lines = tables.targets().splitlines()
    dense = models["arabic-words-gru"]["parts"]["words"]
    miss = 97.97 - 100 * right(models["arabic-words-gru"]) / (40 * CLIPS)
    (line,) = [line for line in lines if "accuracy_words" in line]
    assert (f"missed: by {miss:.2f} points" if miss > 0 else "reached") in line
    inside = 100 * dense["interval"]["low"] <= 97.97 <= 100 * dense["interval"]["high"]
    assert ("within this interval" if inside else "outside this interval") in line
    for name in ("arabic-words-delta", "arabic-room-delta"):
        (line,) = [line for line in lines if line.startswith(f"| `{name}`, isolated words, beside `arabic")]
        loss = 100 * (right(models["arabic-words-gru"]) - right(models[name])) / (40 * CLIPS)
        share = 100 * models[name]["parts"]["words"]["macs_executed"] / dense["macs_executed"]
        assert f"{loss:.2f} points less, at {share:.1f} %" in line
        assert line.endswith("| reached |") == (loss <= 0.5 and share <= 40)


def test_an_engine_verdict_names_both_cases(tables):
    entry = {"name": "x", "value": 14.0, "card_metrics": {"rmse_uncapped": 15.0}}
    assert tables._engine_row(entry)[3] == (
        "reached if the published lives are capped; missed: by 0.07 cycles if they are not"
    )
    assert tables._engine_row({**entry, "card_metrics": {"rmse_uncapped": 14.5}})[3] == "reached"


def test_room_figures_are_those_of_their_page(tables, models):
    report, times = (json.loads((ROOT / f"docs/results/{name}.json").read_text()) for name in ("room", "room-times"))
    page = (ROOT / "docs/how-to/detect-words.md").read_text(encoding="utf-8")
    took = {row["model"]: row["whole"] for row in times["rows"] if row["way"] == IN_C}
    assert took.pop(DENSE) > 0
    # the dense model that was trained further
    (dense,) = [run for run in report["runs"] if run["room_macs_a_second"] == run["room_macs_a_second_dense"]]
    rows = tables._room_rows(models)
    assert len(rows) == 4 * len(took) == 8
    for row in rows[1::4]:
        name = row[0].split("`")[1]
        assert f"| `{name}`, {IN_C} | {took[name]:.0f} |" in page
        assert row[1].startswith(f"{took[name]:.0f} µs a second, {took[name] / 1e4:.3f} % of real time, ")
        assert "`python -m benchmarks.room_times`" in row[1]
    for row in rows[::4]:
        room = report["models"][row[0].split("`")[1]]["room"]
        share = room["room_macs_a_second"] / dense["room_macs_a_second"]
        assert ("multiply-adds by" in row[3]) == (share > 0.06)
        assert f"{100 * room['room_hits']:.1f} % hits (dense {100 * dense['room_hits']:.1f} %)" in row[1]
    for row in rows[3::4]:
        entry = models[row[0].split("`")[1]]
        loss, share = 100 * dense["accuracy_words"] - 100 * right(entry) / (40 * CLIPS), entry["parts"]["words"]
        assert row[1].startswith(f"{loss:.2f} points less, at ")
        assert (row[3] == "reached") == (loss <= 0.5 and share["macs_executed"] <= 0.4 * dense["macs_executed"])


def room_time(model, way, recurrent, whole):
    return (model, way), {"model": model, "way": way, "recurrent": recurrent, "whole": whole}


@pytest.mark.parametrize(
    ("from_python", "verdict"),
    [
        (None, "not measured: ONNX Runtime was called from Python only, this model from C only"),
        ((100.0, 200.0), "reached"),
        ((125.0, 200.0), "missed: recurrent by a factor of 1.2"),
        ((125.0, 250.0), "missed: recurrent by a factor of 1.2, whole by a factor of 1.2"),
    ],
)
def test_times_are_compared_with_onnxruntime_in_the_same_language(tables, from_python, verdict):
    # far faster from C, which says nothing about ONNX Runtime from Python
    rows = [room_time(DENSE, f"{THEIRS}, {EACH_STEP}", 1000.0, 1000.0)]
    rows += [room_time(DENSE, IN_C, 30.0, 40.0), room_time("skipping", IN_C, 10.0, 20.0)]
    if from_python is not None:
        rows.append(room_time("skipping", f"{OURS}, {EACH_STEP}", *from_python))
    _, figures, target, judged = tables._faster_row("skipping", dict(rows))
    assert judged == verdict
    assert figures.startswith("both from C by edgernn: recurrent part 3.0 times faster, whole model 2.0 times")
    assert ("; both from Python, the dense one in ONNX Runtime: " in figures) == (from_python is not None)
    assert "called from the same language" in target


def test_the_dense_run_is_found_by_its_settings(tables):
    dense, skipping = {"settings": {"epochs": "30"}}, {"settings": {"theta_x": "0.4", "epochs": "30"}}
    periodic = {"settings": {"period": "4", "epochs": "30"}}
    assert tables._dense_run([skipping, dense, periodic]) is dense
    for runs in ([skipping], [dense, skipping, dense]):
        with pytest.raises(ValueError, match=f"expected one run without theta_x and period, got {len(runs) - 1}"):
            tables._dense_run(runs)


def test_the_part_of_words_has_neither_silence_nor_unknown_words():
    rng = np.random.default_rng(0)
    samples = rng.integers(-100, 100, (6, 64)).astype(np.int16)
    # classes: two words, unknown, silence
    clips = Clips(samples, 16, np.array([0, 1, 2, 3, 1, 2]), np.array([2, 5]), 2, 3, 3, [np.zeros(640, np.float32)])
    words = clips.of_words()
    assert (len(clips), len(words)) == (9, 3)
    (batch,) = words.chunks()
    assert batch.target.tolist() == [0, 1, 1]
    everything = torch.cat([chunk.x for chunk in clips.chunks()], 1)
    assert torch.equal(batch.x, everything[:, [0, 1, 3]])
    assert everything.shape[1] == 9


def test_silence_needs_less_work_than_words(models):
    """So the mean over all clips, of which a third is silence, understates the work on words."""
    entry = models["arabic-room-delta"]
    assert entry["macs_executed"] < entry["parts"]["words"]["macs_executed"] < entry["macs"]


def test_the_page_states_the_figures_of_the_entries(models):
    page = " ".join((ROOT / "docs/how-to/trained-models.md").read_text(encoding="utf-8").split())
    dense, skipping = models["engine-life-gru"], models["engine-life-sarnn"]
    assert f"executes {100 * skipping['macs_executed'] / dense['macs_executed']:.0f} % of the multiply-adds" in page
    kilobytes, errors, times = [], [], []
    for entry in (skipping, dense):
        bench = json.loads((Path(entry["folder"]) / "bench.json").read_text(encoding="utf-8"))
        kilobytes.append(f"{entry['files']['model.onnx']['bytes'] / 1000:.1f} kB")
        errors.append(f"{entry['files']['model-int8.onnx']['rmse']:.2f}")
        times.append(f"{bench['timings']['edgernn native']['us_per_step']:.2f}")
    assert f"{kilobytes[0]} against {kilobytes[1]}" in page
    assert f"its error is {errors[0]} cycles against {errors[1]}" in page
    assert f"{times[0]} and {times[1]} µs" in page
    for name, text in (("words-gru", "has {} in {} clips"), ("room-gru", "{} in {}. So `accuracy`")):
        entry = models[f"arabic-{name}"]
        count = entry["sequences"]
        assert text.format(f"{count - entry['parts']['words']['sequences']:,}", f"{count:,}") in page
