# SPDX-License-Identifier: Apache-2.0
"""Tasks on the files of MNIST and Fashion-MNIST."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgernn.byte_source import read_all
from edgernn.errors import EdgernnError, UsageError
from edgernn.settings import bind, fields_of
from edgernn.training import train
from edgernn.training.datasets import SETS, File
from edgernn.training.tasks.images import FashionRows, MnistPermuted, MnistRows
from edgernn.training.tasks.sources import Sequences
from tests.task_helpers import Trained, opened
from tests.training_helpers import data_folder, idx_bytes, write_mnist

pytestmark = pytest.mark.usefixtures("no_pictures")

# the folder of a task's files, and mean and standard deviation of its pixels, where white is 1
ALL = {
    MnistRows: ("mnist", 0.0, 1.0),
    FashionRows: ("fashion-mnist", 0.5, 0.5),
    MnistPermuted: ("mnist", 0.0, 1.0),
}
# the default permutation begins with these pixels
FIRST_PIXELS = [318, 2, 606, 446, 758, 13, 98, 539]
every_task = pytest.mark.parametrize("kind", ALL, ids=lambda t: t.name)


def sequences(kind, images, permutation=0):
    """Return a task's input for images (N, 28, 28): (N, 28, 28) or (N, 784, 1)."""
    if kind is not MnistPermuted:
        return images
    order = np.random.default_rng(permutation).permutation(784)
    return np.stack([image.reshape(784)[order] for image in images])[..., None]


@every_task
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_files_are_found_and_split(tmp_path, kind, beside, suffix, monkeypatch):
    arrays = write_mnist(tmp_path / ("" if beside else ALL[kind][0]), suffix=suffix)
    monkeypatch.setenv("EDGERNN_DATA", str(tmp_path))
    task = opened(kind())
    assert [len(part) for part in (task.train, task.validation, task.test)] == [22, 2, 6]
    rows = [image.numpy().tobytes() for part in (task.train, task.validation) for image in part.x]
    expected = sequences(kind, arrays["train-images-idx3-ubyte"])
    assert sorted(rows) == sorted(image.tobytes() for image in expected)
    batch = next(task.test.chunks())
    images, labels = arrays["t10k-images-idx3-ubyte"], arrays["t10k-labels-idx1-ubyte"]
    assert np.array_equal(batch.x.numpy(), sequences(kind, images).transpose(1, 0, 2).astype(np.float32))
    assert np.array_equal(batch.target.numpy(), labels)


@every_task
def test_images_and_labels_stay_together(tmp_path, kind):
    arrays = write_mnist(tmp_path)
    task = opened(kind(), tmp_path)
    expected = sequences(kind, arrays["train-images-idx3-ubyte"])
    labels = dict(zip([image.tobytes() for image in expected], arrays["train-labels-idx1-ubyte"], strict=True))
    for part in (task.train, task.validation):
        assert [labels[image.numpy().tobytes()] for image in part.x] == part.y.tolist()


@every_task
def test_a_model_trains_on_normalised_pixels_and_its_accuracy_is_that_of_numpy(tmp_path, kind):
    folder, mean, std = ALL[kind]
    arrays = write_mnist(tmp_path / folder, test=40)
    run = Trained(tmp_path / "run", kind.name, tmp_path, steps=2)
    x = sequences(kind, arrays["t10k-images-idx3-ubyte"])
    labels = arrays["t10k-labels-idx1-ubyte"]
    y = run.outputs(x)
    assert run.result["accuracy"] == pytest.approx((y.argmax(1) == labels).mean(), abs=1e-12)
    p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    assert run.result["cross_entropy"] == pytest.approx(-np.log(p[np.arange(40), labels]).mean(), rel=1e-5)
    assert len(run.config["task"]["classes"]) == 10
    # the same model without standardisation, on pixels normalised by the test
    run.model.input_mean.zero_()
    run.model.input_std.fill_(1)
    assert np.allclose(run.outputs(((x / 255 - mean) / std).astype(np.float32)), y, atol=1e-5)


def test_mean_and_deviation_of_the_pixels_are_settings(tmp_path):
    write_mnist(tmp_path)
    task = opened(MnistRows(pixel_mean=0.1307, pixel_std=0.3081), tmp_path)
    assert np.allclose(task.mean, 0.1307 * 255)
    assert np.allclose(task.std, 0.3081 * 255)
    assert len(task.mean) == len(task.std) == 28


def test_fashion_files_are_not_those_of_mnist(tmp_path):
    write_mnist(tmp_path / "mnist", test=6)
    write_mnist(tmp_path / "fashion-mnist", test=7)
    assert len(opened(MnistRows(), tmp_path).test) == 6
    assert len(opened(MnistPermuted(), tmp_path).test) == 6
    assert len(opened(FashionRows(), tmp_path).test) == 7


def test_files_of_another_set_are_refused(tmp_path, monkeypatch):
    write_mnist(tmp_path, suffix=".gz")
    digest = hashlib.sha256(read_all(tmp_path / "train-labels-idx1-ubyte.gz")).hexdigest()
    mnist = SETS["mnist"]
    digits = replace(mnist, forms=(*mnist.forms, ("labels",)), others=(File("labels", sha256=digest),))
    monkeypatch.setitem(SETS, "mnist", digits)
    opened(MnistRows(), tmp_path)
    message = (
        r"labels-idx1-ubyte\.gz: fashion-rows needs Fashion-MNIST, .*, but this is MNIST, .*`edgernn data fetch fash"
    )
    with pytest.raises(EdgernnError, match=message):
        opened(FashionRows(), tmp_path)


