# SPDX-License-Identifier: Apache-2.0
"""The task of learning to learn: its data, losses, evaluations and runs."""

import gzip
import json
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.config import LayerConfig, ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.training import train
from edgernn.training.datasets import SETS, fetch
from edgernn.training.papers.networks.learned_optimizer import LearnedOptimizer
from edgernn.training.papers.networks.optimisees import RATES
from edgernn.training.papers.tasks.l2l import LearningToLearn
from edgernn.training.papers.tasks.unrolls import ImageSplit, Unrolls
from tests import oracle_cells
from tests.training_helpers import Stop, data_folder, snapshot, without_pictures, words, write_mnist

SETTINGS = {
    "width": 2,
    "hidden_size": 3,
    "minibatch": 5,
    "run_steps": 4,
    "unroll": 2,
    "optimisees": 2,
    "trials": 2,
    "tuning": 1,
}


@pytest.fixture
def digits(tmp_path):
    """Write the files of MNIST with random images."""
    write_mnist(tmp_path / "data/mnist")
    return tmp_path / "data"


@pytest.fixture
def _no_pictures(monkeypatch):
    without_pictures(monkeypatch)
    monkeypatch.setattr(LearningToLearn, "pictures", lambda *_: None)


def opened(source, **settings):
    task = LearningToLearn(**{k: v for k, v in SETTINGS.items() if k != "hidden_size"} | settings)
    task.open(source, 0)
    return task


