# SPDX-License-Identifier: Apache-2.0
"""The tasks of event detection in time series, on small files in the real formats, compared with plain loops."""

import math

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.papers.tasks.twitter import Twitter
from edgernn.training.papers.tasks.yahoo import Yahoo
from edgernn.training.tasks.seizures import Seizures
from tests.task_helpers import Trained, opened, parts
from tests.training_helpers import PACK, data_folder, without_pictures


def rows_of(part):
    """Return the sequences of a part, each as a hashable key, and their labels."""
    return [tuple(x.flatten().tolist()) for x in part.x], part.y.tolist()


def key(numbers):
    return tuple(np.asarray(numbers, np.float32).tolist())


def check(task, expected, sizes):
    """Check the sizes of parts, that each expected sequence occurs once with its label, and the class balance."""
    seen = []
    for part, size in zip(parts(task), sizes, strict=True):
        sequences, labels = rows_of(part)
        assert len(sequences) == size
        assert sum(labels) * 2 == size
        for sequence, label in zip(sequences, labels, strict=True):
            assert expected[sequence] == label
        seen += sequences
    assert len(set(seen)) == len(seen)
    x = task.train.x.double().numpy().reshape(-1, task.input_size)
    assert np.allclose(task.mean, x.mean(0), rtol=1e-5, atol=1e-5)
    assert np.allclose(task.std, x.std(0), rtol=1e-5)
    return set(seen)


# seizures

CHUNKS = 4
# number of recordings of the classes y = 1 to 5
RECORDINGS = {1: 20, 2: 10, 3: 10, 4: 10, 5: 10}


def seizure_rows(seed=0):
    """Draw (recording, chunk, samples, y) in an order other than that of the recordings."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"{'SFNOZ'[y - 1]}{number:03d}", chunk, rng.integers(-1885, 2048, 178).tolist(), y)
        for y, count in RECORDINGS.items()
        for number in range(1, count + 1)
        for chunk in range(1, CHUNKS + 1)
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


def write_rebuilt(folder, rows, suffix=""):
    lines = [",".join(["recording", "chunk", *(f"X{i}" for i in range(1, 179)), "y"])]
    lines += [",".join(map(str, [name, chunk, *samples, y])) for name, chunk, samples, y in rows]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epileptic_seizure_recognition.csv{suffix}"
    path.write_bytes(PACK[suffix]("\n".join(lines).encode()))
    return path


def write_uci(folder, rows, name="data.csv", column='""'):
    numbers = {recording: f"V1.{100 + i}" for i, recording in enumerate(sorted({row[0] for row in rows}))}
    lines = [",".join([column, *(f'"X{i}"' for i in range(1, 179)), '"y"'])]
    lines += [f'"X{chunk}.{numbers[recording]}",{",".join(map(str, [*x, y]))}' for recording, chunk, x, y in rows]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def expected_seizures(rows):
    """As in the paper: centre, then average groups of 10; return the label and the recording."""
    labels, recordings = {}, {}
    for recording, _, samples, y in rows:
        mean = sum(samples) / 178
        steps = [sum(samples[10 * i + j] - mean for j in range(10)) / 10 for i in range(17)]
        labels[key(np.float32(steps))] = int(y == 1)
        recordings[key(np.float32(steps))] = recording
    return labels, recordings


def rounded(table, task):
    """Round the keys of a table: a loop's sums may differ in the last bit."""
    known = np.array(list(table))
    keys = {}
    for part in parts(task):
        for sequence in rows_of(part)[0]:
            distance = np.abs(known - np.array(sequence)).max(1)
            assert distance.min() < 1e-3
            keys[sequence] = table[tuple(known[distance.argmin()].tolist())]
    return keys


@pytest.mark.parametrize("split", ["rows", "recordings"])
@pytest.mark.parametrize("seed", [0, 3])
def test_seizures_are_centred_averaged_and_balanced(tmp_path, split, seed):
    rows = seizure_rows()
    write_rebuilt(tmp_path / "seizures", rows, ".xz")
    task = opened(Seizures(split=split), tmp_path, seed)
    labels, recordings = expected_seizures(rows)
    # 80 rows or 20 recordings with a seizure
    held_out = 16
    seen = check(task, rounded(labels, task), [160 - 2 * held_out, held_out, held_out])
    expected = rounded(recordings, task)
    assert task.train.x.shape[1:] == (17, 1)
    # every seizure occurs
    assert sum(expected[sequence].startswith("S") for sequence in seen) == 80
    of = [{expected[sequence] for sequence in rows_of(part)[0]} for part in parts(task)]
    shared = (of[0] & of[1]) | (of[0] & of[2]) | (of[1] & of[2])
    assert bool(shared) == (split == "rows")
    for part in parts(task):
        if split == "rows":
            assert part.origins is None
            continue
        # one number for each recording
        pairs = {(expected[x], int(origin)) for x, origin in zip(rows_of(part)[0], part.origins, strict=True)}
        assert len(pairs) == len({recording for recording, _ in pairs}) == len({origin for _, origin in pairs})


