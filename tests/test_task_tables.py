# SPDX-License-Identifier: Apache-2.0
"""A user's own CSV files."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.export.run import export_run
from edgernn.runtime.run_file import read, run_file
from edgernn.training import train
from edgernn.training.evaluate_model import evaluate_model
from edgernn.training.tasks import find_task
from edgernn.training.tasks.tables import Tables
from tests.task_helpers import Trained, accuracy, mean_squared_error, opened, parts
from tests.training_helpers import without_pictures


def write_csv(path, rows, header=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "".join(",".join(f"{v:g}" for v in row) + "\n" for row in rows))


def write_files(folder, count=40, T=5, I=3, seed=0):
    """Write files f00.csv and so on, every other one with the columns in reverse order; return their contents by name.

    The contents have the columns in the order a, b, c of f00.csv.
    """
    rng = np.random.default_rng(seed)
    contents = {}
    for i in range(count):
        rows = rng.integers(-999, 999, (T, I)) / 8
        contents[f"f{i:02d}.csv"] = rows
        order = slice(None, None, -1 if i % 2 else 1)
        write_csv(folder / f"f{i:02d}.csv", rows[:, order], ",".join("abc"[:I][order]) + "\n")
    return contents


def sequences_of(task):
    """Return all sequences of a task with their targets."""
    return {x.numpy().tobytes(): y.tolist() for part in parts(task) for x, y in zip(part.x, part.y, strict=True)}


def expected(files, targets):
    return {rows.astype(np.float32).tobytes(): targets[name] for name, rows in files.items()}


@pytest.mark.parametrize("header", ["", "file,label\n"])
def test_labels_stand_in_a_table(tmp_path, header):
    files = write_files(tmp_path)
    names = {name: ["wasp", "bee", "fly"][i % 3] for i, name in enumerate(files)}
    shuffled = [list(names)[i] for i in np.random.default_rng(1).permutation(40)]
    (tmp_path / "labels.csv").write_text(header + "".join(f"{name}, {names[name]}\n" for name in shuffled))
    task = opened(Tables(), tmp_path)
    assert task.classes == ["bee", "fly", "wasp"]
    assert (task.output, task.input_size, task.output_size, task.objective.metric) == ("last", 3, 3, "accuracy")
    assert [len(part) for part in parts(task)] == [32, 4, 4]
    assert sequences_of(task) == expected(files, {n: ["bee", "fly", "wasp"].index(c) for n, c in names.items()})


def test_numbers_as_names_of_classes_are_in_their_order(tmp_path):
    files = write_files(tmp_path, 48)
    (tmp_path / "labels.csv").write_text("".join(f"{name},{i % 12 + 1}\n" for i, name in enumerate(files)))
    task = opened(Tables(), tmp_path)
    assert task.classes == [str(i) for i in range(1, 13)]
    assert sequences_of(task) == expected(files, {name: i % 12 for i, name in enumerate(files)})


def test_a_subfolder_is_a_class(tmp_path):
    files = {name: write_files(tmp_path / name, 10, seed=seed) for seed, name in enumerate(["wasp", "bee", "drone"])}
    (tmp_path / ".hidden").mkdir()
    task = opened(Tables(), tmp_path)
    assert task.classes == ["bee", "drone", "wasp"]
    wanted = {}
    for number, name in enumerate(task.classes):
        wanted |= expected(files[name], dict.fromkeys(files[name], number))
    assert sequences_of(task) == wanted


def test_targets_stand_in_a_table(tmp_path):
    files = write_files(tmp_path)
    numbers = {name: [i / 4, -i] for i, name in enumerate(files)}
    (tmp_path / "targets.csv").write_text("file,u,v\n" + "".join(f"{n},{u},{v}\n" for n, (u, v) in numbers.items()))
    task = opened(Tables(), tmp_path)
    assert task.classes is None
    assert (task.output, task.output_size, task.objective.metric) == ("last", 2, "mse")
    assert sequences_of(task) == expected(files, numbers)


def test_the_next_step_of_files_needs_no_targets(tmp_path):
    files = write_files(tmp_path, 6) | write_files(tmp_path / "more", 6, seed=1)
    assert len(files) == 6
    task = opened(Tables(predict="next"), tmp_path)
    assert sum(map(len, parts(task))) == 12
    expected = {rows[:4].astype(np.float32).tobytes(): rows[1:].tolist() for rows in files.values()}
    assert expected.items() <= sequences_of(task).items()


def test_subfolders_may_be_parts(tmp_path):
    wanted = []
    for seed, part in enumerate(["train", "val", "test"]):
        files = write_files(tmp_path / part, 4 + seed, seed=seed)
        # the test part has a class that is missing in the other parts
        names = {name: "abc"[i % 2 + (part == "test")] for i, name in enumerate(files)}
        (tmp_path / part / "labels.csv").write_text("".join(f"{n},{c}\n" for n, c in names.items()))
        wanted.append(expected(files, {n: "abc".index(c) for n, c in names.items()}))
    with pytest.warns(EdgernnWarning, match="no sequence for training has the class c; the model cannot learn it"):
        task = opened(Tables(), tmp_path)
    assert task.output_size == 3
    for part, those in zip(parts(task), wanted, strict=True):
        assert {x.numpy().tobytes(): y.item() for x, y in zip(part.x, part.y, strict=True)} == those


def test_a_warning_of_many_rare_classes_names_some_of_them(tmp_path):
    files = write_files(tmp_path, 40)
    (tmp_path / "labels.csv").write_text("".join(f"{name},k{i:02d}\n" for i, name in enumerate(files)))
    message = r"one sequence alone has the class (k\d\d, )+k\d\d and \d+ more, so no part"
    with pytest.warns(match="no sequence for training"), pytest.warns(EdgernnWarning, match=message):
        opened(Tables(), tmp_path)


def test_longer_files_are_cut(tmp_path):
    files = {}
    for i in range(10):
        files |= {f"f{i}.csv": np.arange(2.0 * (7 + i)).reshape(-1, 2) + 100 * i}
        write_csv(tmp_path / f"f{i}.csv", files[f"f{i}.csv"])
    (tmp_path / "targets.csv").write_text("".join(f"f{i}.csv,{i}\n" for i in range(10)))
    task = opened(Tables(T=7, time="none"), tmp_path)
    assert sequences_of(task) == expected(
        {n: rows[:7] for n, rows in files.items()}, {f"f{i}.csv": [i] for i in range(10)}
    )
    message = r"expected at least T=9 rows in f0\.csv, got 7 \(\d of \d recordings have fewer than 9\)"
    with pytest.raises(EdgernnError, match=message):
        opened(Tables(T=9, time="none"), tmp_path)


def write_recordings(folder, header="Time (s),ax,ay", start=0.0):
    """Write a recording of each of two classes with a column of time, an accelerated x axis and an y axis."""
    for seed, name in enumerate(["a", "b"] * 6):
        rows = np.random.default_rng(seed).normal(start, size=(8, 3)).round(3)
        rows[:, 0] = start + np.arange(8) / 50
        places = {"Time (s)": 0, "": 0, "ax": 1, "ay": 2}
        columns = [places[column] for column in (header or "Time (s),ax,ay").split(",")]
        write_csv(folder / name / f"{seed}.csv", rows[:, columns], header and f"{header}\n")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("Time (s),ax,ay", ["time: Time (s), 50 rows a second", "channels: ax, ay"]),
        ("", ["time: column 1, 50 rows a second", "channels: 2, without names"]),
        (",ax,ay", ["time: column 1, 50 rows a second", "channels: ax, ay"]),
    ],
)
def test_a_time_is_no_channel_unless_one_says_so(tmp_path, header, said):
    write_recordings(tmp_path, header)
    task = opened(Tables(), tmp_path)
    assert task.input_size == 2
    assert task.summary[1:3] == said
    assert task.channels == (("ax", "ay") if header else None)
    task = opened(Tables(time="none"), tmp_path)
    assert task.input_size == 3
    if header:
        # ax is the time: it is left out, and the other rising column is a channel
        with pytest.raises(EdgernnError, match=r"0\.csv: line 3, column 2 \(ax\): expected a time after"):
            opened(Tables(time="ax"), tmp_path)
    with pytest.raises(UsageError, match=r"time: expected a column of .*, got 'clock', none of .*; correct the"):
        opened(Tables(time="clock"), tmp_path)


TIMES = {
    "HHMMSS": lambda tick: f"{115958 + 4041 * (tick > 7) + tick // 4}",
    "midnight": lambda tick: f"{235958 + tick // 4 if tick < 8 else tick // 4 - 2}",
    "days of spreadsheets": lambda tick: f"{46000.25 + tick / 4 / 86400:.5f}",
    "days of MATLAB": lambda tick: f"{739648.25 + tick / 4 / 86400:.5f}",
    "AM and PM": lambda tick: f"11:59:{58 + tick // 4} AM" if tick < 8 else f"12:00:0{tick // 4 - 2} PM",
}


@pytest.mark.parametrize("form", TIMES)
def test_a_time_in_another_form_is_no_channel(tmp_path, form):
    for i in range(12):
        x = np.random.default_rng(i).normal(size=(12, 2)).round(3)
        rows = [f"{TIMES[form](tick)},{a},{b}" for tick, (a, b) in enumerate(x)]
        (tmp_path / f"{i}.csv").write_text("\n".join(rows) + "\n")
    if form == "midnight":
        with pytest.raises(EdgernnError, match=r"got 0; times of day begin again at midnight: write the date"):
            opened(Tables(predict="next"), tmp_path)
        return
    task = opened(Tables(predict="next"), tmp_path)
    assert task.input_size == 2
    # half of the rows and more repeat the time
    assert task.summary[1] == "time: column 1"
    if form != "AM and PM":
        with pytest.warns(EdgernnWarning, match=r"0\.csv: taken as time, not as a channel: column 1"):
            values = read(tmp_path / "0.csv", count=2)
        np.testing.assert_array_equal(values, np.random.default_rng(0).normal(size=(12, 2)).round(3))


def test_a_time_that_rises_is_found_again(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    source, run = tmp_path / "data", tmp_path / "run"
    for i in range(12):
        rows = np.c_[i + np.arange(8) / 50, np.random.default_rng(i).normal(size=(8, 2)).round(3)]
        write_csv(source / "ab"[i % 2] / f"{i}.csv", rows, "when,ax,ay\n")
    result = train(str(source), "gru", out=run, resample=25, hidden_size=4, steps=2)
    assert evaluate_model(run)["metrics"]["cross_entropy"] == pytest.approx(result["cross_entropy"])
    for file in source.glob("*/*.csv"):
        rows = np.loadtxt(file, delimiter=",", skiprows=1)
        write_csv(tmp_path / "again" / file.relative_to(source), rows[:, [2, 0, 1]], "ay,when,ax\n")
    again = evaluate_model(run, data=tmp_path / "again")
    assert (again["data"], again["metrics"]["cross_entropy"]) == (None, pytest.approx(result["cross_entropy"]))


def test_a_count_that_repeats_is_a_channel(tmp_path):
    for i in range(12):
        rows = np.c_[12345 + np.arange(8) // 2 * (i + 9), np.random.default_rng(i).normal(size=8).round(3)]
        write_csv(tmp_path / f"{i}.csv", rows)
    assert opened(Tables(predict="next"), tmp_path).input_size == 2


@pytest.mark.filterwarnings("ignore:.*the same numbers in:edgernn.errors.EdgernnWarning")
def test_dates_are_a_time_and_times_alone_are_refused(tmp_path):
    for i in range(12):
        rows = "".join(f"2026-01-{day + 1:02d},{(day * i) % 3}\n" for day in range(5))
        (tmp_path / f"{i}.csv").write_text("date,x\n" + rows)
    task = opened(Tables(predict="next"), tmp_path)
    assert task.input_size == 1
    assert task.summary[1:3] == ["time: date, 1.157e-05 rows a second", "channels: x"]
    for i in range(12):
        (tmp_path / f"{i}.csv").write_text("t,count\n1,1\n2,2\n3,3\n")
    with pytest.raises(
        EdgernnError, match=r"got columns of time alone \(t, count\): .*to train on them, set time=none"
    ):
        opened(Tables(predict="next"), tmp_path)


def test_files_without_a_header_are_taken_by_place_and_named(tmp_path):
    write_files(tmp_path)
    write_csv(tmp_path / "g.csv", np.eye(5, 3))
    task = opened(Tables(predict="next"), tmp_path)
    assert task.channels == ("a", "b", "c")
    assert task.summary[0].endswith("41 files, 205 rows; 1 without a header, columns taken by place")


def test_no_file_is_left_out_in_silence(tmp_path):
    write_files(tmp_path / "bee")
    for i, file in enumerate(write_files(tmp_path / "wasp", seed=1)):
        if i % 2:
            (tmp_path / "wasp" / file).rename((tmp_path / "wasp" / file).with_suffix(".CSV"))
    for name in ("._f00.csv", ".DS_Store"):
        (tmp_path / "bee" / name).write_bytes(b"\0\5\x16\7")
    assert sum(map(len, parts(opened(Tables(), tmp_path)))) == 80
    for name in ("bee/f.txt", "wasp/f.csv.gz", "wasp/more/f.csv", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1,2,3\n")
    message = (
        r"not read: bee/f\.txt, notes\.md, wasp/f\.csv\.gz and 1 more; only \.csv and \.parquet files in the right"
    )
    with pytest.warns(EdgernnWarning, match=message):
        assert sum(map(len, parts(opened(Tables(), tmp_path)))) == 80
    odd = tmp_path / "bee/x.csv"
    for make, got in (
        (lambda: odd.symlink_to("missing"), "a link to a file that is missing"),
        (lambda: os.mkfifo(odd), "a pipe or a device"),
    ):
        make()
        with pytest.raises(EdgernnError, match=rf"bee/x\.csv: expected a file or a folder, got {got}"):
            opened(Tables(), tmp_path)
        odd.unlink()
    for name in ("a\x1b[2Jb", "a\nb", "\udcff"):
        (tmp_path / name).mkdir()
        with pytest.raises(EdgernnError, match="expected names in UTF-8 without control characters, got"):
            opened(Tables(), tmp_path)
        (tmp_path / name).rmdir()


def test_copies_in_two_parts_are_named(tmp_path):
    for seed, name in enumerate("ab"):
        write_files(tmp_path / name, seed=seed)
    paths = sorted(tmp_path.rglob("*.csv"))
    for path in paths[::4]:
        (path.parent / f"copy of {path.name}").write_bytes(path.read_bytes())
    with pytest.warns(EdgernnWarning, match=r"the same numbers in \w/copy of \S+ \(\w+\) and \w/f\d+\.csv \("):
        opened(Tables(), tmp_path)


def test_recordings_without_a_window_and_jumps_of_the_time_are_named(tmp_path):
    for i in range(24):
        rows = 30 if i % 6 == 0 else 80
        x = np.random.default_rng(i).normal(size=rows)
        t = np.arange(rows) * 0.1 + 50 * (i == 7) * (np.arange(rows) > 40)
        lines = [f"{t[k]:.1f},{x[k]:.3f},{'ab'[i % 2]}" for k in range(rows)]
        (tmp_path / f"{i}.csv").write_text("\n".join(["time,x,label", *lines]))
    short = r"4 of 24 recordings have fewer rows than window=50 and are left out: 0\.csv \(30 rows\), 12\.csv"
    with pytest.warns(EdgernnWarning, match=short):
        opened(Tables(window=50), tmp_path)
    with pytest.warns(EdgernnWarning, match=r"the time jumps by 50\.1 s in 7\.csv, .*; with gap=1, training splits"):
        opened(Tables(resample=10.0), tmp_path)
    opened(Tables(resample=10.0, gap=1.0), tmp_path)


def value(i, k):
    return round(np.cos(0.77 * i * i + k), 3)


def rows_of_two(first, second, step):
    """Return a function of a file's index: 20 rows of two sensors in turn, with times, ids and values."""

    def rows(i):
        pairs = [(k // 2 * 0.02 + step * (k % 2), (first, second)[k % 2], value(i, k)) for k in range(20)]
        return "".join(f"{t:.3f},{name},{value:.3f},{'ab'[i % 2]}\n" for t, name, value in pairs)

    return rows


# header, rows of each file, settings, and the warning
DOUBTFUL = {
    "two devices": ("t,device,v,label", rows_of_two("A", "B", 0.0), {}, "device: its values alternate"),
    "two devices in turn": ("t,device,v,label", rows_of_two("A", "B", 0.01), {}, "device: its values alternate"),
    "two numbered devices": ("t,device id,v,label", rows_of_two(1, 2, 0.0), {}, "set 'sequence=device id'"),
    "a numbered person": (
        "t,patient no,v,label",
        lambda i: "".join(f"{k / 50},{i // 2},{value(i, k):.3f},{'ab'[i % 2]}\n" for k in range(9)),
        {},
        "patient no: a channel with one whole number in each recording, .*'split_by=patient no'",
    ),
    "a counter": (
        "frame,v,label",
        lambda i: "".join(f"{k},{value(i, k):.3f},{'ab'[i % 2]}\n" for k in range(9)),
        {"resample": 2.0},
        "frame: taken as the time in s, as it rises",
    ),
    "marks of missing values": (
        "t,v,label",
        lambda i: "".join(f"{k / 50},{-999 if k == i % 7 else value(i, k)},{'ab'[i % 2]}\n" for k in range(9)),
        {},
        "v: 12 values are -999, the others -0.998 to 0.997; if that marks missing values",
    ),
    "two spellings": (
        "t,v,label",
        lambda i: "".join(f"{k / 50},{value(i, k):.3f},{('walk', 'run', 'Run')[i % 3]}\n" for k in range(9)),
        {},
        "[Rr]un, [Rr]un: classes that differ in upper and lower case or in spaces alone",
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_doubtful_columns_are_named(tmp_path, case):
    header, rows, settings, message = DOUBTFUL[case]
    for i in range(12):
        (tmp_path / f"{i}.csv").write_text(f"{header}\n{rows(i)}")
    with pytest.warns(EdgernnWarning, match=message) as warned:
        opened(Tables(**settings), tmp_path)
    assert len(warned) == 1


@pytest.mark.parametrize("ids", [(1, 2), ("A", "B")])
def test_devices_that_alternate_are_sequences_if_one_says_so(tmp_path, ids):
    for i in range(12):
        (tmp_path / f"{i}.csv").write_text("t,device,v,label\n" + rows_of_two(*ids, 0.0)(i))
    task = opened(Tables(sequence="device"), tmp_path)
    expected = {np.float32([[value(i, k)] for k in range(d, 20, 2)]).tobytes() for i in range(12) for d in (0, 1)}
    assert set(sequences_of(task)) == expected


def test_switches_and_slow_times_raise_no_warning(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        rows = [f"12:00:{k // 10:02d},{rng.integers(2)},{rng.integers(4)},{'ab'[i % 2]}\n" for k in range(40)]
        (tmp_path / f"{i}.csv").write_text("time,on,level,label\n" + "".join(rows))
    assert opened(Tables(), tmp_path).channels == ("on", "level")


def test_columns_without_values_are_not_read(tmp_path):
    for i in range(12):
        x = np.random.default_rng(i).normal(size=9)
        lines = [f"{value:.3f},{'ab'[i % 2]},," for value in x]
        (tmp_path / f"{i}.csv").write_text("\n".join(["x,label,heat,", *lines]) + "\n")
    task = opened(Tables(), tmp_path)
    assert task.channels == ("x",)
    assert task.summary[1] == "channels: x; not read: heat, column 4"


def test_dot_files_do_not_decide_the_task(tmp_path):
    write_files(tmp_path / "a")
    (tmp_path / "a" / "._f.wav").write_bytes(b"\0\5\x16\7")
    assert find_task(str(tmp_path))[0] is Tables


def test_a_class_of_one_file_is_named(tmp_path):
    for name, count in (("ant", 10), ("bee", 10), ("fly", 1)):
        write_files(tmp_path / name, count, seed=ord(name[0]))
    messages = "(no sequence for training has|one sequence alone has) the class fly"
    for seed in range(4):
        with pytest.warns(EdgernnWarning, match=messages):
            Tables().open(tmp_path, seed)


def test_a_large_offset_is_named(tmp_path):
    for i in range(10):
        rows = np.random.default_rng(i).normal((0, 1.7e9), size=(6, 2))
        np.savetxt(tmp_path / f"{i}.csv", rows, delimiter=",", header="x,utm", fmt="%.6f")
    with pytest.warns(EdgernnWarning) as warned:
        opened(Tables(predict="next"), tmp_path)
    assert [str(w.message).partition(": ")[2] for w in warned] == [
        "float32 cannot tell apart the values of utm (spread 1 at 1.7e+09); subtract the offset beforehand",
        "constant in float32 in all sequences for training: utm",
    ]


def test_a_changed_folder_has_another_fingerprint(tmp_path):
    fingerprints = set()
    for seed in (0, 0, 1):
        write_files(tmp_path, seed=seed)
        fingerprints.add(opened(Tables(predict="next"), tmp_path).fingerprint)
    (tmp_path / "f00.csv").rename(tmp_path / "g.csv")
    fingerprints.add(opened(Tables(predict="next"), tmp_path).fingerprint)
    assert len(fingerprints) == 3


ROWS = "".join(f"f{i:02d}.csv,{i % 2}\n" for i in range(10))
# files written beside ten valid ones (`|` and a text append to a file), and the expected error
BAD_FOLDERS = {
    "none": ({}, r"expected a column of labels or target numbers, .*, add labels\.csv, .*predict=next"),
    "both": (
        {"labels.csv": ROWS, "targets.csv": ROWS},
        r"expected targets in one of .*, got labels\.csv and targets\.csv; keep one of them, or name",
    ),
    "beside": ({"a/1.csv": "1\n"}, r"got subfolders with tables \(a\) and files beside them \(f00\.csv\)"),
    "unknown": (
        {"labels.csv": ROWS + "g.csv,1\n"},
        r"labels\.csv: line 11: expected the name of a file in .*, got 'g\.csv'",
    ),
    "missing": ({"labels.csv": ROWS[10:]}, r"labels\.csv: expected a row for each .* none for f00\.csv \(1 missing\)"),
    "twice": (
        {"labels.csv": ROWS + ROWS[:10]},
        r"labels\.csv: line 11: expected each file once, got f00\.csv of line 1 again",
    ),
    "no-label": ({"labels.csv": ROWS.replace("f03.csv,1", "f03.csv,")}, r"line 4: expected f03\.csv and the name of a"),
    "two-labels": ({"labels.csv": ROWS.replace("f03.csv,1", "f03.csv,1,2")}, r"labels\.csv: line 4: expected f03\.csv"),
    "one-class": ({"labels.csv": ROWS.replace(",1", ",0")}, "expected at least 2 classes, got only '0'"),
    "quote": (
        {"labels.csv": ROWS.replace("f03.csv,1", 'f03.csv,"1')},
        r"labels\.csv: line .*: expected a row in csv format",
    ),
    "bytes": ({"labels.csv": b"\xff"}, r"labels\.csv: expected text in UTF-8"),
    "word": (
        {"targets.csv": ROWS.replace("f03.csv,1", "f03.csv,−1")},
        r"targets\.csv: line 4, column 2: expected a number, got '−1'",
    ),
    "first": (
        {"labels.csv": "f99.tsv,1\n" + ROWS},
        r"labels\.csv: line 1: expected the name of a file in .*, got 'f99\.tsv'",
    ),
    "nan": (
        {"targets.csv": ROWS.replace("f03.csv,1", "f03.csv,nan")},
        r"targets\.csv: line 4, column 2: expected a finite number .*, got nan",
    ),
    "width": (
        {"targets.csv": ROWS.replace("f03.csv,1", "f03.csv,1,2")},
        "line 4: expected 2 cells, the name and the numbers of f03.csv, got 3",
    ),
    "no-number": (
        {"targets.csv": ROWS.replace(",1", "").replace(",0", "")},
        "line 1: expected 2 cells, .* of f00.csv, got 1",
    ),
    "columns": (
        {"f04.csv": "1,2\n" * 5, "labels.csv": ROWS},
        r"equally many columns, got 3 in f00\.csv and 2 in f04\.csv",
    ),
    "cell": (
        {"f04.csv": "a,b,c\n1,2,3\n1,?,3\n", "labels.csv": ROWS},
        r"f04\.csv: line 3, column 2 \(b\): expected a number, got '\?'",
    ),
    "gap": (
        {"f04.csv": "1,2,\n1,2,3\n", "labels.csv": ROWS},
        r"f04\.csv: line 1, column 3 \(c\): expected a number, got ''; fill the gap, .*, or give it a header",
    ),
    "names": (
        {"f04.csv": "a,b,d\n" + "1,2,3\n" * 5, "labels.csv": ROWS},
        r"f04\.csv: expected the columns a, b, c of .*f00\.csv, got a, b, d; correct the header",
    ),
    "inf": (
        {"f04.csv": "c,b,a\n" + "inf,2,1\n" * 5, "labels.csv": ROWS},
        r"f04\.csv: line 2, column 1 \(c\): expected a finite number .*, got inf",
    ),
    "empty": ({"f04.csv": "", "labels.csv": ROWS}, r"f04\.csv: expected rows of numbers, got none"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folders_are_named(tmp_path, case):
    files, message = BAD_FOLDERS[case]
    write_files(tmp_path, 10)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Tables(), tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("predict", ["targets", "next"])
def test_a_folder_beside_the_parts_is_named(tmp_path, predict):
    for part in ("train", "validation"):
        write_files(tmp_path / part, 10)
        (tmp_path / part / "labels.csv").write_text(ROWS)
    with pytest.raises(EdgernnError, match=r"expected no subfolders other than train, val, test, got validation"):
        opened(Tables(predict=predict), tmp_path)


def test_bad_parts_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("1\n")
    with pytest.raises(EdgernnError, match=r"csv, parquet or wav files, got none but files such as a\.txt; add"):
        opened(Tables(), tmp_path)
    (tmp_path / "a.txt").unlink()
    for part in ("train", "test"):
        write_files(tmp_path / part, 10)
    (tmp_path / "train" / "labels.csv").write_text(ROWS)
    (tmp_path / "test" / "targets.csv").write_text(ROWS)
    with pytest.raises(
        EdgernnError, match=r"same kind of targets in all parts, got classes in .*train and numbers in .*test"
    ):
        opened(Tables(), tmp_path)
    (tmp_path / "train" / "labels.csv").rename(tmp_path / "train" / "targets.csv")
    (tmp_path / "test" / "targets.csv").write_text(ROWS.replace("\n", ",1\n"))
    with pytest.raises(EdgernnError, match=r"targets\.csv: expected 1 numbers per file as in train, got 2"):
        opened(Tables(), tmp_path)
    write_files(tmp_path / "test", 10, I=2)
    with pytest.raises(EdgernnError, match=r"got 3 in train/f00\.csv and 2 in test/f00\.csv"):
        opened(Tables(), tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(EdgernnError, match=r"val: expected csv or parquet files"):
        opened(Tables(), tmp_path)
    (tmp_path / "labels.csv").write_text(ROWS)
    with pytest.raises(EdgernnError, match=r"got labels\.csv and subfolders with tables \(test, train, val\)"):
        opened(Tables(), tmp_path)


@pytest.mark.parametrize(
    ("settings", "metric", "computed", "classes"),
    [({}, "accuracy", accuracy, ["a", "b", "c"]), ({"predict": "next", "T": 4}, "mse", mean_squared_error, None)],
    ids=["labels", "next"],
)
def test_a_few_steps_train_and_the_metric_is_right(tmp_path, monkeypatch, settings, metric, computed, classes):
    without_pictures(monkeypatch)
    source = tmp_path / "data"
    files = write_files(source)
    (source / "labels.csv").write_text("".join(f"{name},{'abc'[i % 3]}\n" for i, name in enumerate(files)))
    trained = Trained(tmp_path / "run", str(source), **settings)
    test = opened(Tables(**settings), source).test
    assert trained.result["metric"] == metric
    assert trained.result[metric] == pytest.approx(computed(trained.outputs(test.x), test.y.numpy()), rel=1e-5)
    assert trained.config["task"]["classes"] == classes
    assert trained.config["task"]["channels"] == ["a", "b", "c"]


@pytest.mark.filterwarnings("always::edgernn.errors.EdgernnWarning")
def test_names_of_channels_go_from_training_to_every_later_reading(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    source, run = tmp_path / "data", tmp_path / "run"
    write_recordings(source, "ay,Time (s),ax")
    Trained(run, str(source))
    said = capsys.readouterr().err
    assert "time: Time (s), 50 rows a second\nchannels: ay, ax\n" in said
    assert "split by recording: train a/" in said
    model = Path(export_run(run)["model"])
    assert "| channels of x | ay, ax |" in model.with_suffix(".md").read_text()
    x = np.random.default_rng(5).normal(size=(4, 2)).round(3)
    np.save(tmp_path / "x.npy", x)
    write_csv(tmp_path / "X.CSV", np.c_[np.arange(4), x[:, ::-1]], "timestamp,ax,ay\n")
    run_file(model, tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.warns(EdgernnWarning, match="not read: timestamp; the channels are ay, ax"):
        run_file(model, tmp_path / "X.CSV", tmp_path / "z.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), np.load(tmp_path / "y.npy"))
    write_csv(tmp_path / "other.csv", x, "ax,az\n")
    with pytest.raises(
        EdgernnError, match=r"other\.csv: expected each of the columns ay, ax of the training once, got ax, az; correct"
    ):
        run_file(model, tmp_path / "other.csv", tmp_path / "w.npy")
    write_csv(tmp_path / "none.csv", x)
    with pytest.warns(EdgernnWarning, match=r"none\.csv: no header; its columns are taken as ay, ax, in this order"):
        run_file(model, tmp_path / "none.csv", tmp_path / "w.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "w.npy"), np.load(tmp_path / "y.npy"))
    # the data of the training, stored in another order
    metric = evaluate_model(run)["metrics"]["cross_entropy"]
    write_recordings(source, "ax,ay,Time (s)")
    assert evaluate_model(run)["metrics"]["cross_entropy"] == metric
    # new data, with columns in two orders
    for name, header in (("a", "ay,Time (s),ax"), ("b", "ax,ay,Time (s)")):
        write_recordings(tmp_path / name, header, start=1.0)
    metrics = [evaluate_model(run, data=tmp_path / name)["metrics"]["cross_entropy"] for name in "ab"]
    assert metrics[0] == metrics[1] != metric
    write_recordings(source, "ax,Time (s)")
    with pytest.raises(EdgernnError, match=r"expected the column 'ay' of the training, got ax, .*; did you mean 'ax'"):
        evaluate_model(run)


def test_a_column_with_other_classes_than_the_folders_is_named(tmp_path):
    for i in range(16):
        rows = "".join(f"{k / 50},{value(i, k)},{('walk', 'rest')[i % 2]}\n" for k in range(12))
        path = tmp_path / f"anna{i // 4}" / f"{i}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"t,v,activity\n{rows}")
    message = r"activity: not read, as the classes are anna0, .*, of the files; .* set label=activity"
    with pytest.warns(EdgernnWarning, match=message):
        assert opened(Tables(), tmp_path).classes == [f"anna{i}" for i in range(4)]
    assert opened(Tables(label="activity", split_by="{}/*"), tmp_path).classes == ["rest", "walk"]


def test_nan_among_numbers_is_no_class(tmp_path):
    for i in range(12):
        rows = "".join(f"{value(i, k)},{'nan' if k < 2 else i % 2}\n" for k in range(9))
        (tmp_path / f"{i}.csv").write_text(f"v,label\n{rows}")
    task = opened(Tables(), tmp_path)
    assert task.classes == ["0", "1"]
    assert {int(label) for part in parts(task) for label in part.y.flatten()} == {0, 1}


def test_new_data_of_another_rate_are_refused(tmp_path):
    for folder, rate in (("old", 50), ("new", 100)):
        (tmp_path / folder).mkdir()
        for i in range(12):
            rows = "".join(f"{k / rate},{value(i, k)},{'ab'[i % 2]}\n" for k in range(9))
            (tmp_path / folder / f"{i}.csv").write_text(f"t,v,label\n{rows}")
    trained, task = opened(Tables(), tmp_path / "old"), Tables()
    task.classes, task.channels, task.reading = trained.classes, trained.channels, trained.reading
    task.open_test(tmp_path / "old", 2)
    task.reading = trained.reading
    with pytest.raises(EdgernnError, match=r"expected about 50 rows a second as in the training, got 100"):
        task.open_test(tmp_path / "new", 2)
