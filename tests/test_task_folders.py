# SPDX-License-Identifier: Apache-2.0
"""A user's own CSV files."""

import numpy as np
import pytest

from edgernn.errors import EdgernnError
from edgernn.training.tasks.folders import Folder
from tests.task_helpers import Trained, accuracy, mean_squared_error, opened, parts
from tests.training_helpers import without_pictures


def write_csv(path, rows, header=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "".join(",".join(f"{v:g}" for v in row) + "\n" for row in rows))


def write_files(folder, count=40, T=5, I=3, seed=0):
    """Write files f00.csv and so on, every other one with a header; return their contents by name."""
    rng = np.random.default_rng(seed)
    contents = {}
    for i in range(count):
        rows = rng.integers(-999, 999, (T, I)) / 8
        contents[f"f{i:02d}.csv"] = rows
        write_csv(folder / f"f{i:02d}.csv", rows, ",".join("abc"[:I]) + "\n" if i % 2 else "")
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
    task = opened(Folder(), tmp_path)
    assert task.classes == ["bee", "fly", "wasp"]
    assert (task.output, task.input_size, task.output_size, task.objective.metric) == ("last", 3, 3, "accuracy")
    assert [len(part) for part in parts(task)] == [32, 4, 4]
    assert sequences_of(task) == expected(files, {n: ["bee", "fly", "wasp"].index(c) for n, c in names.items()})


def test_numbers_as_names_of_classes_are_in_their_order(tmp_path):
    files = write_files(tmp_path, 24)
    (tmp_path / "labels.csv").write_text("".join(f"{name},{i % 12 + 1}\n" for i, name in enumerate(files)))
    task = opened(Folder(), tmp_path)
    assert task.classes == [str(i) for i in range(1, 13)]
    assert sequences_of(task) == expected(files, {name: i % 12 for i, name in enumerate(files)})


def test_a_subfolder_is_a_class(tmp_path):
    files = {name: write_files(tmp_path / name, 10, seed=seed) for seed, name in enumerate(["wasp", "bee", "drone"])}
    (tmp_path / ".hidden").mkdir()
    task = opened(Folder(), tmp_path)
    assert task.classes == ["bee", "drone", "wasp"]
    wanted = {}
    for number, name in enumerate(task.classes):
        wanted |= expected(files[name], dict.fromkeys(files[name], number))
    assert sequences_of(task) == wanted


def test_targets_stand_in_a_table(tmp_path):
    files = write_files(tmp_path)
    numbers = {name: [i / 4, -i] for i, name in enumerate(files)}
    (tmp_path / "targets.csv").write_text("file,u,v\n" + "".join(f"{n},{u},{v}\n" for n, (u, v) in numbers.items()))
    task = opened(Folder(), tmp_path)
    assert task.classes is None
    assert (task.output, task.output_size, task.objective.metric) == ("last", 2, "mse")
    assert sequences_of(task) == expected(files, numbers)


def test_the_next_step_of_files_needs_no_targets(tmp_path):
    files = write_files(tmp_path, 6) | write_files(tmp_path / "more", 6, seed=1)
    assert len(files) == 6
    task = opened(Folder(predict="next"), tmp_path)
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
    task = opened(Folder(), tmp_path)
    assert task.output_size == 3
    for part, those in zip(parts(task), wanted, strict=True):
        assert {x.numpy().tobytes(): y.item() for x, y in zip(part.x, part.y, strict=True)} == those


def test_longer_files_are_cut(tmp_path):
    files = {}
    for i in range(10):
        files |= {f"f{i}.csv": np.arange(2.0 * (7 + i)).reshape(-1, 2) + 100 * i}
        write_csv(tmp_path / f"f{i}.csv", files[f"f{i}.csv"])
    (tmp_path / "targets.csv").write_text("".join(f"f{i}.csv,{i}\n" for i in range(10)))
    task = opened(Folder(T=7), tmp_path)
    assert sequences_of(task) == expected(
        {n: rows[:7] for n, rows in files.items()}, {f"f{i}.csv": [i] for i in range(10)}
    )
    message = r"expected files with equally many rows, got 7 in f0\.csv and 8 in f1\.csv \(9 of 10 .*\); .* set T=7"
    with pytest.raises(EdgernnError, match=message):
        opened(Folder(), tmp_path)
    message = r"f0\.csv: expected at least T=9 rows, got 7 \(2 of 10 files have fewer than 9\)"
    with pytest.raises(EdgernnError, match=message):
        opened(Folder(T=9), tmp_path)