def test_parts_of_an_optimisee_overlap_by_a_minibatch():
    images = ImageSplit(torch.arange(30).view(30, 1, 1, 1), torch.arange(30), torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    source = Unrolls(images, 10, 4, 5, key=1, seed=3, optimisees=2)
    assert source.steps_per_epoch(99) == 6
    assert [source.continues(step, 99) for step in range(6)] == [False, True, True] * 2
    parts = [source.batch(step, 99).target for step in range(3)]
    assert [part.shape for part in parts] == [(5, 5), (5, 5), (3, 5)]
    assert torch.equal(parts[0][-1], parts[1][0])
    assert torch.equal(parts[1][-1], parts[2][0])
    drawn = [source.batch(step, 99).target.tolist() for step in range(12)]
    assert drawn == [source.batch(step, 99).target.tolist() for step in range(12)]
    assert drawn[:3] != drawn[3:6] != drawn[6:9]
    assert Unrolls(images, 10, 4, 5, key=1, seed=4).batch(0, 99).target.tolist() != drawn[0]


def test_images_are_standardised_and_split(digits):
    task = opened(digits)
    counts = [len(task.images), len(task.validation), len(task.test)]
    assert counts == [22, 2, 6]
    (whole,) = task.images.chunks(99)
    assert whole.x.mean() == pytest.approx(0, abs=1e-5)
    assert whole.x.std(correction=0) == pytest.approx(1, abs=1e-5)
    batch = task.train.batch(0, 99)
    assert batch.x.shape == (3, 5, 1, 28, 28)
    assert batch.target.shape == (3, 5)


def test_losses_of_the_training(digits):
    for meta_loss in ("mean", "change"):
        task = opened(digits, meta_loss=meta_loss)
        model = task.build_network(network_config())
        theta, batch = task.classifier.start(), task.train.batch(0, 0)
        loss, carry = task.loss(model, batch, (theta, *model.initial_state(theta)))
        place, state, before, after, after_next = theta, model.initial_state(theta), [], [], []
        for k in range(2):
            value, gradient = task.classifier.gradient(place, batch.x[k], batch.target[k])
            place, state = model(place, gradient, value, state)
            before.append(value)
            after.append(task.classifier.gradient(place, batch.x[k], batch.target[k])[0])
            after_next.append(task.classifier.gradient(place, batch.x[k + 1], batch.target[k + 1])[0])
        change = sum(after) / 2 - sum(before) / 2
        torch.testing.assert_close(loss, sum(after_next) / 2 if meta_loss == "mean" else change)
        assert torch.equal(carry[0], place)
        assert not any(t.requires_grad for t in carry)


def network_config(**changes):
    return ModelConfig.of("lstm", hidden_size=3, layers=2, **changes)


def test_hand_made_optimisers_get_the_same_optimisees(digits):
    """SGD in NumPy on a perceptron, from the same initial weights and minibatches as the learned optimiser."""
    task = opened(digits, test_steps=3)
    model = task.build_network(network_config())
    seen = []

    def spy(theta, gradient, loss, state):
        seen.append((theta.clone(), loss.item()))
        return torch.zeros_like(theta), state

    model.forward = spy
    model.traces = [None]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgernn.training.papers.networks.learned_optimizer.joined", lambda _: None)
        patch.setattr("edgernn.training.papers.tasks.l2l.work", lambda model: {"skip_percent": 0.0})
        metrics = task.evaluate(model, task.test, "cpu")
    starts = [seen[0], seen[3]]
    lr = metrics["sgd_lr"]
    assert lr in RATES
    means, lates, finals = [], [], []
    images, labels = task.images.take(torch.arange(22)).x, task.images.y
    (test,) = task.test.chunks(99)
    for number, (start, first) in enumerate(starts):
        rng = np.random.default_rng([33, 0, number])
        chosen = rng.integers(22, size=(4, 5))
        theta, curve = start.double().numpy(), []
        for k in range(3):
            loss, gradient, _ = perceptron_by_hand(theta, images[chosen[k]], labels[chosen[k]])
            theta = theta - lr * gradient
            curve.append(loss)
        assert curve[0] == pytest.approx(first, rel=1e-5)
        means.append(np.mean(curve))
        # the last fifth of 3 steps is the last step
        lates.append(curve[-1])
        loss, _, right = perceptron_by_hand(theta, test.x, test.target)
        finals.append((loss, right))
    assert metrics["sgd_mean_loss"] == pytest.approx(np.mean(means), rel=1e-4)
    assert metrics["sgd_late_loss"] == pytest.approx(np.mean(lates), rel=1e-4)
    assert metrics["sgd_final_loss"] == pytest.approx(np.mean([loss for loss, _ in finals]), rel=1e-4)
    assert metrics["sgd_final_accuracy"] == pytest.approx(np.mean([right for _, right in finals]))
    # with all parameters at zero all classes are equally likely
    assert metrics["final_loss"] == pytest.approx(np.log(10), rel=1e-6)
    assert metrics["final_accuracy"] == pytest.approx((test.target == 0).double().mean().item())


def perceptron_by_hand(theta, x, target):
    """Return loss, gradient and accuracy of a perceptron of 784, 2 and 10 units."""
    W1, b1, W2, b2 = np.split(theta, np.cumsum([2 * 784, 2, 20]))
    x, target = x.double().numpy().reshape(len(x), 784), target.numpy()
    hidden = oracle_cells.sigmoid(x @ W1.reshape(2, 784).T + b1)
    logits = hidden @ W2.reshape(10, 2).T + b2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), target]).mean()
    error = (p - np.eye(10)[target]) / len(x)
    back = error @ W2.reshape(10, 2) * hidden * (1 - hidden)
    gradient = np.concatenate([(back.T @ x).ravel(), back.sum(0), (error.T @ hidden).ravel(), error.sum(0)])
    return loss, gradient, (logits.argmax(1) == target).mean()


def test_the_learning_rate_is_the_best_on_the_validation_images(digits, monkeypatch):
    monkeypatch.setattr("edgernn.training.papers.tasks.l2l.RATES", (1e-4, 0.1, 1e4))
    task = opened(digits, run_steps=20, unroll=20, minibatch=22, trials=1)
    # separable images: larger steps are better until the loss diverges
    for images in (task.images, task.validation, task.test):
        images.x = (images.y[:, None] == torch.arange(784) % 10).view(-1, 1, 28, 28) * 255
    with torch.no_grad():
        metrics = task.evaluate(task.build_network(network_config()), task.test, "cpu")
    assert metrics["sgd_lr"] == 0.1


def run(digits, out, cell="lstm", rule=None, resume=False, progress=None, **changes):
    settings = {**SETTINGS, "steps": 8, "eval_every": 3, "checkpoint_every": 1, **changes}
    return train("l2l", cell, rule, out=out, data=digits, settings=settings, resume=resume, progress=progress)


