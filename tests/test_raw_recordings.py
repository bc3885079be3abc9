# SPDX-License-Identifier: Apache-2.0
"""From a user's raw tables to a packed model that answers, by one `train` and one `export` line."""

import datetime
import json
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from edgernn.cli.frame import main
from edgernn.cli.run import _text
from edgernn.cli.train import _text as train_text
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.runtime.csv_table import Dialect
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_file import _read_raw, read, run_file
from edgernn.runtime.timeline import Recording, TimeNames, seconds_of
from edgernn.runtime.wav import warn_of_conversion
from edgernn.store import load_any
from edgernn.training.evaluate import open_task
from edgernn.training.evaluate_model import evaluate_model
from edgernn.training.formats.tables import read_tables
from edgernn.training.tasks import find_task
from edgernn.training.tasks.keywords import OwnWords
from edgernn.training.tasks.parts import groups_of, split_units
from edgernn.training.tasks.recordings import PARTS
from edgernn.training.tasks.tables import Tables
from tests.task_helpers import opened, parts
from tests.training_helpers import without_pictures
from tests.words import write_wav

ACTIVITIES = ["sit", "walk", "climb stairs"]
HZ = 50
# small data may be learnt by heart
overfitting = pytest.mark.filterwarnings("ignore:.*the model overfits:edgernn.errors.EdgernnWarning")
copies = pytest.mark.filterwarnings("ignore:.*the same numbers in:edgernn.errors.EdgernnWarning")


def motion(rng, activities, start=1_764_300_000.0):
    """Return rows of a time, accelerations and a label: about 2 s of each activity, and a gap of 5 s after "sit"."""
    rows, t = [], start
    for name in activities:
        speed = ACTIVITIES.index(name)
        for _ in range(rng.integers(90, 130)):
            rows.append((t, np.sin(6 * speed * t) + rng.normal(0, 0.1), np.cos(6 * speed * t), 9.8 - speed, name))
            t += 1 / HZ + rng.normal(0, 3e-4)
        t += 5 * (name == "sit")
    return rows


def comma(value, digits):
    return f"{value:.{digits}f}".replace(".", ",")


def write_recordings(folder, people=8):
    """Write two recordings of each person: semicolons, decimal commas, quotes, a byte order mark, and names in .CSV."""
    folder.mkdir(parents=True)
    for i in range(2 * people):
        rng = np.random.default_rng(i)
        lines = ['"time (s)";"acc α";"acc y";"acc z";note;activity;person']
        for t, *values, label in motion(rng, [ACTIVITIES[k] for k in rng.permutation(3)]):
            numbers = [comma(t, 3), *(comma(value, 4) for value in values)]
            lines.append(";".join([*numbers, "ok", f'"{label}"', f"p{i // 2}"]))
        path = folder / f"recording {i:02d}.{'CSV' if i % 2 else 'csv'}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


MOTION = {"resample": float(HZ), "gap": 1.0, "window": 50, "stride": 25, "label": "activity"}


def train(task, run, settings, cell="gru"):
    words = [f"{name}={value}" for name, value in {"hidden_size": 12, "steps": 60, "lr": 0.02, **settings}.items()]
    assert main(["train", "--task", str(task), "--cell", cell, "--out", str(run), *words]) == 0


