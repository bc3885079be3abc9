# SPDX-License-Identifier: Apache-2.0
"""The training loop, and the files of a run."""

import json
import threading

import numpy as np
import pytest
import torch

import edgernn.training
from edgernn.errors import EdgernnError
from edgernn.model import SequenceModel
from edgernn.store import load_model
from edgernn.training import evaluate, loop, train
from edgernn.training.config import TrainConfig
from edgernn.training.loop import gradient_norm, train_step
from edgernn.training.tasks.adding import Adding
from tests.training_helpers import SMALL, leftovers, write_mnist

pytestmark = pytest.mark.usefixtures("no_pictures")


# the loop


def test_one_step_is_adam_on_the_clipped_gradient_of_loss_and_budget():
    torch.manual_seed(0)
    model, twin = (SequenceModel("sarnn", 2, 6, 1) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    task = Adding(T=7)
    task.open(None, 0)
    batch = task.train.batch(0, 5)
    config = TrainConfig.of(lambda_=0.3, clip=0.01, lr=0.1)
    value, _ = train_step(model, torch.optim.Adam(model.parameters(), lr=0.1), batch, task, config)
    y, _ = twin(batch.x)
    loss = ((y - batch.target) ** 2).mean() + 0.3 * twin.budget
    assert value == pytest.approx(loss.item())
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    scale = min(1.0, 0.01 / torch.cat([g.flatten() for g in gradients]).norm().item())
    for (name, after), before, g in zip(model.named_parameters(), twin.parameters(), gradients, strict=True):
        # the first step of Adam is lr · g / (|g| + ε)
        expected = before - 0.1 * g * scale / ((g * scale).abs() + 1e-8)
        assert torch.allclose(after, expected, atol=1e-5), name


def test_evaluation_weighs_every_sequence_alike():
    torch.manual_seed(0)
    model = SequenceModel("sarnn", 2, 6, 1)
    task = Adding(T=7)
    task.open(None, 0)
    metrics = evaluate(model, task, task.test)
    with torch.no_grad():
        y, _ = model(task.test.x.transpose(0, 1))
    assert metrics["mse"] == pytest.approx(((y - task.test.y) ** 2).mean().item(), rel=1e-5)
    assert metrics["skip_percent"] == pytest.approx(100 * (1 - model.update_rate), abs=1e-9)
    assert model.training


def test_a_metric_that_is_not_finite_is_an_error():
    model = SequenceModel("gru", 2, 6, 1)
    task = Adding(T=7)
    task.open(None, 0)
    with torch.no_grad():
        model.head.bias.fill_(torch.inf)
    with pytest.raises(EdgernnError, match="mse is inf on the held-out sequences"):
        evaluate(model, task, task.test)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of sarnn: its directory and the result of `train`."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**SMALL, "steps": "35", "eval_every": 10, "lambda": 1e-3}
    return out, train("adding", "sarnn", out=out, seed=3, settings=settings)


def test_a_run_leaves_its_files(finished):
    out, _ = finished
    files = {p.name for p in out.iterdir()}
    state = {"state.json", "state.safetensors", "model.safetensors", "example.npz"}
    assert files == state | {"config.json", "metrics.jsonl", "result.json", "learning.png", "pattern.png"}
    for picture in ("learning.png", "pattern.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert not leftovers(out)


def test_the_example_is_of_the_test_sequences(finished):
    task = Adding(T=10)
    task.open(None, 3)
    with np.load(finished[0] / "example.npz") as example:
        assert np.array_equal(example["x"], task.test.x[:16].numpy())


def test_metrics_have_a_line_an_evaluation(finished):
    lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 35]
    assert set(lines[0]) == {"step", "epoch", "loss", "mse", "mae", "skip_percent", "macs_executed", "seconds"}


def test_the_result_is_of_the_stored_model(finished):
    out, returned = finished
    result = json.loads((out / "result.json").read_text())
    assert returned == {**result, "run": str(out)}
    model, config = load_model(out)
    task = Adding(**config["task"]["settings"])
    task.open(None, config["seed"])
    metrics = evaluate(model, task, task.test)
    assert {name: result[name] for name in metrics} == metrics
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert result["macs"] == 3 * 8 * (2 + 8) + 2 * 8 + 8
    assert result["macs_executed"] < result["macs"]
    assert (result["steps"], result["stopped"], result["solved"], result["seed"]) == (35, "steps", False, 3)
    assert result["threshold"] == pytest.approx(1 / 600)
    assert (result["cell"], result["rule"], result["task"]) == ("sarnn", "selective", "adding")


def test_the_config_repeats_the_run(finished):
    config = json.loads((finished[0] / "config.json").read_text())
    assert config["command"][:2] == ["edgernn", "train"]
    assert "lambda=0.001" in config["command"]
    assert config["train"]["lambda"] == 1e-3
    settings = {"T": 10, "epoch_steps": 100, "values": "uniform", "delta2": None, "markers": "any", "silence": None}
    settings |= {"train_size": None, "test_size": 1000}
    assert config["task"] == {
        "name": "adding",
        "settings": settings,
        "fingerprint": None,
        "classes": None,
        "channels": None,
    }
    assert config["torch"] == torch.__version__


def test_a_rule_that_cannot_skip_has_no_pattern(tmp_path):
    result = train("adding", "gru", out=tmp_path / "run", settings={**SMALL, "steps": 2})
    assert not (tmp_path / "run" / "pattern.png").exists()
    assert result["skip_percent"] == 0
    assert result["macs_executed"] == result["macs"]


@pytest.mark.parametrize("extra", [{"layers": 2}, {"bidirectional": True}, {"budget": "likelihoods"}], ids=str)
def test_stacks_train(tmp_path, extra):
    train("adding", "sarnn", out=tmp_path / "run", settings={**SMALL, "steps": 2, **extra})
    model, _ = load_model(tmp_path / "run")
    assert len(model.recurrent_layers()) == (1 if "budget" in extra else 2)


def test_the_default_directory_is_named_after_task_cell_and_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train("adding", "gru", "selective", settings={**SMALL, "steps": 1})
    assert (tmp_path / "runs/adding-gru-selective/result.json").exists()


def test_random_numbers_of_the_caller_are_left_alone(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train("adding", "gru", out=tmp_path / "run", settings={**SMALL, "steps": 1})
    assert torch.equal(before, torch.get_rng_state())


def test_training_in_another_thread(tmp_path):
    arguments = {"out": tmp_path / "run", "settings": {**SMALL, "steps": 1}}
    thread = threading.Thread(target=train, args=("adding", "gru"), kwargs=arguments)
    thread.start()
    thread.join()
    assert (tmp_path / "run/result.json").exists()


@pytest.mark.parametrize(("target", "stopped"), [(0, "solved"), (100.5, "steps"), (None, "solved")])
def test_it_stops_when_solved_and_sparse_enough(tmp_path, monkeypatch, target, stopped):
    monkeypatch.setattr(Adding, "solved", 1e6)
    settings = {**SMALL, "steps": 6, "eval_every": 2, "skip_target": target}
    result = train("adding", "sarnn", out=tmp_path / "run", settings=settings)
    assert (result["stopped"], result["solved"]) == (stopped, True)
    assert result["steps"] == (2 if stopped == "solved" else 6)


def test_the_best_evaluation_has_the_skip_target(tmp_path, monkeypatch):
    figures = iter([(0.1, 60.0), (0.3, 90.0), (0.2, 70.0), (0.25, 85.0), (0.26, 99.0)])

    def evaluate(*_):
        mse, skipped = next(figures)
        return {"macs_executed": 1.0, "skip_percent": skipped, "mse": mse}

    monkeypatch.setattr("edgernn.training.loop.evaluate", evaluate)
    settings = {**SMALL, "steps": 10, "eval_every": 2, "skip_target": 85.0, "keep": "best"}
    assert train("adding", "sarnn", out=tmp_path / "run", settings=settings)["best_validation"] == 0.25
    # the main metric is the first one, for plots of a run that is not finished
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert next(key for key in line if key not in ("step", "epoch", "loss")) == "mse"


def test_a_rule_that_cannot_skip_needs_no_skip_target(tmp_path, monkeypatch):
    monkeypatch.setattr(Adding, "solved", 1e6)
    assert train("adding", "gru", out=tmp_path / "a", settings={**SMALL, "steps": 6, "eval_every": 2})["steps"] == 2
    settings = {**SMALL, "steps": 6, "eval_every": 2, "stop_solved": False}
    assert train("adding", "gru", out=tmp_path / "b", settings=settings)["steps"] == 6


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    settings = {**SMALL, "steps": 50, "eval_every": 1, "patience": 3, "lr": 1e-12}
    result = train("adding", "gru", out=tmp_path / "run", settings=settings)
    assert result["stopped"] == "patience"
    assert result["steps"] < 50


@pytest.mark.parametrize("why", ["solved", "patience"])
def test_sparse_weights_are_held_before_a_run_stops_or_counts_its_best(tmp_path, monkeypatch, why):
    if why == "solved":
        monkeypatch.setattr(Adding, "solved", 1e6)
    settings = {**SMALL, "hidden_size": 32, "steps": 30, "eval_every": 2, "density": 0.25, "keep": "best"}
    settings |= {"stop_solved": why == "solved", "patience": 3, "lr": 1e-12}
    result = train("adding", "gru", out=tmp_path / "run", settings=settings)
    assert result["stopped"] == why
    assert 20 < result["steps"] < 30
    model, _ = load_model(tmp_path / "run")
    assert model.layers[0].cell.held_zeros() > 0
    held = [json.loads(line)["mse"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][10:]
    assert result["best_validation"] == min(held)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_sparse_weights_are_held_in_the_shortest_run(tmp_path, steps):
    settings = {**SMALL, "hidden_size": 32, "steps": steps, "density": 0.25, "keep": "best"}
    train("adding", "gru", out=tmp_path / "run", settings=settings)
    model, _ = load_model(tmp_path / "run")
    assert model.layers[0].cell.held_zeros() > 0


def test_epochs_count_a_tasks_own_steps(tmp_path):
    settings = {**SMALL, "epochs": 2, "epoch_steps": 3}
    assert train("adding", "gru", out=tmp_path / "run", settings=settings)["steps"] == 6


@pytest.mark.parametrize(("anneal", "slope"), [("on", 1.08), ("off", 1.0)])
def test_the_slope_grows_with_the_epochs(tmp_path, monkeypatch, anneal, slope):
    seen = []
    step = edgernn.training.loop.train_step

    def watched(model, *arguments):
        seen.append(model.recurrent_layers()[0].rule.slope)
        return step(model, *arguments)

    monkeypatch.setattr(edgernn.training.loop, "train_step", watched)
    settings = {**SMALL, "epochs": 3, "epoch_steps": 2, "anneal": anneal}
    train("adding", "sarnn", out=tmp_path / "run", settings=settings)
    assert len(seen) == 6
    assert seen[-1] == pytest.approx(slope)


def test_a_diverging_run_says_at_which_step_and_can_be_started_again(tmp_path):
    path = tmp_path / "mine.npz"
    x = np.random.default_rng(0).normal(size=(30, 4, 1))
    np.savez(path, x=x, y=x[:, 0])
    with pytest.raises(EdgernnError, match=r"step 2: expected a finite loss, got inf: .* \(now lr=1e\+30, clip"):
        train(str(path), "gru", out=tmp_path / "run", lr=1e30)
    assert not (tmp_path / "run").exists()


def test_a_gradient_that_is_not_finite_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "gradient_norm", lambda gradients: gradients[0].sum() + torch.inf)
    with pytest.raises(EdgernnError, match=r"step 1: expected a finite norm of the gradient, got inf"):
        train("adding", "gru", out=tmp_path / "run", settings={"T": 4, "hidden_size": 4})


@pytest.mark.parametrize(
    ("rule", "option", "value"), [("selective", "detach_state", True), ("delta", "straight_through", False)]
)
@pytest.mark.parametrize("has_it", [False, True])
def test_a_gradient_that_is_not_finite_says_which_option_helps(tmp_path, monkeypatch, rule, option, value, has_it):
    monkeypatch.setattr(loop, "gradient_norm", lambda gradients: gradients[0].sum() + torch.inf)
    settings = {"T": 4, "hidden_size": 4, "layers": 2, option: value if has_it else not value}
    end = r"clip=.*\)$" if has_it else f", or set {option}={str(value).lower()}$"
    with pytest.raises(EdgernnError, match=f"the training diverged; lower lr or clip .*{end}"):
        train("adding", "gru", rule, out=tmp_path / "run", settings=settings)


def test_the_norm_of_a_gradient_whose_squares_overflow():
    gradients = [torch.full((3,), 1e19), torch.full((2, 2), -2e19)]
    assert gradient_norm(gradients).item() == pytest.approx((3 + 16) ** 0.5 * 1e19)
    assert gradient_norm([torch.tensor([1.0, torch.inf])]).item() == torch.inf
    small = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert gradient_norm(small).item() == 5.0


@pytest.mark.parametrize(
    ("y", "metric"),
    [(np.arange(40) % 2, "accuracy"), (np.arange(200).reshape(40, 5) % 2, "accuracy"), (np.ones((40, 5, 2)), "mse")],
    ids=["labels", "labels-a-step", "numbers-a-step"],
)
def test_own_arrays_train(tmp_path, y, metric):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.random.default_rng(0).normal(5, 3, (40, 5, 3)), y=y)
    result = train(str(path), "pru", out=tmp_path / "run", settings={"epochs": 2, "hidden_size": 4})
    assert result["metric"] == metric
    assert result["steps"] == 2
    assert result["solved"] is None
    model, config = load_model(tmp_path / "run")
    assert config["task"]["name"] == "mine.npz"
    assert model.standardises


def test_mnist_trains(tmp_path):
    write_mnist(tmp_path / "data")
    settings = {"epochs": 1, "hidden_size": 4, "batch_size": 10}
    result = train("mnist-rows", "pru", out=tmp_path / "run", data=tmp_path / "data", settings=settings)
    assert 0 <= result["accuracy"] <= 1
    assert result["steps"] == 3


def test_labels_that_follow_from_the_input_are_learned(tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 6, 1))
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=(x[:, -1, 0] > 0).astype(int))
    settings = {"epochs": 15, "hidden_size": 8, "lr": 0.02}
    assert train(str(path), "gru", out=tmp_path / "run", settings=settings)["accuracy"] > 0.9