@pytest.mark.parametrize(
    ("name", "column"),
    [("data.csv", '""'), ("data.csv", ""), ("Epileptic Seizure Recognition.csv", "Unnamed")],
)
def test_the_uci_file_gives_the_same_as_the_rebuilt_one(tmp_path, name, column):
    rows = seizure_rows()
    (tmp_path / "a").mkdir()
    write_uci(tmp_path / "a", rows, name, column)
    write_rebuilt(tmp_path / "b", rows)
    for split in ("rows", "recordings"):
        one, two = (opened(Seizures(split=split), tmp_path / folder) for folder in "ab")
        for a, b in zip(parts(one), parts(two), strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)


def test_another_seed_draws_others(tmp_path):
    write_rebuilt(tmp_path, seizure_rows())
    one, again, other = (opened(Seizures(), tmp_path, seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.x, again.train.x)
    sets = [{row for part in parts(task) for row in rows_of(part)[0]} for task in (one, other)]
    # both have all 80 seizures and half of the 160 others
    assert 80 < len(sets[0] & sets[1]) < 160


def changed(change):
    """Return the rebuilt rows after a change."""
    return lambda folder: write_rebuilt(folder, [change(*row) for row in seizure_rows()])


def uci_with_other_ids(folder):
    path = write_uci(folder, seizure_rows())
    path.write_text(path.read_text().replace('"X3.V1.107"', '"seven"'))


BAD_SEIZURES = {
    "no-seizure": (changed(lambda r, c, x, y: (r, c, x, 5)), "at least 3 recordings of the class 'seizure', got 0"),
    "all-seizures": (changed(lambda r, c, x, y: (r, c, x, 1)), "recordings of the class 'no seizure', got 0"),
    "two-classes": (changed(lambda r, c, x, y: ("A001", c, x, y)), "expected one class per recording, got two in A001"),
    "nan": (changed(lambda r, c, x, y: (r, c, [math.nan, *x[1:]], y)), r"expected finite numbers .*, got nan"),
    "inf": (changed(lambda r, c, x, y: (r, c, [math.inf, *x[1:]], y)), r"expected finite numbers .*, got inf"),
    "word": (changed(lambda r, c, x, y: (r, c, ["x", *x[1:]], y)), r"line 2, column 3 \(X1\): expected a number"),
    "short": (changed(lambda r, c, x, y: (r, c, x[1:], y)), "line 2: expected 181 columns"),
    "ids": (uci_with_other_ids, "expected ids like X21.V1.791, got 'seven'"),
}


@pytest.mark.parametrize("case", BAD_SEIZURES)
def test_bad_seizures_are_named(tmp_path, case):
    write, message = BAD_SEIZURES[case]
    write(tmp_path)
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Seizures(split="recordings"), tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_recordings_need_a_column(tmp_path):
    path = write_rebuilt(tmp_path, seizure_rows())
    lines = [line.split(",", 2)[2] for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    opened(Seizures(), tmp_path)
    with pytest.raises(
        EdgernnError, match=r"expected a column recording or a column of ids like X21\.V1\.791, got neither"
    ):
        opened(Seizures(split="recordings"), tmp_path)
    path.write_text("\n".join([lines[0].replace("X178", "Z"), *lines[1:]]))
    with pytest.raises(EdgernnError, match="expected a column 'X178'"):
        opened(Seizures(), tmp_path)


def test_an_unknown_split_is_named():
    with pytest.raises(UsageError, match="split: expected rows or recordings, got 'people'"):
        Seizures(split="people")


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set: no seizures")
@pytest.mark.parametrize("split", ["rows", "recordings"])
def test_real_seizures(split):
    task = opened(Seizures(split=split), None)
    for part, size in zip(parts(task), [3680, 460, 460], strict=True):
        assert torch.bincount(part.y).tolist() == [size // 2, size // 2]
    # seizures have large amplitudes
    strength = [task.train.x[task.train.y == value].double().std().item() for value in (0, 1)]
    assert strength[1] > 3 * strength[0]


# twitter


def write_twitter(folder, sequences=60, with_buzz=20, seed=0):
    """Write rows of 77 numbers, 7 more than needed, and a label; return them."""
    rng = np.random.default_rng(seed)
    rows = np.round(np.abs(rng.normal(0, 300, (75 * sequences + 7, 78))), 2)
    rows[:, -1] = 0
    for i in rng.choice(sequences, with_buzz, replace=False):
        rows[75 * i + rng.integers(75), -1] = 1
    # in the dropped columns
    rows[-1, -1] = 1
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join([*(f"{v:g}" for v in row[:-1]), f"{row[-1]:.1f}"]) for row in rows]
    (folder / "Twitter-Absolute-Sigma-500.data").write_text("\n".join(lines) + "\n")
    return rows


@pytest.mark.parametrize(("with_buzz", "sizes"), [(20, [32, 4, 4]), (40, [32, 4, 4]), (7, [10, 2, 2])])
def test_twitter_is_averaged_cut_and_balanced(tmp_path, with_buzz, sizes):
    rows = write_twitter(tmp_path / "twitter", with_buzz=with_buzz)
    task = opened(Twitter(), tmp_path)
    expected = {}
    for i in range(60):
        steps = [np.mean(rows[75 * i + 5 * t : 75 * i + 5 * t + 5, :77], 0) for t in range(15)]
        buzz = any(rows[r, 77] == 1 for r in range(75 * i, 75 * i + 75))
        expected[key(np.float32(steps).flatten())] = int(buzz)
    assert sum(expected.values()) == with_buzz
    check(task, expected, sizes)
    assert task.train.x.shape[1:] == (15, 77)


BAD_TWITTER = {
    "label": (lambda lines: [lines[0][:-3] + "0.5", *lines[1:]], "expected labels 0 or 1, got 0.5 in row 1"),
    "columns": (lambda lines: [line[2:] if line[1] == "," else line.split(",", 1)[1] for line in lines], "77 columns"),
    "few": (lambda lines: lines[:70], "at least 3 sequences of the class 'no buzz', got 0"),
    "nan": (lambda lines: ["nan," + lines[0].split(",", 1)[1], *lines[1:]], r"finite .*, got nan at index \(0, 0\)"),
}


@pytest.mark.parametrize("case", BAD_TWITTER)
def test_bad_twitter_is_named(tmp_path, case):
    write_twitter(tmp_path)
    path = tmp_path / "Twitter-Absolute-Sigma-500.data"
    change, message = BAD_TWITTER[case]
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Twitter(), tmp_path)
    assert str(path) in str(caught.value)


# yahoo


def write_yahoo(folder, seed=0):
    """Write 67 files; series i has 60 + i steps, and every fourth series has an anomaly at a random step."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    series = {}
    for i in range(1, 68):
        values, anomaly = np.round(rng.normal(i, 10, 60 + i), 4), np.zeros(60 + i, int)
        if i % 4 == 0:
            anomaly[rng.integers(50)] = 1
        series[i] = (values, anomaly)
        lines = [f"{t + 1},{v:.4f},{a}" for t, (v, a) in enumerate(zip(values, anomaly, strict=True))]
        (folder / f"real_{i}.csv").write_text("\n".join(["timestamp,value,is_anomaly", *lines]) + "\n")
    return series


def test_yahoo_is_cut_and_balanced(tmp_path):
    series = write_yahoo(tmp_path / "A1Benchmark")
    task = opened(Yahoo(), tmp_path)
    expected = {}
    for values, anomaly in series.values():
        for start in range(0, len(values) - 24, 25):
            expected[key(values[start : start + 25])] = int(1 in anomaly[start : start + 25])
    assert sum(expected.values()) == 16
    check(task, expected, [28, 2, 2])
    assert task.train.x.shape[1:] == (25, 1)


def test_bad_yahoo_is_named(tmp_path):
    with pytest.raises(EdgernnError, match=r"yahoo: no A1Benchmark/"):
        opened(Yahoo(), tmp_path)
    folder = tmp_path / "yahoo" / "A1Benchmark"
    write_yahoo(folder)
    path = folder / "real_9.csv"
    text = path.read_text()
    path.write_text(text.replace("is_anomaly", "label"))
    with pytest.raises(EdgernnError, match=r"real_9\.csv: expected a column 'is_anomaly'"):
        opened(Yahoo(), tmp_path)
    path.write_text(text.replace(",0\n", ",2\n", 1))
    with pytest.raises(EdgernnError, match=r"real_9\.csv: expected labels 0 or 1, got 2 in row 1"):
        opened(Yahoo(), tmp_path)
    path.unlink()
    with pytest.raises(EdgernnError, match=r"A1Benchmark: expected real_1\.csv to real_67\.csv, got no real_9\.csv"):
        opened(Yahoo(), tmp_path)


# all three tasks


@pytest.mark.parametrize("task", [Seizures, Twitter, Yahoo], ids=lambda task: task.name)
def test_a_few_steps_train_and_the_metrics_are_right(tmp_path, monkeypatch, task):
    without_pictures(monkeypatch)
    write_rebuilt(tmp_path, seizure_rows())
    write_twitter(tmp_path)
    write_yahoo(tmp_path / "A1Benchmark")
    trained = Trained(tmp_path / "run", task.name, tmp_path)
    assert trained.config["task"]["classes"] == list(task.classes)
    test = opened(task(), tmp_path).test
    y, target = trained.outputs(test.x), test.y.numpy()
    assert y.shape == (len(target), 2)
    # binary cross entropy of one logit: the difference of the two outputs
    margin = (y[:, 1] - y[:, 0]) * np.where(target == 1, 1, -1)
    assert trained.result["accuracy"] == pytest.approx(np.mean(margin > 0))
    assert trained.result["cross_entropy"] == pytest.approx(np.mean(np.log1p(np.exp(-margin))), rel=1e-4)
