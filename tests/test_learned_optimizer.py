# SPDX-License-Identifier: Apache-2.0
"""The learned optimiser, the networks that it trains, and hand-designed optimisers."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from edgernn.config import LayerConfig
from edgernn.training.papers.networks.learned_optimizer import LearnedOptimizer, log_and_sign
from edgernn.training.papers.networks.optimisees import HAND_MADE, ResBlock, ResNet, perceptron, residual, train_by_hand
from tests import oracle_cells

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
        states_after.append(oracle_cells.lstm(numbers(layer.cell), x, state))
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
    return oracle_cells.sigmoid(a[0]) * theta + oracle_cells.sigmoid(a[1]) * np.tanh(a[2]), (states, a)


def rates_by_hand(model, theta, gradient, loss, carried):
    h, c = carried or (np.zeros((1, 3)), np.zeros((1, 3)))
    log, sign = preprocessed(gradient)
    x = model.input.weight.detach().numpy() @ (theta * log * sign)
    p = numbers(model.layers[0].cell) | {"length": np.zeros(1), "T": 2}
    state = (h, c, np.zeros((1, 3)))
    for _ in range(2):
        state = oracle_cells.decaynet(p, x[None], state)
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
    hidden = oracle_cells.sigmoid(x.double().numpy().reshape(5, 6) @ W1.reshape(3, 6).T + b1)
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
