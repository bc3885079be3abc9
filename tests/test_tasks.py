# SPDX-License-Identifier: Apache-2.0
"""Tasks: what their batches hold, how their data is split, and what bad data gets."""

import gzip
import io
import math
import zipfile

import numpy as np
import pytest
import torch

from edgernn.cells import CELLS
from edgernn.errors import EdgernnError, UsageError
from edgernn.rules import RULES
from edgernn.training import TASKS, find_task
from edgernn.training.config import TrainConfig
from edgernn.training.data import read_idx
from edgernn.training.settings import fields_of, options_of
from edgernn.training.tasks import CLASSIFICATION, REGRESSION, Adding, Arrays, MnistRows
from edgernn.training.tasks.sources import random_split
from tests.training_helpers import PACK, data_folder, idx_bytes, write_mnist


def opened(task, source=None, seed=0):
    task.open(source, seed)
    return task


# every task


@pytest.mark.parametrize("task", [*TASKS.values(), Arrays], ids=lambda t: t.name)
def test_settings_of_a_task_share_no_name_with_others(task):
    others = set(fields_of(TrainConfig))
    for owner in (*CELLS.values(), *RULES.values()):
        others |= set(options_of(owner))
    assert not others & set(fields_of(task))


@pytest.mark.parametrize("task", [*TASKS.values(), Arrays], ids=lambda t: t.name)
def test_a_recipe_names_settings_of_the_config(task):
    TrainConfig(**task.defaults)


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(UsageError, match="unknown task 'adings': did you mean 'adding'"):
        find_task("adings")


def test_other_file_types_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"path of an \.npz file, got 'data\.csv'"):
        find_task("data.csv")
    with pytest.raises(EdgernnError, match=r"no such file: .*mine\.npz"):
        find_task(str(tmp_path / "mine.npz"))


# adding


@pytest.mark.parametrize("T", [2, 3, 50])
def test_adding_target_is_the_sum_of_two_marked_values(T):
    task = opened(Adding(T=T))
    batch = task.train.batch(3, 33)
    assert batch.x.shape == (T, 33, 2)
    assert batch.target.shape == (33, 1)
    for b in range(33):
        marked = [t for t in range(T) if batch.x[t, b, 1] == 1]
        assert len(marked) == 2
        assert sum(batch.x[:, b, 1] == 0) == T - 2
        expected = float(batch.x[marked[0], b, 0]) + float(batch.x[marked[1], b, 0])
        assert batch.target[b].item() == pytest.approx(expected, abs=1e-6)


def test_adding_values_and_markers_are_spread_evenly():
    x, y = Adding(T=20).make(np.random.default_rng(0), 20_000)
    values, markers = x[..., 0].double(), x[..., 1].double()
    assert values.min() >= 0
    assert values.max() < 1
    assert values.mean().item() == pytest.approx(0.5, abs=0.005)
    assert values.var().item() == pytest.approx(1 / 12, abs=0.002)
    assert (markers.mean(1) - 0.1).abs().max() < 0.015
    assert y.var().item() == pytest.approx(100 * Adding.solved, rel=0.03)


def test_adding_batches_depend_on_seed_and_step_alone():
    one, two, other = opened(Adding()), opened(Adding()), opened(Adding(), seed=1)
    late = one.train.batch(7, 5)
    one.train.batch(0, 5)
    assert torch.equal(late.x, two.train.batch(7, 5).x)
    assert not torch.equal(late.x, two.train.batch(8, 5).x)
    assert not torch.equal(late.x, other.train.batch(7, 5).x)


def test_adding_held_out_sets_are_fixed_and_disjoint():
    one, other = opened(Adding(T=10)), opened(Adding(T=10), seed=1)
    assert torch.equal(one.test.x, other.test.x)
    assert len(one.validation) == len(one.test) == 1000
    sets = [one.validation.x, one.test.x, one.train.batch(0, 1000).x.transpose(0, 1)]
    rows = [{row.numpy().tobytes() for row in part} for part in sets]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]


def test_adding_is_solved_at_a_hundredth_of_the_variance():
    task = Adding()
    assert task.solved == pytest.approx(1.67e-3, abs=5e-6)
    assert task.is_solved(0.001)
    assert not task.is_solved(0.002)


# stored sequences