@overfitting
def test_recordings_become_a_packed_model_with_names_of_classes(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    source, run = tmp_path / "motion", tmp_path / "run"
    write_recordings(source)
    train(source, run, MOTION)
    said = capsys.readouterr().err.splitlines()[:5]
    assert said[0].endswith("rows, decimal commas")
    assert said[1] == "time: time (s), 50 rows a second, resampled to 50, split at gaps above 1 s"
    assert said[2] == "channels: acc α, acc y, acc z; not read: note"
    assert said[3] == "label: activity, one for each sequence; classes: climb stairs, sit, walk"
    assert said[4].startswith("split by person: train p")
    assert main(["export", str(run)]) == 0
    assert json.loads((run / "result.json").read_text())["accuracy"] > 0.8
    split = json.loads((run / "split.json").read_text())
    assert [len(split[part]) for part in ("train", "validation", "test")] == [6, 1, 1]
    card = (run / "model.md").read_text()
    assert (
        f"| split by person | train: 6 ({', '.join(split['train'])}); validation: 1 ({split['validation'][0]});" in card
    )
    assert "| classes of y | `climb stairs`, `sit`, `walk` |" in card
    assert "| probabilities | calibrated on the validation part: scores divided by" in card
    packed = tmp_path / "model.edgernn"
    assert pack_file(run / "model.onnx", packed)["reading"] == {"rate": 50, "window": 50}
    assert all(name.encode() in packed.read_bytes() for name in ACTIVITIES)
    # a raw file, with its columns of time and labels
    raw = source / "recording 01.CSV"
    with pytest.warns(match=r"not read: note, activity, person; the channels are acc α, acc y, acc z"):
        answer = run_file(run / "model.onnx", raw)
    assert answer["classes"] == ["climb stairs", "sit", "walk"]
    with pytest.warns(match=r"not read: time \(s\), note, activity, person"):
        assert run_file(packed, raw)["axes"] == ["step"]
    # an answer for each window of the raw file
    assert answer["axes"] == ["sequence"]
    assert np.shape(answer["probabilities"])[0] > 5
    assert np.sum(answer["probabilities"], 1) == pytest.approx(1)
    assert "| sequences | 50 rows a second, windows of 50 rows; give an app the same |" in card


def write_table(path, sequences=30):
    """Write one table: 20 rows of each sequence, whose target is the mean of one channel; ids, decimal commas."""
    rng = np.random.default_rng(0)
    lines = ["run id;date;u;v;level"]
    for i in range(sequences):
        rows = rng.normal(rng.uniform(-2, 2), 0.3, (20, 2))
        for k, (u, v) in enumerate(rows):
            cells = [comma(u, 4), comma(v, 4), comma(rows[:, 0].mean(), 4)]
            lines.append(";".join([f"r{i:02d}", f"2026-01-{1 + i % 28:02d} 10:00:{k:02d}", *cells]))
    path.write_text("\n".join(lines) + "\n")


@overfitting
def test_a_table_with_ids_becomes_a_packed_model_of_numbers(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    source, run = tmp_path / "plant.csv", tmp_path / "run"
    write_table(source)
    train(source, run, {"sequence": "run id", "targets": "level", "steps": 100}, "sarnn")
    assert main(["export", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "mse"
    assert result["mse"] < 0.3
    pack_file(run / "model.onnx", tmp_path / "plant.edgernn")
    # 100 steps of 24 sequences are many epochs, and one step is not
    for steps, is_few in ((result["steps"], False), (1, True)):
        text = train_text({**result, "run": str(run), "stopped": "steps", "epochs_done": steps})
        assert ("few epochs" in text) == is_few
    table = pl.read_csv(source, separator=";", decimal_comma=True).filter(pl.col("run id") == "r07")
    table.select("v", "level", "u").write_csv(tmp_path / "one.csv")
    with pytest.warns(match="not read: level; the channels are u, v"):
        answer = run_file(run / "model.onnx", tmp_path / "one.csv")
    assert answer["y"] == pytest.approx([table["level"][0]], abs=1.0)
    # an answer for each id, in the order of the file
    ids = ["r09", "r07"]
    tables = [pl.read_csv(source, separator=";", decimal_comma=True).filter(pl.col("run id") == name) for name in ids]
    pl.concat(tables).drop("level").write_csv(tmp_path / "two.csv", separator=";", decimal_comma=True)
    two = run_file(run / "model.onnx", tmp_path / "two.csv")
    assert (two["axes"], two["sequences"], two["targets"]) == (["sequence"], ids, ["level"])
    table = _text(two).splitlines()
    assert [line.split()[0] for line in table[:3]] == ["sequence", *ids]
    assert table[0].split()[1:] == ["level"]
    assert np.shape(two["y"]) == (2, 1)
    assert two["y"][1] == pytest.approx(answer["y"], abs=1e-5)
    # parquet with the same rows is the same data
    pl.read_csv(source, separator=";", decimal_comma=True).write_parquet(tmp_path / "plant.parquet")
    settings = {"sequence": "run id", "targets": "level"}
    tasks = [opened(Tables(**settings), path) for path in (source, tmp_path / "plant.parquet")]
    for a, b in zip(*map(parts, tasks), strict=True):
        np.testing.assert_array_equal(a.x.numpy(), b.x.numpy())
        np.testing.assert_array_equal(a.y.numpy(), b.y.numpy())


@pytest.mark.filterwarnings("default::edgernn.errors.EdgernnWarning")
def test_clips_of_another_rate_become_a_model_that_hears_them(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    source, run = tmp_path / "words", tmp_path / "run"
    rate, pitches = 44_100, {"low": 300.0, "high": 900.0}

    def stereo(word, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(rate) / rate
        tone = rng.uniform(2000, 8000) * np.sin(2 * np.pi * pitches[word] * t) * ((t > 0.3) & (t < 0.7))
        return np.stack([tone, 0.5 * tone], 1)

    for word in pitches:
        for i in range(10):
            write_wav(source / word / f"{i}.wav", stereo(word, i), rate, channels=2)
    said = "sound of 44,100 Hz, 2 channels and 16 bits is read as one channel of 16 bits at 16,000 Hz"
    warn_of_conversion.cache_clear()
    train(source, run, {"steps": 60, "batch_size": 16, "hidden_size": 16})
    assert capsys.readouterr().err.count(said) == 1
    split = json.loads((run / "split.json").read_text())
    files = {f"{word}/{i}.wav" for word in pitches for i in range(10)}
    assert split.pop("by") == "file"
    assert {name for names in split.values() for name in names} == files
    assert {part: len(names) for part, names in split.items()} == {"train": 16, "validation": 2, "test": 2}
    title, *rows = ((run / "confusion.csv").read_text()).splitlines()
    assert title.startswith("true class,high,low,_silence_,precision,recall,f1,precision_low")
    assert [(row.split(",")[0], sum(map(int, row.split(",")[1:4]))) for row in rows[:2]] == [("high", 1), ("low", 1)]
    assert (run / "confusion.png").is_file()
    assert main(["export", str(run)]) == 0
    pack_file(run / "model.onnx", tmp_path / "words.edgernn")
    # the answers of the test clips are those of the training's evaluation
    capsys.readouterr()
    assert main(["run", str(run / "model.onnx"), "--input", str(source), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert answers["files"] == sorted(files)
    assert answers["axes"] == ["file"]
    shown = dict(zip(answers["files"], answers["y"], strict=True))
    clips = next(open_task(run).test.of_words().chunks()).x
    trained = load_any(run)[0].outputs(clips).detach().numpy()
    np.testing.assert_allclose([shown[name] for name in split["test"]], trained, atol=1e-4)
    assert main(["run", str(run / "model.onnx"), "--input", str(source / "high/3.wav")]) == 0
    title, row, *_ = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["file", "class", "probability"]
    assert row.split()[1] == answers["classes"][np.argmax(shown["high/3.wav"])]
    assert main(["run", str(run / "model.onnx"), "--input", str(run)]) == 1
    assert f"{run}: expected a folder with wav files, got none" in capsys.readouterr().err
    assert (
        "| sequences | clips of 16,000 samples; the loudest stretch of longer ones |" in (run / "model.md").read_text()
    )
    recording = write_wav(tmp_path / "r.wav", np.tile(stereo("high", 99), (2, 1)), rate, channels=2)
    capsys.readouterr()
    warn_of_conversion.cache_clear()
    assert main(["run", str(run / "model.onnx"), "--stream", str(recording), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["seconds"] == pytest.approx(2)
    assert max(json.loads(out)["detections"], key=lambda word: word["score"])["word"] == "high"
    assert err.count(said) == 1
    assert "trained on clips of one word each" in err


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("folds", [None, 3])
def test_neither_a_person_nor_a_recording_is_on_both_sides(tmp_path, seed, folds):
    for i in range(16):
        text = "".join(f"{i // 2},{k * k % 5},{'ab'[k // 100]},p{i // 2}\n" for k in range(200))
        (tmp_path / f"{i}.csv").write_text(f"who,x,activity,person\n{text}")
    settings = {"features": "who,x", "window": 50, "stride": 10, "folds": folds}
    task = opened(Tables(**settings), tmp_path, seed)
    people = [{f"p{int(x[0, 0])}" for x in part.x} for part in parts(task)]
    assert all(people)
    assert sum(map(len, people)) == len(set.union(*people)) == 8
    assert [set(task.division[part]) for part in ("train", "validation", "test")] == people
    # windows of a person are dependent
    assert [len(part.origins.unique()) for part in parts(task)[1:]] == [len(names) for names in people[1:]]
    if folds:
        tests = [opened(Tables(**settings), tmp_path, seed + i).division["test"] for i in range(folds)]
        assert sorted(chain(*tests)) == [f"p{i}" for i in range(8)]


@pytest.mark.parametrize("folds", [None, 3])
def test_a_person_in_the_name_of_files_is_on_one_side(tmp_path, folds):
    for i in range(24):
        person, word = f"p{i // 4}", ("no", "yes")[i % 2]
        path = tmp_path / "tables" / word / f"{person}_{i}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("who,x\n" + "".join(f"{i // 4},{k * k % 5}\n" for k in range(12)))
        write_wav(tmp_path / "words" / word / f"{person}_{i}.wav", np.arange(1600) % (50 + i) * (i % 2))
    for seed in range(3):
        task = opened(Tables(split_by="{}_*", features="who,x", window=4, folds=folds), tmp_path / "tables", seed)
        people = [{f"p{int(x[0, 0])}" for x in part.x} for part in parts(task)]
        assert sum(map(len, people)) == len(set.union(*people)) == 6
        assert [set(task.division[part]) for part in PARTS] == people
        assert f"split by {{}}_*: train {', '.join(task.division['train'])};" in task.summary[-1]
        sounds = opened(OwnWords(split_by="{}_*", folds=folds, silence=0.5), tmp_path / "words", seed)
        assert sorted(chain(*(sounds.division[part] for part in PARTS))) == [f"p{i}" for i in range(6)]
        assert [len(part.label) for part in parts(sounds)] == [4 * len(sounds.division[part]) for part in PARTS]
        # clips of a person are dependent, those of noise are not
        assert len(sounds.test.origins.unique()) == len(sounds.division["test"]) + sounds.test.drawn
    # new data are not split
    other = Tables(split_by="person", label="word")
    (tmp_path / "one.csv").write_text("x,word\n2,a\n1,b\n")
    other.open_test(tmp_path / "one.csv", 2)
    for pattern, match in (("{}-*", "expected files that fit"), ("{}_{}", "expected a pattern with one {}")):
        for cls, name in ((Tables, "tables"), (OwnWords, "words")):
            with pytest.raises(UsageError, match=f"split_by: {match}"):
                opened(cls(split_by=pattern), tmp_path / name)


def test_a_pattern_finds_the_group_of_a_file():
    for pattern, path, group in (
        ("{}_*", "walk/anna_b_3.csv", "anna"),
        ("{}/*", "data/anna/3.csv", "anna"),
        ("{}/*/*", "anna/walk/3.csv", "anna"),
        ("*-{}.wav", "yes/3-anna-b.wav", "anna-b"),
    ):
        assert groups_of(pattern, [path]) == [group]
    with pytest.warns(EdgernnWarning, match=r"split_by: '\{\}' finds another name in each of the 2 files"):
        assert groups_of("{}", ["a/anna_1.csv", "a/anna_2.csv"]) == ["anna_1.csv", "anna_2.csv"]


def test_without_groups_recordings_are_split_and_a_single_one_at_its_gaps(tmp_path):
    for i in range(12):
        x = np.c_[np.arange(40) / 10, np.full((40, 2), i), np.arange(40)]
        np.savetxt(tmp_path / f"{i}.csv", x, delimiter=",", header="t,a,b,steps", comments="")
    (tmp_path / "labels.csv").write_text("".join(f"{i}.csv,{'xy'[i % 2]}\n" for i in range(12)))
    task = opened(Tables(window=10), tmp_path)
    files = [{int(v) for v in part.x[..., 0].unique()} for part in parts(task)]
    assert sum(map(len, files)) == len(set.union(*files)) == 12
    assert [len(part) for part in parts(task)] == [32, 8, 8]
    one = tmp_path / "one.csv"
    rows = [f"{i // 30 * 100 + i / 10},{i // 30},{'ab'[i // 30 % 2]}" for i in range(300)]
    one.write_text("\n".join(["t,x,label", *rows]))
    task = opened(Tables(gap=5, window=6, resample=10.0), one)
    pieces = [{int(v) for v in part.x.unique()} for part in parts(task)]
    assert sum(map(len, pieces)) == len(set.union(*pieces)) == 10
    assert task.division["test"] == [f"one.csv, piece {piece + 1}" for piece in sorted(pieces[2])]


def test_each_part_has_every_class_if_it_can():
    units = [f"u{i}" for i in range(30)]
    # two classes have three units each
    classes = {unit: {0} for unit in units} | {unit: {1} for unit in units[:3]} | {unit: {0, 2} for unit in units[3:6]}
    for seed in range(20):
        divided = split_units(units, [3, 3], seed, classes)
        assert sorted(chain(*divided)) == sorted(units)
        assert [len(part) for part in divided] == [24, 3, 3]
        assert all({0, 1, 2} == set.union(*(classes[unit] for unit in part)) for part in divided)
    few = {unit: {0} for unit in units[:9]} | {"u9": {1}}
    assert any("u9" in part for part in split_units(units[:10], [1, 1], 0, few))


@copies
def test_resampling_interpolates_numbers_and_takes_the_nearest_label(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{i},{t},{2 * t},{'ab'[t > 0.6]}" for i in range(3) for t in (0, 0.1, 0.35, 0.8, 1)]
    path.write_text("\n".join(["recording,t,x,class", *rows]))
    task = opened(Tables(resample=5, label_by="step", features="x"), path)
    assert len(task.train) == 1
    np.testing.assert_allclose(task.train.x[0, :, 0], [0, 0.4, 0.8, 1.2, 1.6, 2], rtol=1e-6)
    assert task.train.y.tolist() == [[0, 0, 0, 1, 1, 1]]
    task = opened(Tables(resample=5, window=3, features="x"), path)
    assert task.test.y.tolist() == [0, 1]


def test_recordings_of_unequal_lengths_with_gaps_in_their_labels(tmp_path):
    for i in range(10):
        labels = ["", *"ab" * (i + 2)]
        rows = [f"{k / 10},{i},{label}" for k, label in enumerate(labels)]
        (tmp_path / f"{i}.csv").write_text("\n".join(["t,x,label", *rows]))
    (tmp_path / "none.csv").write_text("t,x,label\n0,99,\n0.1,99,\n")
    task = opened(Tables(), tmp_path)
    assert task.label_by == "step"
    seen = {}
    for part in parts(task):
        for x, y, length in zip(part.x, part.y, part.lengths, strict=True) if part.lengths is not None else ():
            seen[int(x[0, 0])] = y[:length].tolist()
    lengths = [part.lengths for part in parts(task) if part.lengths is not None]
    assert lengths
    assert 99 not in seen
    assert all(labels == [-1, *[0, 1] * (i + 2)] for i, labels in seen.items())
    # half a second holds more of one class
    with pytest.warns(match=r"1 of 11 recordings have fewer rows than window=5 and are left out: none\.csv \(2 rows\)"):
        task = opened(Tables(window=5), tmp_path)
    assert {int(label) for part in parts(task) for label in part.y} == {0, 1}


@pytest.mark.parametrize("settings", [{}, {"predict": "next"}, {"label": "activity"}])
def test_a_column_of_answers_is_no_channel(tmp_path, settings):
    for i in range(12):
        path = tmp_path / "ab"[i % 2] / f"{i}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x,activity,label,target\n" + f"{i},{'cd'[i % 2]},{i % 2},0.5\n" * 4)
    task = opened(Tables(**settings), tmp_path)
    assert task.channels == ("x",)
    assert opened(Tables(**settings, features="x,label"), tmp_path).channels == ("x", "label")


def test_whole_numbers_as_labels_are_one_class_in_all_files(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}.csv").write_text(f"x,label\n{i},\n{i},{i % 2}.0\n" if i > 2 else f"x,label\n{i},{i % 2}\n")
    task = opened(Tables(label_by="sequence"), tmp_path)
    assert task.classes == ["0", "1"]
    assert all(int(y) == int(x[0, 0]) % 2 for part in parts(task) for x, y in zip(part.x, part.y, strict=True))


@pytest.mark.parametrize(("time", "found"), [("auto", "Beginn"), ("none", None)])
def test_the_one_column_of_dates_is_the_time(tmp_path, time, found):
    for i in range(6):
        rows = [f"13.03.2025 08:00:0{j // 2}.{j % 2 * 5},{j * j % 5},{'ab'[i % 2]}\n" for j in range(8)]
        (tmp_path / f"{i}.csv").write_text("Beginn,x,activity\n" + "".join(rows))
    task = opened(Tables(time=time, label="activity"), tmp_path)
    assert (task.channels, task.reading["time"], task.reading["measured"]) == (("x",), found, found and 2.0)


def test_one_long_recording_is_told_how_it_becomes_several(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("t,x,activity\n" + "".join(f"{i / 50:.3f},{i * i % 7},{'ab'[i % 2]}\n" for i in range(40)))
    with pytest.raises(EdgernnError, match=r"got 1; name the column that tells .* sequence=NAME, set gap to split"):
        Tables().open(path, 0)


HEADER = "t,x,activity,person\n"


def rows(person, hz=50, count=40):
    return "".join(f"{i / hz:.3f},{i * i % 7},{'ab'[i % 2]},{person}\n" for i in range(count))


GOOD = {f"{i}.csv": HEADER + rows(f"p{i}") for i in range(6)}
BAD = {
    "role": ({"label": "activty"}, {}, r"label: expected a column of .*, got 'activty', .*; did you mean 'activity'\?"),
    "two": (
        {},
        {name: text.replace("person", "the place") for name, text in GOOD.items()},
        r"expected one column for the label, got activity, the place; set label=activity or 'label=the place'$",
    ),
    "twice": (
        {"label": "x", "features": "x"},
        {},
        "features: expected a column without another role, got 'x', the lab",
    ),
    "backwards": (
        {},
        {"3.csv": HEADER + rows("p3").replace("\n0.100,", "\n0.900,")},
        r"3\.csv: line 8, column 1 \(t\): expected a time after that of the row before it, got 0\.120; sort the rows",
    ),
    "rates": (
        {},
        {"2.csv": HEADER + rows("p2", hz=100)},
        r"expected recordings with one rate, got 50 rows a second in .*\.csv and 100 in 2\.csv; .* set resample=50",
    ),
    "short": (
        {},
        {"1.csv": HEADER + rows("p1") + "0.9,3\n"},
        r"1\.csv: line 42: expected 4 columns .*, got 2;",
    ),
    "word": (
        {},
        {"1.csv": HEADER + rows("p1").replace("0.100,4,", "0.100,four,")},
        r"1\.csv: line 7, column 2 \(x\): expected a number, got 'four'; correct the line",
    ),
    "no-labels": (
        {"label": "activity"},
        {name: text.replace(",a,", ",,").replace(",b,", ",,") for name, text in GOOD.items()},
        r"expected labels in the column 'activity', got none; fill some",
    ),
    "one-person": (
        {},
        {f"{i}.csv": HEADER + rows("anna") for i in range(6)},
        r"expected at least 3 groups by person for train, validation and test, got 1; add some, or set sequence, gap",
    ),
    "window": (
        {"window": 64},
        {},
        r"part: expected sequences with at least window=64 rows, got .* 40 rows;",
    ),
    "no-time": (
        {"resample": 50.0, "time": "none"},
        {},
        r"resample: expected a column of time, got .*; set time=COL",
    ),
    "coarse-time": (
        {"resample": 50.0},
        {"5.csv": HEADER + "".join(f"{i // 5},{i % 7},a,p5\n" for i in range(40))},
        r"5\.csv: line 3, column 1 \(t\): expected a time after that of the row before it in most rows, got 0; store",
    ),
    "odd-time": (
        {"resample": 50.0, "time": "activity", "label": "person", "split_by": "x"},
        {},
        r"0\.csv: line 2, column 3 \(activity\): expected seconds, or dates and times such as .*, got 'a'; correct it",
    ),
    "day-and-month": (
        {"resample": 50.0},
        {f"{i}.csv": HEADER + f"13/02/2026,2,a,p{i}\n02/13/2026,1,b,p{i}\n" for i in range(6)},
        r"data: t: expected the day first in all dates, or the month, got both; write dates as in 2026-01-31",
    ),
    "footer": (
        {"resample": 50.0},
        {"5.csv": HEADER + rows("p5") + "total,1,a,p5\n"},
        r"5\.csv: line 42, column 1 \(t\): expected seconds, or dates and times such as .*, got 'total'; correct it",
    ),
    "group": (
        {},
        {"4.csv": HEADER + rows("p4") + "0.9,1,a,p5\n"},
        r"4\.csv: line 42, column 4 \(person\): expected the person 'p4' as in the other rows of 4\.csv, got 'p5'",
    ),
    "half": ({}, {"5.csv": None, "5.parquet": b"PAR1"}, r"expected tables of one format, got \.csv and \.parquet"),
    "point": (
        {},
        {name: text.replace(",", ";").replace(";4;", ";4,5;") for name, text in GOOD.items()},
        "expected a num",
    ),
}


@copies
@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_named_and_nothing_is_written(tmp_path, case):
    settings, files, message = BAD[case]
    source = tmp_path / "data"
    source.mkdir()
    for name, content in {**GOOD, **files}.items():
        if content is not None:
            (source / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Tables(**settings), source)
    assert "\n" not in str(caught.value)
    words = [f"{name}={value}" for name, value in settings.items()]
    run = tmp_path / "run"
    assert main(["train", "--task", str(source), "--cell", "gru", "--out", str(run), *words]) in (1, 2)
    assert not run.exists()


@copies
def test_a_time_that_falls_says_why(tmp_path):
    reading = {"time": "time", "rate": None, "measured": None, "gap": None, "window": None, "stride": None}
    reading |= {"missing": False, "columns": ["time", "x", "label"], "channels": ["x"]}
    for times, remedy in (
        (["23:59:58", "23:59:59", "0:00:00", "0:00:01"], "times of day begin again at midnight: write the date before"),
        (
            ["2026-10-25 02:59:58", "2026-10-25 02:59:59", "2026-10-25 02:00:00"],
            "local times repeat an hour at the end",
        ),
        (["5", "6", "4", "7"], "sort the rows by time"),
        (["4:00:00", "6:00:00", "5:00:00", "7:00:00"], "sort the rows by time"),
    ):
        for i in range(3):
            rows = "".join(f"{cell},{k % 2},{'ab'[i % 2]}\n" for k, cell in enumerate(times))
            (tmp_path / f"{i}.csv").write_text("time,x,label\n" + rows)
        with pytest.raises(EdgernnError, match=rf"line 4, column 1 \(time\): expected a time after .*; {remedy}"):
            opened(Tables(), tmp_path)
        with (
            pytest.warns(match="not read: label"),
            pytest.raises(EdgernnError, match=f"rise from row to row, got row 3 before; {remedy}"),
        ):
            _read_raw(tmp_path / "0.csv", ["x"], 1, reading)


@copies
def test_the_column_of_time_is_one_that_advances(tmp_path):
    for i in range(12):
        rows = "".join(f"2026-01-31,12:00:0{k},{k * i % 5},{'ab'[i % 2]}\n" for k in range(6))
        (tmp_path / f"{i}.csv").write_text("date,time,x,label\n" + rows)
    task = opened(Tables(resample=2), tmp_path)
    assert task.summary[1] == "time: time, date, 1 rows a second, resampled to 2"
    assert task.train.x.shape[1:] == (11, 1)


@pytest.mark.filterwarnings("ignore:.*(the same numbers in|not read. label):edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize(
    ("names", "day"), [("date,time", "2026-01-{}"), ("Uhrzeit,Datum", "{}.01.2026"), ("date,at", "2026/1/{} 00:00:00")]
)
def test_a_date_and_a_time_of_day_in_two_columns_are_one_time(tmp_path, names, day):
    for i in range(12):
        lines = [f"{names},x,label"]
        for k, clock in enumerate(("23:59:59", "23:59:59.5", "0:00:00", "0:00:01")):
            cells = day.format(30 + k // 2), clock
            lines.append(
                ",".join(cells if names.startswith("d") else cells[::-1]) + f",{[8, 6, 4, 0][k]},{'ab'[i % 2]}"
            )
        (tmp_path / f"{i}.csv").write_text("\n".join(lines))
    task = opened(Tables(resample=2), tmp_path)
    assert task.train.x[0, :, 0].tolist() == [8, 6, 4, 2, 0]
    x, lengths, _ = _read_raw(tmp_path / "0.csv", ["x"], 1, task.reading)
    assert (x[:, 0].tolist(), lengths) == ([8, 6, 4, 2, 0], None)


def test_a_column_that_counts_in_each_sequence_is_no_channel(tmp_path):
    rows = "".join(f"{i},{k},{k * i % 7},{'ab'[i % 2]}\n" for i in range(12) for k in range(6))
    (tmp_path / "a.csv").write_text("recording,frame,x,label\n" + rows)
    task = opened(Tables(), tmp_path / "a.csv")
    assert task.summary[1:3] == ["time: frame, 1 rows a second", "channels: x"]


@copies
def test_types_of_columns_of_parquet_files(tmp_path):
    times = [datetime.timedelta(seconds=k / 4) for k in range(5)]
    frame = pl.DataFrame(
        {"time": times, "x": [4.0, 2.0, 0.0, 2.0, 4.0], "c": pl.Series([*"aaaab"]).cast(pl.Categorical)}
    )
    for i in range(3):
        frame.write_parquet(tmp_path / f"{i}.parquet")
    task = opened(Tables(resample=2, label_by="step"), tmp_path)
    assert task.train.x[0].tolist() == [[4.0], [0.0], [4.0]]
    assert task.train.y[0].tolist() == [0, 0, 1]
    with pytest.raises(EdgernnError, match=r"0\.parquet: row 1, column 3 \(c\): expected a number, got 'a'"):
        opened(Tables(features="x,c", predict="next"), tmp_path)
    frame.with_columns(x=pl.concat_list("x")).write_parquet(tmp_path / "0.parquet")
    with pytest.raises(
        EdgernnError, match=r"0\.parquet: column x: expected numbers, text or times, got List\(Float64\)"
    ):
        opened(Tables(), tmp_path)
    (tmp_path / "ns").mkdir()
    ticks = pl.Series([0, 250, 500, 750, 1000]).cast(pl.Duration("ns"))
    for i in range(3):
        frame.with_columns(time=ticks).write_parquet(tmp_path / "ns" / f"{i}.parquet")
    assert opened(Tables(label_by="step"), tmp_path / "ns").reading["measured"] == pytest.approx(4e6)


def test_a_table_above_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "large.csv"
    path.write_text("a,label\n" + "1,x\n" * 1000)
    monkeypatch.setattr("edgernn.training.formats.tables.memory", lambda: 40_000)
    monkeypatch.setattr("edgernn.training.formats.tables.read_text", None)
    with pytest.raises(EdgernnError, match=r"expected at most 4,000 bytes of tables, .*, got 4,008; leave out columns"):
        opened(Tables(), path)
    monkeypatch.setattr("edgernn.runtime.run_file.memory", lambda: 20_000)
    with pytest.raises(EdgernnError, match=r"expected at most 4,000 bytes, .*, got 4,008; split the file"):
        read(path)


@pytest.mark.parametrize("content", ["a,b\n\r1,2\n\r3,4\n", "a,b\r\r1,2\r", "a,b\r\n\r\n1,2\r\n"])
def test_an_empty_line_is_refused_in_training_and_run(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content.encode())
    for reader in (lambda: read_tables(path, [path]), lambda: read(path)):
        with pytest.raises(EdgernnError, match=r"x\.csv: line 2: expected a row of a csv file, got an empty line"):
            reader()


def test_a_file_without_lines_is_no_table(tmp_path):
    path = tmp_path / "zeros.csv"
    path.write_bytes(b"a,label\n" + bytes(200_000))
    with pytest.raises(EdgernnError, match=r"zeros.csv: line 2: expected a row of a csv file, got field larger than"):
        opened(Tables(), path)


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,4.5\n-3,4\n\n\n",
        "\ufeffa;b\r\n1;4,5\r\n-3;+4,0\r\n\r\n",
        '"a"\tb\r"1"\t4.5\r-3\t\u00a04e0 \r\r',
        "1;4,5\n-3;4",
        "a,b\r1,4.5\r-3,4\n",
        "a,b\r\r\n1,4.5\r\r\n-3,4\r\r\n",
        "a,b\r\n1,4.5\r-3,4\n",
    ],
)
def test_training_and_run_read_the_same_numbers(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content.encode())
    table = read_tables(path, [path])
    np.testing.assert_array_equal([table.numbers(name) for name in table.names], [[1, -3], [4.5, 4]])
    np.testing.assert_array_equal(read(path), [[1, 4.5], [-3, 4]])
    assert table.has_names == ("a" in content)


WRITTEN = {
    "one-point": (
        ";",
        [["0,5", "-1,5"], ["0,25", "0.75"], ["3", "4,5"]],
        r"line 3, column 2 \(v\): .*'0\.75'; .*-1234,5",
    ),
    "minus": (
        ",",
        [["\u22121.5", "1"], ["2", "3"], ["\u22124", "5"]],
        r"line 2, column 1 \(u\): .*'\u22121\.5'; .*-1234\.5",
    ),
    "thousands": (",", [['"1,234.5"', "1"], ['"2,000"', "2"], ["7", "3"]], r"line 2, column 1 \(u\): .*'1,234\.5'"),
    "german": (
        ";",
        [["1.234", "0,5"], ["2.000", "1,5"], ["3.111", "2,5"]],
        r"line 2, column 1 \(u\): .*'1\.234'; .*,5",
    ),
    "percent": (
        ",",
        [["12 %", "1"], ["7 %", "2"], ["9.5%", "3"]],
        r"line 2, column 1 \(u\): .*'12 %'; correct the line",
    ),
    "quoted-commas": (",", [['"0,5"', "1"], ['"0,7"', "2"], ['"1,5"', "3"]], r"line 2, column 1 \(u\): .*'0,5'"),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_numbers_in_another_form_are_refused_in_training_and_run(tmp_path, case):
    separator, rows, message = WRITTEN[case]
    for i in range(12):
        lines = [[*row, "ab"[i % 2]] for row in rows]
        content = "\n".join(separator.join(line) for line in [["u", "v", "label"], *lines])
        (tmp_path / f"{i}.csv").write_text(content + "\n", encoding="utf-8")
    with pytest.raises(EdgernnError, match=rf"0\.csv: {message}"):
        opened(Tables(time="none"), tmp_path)
    with pytest.raises(EdgernnError, match=rf"0\.csv: {message}"):
        read(tmp_path / "0.csv", ["u", "v"])


def test_each_file_has_its_decimal_mark(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, content in zip(paths, ("u;v\n0,5;1\n", "u;v\n0.25;2\n3;-1.5\n", 'v,u\n"4",1e1\n'), strict=True):
        path.write_text(content)
    table = read_tables(tmp_path, paths)
    assert [table.numbers(name).tolist() for name in "uv"] == [[0.5, 0.25, 3, 10], [1, 2, -1.5, 4]]
    assert table.text("u").to_list() == ["0.5", "0.25", "3", "1e1"]
    paths[1].write_text("u;v\n1,234;2.5\n3.5;1.5\n")
    with pytest.raises(EdgernnError, match=r"b\.csv: line 2, column 1 \(u\): expected a number"):
        read_tables(tmp_path, paths).numbers("u")


def test_numbers_with_units_are_named_and_dates_and_ids_are_not(tmp_path):
    columns = {
        "volts": [f"{k / 10 - 0.35:.2f} V" for k in range(8)],
        "speed": [f"\u2212{k},5 m/s2" for k in range(8)],
        "id": [f"{k:03d}{'abcdefgh'[k]}" for k in range(8)],
        "address": [f"0x{k + 9:02x}" for k in range(8)],
        "version": ["1.2.3"] * 8,
        "day": [f"0{k + 1}.02.2026" for k in range(8)],
        "at": [f"12:00:0{k}" for k in range(8)],
        "range": [f"{k}-{k + 1}" for k in range(8)],
        "grade": ["1", "2a", "3b", "x"] * 2,
        "x": [str(k % 3) for k in range(8)],
    }
    path = tmp_path / "a.csv"
    rows = zip(*([name, *cells] for name, cells in columns.items()), strict=True)
    path.write_text("\n".join(map(";".join, rows)))
    table = read_tables(path, [path])
    written = dict.fromkeys(("volts", "speed", "address"), 0)
    assert {name: table.written_number(name) for name in columns} == dict.fromkeys(columns) | written
    for i in range(12):
        rows = "\n".join(f"{k * i % 7 / 10 - 0.3:.1f} V,{k * k % 5 + i}" for k in range(8))
        (tmp_path / "units" / f"{i}.csv").parent.mkdir(exist_ok=True)
        (tmp_path / "units" / f"{i}.csv").write_text(f"u,v\n{rows}\n")
    message = (
        r"0\.csv: line 2, column 1 \(u\): '-0\.3 V' is no number, and its column no channel; write decimals without"
    )
    with pytest.warns(match=message):
        Tables(predict="next").open(tmp_path / "units", 0)
    opened(Tables(predict="next", features="v"), tmp_path / "units")


def test_text_without_a_name_and_likely_marks_of_thousands_are_named(tmp_path):
    for i in range(12):
        (tmp_path / "text").mkdir(exist_ok=True)
        lines = [f"12:00:0{k} -> {k * i % 5},{k * k % 3 + i}" for k in range(8)]
        (tmp_path / "text" / f"{i}.csv").write_text("\n".join(lines))
        (tmp_path / "marks").mkdir(exist_ok=True)
        numbers = [f"{(k * 37 + i) % 40 * 100 + 1:,}".replace(",", ".") for k in range(40)]
        decimals = [f"{float(number):.3f}" for number in numbers]
        rows = [f"{number};{decimal}" for number, decimal in zip(numbers, decimals, strict=True)]
        (tmp_path / "marks" / f"{i}.csv").write_text("\n".join(["u;v", *rows]))
    with pytest.warns(match=r"text: column 1: text such as '12:00:00 -> 0', so no channel; give the files a header"):
        Tables(predict="next").open(tmp_path / "text", 0)
    with pytest.warns(
        match=r"marks: u: numbers such as 1\.234 are read as decimals; if they are thousands, write them"
    ):
        Tables(predict="next").open(tmp_path / "marks", 0)


def test_columns_of_true_and_false_are_named(tmp_path):
    for i in range(12):
        rows = "\n".join(f"{k * k % 5 + i},{k % 3 == 1},{'True' if k else ''}" for k in range(8))
        (tmp_path / f"{i}.csv").write_text(f"v,on,open\n{rows}\n")
    with pytest.warns(match=r"on, open: true and false are no numbers, so no channel; write 1 and 0 to train on them"):
        Tables(predict="next").open(tmp_path, 0)
    opened(Tables(predict="next", features="v"), tmp_path)


@pytest.mark.filterwarnings("ignore:.*not read. note:edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize("gaps", [False, True])
def test_run_reads_raw_files_as_the_training_did(tmp_path, gaps):
    source, rng = tmp_path / "motion", np.random.default_rng(0)
    write_recordings(source, people=4)
    for path in source.iterdir() if gaps else ():
        header, *lines = path.read_text(encoding="utf-8-sig").splitlines()
        rows = [line.split(";") for line in lines]
        for row in rows:
            row[1:4] = [cell if rng.random() < 0.7 else "" for cell in row[1:4]]
        path.write_text("\n".join([header, *map(";".join, rows)]), encoding="utf-8-sig")
    task = Tables(**MOTION)
    task.adapted(ModelConfig.of("gru", 9, 4, 3, imputer="gru-d" if gaps else None))
    opened(task, source)
    assert task.input_size == (9 if gaps else 3)
    x = [_read_raw(path, task.channels, task.input_size, task.reading)[0] for path in source.iterdir()]
    windows = {window.astype(np.float32).tobytes() for file in x for window in file}
    assert windows == {window.numpy().tobytes() for part in parts(task) for window in part.x}
    if not gaps:
        return
    values, here, since = np.concatenate(x).reshape(-1, 50, 3, 3).transpose(2, 0, 1, 3)
    assert set(np.unique(here)) == {0, 1}
    assert (values[here == 0] == 0).all()
    assert (since[:, 0] == 0).all()
    np.testing.assert_allclose(since[:, 1:], 1 / HZ + np.where(here[:, :-1] > 0, 0, since[:, :-1]), rtol=0, atol=1e-5)
    # statistics are those of observed values
    train = task.train.x.double()
    seen = train[..., 0][train[..., 3] > 0]
    assert (task.mean[0], task.std[0]) == (
        pytest.approx(float(seen.mean())),
        pytest.approx(float(seen.std()), rel=1e-3),
    )


def test_raw_files_that_do_not_fit_the_training_are_refused_or_named(tmp_path):
    reading = {"time": "time", "rate": None, "measured": 50.0, "gap": None, "window": None, "stride": None}
    reading |= {"missing": False, "columns": ["time", "a"], "channels": ["a"]}
    path = tmp_path / "x.csv"

    def answer(content, **changes):
        path.write_text(content)
        return _read_raw(path, ["a"], 1, {**reading, **changes})[:2]

    faster = "".join(f"{i / 100},{i % 3}\n" for i in range(20))
    with pytest.raises(EdgernnError, match="expected about 50 rows a second as in the training, got 100; resample the"):
        answer("time,a\n" + faster)
    with pytest.raises(EdgernnError, match="expected at least window=30 rows, got fewer"):
        answer("time,a\n" + faster, rate=50.0, window=30)
    with pytest.raises(EdgernnError, match="expected times that rise from row to row, got row 3 before"):
        answer("time,a\n0,1\n2,1\n1,1\n")
    for content, line, cell in (("late,1\nlater,1\n", 2, "late"), ("0,1\n0.02,2\ntotal,3\n", 4, "total")):
        with pytest.raises(EdgernnError, match=rf"line {line} \(time\): expected .*, got .{cell}.; correct"):
            answer("time,a\n" + content)
    too_long = pytest.raises(
        EdgernnError, match=r"got 2 rows in 1\.76e\+09 s, which would be 8\.8e\+10 rows; set gap to"
    )
    with (
        too_long,
        pytest.warns(match=r"time: numbers without a unit are taken as s, 1\.76e\+09 s from row to row; name"),
    ):
        answer("time,a\n0,1\n1760000000,1\n", rate=50.0)
    for cell in ("inf", "nan"):
        with pytest.raises(EdgernnError, match=rf"line 3 \(time\): expected seconds, or dates and times, got '{cell}'"):
            answer(f"time,a\n0,1\n{cell},1\n", rate=50.0)
    # without a header, columns are taken by place
    bare = "".join(f"{i / 50},{i % 3}\n" for i in range(20))
    with pytest.warns(match="no header; its columns are taken as time, a, in this order"):
        x, _ = answer(bare)
    assert x[:, 0].tolist() == [i % 3 for i in range(20)]
    with pytest.warns(match="no column of time: its rows are taken as 50 a second, without gaps"):
        x, lengths = answer("a\n1\n2\n", rate=50.0, gap=1.0)
    assert (x.tolist(), lengths) == ([[1], [2]], None)
    # the times of each sequence rise
    x, lengths = answer("time,id,a\n0,p,1\n1,p,2\n0,q,3\n", sequence="id", measured=1.0)
    assert (x[..., 0].tolist(), lengths.tolist()) == ([[1, 2], [3, 0]], [2, 1])
    with pytest.raises(EdgernnError, match=r"x\.csv: q: expected times that rise from row to row, got row 2 before"):
        answer("time,id,a\n0,p,1\n1,q,2\n0,q,3\n", sequence="id", measured=1.0)
    # pieces between gaps
    x, lengths = answer("time,a\n0,1\n1,2\n2,3\n9,4\n", gap=2.0, measured=1.0)
    assert (x[..., 0].tolist(), lengths.tolist()) == ([[1, 2, 3], [4, 0, 0]], [3, 1])


@pytest.mark.filterwarnings("default::edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize("named", [True, False])
def test_files_without_a_header_are_tested_and_run_by_place(tmp_path, monkeypatch, named):
    without_pictures(monkeypatch)
    rng = np.random.default_rng(0)

    def write(folder, header):
        folder.mkdir()
        for i in range(20):
            rows = [f"{k / 10},{rng.normal(2 * (i % 2), 0.3):.3f},{rng.normal():.3f},{'xy'[i % 2]}" for k in range(10)]
            (folder / f"{i}.csv").write_text("\n".join(["time,a,b,activity"] * header + rows) + "\n")

    write(tmp_path / "train", named)
    write(tmp_path / "bare", False)
    run = tmp_path / "run"
    train(tmp_path / "train", run, {"hidden_size": 6})
    assert evaluate_model(run, data=tmp_path / "bare")["metrics"]["accuracy"] == 1
    assert main(["export", str(run)]) == 0
    answer = run_file(run / "model.onnx", tmp_path / "bare" / "3.csv")
    assert answer["classes"][int(np.argmax(answer["y"]))] == "y"


def test_times_as_text():
    def seconds(*cells, name="when"):
        values = seconds_of(name, cells, Dialect())
        return None if values is None else (values - values[0]).tolist()

    assert seconds("2026-01-31 23:59:59.5", "2026-02-01T00:00:00Z") == [0, 0.5]
    assert seconds("2026/1/31", "2026/2/1 1:00") == [0, 25 * 3600]
    assert seconds("9:59:59", "10:00:00.25") == [0, 1.25]
    assert seconds("2026-01-31T12:00:00+02:00", "2026-01-31T11:00:00Z") == [0, 3600]
    assert seconds("5", "7", name="t (ms)") == [0, 0.002]
    assert seconds("1764300000000", "1764300001000") == [0, 1]
    assert seconds("11:59:59 AM", "12:00:01.5 PM", "1:00 p.m.") == [0, 2.5, 3601]
    assert seconds("31/01/2026 12:30am", "01/02/2026 12:00:00 PM") == [0, 127_800]
    # 120000 follows 115959, unless steps are even without that
    assert seconds("115958", "115958", "115959", "120000", "120001") == [0, 0, 1, 2, 3]
    assert seconds("095959.5", "100000.0", "100000.5") == [0, 0.5, 1]
    assert seconds("10000", "10100", "10200") == [0, 100, 200]
    assert seconds("115958", "115959", "120000", name="t (ms)") == [0, 0.001, 4.042]
    # the day is first, unless a number says otherwise
    assert seconds("31/01/2026 12:00", "01/02/2026 12:00") == [0, 86400]
    assert seconds("01/31/2026", "02/01/2026") == [0, 86400]
    assert seconds("13.01.2026 8:00:00", "13.01.2026 8:00:02") == [0, 2]
    with pytest.warns(EdgernnWarning, match="when: dates such as 01/02/2026 are taken as day, month and year; write"):
        assert seconds("01/02/2026", "02/02/2026") == [0, 86400]
    for cells in (("13/01/2026", "01/13/2026"), ("2026-01-32",), ("soon",), ("",), ("31/01/2026 13:00 PM",)):
        assert seconds(*cells) is None


UNITS = {
    1e-9: "ns nsec nanos nanosecond nanoseconds",
    1e-6: "us usec \u00b5s \u03bcs micros microsecond microseconds",
    1e-3: "ms msec millis millisecond milliseconds MS",
    1: "s sec secs second seconds",
    60: "min mins minute minutes",
    3600: "h hr hrs hour hours",
    86400: "d day days",
}


@pytest.mark.parametrize("scale", UNITS)
def test_a_unit_of_time_is_a_word_of_the_name(scale):
    for unit in UNITS[scale].split():
        for name in (f"time ({unit})", f"t[{unit}]", f"Zeit_{unit}", f"t in {unit}", f"Start (local, {unit})"):
            values = seconds_of(name, ["3", "5.5"], Dialect())
            np.testing.assert_allclose(values, [0, 2.5 * scale], rtol=1e-15, err_msg=name)
        assert f"time ({unit})" in TimeNames()


def test_a_unit_of_time_may_have_a_count():
    for name, scale in (("t (100ns)", 1e-7), ("time [10 \u00b5s]", 1e-5), ("T (0.1 ms)", 1e-4), ("t2 (ms)", 1e-3)):
        values = seconds_of(name, ["3", "5.5"], Dialect())
        np.testing.assert_allclose(values, [0, 2.5 * scale], rtol=1e-15, err_msg=name)


def test_words_with_other_meanings_are_no_unit_of_time():
    for name in ("d", "h_start", "min temperature", "t_100", "hum", "time", "T (days"):
        assert seconds_of(name, ["3", "5"], Dialect()).tolist() == [0, 2 * (86400 if "days" in name else 1)], name
    for name in ("t_min", "time_hour", "T (s)", "date_day", "minutes"):
        assert name not in TimeNames()
    for name in ("t_ms", "seconds_elapsed", "elapsed minutes", "Unix time (\u00b5s)"):
        assert name in TimeNames()


@pytest.mark.parametrize(
    ("cells", "taken"),
    [
        (["0", "20", "40"], "s, 20 s from row to row"),
        (["40000000000", "40000000020"], "s, 20 s from row to row"),
        (["200000000000", "200000020000"], "ms, 20 s from row to row"),
        (["46000.1234560", "46000.1234572"], "s, 1.2e-06 s from row to row"),
        (["0", "0.02"], None),
        (["1764300000", "1764303600"], None),
        (["1764300000000000", "1764300000020000"], None),
    ],
)
def test_a_doubtful_unit_of_time_is_named(recwarn, cells, taken):
    seconds_of("t", cells, Dialect(), warn=True)
    seconds_of("t (s)", cells, Dialect(), warn=True)
    unit = "days" if cells[0].startswith("46000") else "ms"
    text = f"t: numbers without a unit are taken as {taken}; name their unit in the header, as in 't ({unit})'"
    assert [str(entry.message) for entry in recwarn] == [text] * (taken is not None)


@pytest.mark.filterwarnings("ignore:.*the same numbers in:edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize("rate", [20, 50, 8000])
def test_times_since_1970_lose_no_row(tmp_path, rate):
    rng, count, step = np.random.default_rng(rate), 100, 1_000_000 // rate
    for _ in range(25):
        start = int(rng.integers(1_600_000_000_000_000, 1_800_000_000_000_000))
        ticks = [start + step * k for k in range(count)]
        moments = [datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=tick) for tick in ticks]
        x = rng.normal(size=(count, 2))
        for name, cells in {
            "time": [f"{tick // 1_000_000}.{tick % 1_000_000:06d}" for tick in ticks],
            "time (ns)": [f"{tick}000" for tick in ticks],
            "date": [moment.isoformat() for moment in moments],
        }.items():
            seconds = seconds_of(name, cells, Dialect())
            resampled = Recording("", "", "", np.arange(count), x, None, seconds).resampled(rate)
            assert len(resampled) == count
            np.testing.assert_allclose(resampled.x, x, rtol=0, atol=1e-9)
            # several years after the first row of the table
            shifted = Recording("", "", "", np.arange(count), x, None, seconds + 2e8).resampled(rate)
            np.testing.assert_allclose(shifted.x, x, rtol=0, atol=1e-3)
    path = tmp_path / "t.parquet"
    for unit in ("ms", "us", "ns"):
        pl.DataFrame({"t": pl.Series(moments).cast(pl.Datetime(unit))}).write_parquet(path)
        wanted = np.array([tick // 1000 - ticks[0] // 1000 for tick in ticks]) / 1e3
        values = read_tables(path, [path]).seconds("t")
        np.testing.assert_allclose(values, wanted if unit == "ms" else np.arange(count) / rate, rtol=1e-12)


def test_rounded_times_lose_no_row():
    rng = np.random.default_rng(0)
    for rate in (30, 60, 100):
        for start in rng.uniform(0, 1, 50):
            seconds = (start + np.arange(100) / rate).round(3)
            x = rng.normal(size=(100, 1))
            whole = Recording("", "", "", np.arange(100), x, None, seconds)
            resampled = whole.resampled(rate, gap=1)
            assert len(resampled) == 100
            assert resampled.seconds[-1] <= seconds[-1]
            assert np.abs(resampled.x - x).max() < 0.13 * np.abs(np.diff(x[:, 0])).max()
            # a row that is missing stays so
            assert len(whole.between(0, 99).resampled(rate)) == 99
            assert len(whole.resampled(rate / 10)) == 10


def test_an_observed_value_beside_a_gap_stays():
    # 0.1 * 3 is above 0.3: the grid must meet the times
    seconds = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    x = np.array([[0, 1, 2, 3, np.nan, np.nan, 6, 7.0]]).T
    resampled = Recording("", "", "", np.arange(8), x, None, seconds).resampled(10, gap=0.2)
    np.testing.assert_array_equal(resampled.x, x)
    filled = Recording("", "", "", np.arange(8), x, None, seconds).resampled(10, gap=0.3)
    np.testing.assert_allclose(filled.x[:, 0], np.arange(8), rtol=1e-12)
    assert len(Recording("", "", "", np.arange(8), x, None, seconds).pieces(0.1)) == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_damaged_table_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b'a,b\n1,"2\n3,4\n' if suffix == ".csv" else b"PAR1 no more")
    with pytest.raises(EdgernnError, match=r"a\.csv: line 3: expected a row of a csv file|a\.parquet: expected a parq"):
        opened(Tables(predict="next"), path)


def test_an_unknown_way_of_targets():
    with pytest.raises(UsageError, match="label_by: expected auto, sequence or step, got 'window'"):
        Tables(label_by="window")
    with pytest.raises(UsageError, match="stride: expected a window beside it"):
        Tables(stride=5)


def test_a_path_to_a_table_is_a_task(tmp_path):
    for name in ("a.csv", "A.CSV", "a.parquet"):
        (tmp_path / name).touch()
        assert find_task(str(tmp_path / name)) == (Tables, Path(tmp_path / name))


def test_a_rate_that_no_sensor_has_is_refused_before_memory_is_asked_for(tmp_path, capsys):
    (tmp_path / "one.csv").write_text("time,x,label\n0,1,a\n1,2,b\n")
    words = ["--cell", "gru", "--out", str(tmp_path / "run"), "resample=1e12"]
    assert main(["train", "--task", str(tmp_path / "one.csv"), *words]) == 2
    assert "resample: expected a number above 0 and of at most 1e+06 or none, got '1e12'" in capsys.readouterr().err