@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("update", ["additive", "decayed", "gated", "rates"])
def test_every_update_trains(digits, tmp_path, update):
    result = run(digits, tmp_path / "run", update=update, norm="layer")
    assert result["metric"] == "final_loss"
    assert result["skip_percent"] == 0
    for name in ("", "sgd_", "momentum_", "rmsprop_", "adam_"):
        assert 0 < result[f"{name}final_loss"] < 10
        assert 0 <= result[f"{name}final_accuracy"] <= 1
        curve = json.loads((tmp_path / "run/series.json").read_text())[f"{name}loss_by_step"]
        assert np.mean(curve) == pytest.approx(result[f"{name}mean_loss"], rel=1e-5)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["network"] == "LearnedOptimizer"


@pytest.mark.usefixtures("_no_pictures")
def test_a_rule_skips_and_lambda_makes_it_skip_more(digits, tmp_path):
    few, many = (
        run(digits, tmp_path / str(weight), "sarnn", **{"lambda": weight, "lr": 0.3, "layers": 1})["skip_percent"]
        for weight in (0.0, 10.0)
    )
    assert few < many


@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize(("cell", "changes"), [("sarnn", {}), ("lstm", {"update": "gated"}), ("skiprnn", {})])
@pytest.mark.slow
def test_stopped_and_resumed_equals_whole(digits, tmp_path, cell, changes):
    # an optimisee has two steps: one stop is between them, the other before the next optimisee
    run(digits, tmp_path / "whole", cell, **changes)
    for at in (4, 5):
        with pytest.raises(RuntimeError, match="stopped by the test"):
            run(digits, tmp_path / f"run{at}", cell, progress=Stop(at), **changes)
        run(digits, tmp_path / f"run{at}", cell, resume=True, **changes)
        assert snapshot(tmp_path / f"run{at}") == snapshot(tmp_path / "whole")


@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_a_run_is_not_resumed_with_other_images(digits, tmp_path, part):
    with pytest.raises(RuntimeError, match="stopped by the test"):
        run(digits, tmp_path / "run", progress=Stop(4))
    content = bytearray((digits / "mnist" / part).read_bytes())
    content[-1] = (content[-1] + 1) % 10
    (digits / "mnist" / part).write_bytes(content)
    with pytest.raises(UsageError, match=r"fingerprint: the run in .* has "):
        run(digits, tmp_path / "run", resume=True)