def test_a_changed_folder_has_another_fingerprint(tmp_path):
    fingerprints = set()
    for seed in (0, 0, 1):
        write_files(tmp_path, seed=seed)
        fingerprints.add(opened(Folder(predict="next"), tmp_path).fingerprint)
    (tmp_path / "f00.csv").rename(tmp_path / "g.csv")
    fingerprints.add(opened(Folder(predict="next"), tmp_path).fingerprint)
    assert len(fingerprints) == 3


ROWS = "".join(f"f{i:02d}.csv,{i % 2}\n" for i in range(10))
# files written beside ten valid ones (`|` and a text append to a file), and the expected error
BAD_FOLDERS = {
    "none": ({}, r"expected targets in one of labels\.csv, targets\.csv, or a subfolder.*, got none; .*predict=next"),
    "both": (
        {"labels.csv": ROWS, "targets.csv": ROWS},
        r"expected targets in one of .*, got labels\.csv and targets\.csv; keep one of them$",
    ),
    "beside": ({"a/1.csv": "1\n"}, r"got subfolders with csv files \(a\) and csv files beside them \(f00\.csv\)"),
    "unknown": (
        {"labels.csv": ROWS + "g.csv,1\n"},
        r"labels\.csv: line 11: expected the name of a csv file in .*, got 'g\.csv'",
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
        {"targets.csv": ROWS.replace("f03.csv,1", "f03.csv,x")},
        r"targets\.csv: line 4: expected a number, got 'x'",
    ),
    "nan": ({"targets.csv": ROWS.replace("f03.csv,1", "f03.csv,nan")}, r"targets\.csv: expected finite .*got nan"),
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
        {"f04.csv": "1,2,3\n1,?,3\n", "labels.csv": ROWS},
        r"f04\.csv: line 2, column 2: expected a number, got '\?'",
    ),
    "inf": ({"f04.csv": "1,2,inf\n" * 5, "labels.csv": ROWS}, r"f04\.csv: expected finite .*inf at index \(0, 2\)"),
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
        opened(Folder(), tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("predict", ["targets", "next"])
def test_a_folder_beside_the_parts_is_named(tmp_path, predict):
    for part in ("train", "validation"):
        write_files(tmp_path / part, 10)
        (tmp_path / part / "labels.csv").write_text(ROWS)
    with pytest.raises(EdgernnError, match=r"expected no subfolders other than train, val, test, got validation"):
        opened(Folder(predict=predict), tmp_path)


def test_bad_parts_are_named(tmp_path):
    with pytest.raises(EdgernnError, match="one per sequence, or subfolders with csv or wav files, got none"):
        opened(Folder(), tmp_path)
    for part in ("train", "test"):
        write_files(tmp_path / part, 10)
    (tmp_path / "train" / "labels.csv").write_text(ROWS)
    (tmp_path / "test" / "targets.csv").write_text(ROWS)
    with pytest.raises(
        EdgernnError, match=r"same kind of targets in all parts, got classes in .*train and numbers in .*test"
    ):
        opened(Folder(), tmp_path)
    (tmp_path / "train" / "labels.csv").rename(tmp_path / "train" / "targets.csv")
    (tmp_path / "test" / "targets.csv").write_text(ROWS.replace("\n", ",1\n"))
    with pytest.raises(EdgernnError, match=r"targets\.csv: expected 1 numbers per file as in train, got 2"):
        opened(Folder(), tmp_path)
    write_files(tmp_path / "test", 10, I=2)
    with pytest.raises(EdgernnError, match=r"test: expected 3 columns as in train, got 2"):
        opened(Folder(), tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(EdgernnError, match=r"val: expected csv files"):
        opened(Folder(), tmp_path)
    (tmp_path / "labels.csv").write_text(ROWS)
    with pytest.raises(EdgernnError, match=r"got labels\.csv and subfolders with csv files \(test, train, val\)"):
        opened(Folder(), tmp_path)


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
    test = opened(Folder(**settings), source).test
    assert trained.result["metric"] == metric
    assert trained.result[metric] == pytest.approx(computed(trained.outputs(test.x), test.y.numpy()), rel=1e-5)
    assert trained.config["task"]["classes"] == classes