def test_an_epoch_has_every_sequence_once_and_the_next_another_order(tmp_path):
    source = save(tmp_path, x=np.arange(23.0)[:, None, None], y=np.zeros(23, int))
    task = opened(Arrays(), source)
    assert task.train.steps_per_epoch(4) == 5
    epochs = [[float(v) for s in range(5) for v in task.train.batch(5 * e + s, 4).x.flatten()] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert len(set(epochs[0])) == 19
    assert epochs[0] != epochs[1]
    assert epochs[0][4:8] == task.train.batch(1, 4).x.flatten().tolist()


def test_split_parts_are_disjoint_and_whole():
    parts = random_split(100, [10, 20], 3)
    assert [len(p) for p in parts] == [70, 10, 20]
    assert sorted(torch.cat(parts).tolist()) == list(range(100))
    assert not torch.equal(parts[0], random_split(100, [10, 20], 4)[0])


# metrics, against independent computation


def test_classification_metrics():
    y = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0], [1.0, 5.0, 0.0], [0.0, 1.0, 0.0]])
    target = torch.tensor([0, 2, 0, 1])
    found = CLASSIFICATION.metrics(y, target)
    assert found["accuracy"] == 0.75
    e = [[math.exp(v) for v in row] for row in y.tolist()]
    expected = -sum(math.log(row[t] / sum(row)) for row, t in zip(e, target.tolist(), strict=True)) / 4
    assert found["cross_entropy"].item() == pytest.approx(expected, rel=1e-6)
    assert CLASSIFICATION.loss(y.view(2, 2, 3), target.view(2, 2)).item() == pytest.approx(expected, rel=1e-6)
    assert CLASSIFICATION.better(0.9, 0.8)


def test_regression_metrics():
    found = REGRESSION.metrics(torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [2.0]]))
    assert found["mse"] == 2.5
    assert found["mae"] == 1.5
    assert REGRESSION.better(0.8, 0.9)


# idx files


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_idx_round_trip(tmp_path, suffix):
    array = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    path = tmp_path / f"images{suffix}"
    path.write_bytes(PACK[suffix](idx_bytes(array)))
    assert np.array_equal(read_idx(path, (None, 28, 28)), array)


LABELS = idx_bytes(np.arange(5))
BAD_IDX = {
    "empty": (b"", r"expected an idx header of 8 bytes, got 0 bytes"),
    "header": (LABELS[:6], r"expected an idx header of 8 bytes, got 6 bytes"),
    "magic": (b"\x01" + LABELS[1:], r"expected the magic number 0x00000801 .*, got 0x01000801"),
    "dtype": (b"\0\0\x0d" + LABELS[3:], r"expected the magic number 0x00000801 .*, got 0x00000d01"),
    "rank": (idx_bytes(np.zeros((5, 1))), r"expected the magic number 0x00000801 .*, got 0x00000802"),
    "truncated": (LABELS[:-1], r"expected 5 bytes after the header for \(5,\), got 4 bytes"),
    "trailing": (LABELS + b"\0", r"expected 5 bytes after the header for \(5,\), got more"),
    "huge": (LABELS[:4] + b"\xff" * 4, r"expected 4294967295 bytes .*, got 0 bytes"),
}


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_is_named(tmp_path, case, suffix):
    content, message = BAD_IDX[case]
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(PACK[suffix](content))
    with pytest.raises(EdgernnError, match=message) as caught:
        read_idx(path, (None,))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["not packed", "cut", "flipped", "sum"])
