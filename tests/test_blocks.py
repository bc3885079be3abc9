# SPDX-License-Identifier: Apache-2.0
"""The residual block around each layer: its equations, costs, training and refusals."""

import json

import numpy as np
import pytest
import torch

import edgernn
from edgernn.bench.baseline import is_same
from edgernn.config import CellConfig, LayerConfig, ModelConfig
from edgernn.costs import model_cost
from edgernn.errors import UsageError
from edgernn.kernels import attach
from edgernn.random_models import random_model
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate_output
from tests import oracle_blocks
from tests.models import contractive
from tests.oracle import CELLS
from tests.tolerances import FLOAT32, FLOAT64
from tests.training_helpers import SMALL, Stop, snapshot, without_pictures

BLOCKS = ("linear", "gated")
every_block = pytest.mark.parametrize("block", BLOCKS)
# I = H; an encoder; an encoder at the end, too
SIZES = {
    "no encoder": {"input_size": 8, "hidden_size": 8, "layers": 2},
    "encoder": {"input_size": 3, "hidden_size": 8, "layers": 2},
    "last size": {"input_size": 3, "hidden_size": 8, "layers": 3, "last_size": 5},
}


def random_weights(model):
    """Draw all weights of the blocks, whose norms would start as ones and zeros."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model


def expected(model, x):
    return oracle_blocks.run(
        model.config.block,
        model.cell_type.name,
        model.rule_type.name,
        model.state_dict(),
        model.config.sizes,
        CELLS[model.cell_type.name].states,
        x,
    )


@pytest.mark.parametrize(("cell", "rule"), [("mingru", "always"), ("minlstm", "skip"), ("gru", "selective")])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@every_block
def test_torch_computes_the_equations(block, sizes, cell, rule):
    model = contractive(cell, rule, **sizes, block=block, output="all").double()
    random_weights(model)
    x = torch.randn(7, 2, sizes["input_size"], dtype=torch.float64)
    with torch.no_grad():
        y, _ = model(x)
    np.testing.assert_allclose(y.numpy(), expected(model, x), rtol=0, atol=FLOAT64)


@every_block
def test_the_output_of_the_last_step_is_that_of_all_steps(block):
    sizes = {"input_size": 3, "hidden_size": 8, "layers": 2, "block": block}
    last, every = (random_weights(contractive("lru", **sizes, output=output)) for output in ("last", "all"))
    x = torch.randn(7, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(last(x)[0], every(x)[0][-1])


@every_block
def test_a_sequence_in_parts_equals_the_whole(block):
    model = random_weights(contractive("lru", layers=2, block=block, output="all"))
    x = torch.randn(9, 2, 3)
    with torch.no_grad():
        whole, _ = model(x)
        first, state = model(x[:4])
        second, _ = model(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=FLOAT32)


def test_dropout_leaves_what_goes_past_the_layers():
    model = edgernn.SequenceModel(
        "gru", 4, 4, layers=3, block="linear", output="all", dropout_input=0.9, dropout_hidden=0.9
    )
    x = torch.randn(5, 2, 4)
    assert not torch.equal(model(x)[0], model(x)[0])
    with torch.no_grad():
        for block in model.residual_blocks():
            block.linear.weight.zero_()
            block.linear.bias.zero_()
    torch.testing.assert_close(model(x)[0], x)


@every_block
def test_costs_are_those_of_the_matrices(block):
    I, H, last = 3, 8, 5
    model = edgernn.SequenceModel("mingru", I, H, 2, layers=3, last_size=last, block=block)
    maps = 2 if block == "gated" else 1
    cost = model_cost(model)
    # encoders of the first layer and of the last one, and A and G of each layer
    assert cost.block_macs == I * H + H * last + maps * (H * H + H * H + last * last)
    # W of z and n, which reads norm(u)
    assert cost.macs == 2 * (H * H + H * H + last * last)
    blocks = cost.block_macs + H + last + (2 + maps) * (H + H + last)
    assert cost.parameters == cost.macs + 2 * (H + H + last) + blocks + 2 * (last + 1)
    plain = model_cost(edgernn.SequenceModel("mingru", H, H, layers=2))
    assert plain.block_macs == 0


def test_an_operator_is_not_the_same_as_a_layer_in_a_block():
    info = {"kernels": ["gru"], "model": {"block": "linear"}}
    assert not is_same("gru", info)
    # a file of an earlier version lacks the entry
    assert is_same("gru", {"kernels": ["gru"], "model": {}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bidirectional": True}, "block: expected none with bidirectional"),
        ({"imputer": "rits"}, "block: expected none with an imputer"),
        ({"cell": "gru-d"}, "block: expected none with an imputer"),
        ({"block": "square"}, "block: expected .*linear.*gated"),
    ],
    ids=["bidirectional", "imputer", "cell with an imputer", "unknown"],
)
def test_what_has_no_block_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        edgernn.SequenceModel(**{"cell": "gru", "input_size": 3, "hidden_size": 4, "block": "linear"} | settings)


def test_an_imputer_that_the_cells_name_implies_is_refused():
    config = ModelConfig(layer=LayerConfig(cell=CellConfig("gru-d")), block="gated")
    with pytest.raises(UsageError, match="block: expected none with an imputer"):
        edgernn.SequenceModel(config)


def test_torch_has_no_such_module():
    with pytest.raises(UsageError, match=r"block: expected none, got linear; torch\.nn has no module"):
        edgernn.to_torch(edgernn.SequenceModel("gru", 3, 4, block="linear"))


@pytest.mark.parametrize("cell", ["gru", "mingru"])
def test_training_kernels_give_the_same_gradients(cell):
    gradients = []
    for backend in ("torch", "fused"):
        model = random_weights(contractive(cell, layers=2, block="gated"))
        attach(model, backend, "cpu")
        x = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
        model(x)[0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for fused, looped in zip(*gradients, strict=True):
        torch.testing.assert_close(fused, looped, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_thresholds_are_searched_behind_the_blocks():
    model = random_model("gru", 3, 16, rule="delta", layers=2, block="gated", skip=0.5)
    with torch.no_grad():
        model(torch.randn(100, 4, 3))
    assert 0.3 < model.update_rate < 0.7
    dense = random_model("gru", 3, 16, layers=2, block="gated")
    calibrated = calibrate_output(dense, torch.randn(40, 4, 3), loss=0.1)
    assert calibrated.model.config.block == "gated"
    assert calibrated.point.value <= 0.1


@pytest.mark.parametrize("start", ["uniform", "normal"])
def test_norms_keep_their_values_at_the_start(start, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    settings = {**SMALL, "steps": 1, "lr": 1e-9, "layers": 2, "block": "gated", "start": start}
    train("adding", "mingru", out=tmp_path / "run", settings=settings)
    model, config = load_model(tmp_path / "run")
    assert config["model"]["block"] == "gated"
    for block in model.residual_blocks():
        torch.testing.assert_close(block.norm.weight, torch.ones(8))


def test_a_run_is_resumed_and_its_weights_are_copied(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    settings = {**SMALL, "steps": 12, "eval_every": 4, "checkpoint_every": 3, "layers": 2, "block": "gated"}
    whole, parts, copy = (tmp_path / name for name in ("whole", "parts", "copy"))
    train("adding", "mingru", out=whole, settings=settings)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train("adding", "mingru", out=parts, settings=settings, progress=Stop(7))
    train("adding", "mingru", out=parts, settings=settings, resume=True)
    assert snapshot(parts) == snapshot(whole)
    result = json.loads((whole / "result.json").read_text())
    # an encoder of the two inputs, and A and G of each layer
    assert result["block_macs"] == 2 * 8 + 4 * 8 * 8
    train("adding", "mingru", out=copy, settings={**settings, "steps": 1, "lr": 1e-9, "start_run": str(whole)})
    weights, copied = (load_model(run)[0].state_dict() for run in (whole, copy))
    for name, value in weights.items():
        torch.testing.assert_close(copied[name], value, rtol=0, atol=1e-6)
