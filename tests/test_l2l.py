# SPDX-License-Identifier: Apache-2.0
"""Learning to learn: the learned optimiser, the networks that it trains, hand-designed optimisers, and the task."""

import gzip
import json
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import functional

from edgernn.cli.frame import main
from edgernn.config import LayerConfig, ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.training import train
from edgernn.training.networks.learned_optimizer import LearnedOptimizer, log_and_sign
from edgernn.training.networks.optimisees import HAND_MADE, RATES, ResBlock, ResNet, perceptron, residual, train_by_hand
from edgernn.training.tasks.l2l import CIFAR10, LearningToLearn
from edgernn.training.tasks.unrolls import ImageSplit, Unrolls
from tests import oracle
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
# sizes of the three updates; otherwise as in their papers
LSTM_2 = {"layer": LayerConfig.of("lstm"), "hidden_size": 3, "layers": 2}
GATED = {"layer": LayerConfig.of("lstm"), "hidden_size": 3, "update": "gated", "inputs": 5}
RATES_UPDATE = {
    "layer": LayerConfig.of("decaynet"),
    "hidden_size": 3,
    "update": "rates",
    "inputs": 5,
    "propagations": 2,
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


class Bowl:
    """A loss of half the squared distance between θ and the minibatch, so the gradient is their difference."""

    def gradient(self, theta, x, target):
        theta = theta.detach()
        return (theta - x).square().sum() / 2, theta - x


def bowl_unroll(model, theta, x, same=False, state=None):
    state = model.initial_state(theta) if state is None else state
    return model.unroll(Bowl(), x, torch.zeros(len(x)), theta, state, same=same)


# inputs of the network


def test_log_and_sign_is_the_papers():
    v = np.array([0.0, 1e-9, -1e-9, 4e-5, 5e-5, -5e-5, 0.1, -1.0, 1.0, 300.0, -1e6])
    expected = [
        (np.log(abs(a)) / 10, np.sign(a)) if abs(a) >= np.exp(-10) else (-1.0, np.exp(10) * a) for a in v.tolist()
    ]
    features = torch.stack(log_and_sign(torch.from_numpy(v)), -1)
    np.testing.assert_allclose(features.numpy(), expected, rtol=1e-12)


# the updates compared with NumPy


def numbers(module):
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def preprocessed(v):
    small = np.abs(v) < np.exp(-10)
    log = np.log(np.where(small, 1.0, np.abs(v))) / 10
    return np.where(small, -1.0, log), np.where(small, np.exp(10) * v, np.sign(v))


def layers_by_hand(model, x, states):
    """Return the output of lstm layers on x (B, I), and their states, (h, c) each."""
    states_after = []
    for layer, state in zip(model.layers, states, strict=True):
        states_after.append(oracle.lstm(numbers(layer.cell), x, state))
        x = states_after[-1][0]
    return x, states_after


def additive_by_hand(model, theta, gradient, loss, carried):
    rows = np.zeros((len(theta), 3))
    carried = carried or [(rows, rows)] * 2
    h, carried = layers_by_hand(model, np.stack(preprocessed(gradient), -1), carried)
    out = numbers(model.update.out)
    return theta + 0.1 * (h @ out["weight"][0] + out["bias"][0]), carried


def decayed_by_hand(model, theta, gradient, loss, carried):
    rows = np.zeros((len(theta), 3))
    h, carried = layers_by_hand(model, np.stack(preprocessed(gradient), -1), carried or [(rows, rows)] * 2)
    out = numbers(model.update.out)
    eta, decay = 0.1 * (out["weight"] @ h.T + out["bias"][:, None])
    return (1 - eta * decay) * theta - eta * gradient, carried


def gated_by_hand(model, theta, gradient, loss, carried):
    rows = np.zeros((len(theta), 3))
    states, a = carried or ([(rows, rows)], np.zeros((3, len(theta))))
    features = [*preprocessed(gradient), *(np.full(len(theta), part) for part in preprocessed(np.array(loss)))]
    h, states = layers_by_hand(model, np.stack(features, -1) @ model.input.weight.detach().numpy().T, states)
    p = numbers(model.update)
    a = np.stack([h @ p["A"][k] + p["v"][k] * theta + p["r"][k] * a[k] + p["b"][k] for k in range(3)])
    return oracle.sigmoid(a[0]) * theta + oracle.sigmoid(a[1]) * np.tanh(a[2]), (states, a)


def rates_by_hand(model, theta, gradient, loss, carried):
    h, c = carried or (np.zeros((1, 3)), np.zeros((1, 3)))
    log, sign = preprocessed(gradient)
    x = model.input.weight.detach().numpy() @ (theta * log * sign)
    p = numbers(model.layers[0].cell) | {"length": np.zeros(1), "T": 2}
    state = (h, c, np.zeros((1, 3)))
    for _ in range(2):
        state = oracle.decaynet(p, x[None], state)
    alpha = model.update.out.weight.detach().numpy() @ state[0][0]
    return theta - alpha * gradient, state[:2]


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [
        (LSTM_2, additive_by_hand),
        (LSTM_2 | {"update": "decayed"}, decayed_by_hand),
        (GATED, gated_by_hand),
        (RATES_UPDATE, rates_by_hand),
    ],
    ids=["additive", "decayed", "gated", "rates"],
)
def test_updates_are_the_papers(settings, by_hand):
    model = LearnedOptimizer(**settings, coordinates=7).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    x = torch.randn(6, 7, dtype=torch.float64)
    # two of the seven gradients take the other branch of the preprocessing initially
    theta = x[0] + torch.tensor([0.0, 1e-6, 1e-3, -1e-3, 1.0, -1.0, 9.0])
    unrolled = bowl_unroll(model, theta, x)
    place, carried, losses = theta.numpy(), None, []
    for now in x.numpy():
        losses.append(((place - now) ** 2).sum() / 2)
        if len(losses) < len(x):
            place, carried = by_hand(model, place, place - now, losses[-1], carried)
    np.testing.assert_allclose(unrolled.theta.detach().numpy(), place, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(unrolled.before.detach().numpy(), losses[:-1], rtol=1e-9)
    np.testing.assert_allclose(unrolled.after.detach().numpy(), losses[1:], rtol=1e-9)


def test_losses_before_and_after_a_step_on_one_minibatch():
    model = LearnedOptimizer(**LSTM_2, coordinates=4)
    x, theta = torch.randn(3, 4), torch.randn(4)
    unrolled = bowl_unroll(model, theta, x, same=True)
    middle = bowl_unroll(model, theta, x[:2]).theta
    expected = [(middle - x[0]).square().sum() / 2, (unrolled.theta - x[1]).square().sum() / 2]
    torch.testing.assert_close(unrolled.after, torch.stack(expected))
    torch.testing.assert_close(unrolled.before[1], (middle - x[1]).square().sum() / 2)


def test_gated_update_starts_by_keeping_nearly_all():
    updates = [LearnedOptimizer(**GATED, coordinates=2).update for _ in range(50)]
    b = torch.stack([update.b.detach() for update in updates])
    for column, (low, high) in zip(b.T, [(4, 5), (-5, -4)], strict=False):
        assert low <= column.min() < column.max() <= high
    assert not b[:, 2].any()
    assert max(update.A.abs().max() for update in updates) <= 0.01


@pytest.mark.parametrize(("cell", "count"), [("eins", 2820), ("lstm", 3280)])
def test_parameters_of_the_papers_optimisers(cell, count):
    # 20 inputs and 20 neurons
    model = LearnedOptimizer(LayerConfig.of(cell), coordinates=1, update="gated", hidden_size=20)
    (layer,) = model.recurrent_layers()
    assert layer.cell.input_size == 20
    assert sum(p.numel() for p in layer.parameters()) == count


def test_sizes_of_the_rates_update_are_the_papers():
    # 15,910 parameters of the perceptron to 28 numbers, 64 neurons to 15,910 learning rates
    theta = perceptron(784, 20, 10, "uniform").start()
    model = LearnedOptimizer(LayerConfig.of("decaynet"), coordinates=len(theta), update="rates", hidden_size=64)
    assert model.input.weight.shape == (28, 784 * 20 + 20 + 20 * 10 + 10)
    assert model.update.out.weight.shape == (15910, 64)


def test_a_decay_begins_anew_at_each_step_unless_its_length_is_given():
    theta, x = torch.randn(4), torch.randn(4, 4)
    for options, grows in (({}, False), ({"length": 50}, True)):
        model = LearnedOptimizer(LayerConfig.of("decaynet", cell_options=options), coordinates=4, hidden_size=3)
        after = [bowl_unroll(model, theta, x[: k + 1]).state[2] for k in (1, 3)]
        assert bool((after[1] > 1.5 * after[0]).all()) == grows


# unrolls


@pytest.mark.parametrize(
    "settings",
    [LSTM_2, GATED, RATES_UPDATE, {"layer": LayerConfig.of("sarnn"), "hidden_size": 3}],
    ids=["additive", "gated", "rates", "sarnn"],
)
def test_two_unrolls_equal_one(settings):
    model = LearnedOptimizer(**settings, coordinates=4)
    x, theta = torch.randn(21, 4), torch.randn(4)
    whole = bowl_unroll(model, theta, x)
    first = bowl_unroll(model, theta, x[:11])
    second = bowl_unroll(model, first.theta.detach(), x[10:], state=tuple(s.detach() for s in first.state))
    assert torch.equal(torch.cat([first.before, second.before]), whole.before)
    assert torch.equal(torch.cat([first.after, second.after]), whole.after)
    assert torch.equal(second.theta, whole.theta)


def test_the_derivative_is_that_of_the_losses_with_gradients_held():
    optimisee = perceptron(6, 3, 4, "normal")
    model = LearnedOptimizer(**GATED, coordinates=optimisee.size)
    theta, x, target = optimisee.start().requires_grad_(), torch.randn(5, 8, 6), torch.randint(4, (5, 8))
    unrolled = model.unroll(optimisee, x, target, theta, model.initial_state(theta), same=False)
    plain, state = torch.zeros(()), model.initial_state(theta)
    for k in range(4):
        loss = functional.cross_entropy(optimisee(theta, x[k]), target[k])
        (gradient,) = torch.autograd.grad(loss, theta, retain_graph=True)
        theta, state = model(theta, gradient.detach(), loss.detach(), state)
        plain = plain + functional.cross_entropy(optimisee(theta, x[k + 1]), target[k + 1])
    torch.testing.assert_close(unrolled.after.sum(), plain)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(plain, parameters)
    assert any(gradient.abs().max() > 1e-6 for gradient in expected)
    for a, b in zip(torch.autograd.grad(unrolled.after.sum(), parameters), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cell", ["lstm", "sarnn"])
def test_a_learned_optimiser_learns_to_descend(cell):
    torch.manual_seed(0)
    model = LearnedOptimizer(LayerConfig.of(cell), coordinates=6, hidden_size=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def last(goal):
        return bowl_unroll(model, torch.zeros(6), goal.expand(6, 6)).after

    for _ in range(60):
        loss = last(torch.randn(6)).mean()
        if cell == "sarnn":
            loss = loss + 1e-3 * model.budget
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    goals = torch.randn(20, 6)
    with torch.no_grad():
        reached = torch.stack([last(goal)[-1] for goal in goals]).mean()
    assert reached < goals.square().sum(1).mean() / 2 * 0.5
    assert model.traces[0].decisions is None if cell == "lstm" else model.traces[0].decisions.shape == (5, 6, 8)


# the networks to train


def test_perceptron_is_two_layers_of_theta():
    optimisee = perceptron(6, 3, 4, "normal")
    theta = torch.randn(optimisee.size)
    x, target = torch.randn(5, 1, 2, 3), torch.tensor([0, 1, 2, 3, 3])
    W1, b1, W2, b2 = np.split(theta.double().numpy(), np.cumsum([18, 3, 12]))
    hidden = oracle.sigmoid(x.double().numpy().reshape(5, 6) @ W1.reshape(3, 6).T + b1)
    logits = hidden @ W2.reshape(4, 3).T + b2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss, gradient = optimisee.gradient(theta, x, target)
    assert loss.item() == pytest.approx(-np.log(p[np.arange(5), target.numpy()]).mean(), rel=1e-5)
    error = (p - np.eye(4)[target.numpy()]) / 5
    np.testing.assert_allclose(gradient[-4:].numpy(), error.sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient[21:33].numpy(), (error.T @ hidden).ravel(), rtol=1e-4, atol=1e-6)
    assert not gradient.requires_grad


def test_first_weights():
    normal, uniform = (perceptron(784, 20, 10, start).start(torch.Generator()) for start in ("normal", "uniform"))
    assert 0.0095 < normal.std() < 0.0105
    assert 0.099 < uniform.max() <= 0.1
    assert -0.1 <= uniform.min() < -0.099
    assert not uniform[784 * 20 : 784 * 20 + 20].any()
    assert not uniform[-10:].any()
    assert torch.equal(normal, perceptron(784, 20, 10, "normal").start(torch.Generator()))


@pytest.mark.parametrize(("depth", "blocks"), [(8, [1, 1, 1]), (16, [3, 2, 2]), (34, [6, 5, 5])])
def test_residual_network_has_its_depth(depth, blocks):
    net = ResNet(3, 2, 10, depth)
    weights = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weights) == depth
    outputs = [block.second[0].out_channels for block in net.blocks]
    assert [outputs.count(width) for width in (2, 4, 8)] == blocks
    x = torch.randn(4, 3, 32, 32)
    assert net.blocks(net.entry(x)).shape == (4, 8, 8, 8)
    assert net(x).shape == (4, 10)


def test_a_shortcut_halves_the_image_and_adds_channels_of_zeros():
    block = ResBlock(2, 4, 2)
    torch.nn.init.zeros_(block.second[1].weight)
    x = torch.rand(3, 2, 6, 6)
    expected = np.zeros((3, 4, 3, 3), np.float32)
    expected[:, :2] = x.numpy()[:, :, ::2, ::2]
    np.testing.assert_array_equal(block(x).detach().numpy(), expected)


def test_residual_network_starts_as_he_has_it_and_knows_nothing_but_theta():
    optimisee = residual(3, 16, 10, 8)
    theta = optimisee.start()
    assert 0.9 < theta[: 16 * 27].std() / np.sqrt(2 / 27) < 1.1
    assert (theta[16 * 27 : 16 * 28] == 1).all()
    assert not theta[16 * 28 : 16 * 29].any()
    x = 5 + 3 * torch.randn(8, 3, 32, 32)
    once = optimisee(theta, x)
    optimisee(theta, -x)
    assert torch.equal(optimisee(theta, x), once)


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_optimisers(name):
    lr, theta, x = 0.1, np.array([1.0, -2.0]), np.array([[0.5, 0.0], [0.0, 1.0], [3.0, 3.0]])
    place, curve, m, v = theta, [], 0.0, 0.0
    for t, now in enumerate(x, 1):
        g = place - now
        curve.append((g**2).sum() / 2)
        if name in ("sgd", "momentum"):
            m = (0.9 if name == "momentum" else 0.0) * m + g
            place = place - lr * m
        elif name == "rmsprop":
            v = 0.99 * v + 0.01 * g**2
            place = place - lr * g / (np.sqrt(v) + 1e-8)
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            place = place - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    start = torch.from_numpy(theta)
    losses, last = train_by_hand(Bowl(), start, ((torch.from_numpy(b), None) for b in x), name, lr)
    np.testing.assert_allclose(losses.numpy(), curve, rtol=1e-6)
    np.testing.assert_allclose(last.numpy(), place, rtol=1e-6)
    assert start.tolist() == theta.tolist()


# the task


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
        patch.setattr("edgernn.training.networks.learned_optimizer.joined", lambda _: None)
        patch.setattr(LearnedOptimizer, "update_rate", 1.0)
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
    hidden = oracle.sigmoid(x @ W1.reshape(2, 784).T + b1)
    logits = hidden @ W2.reshape(10, 2).T + b2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), target]).mean()
    error = (p - np.eye(10)[target]) / len(x)
    back = error @ W2.reshape(10, 2) * hidden * (1 - hidden)
    gradient = np.concatenate([(back.T @ x).ravel(), back.sum(0), (error.T @ hidden).ravel(), error.sum(0)])
    return loss, gradient, (logits.argmax(1) == target).mean()