def test_corrupt_packed_file_is_named(tmp_path, suffix, damage):
    packed = bytearray(PACK[suffix](idx_bytes(np.random.default_rng(0).integers(10, size=1000))))
    if damage == "not packed":
        packed = bytearray(LABELS)
    elif damage == "cut":
        del packed[len(packed) // 2 :]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed[-8 if suffix == ".gz" else -30] ^= 0xFF
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(packed)
    with pytest.raises(EdgernnError, match=r"corrupt or cut|bytes after the header"):
        read_idx(path, (None,))


def test_idx_of_another_shape(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(np.zeros((2, 8, 28))))
    with pytest.raises(EdgernnError, match=r"expected shape \(N, 28, 28\), got \(2, 8, 28\)"):
        read_idx(path, (None, 28, 28))


# mnist-rows


@pytest.mark.parametrize("folder", ["", "mnist"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_mnist_is_found_and_split(tmp_path, folder, suffix, monkeypatch):
    arrays = write_mnist(tmp_path / folder, suffix=suffix)
    monkeypatch.setenv("EDGERNN_DATA", str(tmp_path))
    task = opened(MnistRows())
    assert [len(part) for part in (task.train, task.validation, task.test)] == [22, 2, 6]
    rows = [image.numpy().tobytes() for part in (task.train, task.validation) for image in part.x]
    assert sorted(rows) == sorted(image.tobytes() for image in arrays["train-images-idx3-ubyte"])
    batch = next(task.test.chunks())
    images, labels = arrays["t10k-images-idx3-ubyte"], arrays["t10k-labels-idx1-ubyte"]
    assert np.array_equal(batch.x.numpy(), images.transpose(1, 0, 2).astype(np.float32))
    assert np.array_equal(batch.target.numpy(), labels)
    assert set(task.std) == {255.0}


def test_missing_mnist_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    with pytest.raises(EdgernnError, match=r"train-images-idx3-ubyte.*--data DIR or the variable EDGERNN_DATA"):
        opened(MnistRows())
    with pytest.raises(EdgernnError, match=r"no train-images-idx3-ubyte .* in .*mnist and .*EDGERNN_DATA"):
        opened(MnistRows(), tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        opened(MnistRows(), tmp_path / "nowhere")


def test_mnist_labels_are_checked(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(np.arange(24)))
    with pytest.raises(EdgernnError, match="expected labels 0 to 9, got 10 at index 10"):
        opened(MnistRows(), tmp_path)
    path.write_bytes(idx_bytes(np.zeros(23)))
    with pytest.raises(EdgernnError, match="expected 24 labels, one an image, got 23"):
        opened(MnistRows(), tmp_path)
    write_mnist(tmp_path, train=3)
    with pytest.raises(EdgernnError, match="expected at least 12 images, got 3"):
        opened(MnistRows(), tmp_path)
    write_mnist(tmp_path, test=0)
    with pytest.raises(EdgernnError, match="expected at least one image"):
        opened(MnistRows(), tmp_path)


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set: no MNIST files")
def test_real_mnist():
    task = opened(MnistRows())
    assert [len(part) for part in (task.train, task.validation, task.test)] == [55_000, 5_000, 10_000]
    labels = torch.cat([task.train.y, task.validation.y])
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(labels).tolist() == counts
    assert torch.bincount(task.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = torch.cat([task.train.x, task.validation.x]).double() / 255
    assert pixels.mean().item() == pytest.approx(0.1307, abs=1e-4)


# a user's own arrays


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def inputs(N=40, T=5, I=3):
    return np.random.default_rng(0).normal(3.0, 2.0, (N, T, I))


KINDS = {
    "labels": (np.arange(40) % 4, "last", 4, (7,), "accuracy"),
    "bools": (np.arange(40) % 2 == 0, "last", 2, (7,), "accuracy"),
    "numbers": (np.linspace(0, 1, 40), "last", 1, (7, 1), "mse"),
    "vectors": (np.ones((40, 2), np.float32), "last", 2, (7, 2), "mse"),
    "labels-a-step": (np.arange(200).reshape(40, 5) % 3, "all", 3, (5, 7), "accuracy"),
    "vectors-a-step": (np.ones((40, 5, 2)), "all", 2, (5, 7, 2), "mse"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_y_decides_the_task(tmp_path, kind):
    y, output, size, shape, metric = KINDS[kind]
    task = opened(Arrays(), save(tmp_path, x=inputs(), y=y))
    assert (task.output, task.output_size, task.input_size, task.objective.metric) == (output, size, 3, metric)
    batch = task.train.batch(0, 7)
    assert batch.x.shape == (5, 7, 3)
    assert batch.target.shape == shape
    assert [len(part) for part in (task.train, task.validation, task.test)] == [32, 4, 4]


def test_x_and_y_stay_together_and_parts_apart(tmp_path):
    x = np.arange(40.0).repeat(5).reshape(40, 5, 1)
    task = opened(Arrays(), save(tmp_path, x=x, y=np.arange(40.0)))
    seen = []
    for part in (task.train, task.validation, task.test):
        for batch in part.chunks():
            assert torch.equal(batch.x[0], batch.target)
            seen += batch.target.flatten().tolist()
    assert sorted(seen) == list(range(40))


def test_given_parts_are_used(tmp_path):
    x, y = inputs(), np.arange(40) % 2
    given = save(tmp_path, x=x, y=y, x_val=inputs(6), y_val=y[:6], x_test=inputs(3, T=9), y_test=np.array([2, 0, 1]))
    task = opened(Arrays(), given)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [40, 6, 3]
    assert task.output_size == 3
    task = opened(Arrays(), save(tmp_path, x=x, y=y, x_test=inputs(3), y_test=y[:3]))
    assert [len(part) for part in (task.train, task.validation, task.test)] == [36, 4, 3]


def test_standardisation_is_that_of_the_training_part(tmp_path):
    x = inputs()
    x[:, :, 1] = 7.1
    task = opened(Arrays(), save(tmp_path, x=x, y=np.zeros(40)))
    part = task.train.x.double()
    assert np.allclose(task.mean, part.mean((0, 1)), rtol=1e-6)
    assert task.std[1] == 1.0
    assert task.std[0] == pytest.approx(part[..., 0].std(correction=0).item(), rel=1e-6)


def test_a_changed_file_has_another_fingerprint(tmp_path):
    one = opened(Arrays(), save(tmp_path, x=inputs(), y=np.zeros(40))).fingerprint
    assert one != opened(Arrays(), save(tmp_path, x=inputs(), y=np.ones(40))).fingerprint


def with_value(value, index):
    x = inputs()
    x[index] = value
    return x


ZEROS = np.zeros(40, int)
BAD_NPZ = {
    "no-x": ({"X": inputs(), "y": ZEROS}, "expected arrays x and y, got no x"),
    "no-y": ({"x": inputs()}, "expected arrays x and y, got no y"),
    "no-y-val": ({"x": inputs(), "y": ZEROS, "x_val": inputs()}, "expected arrays x_val and y_val, got no y_val"),
    "no-x-test": ({"x": inputs(), "y": ZEROS, "y_test": ZEROS}, "got no x_test"),
    "rank": ({"x": inputs()[:, :, 0], "y": ZEROS}, r"x: expected shape \(N, T, I\), got \(40, 5\); .*x\[:, :, None\]"),
    "rank-4": ({"x": inputs()[None], "y": ZEROS}, r"x: expected shape \(N, T, I\), got \(1, 40, 5, 3\)"),
    "empty": ({"x": inputs(T=0), "y": ZEROS}, r"x: expected no size of 0, got shape \(40, 0, 3\)"),
    "text": ({"x": inputs().astype(str), "y": ZEROS}, "x: expected numbers, got <U"),
    "complex": ({"x": inputs() + 1j, "y": ZEROS}, "x: expected numbers, got complex128"),
    "text-y": ({"x": inputs(), "y": ZEROS.astype(str)}, "y: expected numbers, got <U"),
    "nan": ({"x": with_value(np.nan, (3, 2, 1)), "y": ZEROS}, r"x: expected finite .*, got nan at index \(3, 2, 1\)"),
    "inf": ({"x": with_value(-np.inf, (0, 4, 2)), "y": ZEROS}, r"got -inf at index \(0, 4, 2\)"),
    "overflow": ({"x": with_value(1e300, (1, 0, 0)), "y": ZEROS}, r"got 1e\+300 at index \(1, 0, 0\)"),
    "nan-y": ({"x": inputs(), "y": np.full(40, np.nan)}, r"y: expected finite .*, got nan at index \(0,\)"),
    "length": ({"x": inputs(), "y": ZEROS[:39]}, r"y: expected shape .* with N=40, T=5, got \(39,\)"),
    "length-float": ({"x": inputs(), "y": np.zeros((39, 2))}, r"y: expected shape .* with N=40, T=5, got \(39, 2\)"),
    "steps": ({"x": inputs(), "y": np.zeros((40, 4), int)}, r"y: expected shape .*whole numbers.*, got \(40, 4\)"),
    "steps-float": ({"x": inputs(), "y": np.zeros((40, 4, 1))}, r"y: expected shape .*, got \(40, 4, 1\)"),
    "scalar": ({"x": inputs(), "y": np.array(1.0)}, r"y: expected shape .*, got \(\)"),
    "negative": ({"x": inputs(), "y": ZEROS - 1}, r"y: expected labels from 0, got -1 at index \(0,\)"),
    "years": ({"x": inputs(), "y": ZEROS + 2024}, "expected labels from 0, got up to 2024; store y as float"),
    "too-large": ({"x": inputs(), "y": ZEROS.astype(np.uint64) + np.uint64(2**63)}, "expected labels up to 2147483647"),
    "few": ({"x": inputs(2), "y": ZEROS[:2]}, "x: expected at least 3 sequences, got 2"),
    "channels": (
        {"x": inputs(), "y": ZEROS, "x_val": inputs(4, I=2), "y_val": ZEROS[:4]},
        "x_val: expected 3 channels, got 2",
    ),
    "other-y": (
        {"x": inputs(), "y": ZEROS, "x_val": inputs(4), "y_val": np.zeros(4)},
        "y_val: expected torch.int64",
    ),
    "objects": ({"x": np.array([[[None]]]), "y": ZEROS}, "got arrays of Python objects, which are never read"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_arrays_are_named(tmp_path, case):
    arrays, message = BAD_NPZ[case]
    path = save(tmp_path, **arrays)
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Arrays(), path)
    assert str(path) in str(caught.value)


def cut(content):
    return content[: len(content) // 2]


def flip(content):
    # in the middle of the stored x
    at = content.index(b"\x93NUMPY") + 400
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def bad_member(content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00 nothing")
        archive.writestr("y.npy", b"")
    return out.getvalue()


@pytest.mark.parametrize("damage", [cut, flip, bad_member, lambda _: b"", lambda _: b"text", gzip.compress])
def test_corrupt_npz_is_named(tmp_path, damage):
    path = save(tmp_path, x=inputs(), y=ZEROS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EdgernnError, match="expected an npz archive") as caught:
        opened(Arrays(), path)
    assert str(path) in str(caught.value)
