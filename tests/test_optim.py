# SPDX-License-Identifier: Apache-2.0
"""Initial weights, optimisers, learning rates, clipping, and the weights that a training keeps."""

import copy
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgernn.errors import UsageError
from edgernn.export.run import export_run
from edgernn.model import SequenceModel
from edgernn.training import train
from edgernn.training.config import TrainConfig
from edgernn.training.loop import train_step
from edgernn.training.optim import OPTIMIZERS, check_names, copy_weights, course, initialise, make_optimizer, schedule
from edgernn.training.tasks.adding import Adding
from tests.models import write_alone
from tests.training_helpers import without_pictures

SMALL = {"T": 6, "hidden_size": 5, "batch_size": 8}


@pytest.mark.parametrize(("start", "deviation"), [("uniform", 0.3 / math.sqrt(3)), ("normal", 0.3)])
def test_all_parameters_start_as_they_are_told(start, deviation):
    model = SequenceModel("gru", 40, 60, 50)
    initialise(model, TrainConfig.of(start=start, start_scale=0.3))
    for name, parameter in model.named_parameters():
        assert parameter.std().item() == pytest.approx(deviation, rel=0.25 if parameter.ndim == 1 else 0.05), name
        if start == "uniform":
            assert parameter.abs().max() <= 0.3, name


def test_biases_may_start_at_zero_and_norms_keep_their_own_start():
    model = SequenceModel("lstm", 3, 8, 2, norm="recurrent-batch", norm_steps=4)
    before = {n: p.clone() for n, p in model.named_parameters() if "norms" in n}
    initialise(model, TrainConfig.of(start="uniform", start_scale=1.0, start_biases=False))
    for name, parameter in model.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name]), name
        else:
            assert bool((parameter == 0).all()) == (parameter.ndim == 1), name
    assert before


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize(("rule", "options"), [("phased", {}), ("skip", {}), ("delta", {"learn_thresholds": True})])
def test_rules_keep_values_that_have_a_meaning(rule, options, biases):
    model = SequenceModel("gru", 3, 8, 2, rule=rule, rule_options=options)
    before = {n: p.clone() for n, p in model.named_parameters()}
    initialise(model, TrainConfig.of(start="uniform", start_scale=0.1, start_biases=biases))
    kept = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert kept == {name for name in before if ".rule." in name}
    assert len(kept) == 2


def test_a_cells_own_start_is_left_alone():
    model = SequenceModel("fastgrnn", 3, 8, 2)
    before = [p.clone() for p in model.parameters()]
    initialise(model, TrainConfig())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_learning_rate_falls_after_the_epochs_that_hold_it():
    optimizer = make_optimizer(SequenceModel("gru", 1, 2, 1), TrainConfig.of(optimizer="sgd"))
    config = TrainConfig.of(lr=0.8, lr_decay=0.5, lr_hold=2, lr_decays=3)
    rates = []
    for epoch in range(8):
        schedule(optimizer, config, epoch)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.2, 0.1, 0.1, 0.1]


def step(optimizer, gradients, **settings):
    """Return one parameter, initially 1, after steps with these gradients."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    optimiser = make_optimizer(model, TrainConfig.of(optimizer=optimizer, **settings))
    for gradient in gradients:
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimiser.step()
    return model.weight.item()


def test_the_learning_rate_warms_up_and_falls_along_a_cosine():
    config = TrainConfig.of(lr_warmup=4, lr_cosine=True)
    factors = [course(config, step, 24) for step in range(24)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])
    assert factors[14] == pytest.approx(0.5)
    assert all(a > b > 0 for a, b in itertools.pairwise(factors[4:]))
    assert [course(TrainConfig.of(lr_warmup=1), step, 9) for step in range(3)] == [0.5, 1, 1]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adadelta])
def test_optimisers_do_what_those_of_torch_do(kind):
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours = make_optimizer(layers[0], TrainConfig.of(optimizer=kind.__name__.lower(), lr=0.1, weight_decay=0.01))
    theirs = kind(layers[1].parameters(), lr=0.1, weight_decay=0.01, foreach=True)
    for step in range(6):
        for layer, optimizer in zip(layers, (ours, theirs), strict=True):
            loss = layer(torch.full((4, 3), step - 1.5)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            assert optimizer.step(torch.is_grad_enabled)
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True))
    assert isinstance(ours, kind)


@pytest.mark.slow
def test_a_training_imports_no_compiler(tmp_path):
    code = """
