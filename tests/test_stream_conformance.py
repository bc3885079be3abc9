# SPDX-License-Identifier: Apache-2.0
"""The recurrent operators in the conformance tests of onnx stream, or are named as refused."""

import importlib

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node as cases

from edgernn.errors import UsageError
from edgernn.export.streaming.stream_file import stream_model
from tests.test_stream_files import cuts, run

for module in ("gru", "lstm", "rnn"):
    importlib.import_module(f"onnx.backend.test.case.node.{module}")
CASES = {case.name: case for case in cases._NodeTestCases if any(n in case.name for n in ("gru", "lstm", "rnn"))}


def array(value):
    return value if isinstance(value, np.ndarray) else numpy_helper.to_array(value)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_the_conformance_tests_streams(name):
    case = CASES[name]
    ((inputs, outputs),) = case.data_sets
    feeds = dict(zip([v.name for v in case.model.graph.input], map(array, inputs), strict=True))
    expected = dict(zip([v.name for v in case.model.graph.output], map(array, outputs), strict=True))
    # X and the lengths of sequences are inputs, and all else is constant
    x, values = feeds["X"], {n: a for n, a in feeds.items() if n not in ("X", "sequence_lens")}
    is_batch_first = "batchwise" in name
    axis = 1 if is_batch_first else 0
    shape = ["T" if k == axis else size for k, size in enumerate(x.shape)]
    options = {"values": values, "shapes": {"X": shape}}
    if "reverse" in name or "bidirectional" in name:
        with pytest.raises(UsageError, match="expected the direction forward, got"):
            stream_model(case.model, "m.onnx", **options)
        return
    streamed = stream_model(case.model, "m.onnx", **options)
    assert streamed.time == "T"
    for lengths in cuts(x.shape[axis]):
        states = {s.input: np.zeros(s.axes, np.float32) for s in streamed.states}
        results, start = [], 0
        for length in lengths:
            call = {"X": x.take(range(start, start + length), axis), **states}
            if "sequence_lens" in feeds:
                call["sequence_lens"] = np.full_like(feeds["sequence_lens"], length)
            results.append(run(streamed.proto, call))
            states = {s.input: results[-1][s.output] for s in streamed.states}
            start += length
        for output, y in expected.items():
            got = np.concatenate([r[output] for r in results], axis) if output == "Y" else results[-1][output]
            np.testing.assert_allclose(got, y, rtol=0, atol=1e-6, err_msg=output)
