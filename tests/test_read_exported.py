# SPDX-License-Identifier: Apache-2.0
"""Exported files as torch models: the tensors of every cell and rule, and refusals of damaged and hostile files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.costs import executed_macs, model_cost
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.exported_model import read_exported
from edgernn.export.rounding import rounded
from edgernn.names import IMPUTING
from edgernn.rounded_weights import matrices, rounded_matrix
from edgernn.rules import RULES
from tests.models import exported, write_alone
from tests.own_cells import JANET
from tests.test_calibrate_exported import AUDIO, WORDS
from tests.test_calibrate_refusals import changed, set_weight

FORMS = {
    "mean and std": {"mean": [0.5, 1.0, 0.0], "std": 2.0},
    "two directions": {"layers": 2, "bidirectional": True},
    "last size": {"layers": 2, "last_size": 5},
    "rank": {"rank": 2},
    "layer norm": {"norm": "layer"},
    "linear blocks": {"layers": 2, "block": "linear"},
    "gated blocks": {"layers": 2, "block": "gated", "last_size": 5},
    "pcen": AUDIO | {"input_size": 160, "mean": 0.25, "std": 0.5},
    "log": AUDIO | {"input_size": 160, "normalise": "log", "mean": [0.5] * 15 + [1.0]},
    "tied words": WORDS,
    "words": WORDS | {"tied": False},
    "learned thresholds": {"rule": "delta", "layers": 2, "rule_options": {"learn_thresholds": True}},
    "no head": {"output_size": None},
}


def random_model(cell="gru", weights="float32", **options):
    """Make a model with other values in each of its tensors than a new model has, rounded to a type of weights."""
    model = edgernn.SequenceModel(
        **{"cell": cell, "input_size": 3, "hidden_size": 8, "output_size": 2} | options
    ).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in ("input_mean", "input_std") and tensor.is_floating_point():
                tensor.uniform_(0.1, 1.0)
        for matrix in matrices(model).values():
            matrix.copy_(rounded_matrix(matrix, weights))
    return model


def assert_equal_state(loaded, model):
    state, expected = loaded.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        # a file has the exponential of these parameters
        tolerance = 1e-6 if name.startswith("frontend.log_") else 0
        torch.testing.assert_close(state[name], tensor, rtol=tolerance, atol=tolerance)
    assert not loaded.training


@pytest.mark.parametrize("cell", [*CELLS, *IMPUTING])
def test_every_cell_keeps_its_tensors(cell, tmp_path):
    model = random_model(cell)
    assert_equal_state(read_exported(write_alone(model, tmp_path / "m.onnx"))[0], model)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_its_tensors(rule, tmp_path):
    model = random_model(rule=rule)
    assert_equal_state(read_exported(write_alone(model, tmp_path / "m.onnx"))[0], model)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_model_keeps_its_tensors(form, weights, tmp_path):
    model = random_model(weights=weights, **FORMS[form])
    assert_equal_state(read_exported(write_alone(model, tmp_path / "m.onnx", weights))[0], model)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("trained", ["bfloat16", "int8"])
def test_weights_of_another_type_than_the_trainings_are_not_rounded_again(trained, weights, tmp_path):
    rule = {"rule": "random", "rule_options": {"rate": 0.2}}
    model = random_model("gru-before", hidden_size=20, layers=2, block="linear", **rule)
    trained_model = edgernn.SequenceModel(replace(model.config, weights=trained)).eval()
    trained_model.load_state_dict(model.state_dict())
    written = rounded(trained_model, weights)
    loaded, _ = read_exported(write_alone(written, tmp_path / "m.onnx", weights))
    x = torch.randn(9, 2, 3)
    with torch.no_grad():
        assert torch.equal(loaded(x)[0], written(x)[0])
    # the costs are those of the file's type
    assert model_cost(loaded).weight_bytes == bytes_of(loaded, weights)
    assert (executed_macs(loaded) == executed_macs(written)) == (weights == "float32")


def bytes_of(model, weights):
    """Count the bytes of all parameters: those of matrices by type, an int8 row with 2 bytes more, and float32."""
    size = 0
    for parameter in model.parameters():
        if parameter.ndim == 2:
            rows, columns = parameter.shape
            size += rows * {"float32": 4 * columns, "bfloat16": 2 * columns, "int8": columns + 2}[weights]
        else:
            size += 4 * parameter.numel()
    return size


def test_pruned_weights_stay_pruned(tmp_path):
    model = random_model(hidden_size=32, density=0.25)
    (layer,) = model.recurrent_layers()
    layer.cell.threshold(hold=True)
    loaded, _ = read_exported(write_alone(model, tmp_path / "m.onnx"))
    assert_equal_state(loaded, model)
    assert loaded.recurrent_layers()[0].macs() == layer.macs()
    assert 0 < int(layer.cell.kept.sum()) < layer.cell.kept.numel()


def test_an_initial_state_of_zeros_is_not_in_the_file(tmp_path):
    model = random_model("lstm", rule="skip")
    with torch.no_grad():
        model.recurrent_layers()[0].start[1].zero_()
    assert_equal_state(read_exported(write_alone(model, tmp_path / "m.onnx"))[0], model)


def test_the_random_numbers_of_the_caller_stay_as_they_are(tmp_path):
    path = write_alone(random_model(rule="skip"), tmp_path / "m.onnx")
    before = torch.random.get_rng_state()
    read_exported(path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_constants_of_a_normalisation_cannot_be_read(tmp_path):
    path = write_alone(random_model(norm="recurrent-batch", norm_steps=5), tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match=r"expected the weight layer0\.norms\..*, got none: .* merged the weight"):
        read_exported(path)


def test_a_cell_of_a_user_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected a cell of edgernn, got 'janet', whose Python file is not in"):
        read_exported(write_alone(random_model(JANET), tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("a cell", lambda proto, info: info["model"]["layer"]["cell"].update(name="x.py:A")),
        ("an update rule", lambda proto, info: info["model"]["layer"]["rule"].update(name="x.py:A")),
        ("an imputer", lambda proto, info: info["model"]["layer"].update(imputer="x.py:A")),
    ],
)
def test_a_python_file_that_a_file_names_is_not_executed(kind, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("open('executed', 'w').close()\n")
    path = changed(write_alone(random_model(), tmp_path / "m.onnx"), tmp_path, change)
    with pytest.raises(UsageError, match=rf"expected {kind} of edgernn, got 'x\.py:A'"):
        read_exported(path)
    assert not Path("executed").exists()


REFUSED = {
    "transposed": (set_weight("layer0.W", (3, 24)), r"layer0\.W: expected shape \(24, 3\), got \(3, 24\)"),
    "transposed head": (set_weight("head.W", (2, 8)), r"head\.W\.T: expected shape \(2, 8\), got \(8, 2\)"),
    "flat": (set_weight("layer0.R", (192,)), r"layer0\.R: expected shape \(24, 8\), got \(192,\)"),
    "other cell": (lambda p, info: info["model"]["layer"]["cell"].update(name="rnn"), "expected shape"),
    "options": (
        lambda p, info: info["model"]["layer"]["cell"].update(options={"a": 1}),
        "expected the description of a model, got one with the error",
    ),
    "layers": (lambda p, info: info["model"].update(layers=3), "expected states of 3 layers in the graph"),
    "missing weight": (lambda p, info: p.graph.initializer.remove(p.graph.initializer[0]), "expected the weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_files_are_refused(case, tmp_path):
    change, message = REFUSED[case]
    path = changed(write_alone(random_model(), tmp_path / "m.onnx"), tmp_path, change)
    with pytest.raises(EdgernnError, match=message):
        read_exported(path)


def set_hidden_size(proto, info):
    """Change the size in the metadata and in the graph, not in the weights."""
    info["model"]["hidden_size"] = 30_000
    for value in [*proto.graph.input, *proto.graph.output]:
        if ".h" in value.name:
            value.type.tensor_type.shape.dim[1].dim_value = 30_000


def test_a_large_size_in_the_metadata_takes_no_memory(tmp_path):
    """Weights of this size are larger than the memory of this machine."""
    _, path = exported("gru", layers=2)
    with pytest.raises(EdgernnError, match="damaged: 60003 channels and states cannot fit in a file of"):
        read_exported(changed(path, tmp_path, set_hidden_size))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bands": 2**30}, r"filters of its graph: expected \(144, 1073741824\) .*got \(144, 16\)"),
        ({"window_size": 2**30}, "front end: expected states of the sizes"),
        ({"bands": 2**30, "window_size": 2**30}, "front end: expected states of the sizes"),
    ],
)
def test_a_large_front_end_in_the_metadata_takes_no_memory(settings, message, tmp_path):
    model = random_model(**AUDIO | {"input_size": 160, "normalise": "log"})
    path = write_alone(model, tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match=message):
        read_exported(changed(path, tmp_path, lambda proto, info: info["model"]["frontend"].update(settings)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_weight("frontend.window", (200,)),
            r"frontend\.window of its graph: expected \(256,\) .*got \(200,\)",
        ),
        (
            set_weight("frontend.filters", (16, 144)),
            r"filters of its graph: expected \(144, 16\) .*got \(16, 144\)",
        ),
        (
            set_weight("frontend.delta", (17,)),
            r"node 'frontend\.offset' \(Pow\): expected constants whose types and shapes go together, got others",
        ),
        (set_weight("frontend.alpha", (16,)), r"frontend\.alpha: expected numbers above 0, got 0"),
    ],
)
def test_a_damaged_front_end_is_refused(change, message, tmp_path):
    path = write_alone(random_model(**AUDIO | {"input_size": 160}), tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match=message):
        read_exported(changed(path, tmp_path, change))


def test_the_model_computes_what_the_file_was_made_of(tmp_path):
    model = random_model(**AUDIO | {"input_size": 160, "output": "all"})
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 2, 160)).astype(np.float32))
    with torch.no_grad():
        y, _ = read_exported(write_alone(model, tmp_path / "m.onnx"))[0](x)
        expected, _ = model(x)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