import sys
from edgernn.training import train
train("adding", "gru", out=sys.argv[1], settings={"T": 4, "hidden_size": 4, "steps": 2, "test_size": 10})
print(*{name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if name == "torch._dynamo"})
"""
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    loaded = set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & {"torch._dynamo", "onnx", "onnxscript", "onnxruntime", "triton"}
    assert "torch" in loaded


def test_steps_are_those_of_the_papers():
    assert step("sgd", [2.0, 2.0], lr=0.1) == pytest.approx(1 - 0.2 - 0.2)
    # v = 0.9 v + g
    assert step("sgd", [2.0, 2.0], lr=0.1, momentum=0.9) == pytest.approx(1 - 0.2 - 0.38)
    # the gradient of half the squared weight is added
    assert step("sgd", [0.0], lr=0.1, weight_decay=0.5) == pytest.approx(0.95)
    # Adam's first step is lr for any gradient
    assert step("adam", [3.0], lr=0.1) == pytest.approx(0.9)
    # the mean square is 0.01 g² after one step
    assert step("rmsprop", [3.0], lr=0.1) == pytest.approx(1 - 0.1 / math.sqrt(0.01), abs=1e-6)
    # Zeiler: Δ = RMS(Δ) / RMS(g) g, with ρ = 0.9
    mean, eps = 0.1 * 9.0, 1e-6
    assert step("adadelta", [3.0], lr=0.5) == pytest.approx(1 - 0.5 * math.sqrt(eps) / math.sqrt(mean + eps) * 3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_trains_and_is_resumed(tmp_path, monkeypatch, optimizer):
    without_pictures(monkeypatch)
    settings = {**SMALL, "optimizer": optimizer, "lr": 0.01, "eval_every": 4, "checkpoint_every": 4}
    if optimizer == "ntasgd":
        settings["average_from"] = 0
    whole = train("adding", "gru", out=tmp_path / "whole", settings={**settings, "steps": 8})
    # the same 8 steps, resumed from the checkpoint of the fourth
    steps = []

    def stop(*args):
        steps.append(1)
        if len(steps) == 6:
            raise KeyboardInterrupt
        return train_step(*args)

    monkeypatch.setattr("edgernn.training.loop.train_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train("adding", "gru", out=tmp_path / "parts", settings={**settings, "steps": 8})
    monkeypatch.setattr("edgernn.training.loop.train_step", train_step)
    parts = train("adding", "gru", out=tmp_path / "parts", resume=True, settings={**settings, "steps": 8})
    assert parts["mse"] == whole["mse"]
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_value_is_clipped_before_the_norm():
    task = Adding(T=4)
    task.open(None, 0)
    config = TrainConfig.of(optimizer="sgd", lr=1.0, clip=None, clip_value=1e-3)
    model = SequenceModel("gru", 2, 3, 1)
    before = [p.clone() for p in model.parameters()]
    train_step(model, make_optimizer(model, config), task.train.batch(0, 5), task, config)
    moved = torch.cat([(b - p).flatten() for b, p in zip(before, model.parameters(), strict=True)]).abs()
    assert moved.max().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adm"}, "unknown optimizer 'adm': did you mean 'adam'"),
        ({"start": "gauss"}, "unknown start 'gauss'"),
        ({"momentum": 0.9}, "momentum: optimizer=adam has no such setting"),
        ({"keep": "first"}, "keep: expected last or best, got 'first'"),
    ],
)
def test_bad_words_are_named(settings, said):
    with pytest.raises(UsageError, match=said):
        check_names(TrainConfig.of(**settings))


def test_the_best_weights_are_kept(tmp_path, monkeypatch):
    """The learning rate overshoots the optimum: the result is that of the best evaluation."""
    without_pictures(monkeypatch)
    settings = {**SMALL, "optimizer": "sgd", "lr": 0.3, "steps": 29, "eval_every": 1, "stop_solved": False}
    result = train("adding", "rnn", out=tmp_path / "run", settings={**settings, "keep": "best"})
    last = train("adding", "rnn", out=tmp_path / "last", settings=settings)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    best = int(np.argmin([line["mse"] for line in lines]))
    assert best < len(lines) - 1
    assert result["best_validation"] == lines[best]["mse"]
    stopped = train("adding", "rnn", out=tmp_path / "short", settings={**settings, "steps": best + 1})
    assert result["mse"] == stopped["mse"] != last["mse"]


def test_a_training_starts_from_the_weights_of_another_run(tmp_path):
    settings = {**SMALL, "steps": 1, "lr": 1e-12}
    train("adding", "gru", out=tmp_path / "dense", settings={**settings, "steps": 5, "lr": 0.01})
    settings["start_run"] = str(tmp_path / "dense")
    train("adding", "sarnn", out=tmp_path / "skipping", settings=settings)
    dense, skipping = (load_file(tmp_path / name / "model.safetensors") for name in ("dense", "skipping"))
    assert skipping.keys() - dense.keys() == {f"layers.0.rule.rule_{name}" for name in "Wdb"}
    for name, tensor in dense.items():
        assert torch.allclose(skipping[name], tensor, atol=1e-9), name


def test_a_training_starts_from_the_weights_of_an_exported_file_or_of_a_model_in_the_zoo(tmp_path, monkeypatch):
    settings = {**SMALL, "steps": 1, "lr": 1e-12}
    train("adding", "gru", out=tmp_path / "dense", settings={**settings, "steps": 5, "lr": 0.01})
    folder = tmp_path / "models/small-gru"
    folder.mkdir(parents=True)
    export_run(tmp_path / "dense", folder / "model.onnx")
    (folder / "entry.json").write_text("{}")
    monkeypatch.setenv("EDGERNN_MODELS", str(tmp_path / "models"))
    dense = load_file(tmp_path / "dense/model.safetensors")
    for out, source in (("file", str(folder / "model.onnx")), ("folder", str(folder)), ("name", "small-gru")):
        train("adding", "sarnn", out=tmp_path / out, settings={**settings, "start_run": source})
        skipping = load_file(tmp_path / out / "model.safetensors")
        for name, tensor in dense.items():
            assert torch.allclose(skipping[name], tensor, atol=1e-9), name
    with pytest.raises(UsageError, match=r"small-gro.*did you mean 'small-gru'"):
        train("adding", "gru", out=tmp_path / "a", settings={**settings, "start_run": "small-gro"})


def test_a_start_with_another_front_end_is_noted(tmp_path):
    audio = {"frontend": "logmel", "sample_rate": 1000, "window_size": 64, "hop": 20, "bands": 5}
    trained = SequenceModel("gru", 20, 4, 2, **audio, normalise="floor")
    write_alone(trained, tmp_path / "floor.onnx")
    note = copy_weights(SequenceModel("gru", 20, 4, 2, **audio), tmp_path / "floor.onnx")
    assert note.endswith("floor.onnx differs: normalise=floor")
    same = SequenceModel("gru", 20, 4, 2, **audio, normalise="floor")
    assert "front end" not in copy_weights(same, tmp_path / "floor.onnx")
    assert torch.equal(same.head.weight, trained.head.weight)


def test_a_resumed_training_does_not_start_from_the_other_run_again(tmp_path):
    train("adding", "gru", out=tmp_path / "first", settings={**SMALL, "steps": 5, "lr": 0.01})
    settings = {**SMALL, "steps": 6, "checkpoint_every": 2, "start_run": str(tmp_path / "first")}
    train("adding", "gru", out=tmp_path / "whole", settings=settings)
    weights = (tmp_path / "whole" / "model.safetensors").read_bytes()
    # the last checkpoint is of the last step; without result.json the run counts as interrupted
    (tmp_path / "whole" / "result.json").unlink()
    (tmp_path / "first" / "model.safetensors").unlink()
    train("adding", "gru", out=tmp_path / "whole", settings=settings, resume=True)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == weights


def test_a_folder_without_fitting_weights_is_refused(tmp_path):
    train("adding", "gru", out=tmp_path / "small", settings={**SMALL, "steps": 1})
    with pytest.raises(UsageError, match="start_run: expected the directory of a finished run"):
        train("adding", "gru", out=tmp_path / "a", settings={**SMALL, "steps": 1, "start_run": str(tmp_path / "none")})
    larger = {**SMALL, "steps": 1, "hidden_size": 6, "start_run": str(tmp_path / "small")}
    train("adding", "gru", out=tmp_path / "b", settings=larger)  # the bias of the output layer fits
    with pytest.raises(UsageError, match="start_run: expected weights of the shapes of this model"):
        copy_weights(SequenceModel("gru", 3, 7, 2), tmp_path / "small")