def test_stored_sequences_are_told_apart():
    x, y = torch.arange(24, dtype=torch.uint8).reshape(4, 3, 2), torch.arange(4)
    one = Sequences(x, y).fingerprint
    assert one == Sequences(x.clone(), y.clone(), seed=3).fingerprint
    others = [Sequences(x + 1, y), Sequences(x, y + 1), Sequences(x.reshape(4, 2, 3), y), Sequences(x.flip(0), y)]
    assert len({one, *(other.fingerprint for other in others)}) == 5


def test_a_run_does_not_go_on_with_other_images(tmp_path):
    write_mnist(tmp_path)
    settings = {"steps": 1, "hidden_size": 4, "batch_size": 4}
    train("mnist-rows", "gru", out=tmp_path / "run", data=tmp_path, settings=settings)
    (path,) = tmp_path.glob("train-images*")
    content = bytearray(path.read_bytes())
    content[-400:] = bytes(400)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"fingerprint: the run in .* has '\w{64}', got '\w{64}'"):
        train("mnist-rows", "gru", out=tmp_path / "run", data=tmp_path, settings=settings, resume=True)


# the permutation


def test_permutation_has_each_pixel_once_and_is_the_same_for_every_image_and_seed(tmp_path):
    write_mnist(tmp_path)
    # encode the index of each pixel: its high byte in one image and its low byte in the next
    place = np.arange(784).reshape(28, 28)
    images = np.stack([place // 256, place % 256] * 3)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(images))
    orders = []
    for seed in (0, 1):
        x = opened(MnistPermuted(), tmp_path, seed).test.x[..., 0].long().numpy()
        orders += [256 * high + low for high, low in x.reshape(3, 2, 784)]
    assert all(np.array_equal(order, orders[0]) for order in orders)
    assert sorted(orders[0]) == list(range(784))
    assert not np.array_equal(orders[0], np.arange(784))
    # trained models depend on it: it must never change
    assert orders[0][:8].tolist() == FIRST_PIXELS


def test_another_permutation_is_another_order(tmp_path):
    write_mnist(tmp_path)
    first, other = (opened(MnistPermuted(permutation=number), tmp_path).test.x for number in (0, 1))
    assert not torch.equal(first, other)
    assert torch.equal(first.sort(1).values, other.sort(1).values)


# invalid settings and files


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        (MnistRows, {"pixel_std": "0"}, "pixel_std: expected a number above 0, got '0'"),
        (FashionRows, {"pixel_std": "-1"}, "pixel_std: expected a number above 0, got '-1'"),
        (MnistRows, {"pixel_mean": "nan"}, "pixel_mean: expected a number, got 'nan'"),
        (MnistPermuted, {"permutation": "-1"}, "permutation: expected a whole number of at least 0, got '-1'"),
        (MnistRows, {"permutation": "1"}, "unknown setting 'permutation'"),
    ],
)
def test_bad_settings_are_named(kind, word, message):
    with pytest.raises(UsageError, match=message):
        bind(word, task=fields_of(kind))


@every_task
def test_missing_files_say_where_to_put_them(tmp_path, kind, monkeypatch):
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    monkeypatch.setattr("edgernn.training.datasets.find.cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(
        EdgernnError, match=r"train-images-idx3-ubyte.*--data DIR or the environment variable EDGERNN_DATA"
    ):
        opened(kind())
    with pytest.raises(EdgernnError, match=rf"no train-images-idx3-ubyte .* in .*{ALL[kind][0]}.*EDGERNN_DATA"):
        opened(kind(), tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        opened(kind(), tmp_path / "nowhere")


def test_labels_are_checked(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(np.arange(24)))
    with pytest.raises(EdgernnError, match="expected labels 0 to 9, got 10 at index 10"):
        opened(MnistRows(), tmp_path)
    path.write_bytes(idx_bytes(np.zeros(23)))
    with pytest.raises(EdgernnError, match="expected 24 labels, one per image, got 23"):
        opened(MnistRows(), tmp_path)
    write_mnist(tmp_path, train=3)
    with pytest.raises(EdgernnError, match="expected at least 12 images, got 3"):
        opened(MnistRows(), tmp_path)
    write_mnist(tmp_path, test=0)
    with pytest.raises(EdgernnError, match="expected at least one image"):
        opened(MnistRows(), tmp_path)


# the real files


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


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set: no Fashion-MNIST files")
@pytest.mark.slow
def test_real_fashion_mnist():
    task = opened(FashionRows())
    labels = torch.cat([task.train.y, task.validation.y])
    assert torch.bincount(labels).tolist() == [6000] * 10
    assert torch.bincount(task.test.y).tolist() == [1000] * 10
    pixels = torch.cat([task.train.x, task.validation.x]).double() / 255
    assert pixels.mean().item() == pytest.approx(0.2860, abs=1e-4)
    assert pixels.std().item() == pytest.approx(0.3530, abs=1e-4)