def test_the_learning_rate_is_the_best_on_the_validation_images(digits, monkeypatch):
    monkeypatch.setattr("edgernn.training.tasks.l2l.RATES", (1e-4, 0.1, 1e4))
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
def test_stopped_and_resumed_equals_whole(digits, tmp_path, cell, changes):
    # an optimisee has two steps: one stop is between them, the other before the next optimisee
    run(digits, tmp_path / "whole", cell, **changes)
    for at in (4, 5):
        with pytest.raises(RuntimeError, match="stopped by the test"):
            run(digits, tmp_path / f"run{at}", cell, progress=Stop(at), **changes)
        run(digits, tmp_path / f"run{at}", cell, resume=True, **changes)
        assert snapshot(tmp_path / f"run{at}") == snapshot(tmp_path / "whole")


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
    with pytest.raises(UsageError, match="cell: expected one without an imputer, got rits"):
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
    with pytest.raises(EdgernnError, match=r"l2l: no data_batch_1\.bin, .*test_batch\.bin"):
        opened(tmp_path, optimisee="resnet")


A_PART = r"cifar10_subset\S* is a subset of CIFAR-10"


def write_cifar(folder, form, count=12):
    """Write random images in one of the supported forms; return the colours of the first image (3, 32, 32)."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    if form == "npz":
        x, y = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        np.savez(folder / CIFAR10[2][0], x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
        return x[0].transpose(2, 0, 1)
    records = rng.integers(256, size=(6, count, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    for name, batch in zip(CIFAR10[0], records, strict=True):
        target = folder / "cifar-10-batches-bin" / name if form == "unpacked" else folder / f"{name}.gz"
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


@pytest.mark.usefixtures("_no_pictures")
def test_a_residual_network_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("edgernn.training.tasks.l2l.RATES", (0.01,))
    write_cifar(tmp_path / "data/cifar10", "npz")
    changes = {"optimisee": "resnet", "width": 1, "depth": 8, "update": "gated", "layers": 1, "steps": 2, "trials": 1}
    with pytest.warns(EdgernnWarning, match=A_PART):
        assert run(tmp_path / "data", tmp_path / "run", "eins", **changes)["steps"] == 2


def test_cifar10_needs_images_to_hold_out(tmp_path):
    write_cifar(tmp_path / "cifar10", "npz", count=5)
    few = pytest.raises(EdgernnError, match="expected at least 12 images to train on, got 5")
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
