# SPDX-License-Identifier: Apache-2.0
"""Exported models with a front end: the file against torch, streaming sessions, and refusals."""

import json

import numpy as np
import onnx
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.export import to_onnx
from edgernn.export.frontend import fourier_parts
from edgernn.frontends import mel_filters
from edgernn.runtime import Session
from edgernn.runtime.packed import pack
from tests.oracle_frontend import features
from tests.test_frontends import NORMALISATIONS, every_normalisation, model_of, room

every_backend = pytest.mark.parametrize("backend", ["portable", "native"])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Export a model with each normalisation; return a dict from its name to the model and the file."""
    folder, exported = tmp_path_factory.mktemp("frontend"), {}
    for normalise in NORMALISATIONS:
        model = model_of(normalise, cell="sarnn", mean=0.5, std=2.0).eval()
        # some neurons are updated, and some are not
        torch.nn.init.normal_(model.layers[0].rule.rule_W, std=0.1)
        exported[normalise] = model, folder / f"{normalise}.onnx"
        assert {check.backend for check in to_onnx(*exported[normalise])} == {"portable", "native"}
    return exported


def torch_run(model, x):
    with torch.no_grad():
        return model(torch.from_numpy(x))[0].numpy()


@every_backend
@every_normalisation
def test_a_file_computes_what_torch_computes(files, normalise, backend):
    model, path = files[normalise]
    x = room(40, 3, 160)
    session = Session(path, backend=backend)
    np.testing.assert_allclose(session.run(x), torch_run(model, x), atol=1e-4)
    assert session.info["cost"]["frontend_macs"] == model.frontend.macs()
    # the multiply-adds of the layers alone
    assert 0 < session.macs.max() <= 40 * session.info["macs"]


@every_normalisation
def test_the_features_in_a_file_are_those_of_the_definition(files, normalise):
    model, path = files[normalise]
    proto = onnx.load(path)
    (first,) = (node for node in proto.graph.node if node.op_type == "Sub" and node.output[0] == "input.centred")
    proto.graph.output.append(onnx.helper.make_tensor_value_info(first.input[0], 1, ("T", "B", 40)))
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = room(40, 2, 160)
    start = {i.name: np.zeros((2, i.shape[1]), np.float32) for i in session.get_inputs()[1:]}
    (y,) = session.run([first.input[0]], {"x": x, **start})
    np.testing.assert_allclose(y, features(x, model.config.frontend), rtol=1e-4, atol=1e-4)
    # only operators of the ONNX standard that are not specific to signals
    assert {node.op_type for node in proto.graph.node if node.domain == ""}.isdisjoint({"DFT", "STFT"})


@every_backend
@every_normalisation
def test_a_session_streams_one_hop_at_a_time(files, normalise, backend):
    model, path = files[normalise]
    x = room(40, 2, 160)
    expected = torch_run(model, x)
    session = Session(path, backend=backend)
    assert session.shape("T", "B") == "(T, B, 160)"
    y = [session.step(x_t) for x_t in x[:17]]
    saved = session.save_state()
    y += [session.step(x_t) for x_t in x[17:]]
    np.testing.assert_allclose(np.stack(y), expected, atol=1e-4)
    other = Session(path, backend=backend)
    other.restore_state(saved)
    np.testing.assert_array_equal(other.step(x[17]), y[17])
    # one stream starts anew, the other goes on
    other.reset(rows=[0])
    np.testing.assert_allclose(other.step(x[18])[1], y[18][1], atol=1e-6)
    session.reset()
    np.testing.assert_array_equal(session.step(x[0]), y[0])
    assert session.state_names == list(model.state_names)


def test_bad_samples_are_held_at_silence(files):
    _, path = files["floor"]
    session, silent = (Session(path, backend="portable", on_nonfinite="hold") for _ in range(2))
    y = session.step(np.full(160, np.nan, np.float32))
    np.testing.assert_array_equal(y, silent.step(np.zeros(160, np.float32)))
    assert session.nonfinite.tolist() == [1]
    with pytest.raises(UsageError, match="expected finite numbers"):
        Session(path, backend="portable").step(np.full(160, np.nan, np.float32))


def test_a_saved_state_of_another_file_is_refused(files):
    session, other = (Session(files[name][1], backend="portable") for name in ("floor", "pcen"))
    session.step(np.zeros(160, np.float32))
    with pytest.raises(EdgernnError, match="got one of another model"):
        other.restore_state(session.save_state())


def test_packing_is_refused_with_one_sentence(files):
    path = files["log"][1]
    with pytest.raises(UsageError, match="expected a model without a front end, got one that reads audio") as error:
        pack(path.read_bytes(), path)
    assert "\n" not in str(error.value)


DAMAGES = {
    "hop": (lambda frontend: frontend.update(hop=80), "states of the front end: expected the sizes"),
    "bands": (lambda frontend: frontend.update(bands=20), "states of the front end: expected the sizes"),
    "none": (lambda frontend: frontend.update(name=None), "states of the front end: expected the sizes"),
    "no size": (lambda frontend: frontend.update(bands=0), "model.frontend in its edgernn metadata"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_metadata_that_contradicts_the_graph_is_refused(files, damage, tmp_path):
    change, message = DAMAGES[damage]
    proto = onnx.load(files["floor"][1])
    (entry,) = proto.metadata_props
    info = json.loads(entry.value)
    change(info["model"]["frontend"])
    entry.value = json.dumps(info)
    path = tmp_path / "damaged.onnx"
    onnx.save(proto, path)
    with pytest.raises(EdgernnError, match=message):
        Session(path, backend="portable")


@pytest.mark.parametrize("size", [2, 4, 8, 64, 128, 512, 4096])
def test_two_products_are_a_fourier_transform(size):
    random = np.random.default_rng(0)
    filters = random.standard_normal((3, size // 2 + 1))
    parts = fourier_parts(size, filters)
    x = random.standard_normal(size)
    grid = x.reshape(parts.n1, parts.n2)
    columns = parts.first @ grid * parts.twiddle + parts.first_turned @ grid * parts.twiddle_turned
    real, imaginary = np.split(columns, 2)
    spectrum = np.concatenate([real, imaginary], 1) @ parts.second
    power = (spectrum[:, : parts.n2] ** 2 + spectrum[:, parts.n2 :] ** 2).ravel()
    np.testing.assert_allclose(power @ parts.filters, filters @ np.abs(np.fft.rfft(x)) ** 2, rtol=1e-9, atol=1e-9)


def test_last_output_in_two_directions():
    model = model_of("floor", output="last", bidirectional=True)
    x = room(12, 2, 160)
    assert not model.streaming
    assert model(torch.from_numpy(x))[0].shape == (2, 3)


def test_filters_are_in_the_file_once_for_each_frequency(files):
    model, path = files["log"]
    (stored,) = (w for w in onnx.load(path).graph.initializer if w.name == "frontend.filters")
    values = onnx.numpy_helper.to_array(stored)
    np.testing.assert_allclose(values.sum(0), mel_filters(model.config.frontend).sum(1), rtol=1e-5)
