# SPDX-License-Identifier: Apache-2.0
"""Metrics by which models are calibrated: scale in the last check, NaN in an output, the step of an accuracy."""

import json
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgernn.errors import EdgernnError, EdgernnWarning
from edgernn.progress import Silent
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.calibration.calibrate import calibrate_on
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.calibrated_graph import OperatorGraph
from edgernn.training.calibration.threshold_search import CURVE, search_thresholds
from edgernn.training.evaluate import open_task
from tests.test_calibrate_file import data, operator, run, store


def test_a_final_file_with_another_error_is_refused(tmp_path, monkeypatch):
    """The mean squared error of small outputs is far below 1, and so is the difference that is accepted."""
    proto, feeds = operator("GRU", initial=False, linear_before_reset=1, outputs=("Y_h",)), data(steps=60, batch=50)
    model, npz = store(tmp_path, proto, y=run(proto, feeds)["Y_h"] + 0.03, **feeds)
    assert calibrate_file(model, npz, loss=20)["dense"] == pytest.approx(9e-4, rel=1e-3)
    right = OperatorGraph.final

    def wrong(graph, thresholds, result):
        return right(graph, [(3 * x, 3 * h) for x, h in thresholds], result)

    monkeypatch.setattr(OperatorGraph, "final", wrong)
    with pytest.raises(EdgernnError, match="expected the same mse with and without the native library"):
        calibrate_file(model, npz, tmp_path / "wrong.onnx", loss=20)
    assert not (tmp_path / "wrong.onnx").exists()


def test_thresholds_that_make_an_output_nan_are_too_large(tmp_path):
    """root = sqrt(0.01² - (Y_h - its dense value)²) is NaN where Y_h changes by more than 0.01."""
    proto, feeds = operator("GRU", initial=False, linear_before_reset=1, outputs=("Y_h",)), data(steps=60, batch=50)
    for name, array in (("dense", run(proto, feeds)["Y_h"]), ("bound", np.array(1e-4, np.float32))):
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for kind, inputs, output in (
        ("Sub", ["Y_h", "dense"], "change"),
        ("Mul", ["change", "change"], "square"),
        ("Sub", ["bound", "square"], "left"),
        ("Sqrt", ["left"], "root"),
    ):
        proto.graph.node.append(helper.make_node(kind, inputs, [output]))
    proto.graph.output.append(helper.make_tensor_value_info("root", TensorProto.FLOAT, None))
    model, npz = store(tmp_path, proto, **feeds)
    with pytest.warns(
        EdgernnWarning, match="declares the axis of length 50 as variable, but ONNX Runtime fails with 25"
    ):
        result = calibrate_file(model, npz, loss=20)
    # curve has no NaN, which JSON cannot represent
    assert json.loads(json.dumps(result, allow_nan=False)) is not None
    assert max(point["scales"][0][0] for point in result["curve"]) < CURVE[-1]
    assert np.isfinite(run(onnx.load(result["model"]), feeds)["root"]).all()


def test_a_loss_finer_than_one_label_is_named(tmp_path):
    proto, feeds = operator("GRU", initial=False, linear_before_reset=1, outputs=("Y_h",)), data(steps=60, batch=50)
    labels = run(proto, feeds)["Y_h"].argmax(-1)
    # another dense accuracy than 1, so that the limit is rounded
    labels[0, :3] = (labels[0, :3] + 1) % 5
    model, npz = store(tmp_path, proto, y=labels, **feeds)
    text = r"1.9 percentage points allow no loss at all, as one of the 50 labels makes 2 points; .* at least 2, or"
    with pytest.warns(EdgernnWarning, match=text):
        fine = calibrate_file(model, npz, loss=1.9)
    assert fine["chosen"]["value"] >= fine["dense"] == pytest.approx(0.94)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coarse = calibrate_file(model, npz, loss=2)
    assert all(p["executed"] >= coarse["chosen"]["executed"] for p in coarse["curve"] if p["value"] > 0.91)


def test_a_loss_finer_than_one_sequence_of_a_task_is_named(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(300, 9, 2)).astype(np.float32), y=rng.integers(0, 2, 300))
    result = train(str(tmp_path / "own.npz"), "gru", out=tmp_path / "run", settings={"steps": 2, "hidden_size": 4})
    model, task = load_model(tmp_path / "run")[0], open_task(tmp_path / "run")
    count = len(task.validation)
    with pytest.warns(EdgernnWarning, match=f"loss: 0.001 percentage points .* one of the {count} labels"):
        calibrate_on(model, task, loss=0.001)
    assert result["metric"] == "accuracy"


def test_thresholds_that_execute_nothing_are_named():
    """A file whose output ignores the recurrent layers loses nothing at any threshold."""
    with pytest.warns(EdgernnWarning, match=r"execute 0 % of the multiply-adds, .* the loss is within 0.5"):
        search_thresholds(lambda scales: (0.0, 1.0), 1, lambda value: value >= 1, 0.5, 1.0, Silent())
