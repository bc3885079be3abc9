# SPDX-License-Identifier: Apache-2.0
"""Metrics by which ONNX files are calibrated: their scale in the last check, and NaN in one of several outputs."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgernn.errors import EdgernnError, EdgernnWarning
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.layer_graph import OperatorGraph
from edgernn.training.calibration.threshold_search import CURVE
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