def test_from_the_command_line(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--task", "l2l", "--cell", "lstm", "--data", str(digits), *words(SETTINGS), "steps=3"]
    assert main(arguments) == 0
    folder = tmp_path / "runs/l2l-lstm"
    assert (folder / "samples.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "result.json").read_text())["steps"] == 3
    capsys.readouterr()
    assert main(["export", str(folder)]) == 1
    assert "network: expected a SequenceModel, got a LearnedOptimizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimisee": "mpl"}, "unknown optimisee 'mpl': did you mean 'mlp'"),
        ({"update": "adaptive"}, "unknown update 'adaptive': did you mean 'additive'"),
        ({"meta_loss": "sum"}, "unknown meta_loss 'sum'"),
        ({"first_weights": "zero"}, "unknown first_weights 'zero'"),
        ({"run_steps": 30}, "run_steps: expected a multiple of unroll=20, got 30"),
        ({"depth": 16}, "depth: expected none with optimisee=mlp"),
        ({"optimisee": "resnet", "first_weights": "normal"}, "first_weights: expected none with optimisee=resnet"),
        ({"update": "rates", "scale": 0.1}, "scale: expected none with optimisee=mlp update=rates, got 0.1"),
        ({"optimisee": "resnet", "depth": 15}, "depth: expected an even number of at least 8, got 15"),
        ({"batch_size": 3}, "batch_size: the network of the task l2l has no such setting"),
        ({"imputer": "rits"}, "imputer: the network of the task l2l has no such setting"),
        ({"unroll": 0}, "unroll: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        train("l2l", "lstm", out=tmp_path / "run", data=tmp_path, settings=settings)
    assert not (tmp_path / "run").exists()


def test_cells_that_impute_are_refused(digits, tmp_path):
    with pytest.raises(UsageError, match=r"cell: expected one that implies no imputer, .* with the imputer rits"):
        run(digits, tmp_path / "run", "rits")


def test_bad_arguments_of_the_network():
    for name in ("coordinates", "hidden_size", "layers", "propagations"):
        with pytest.raises(UsageError, match=f"{name}: expected at least 1, got 0"):
            LearnedOptimizer(LayerConfig.of("lstm"), **{"coordinates": 1, name: 0})
    with pytest.raises(UsageError, match="unknown update"):
        LearnedOptimizer(LayerConfig.of("lstm"), coordinates=1, update="new")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(EdgernnError, match="l2l: no train-images-idx3-ubyte"):
        opened(tmp_path)
    with pytest.raises(EdgernnError, match=r"l2l: no .* or data_batch_1\.bin, .*test_batch\.bin"):
        opened(tmp_path, optimisee="resnet")


A_PART = r"cifar10_subset\S* is a subset of CIFAR-10"


def write_cifar(folder, form, count=12):
    """Write random images in one of the supported forms; return the colours of the first image (3, 32, 32)."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    unpacked, plain, (subset,) = SETS["cifar10"].forms
    if form == "npz":
        x, y = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        np.savez(folder / subset, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
        return x[0].transpose(2, 0, 1)
    records = rng.integers(256, size=(6, count, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    for name, batch in zip(unpacked if form == "unpacked" else plain, records, strict=True):
        target = folder / name if form == "unpacked" else folder / f"{name}.gz"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(batch.tobytes() if form == "unpacked" else gzip.compress(batch.tobytes()))
    return records[0, 0, 1:].reshape(3, 32, 32)


@pytest.mark.parametrize("form", ["npz", "plain", "unpacked"])
def test_forms_of_cifar10(tmp_path, form):
    first = write_cifar(tmp_path / "cifar10", form)
    with pytest.warns(EdgernnWarning, match=A_PART) if form == "npz" else nullcontext():
        task = opened(tmp_path, optimisee="resnet")
    expected = {"npz": (11, 1, 4), "plain": (55, 5, 12), "unpacked": (55, 5, 12)}[form]
    assert (len(task.images), len(task.validation), len(task.test)) == expected
    images = torch.cat([task.images.x, task.validation.x])
    assert (images == torch.from_numpy(first.copy())).all((1, 2, 3)).any()
    (whole,) = task.images.chunks(99)
    torch.testing.assert_close(whole.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)


def test_an_unpacked_archive_is_not_fetched_again(tmp_path):
    write_cifar(tmp_path / "cifar10", "unpacked")
    fetched = fetch("cifar10", tmp_path)
    assert not fetched["fetched"]
    assert [file["bytes"] for file in fetched["files"]] == [12 * 3073] * 6


@pytest.mark.usefixtures("_no_pictures")
def test_a_residual_network_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("edgernn.training.papers.tasks.l2l.RATES", (0.01,))
    write_cifar(tmp_path / "data/cifar10", "npz")
    changes = {"optimisee": "resnet", "width": 1, "depth": 8, "update": "gated", "layers": 1, "steps": 2, "trials": 1}
    with pytest.warns(EdgernnWarning, match=A_PART):
        assert run(tmp_path / "data", tmp_path / "run", "eins", **changes)["steps"] == 2


def test_cifar10_needs_images_to_hold_out(tmp_path):
    write_cifar(tmp_path / "cifar10", "npz", count=5)
    few = pytest.raises(EdgernnError, match="expected at least 12 training images, got 5")
    with pytest.warns(EdgernnWarning, match=A_PART), few:
        opened(tmp_path, optimisee="resnet")


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set")
def test_real_images():
    task = opened(None)
    assert (len(task.images), len(task.validation), len(task.test)) == (55000, 5000, 10000)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        task = opened(None, optimisee="resnet")
    assert len(task.images) + len(task.validation) == (2500 if warned else 50000)
