# SPDX-License-Identifier: Apache-2.0
"""Exported and packed models with a front end: the files against torch, streaming sessions, and refusals."""

import copy
import dataclasses
import json
import struct
import zlib

import numpy as np
import onnx
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.export import to_onnx
from edgernn.log_mel import mel_filters
from edgernn.runtime import Session, packed
from edgernn.runtime.fourier import fourier_parts
from edgernn.runtime.packed import pack
from edgernn.runtime.saved_state import decode
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.weights import Weight
from tests.models import packed_alone
from tests.oracle_frontend import features
from tests.test_frontends import DEFINITIONS, NORMALISATIONS, STACKED, beginnings, every_normalisation, model_of, room

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


@pytest.mark.parametrize("form", ["portable", "native", "packed"])
@every_normalisation
def test_every_form_computes_what_float64_computes_after_any_beginning(normalise, form, tmp_path):
    model, x = model_of(normalise).eval(), beginnings(36, 160)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(torch.from_numpy(x).double())[0].numpy()
    np.testing.assert_allclose(torch_run(model, x), expected, atol=1e-4)
    if form == "packed":
        stepper, y = Stepper(packed_alone(model), x.shape[1]), []
        for x_t in x:
            stepper.x[...] = x_t
            assert stepper.step()
            y.append(stepper.y.copy())
    else:
        to_onnx(model, tmp_path / "model.onnx")
        y = Session(tmp_path / "model.onnx", backend=form).run(x)
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_the_check_of_an_export_hears_a_jump_near_silence(tmp_path, monkeypatch):
    # the noise floor restarts where it is exactly 0, which rounding decides
    def jumping(self, values, last):
        floors = []
        for value in values:
            last = torch.where(last > 0, last + 0.02 * (value - last), value)
            floors.append(last)
        return torch.stack(floors)

    monkeypatch.setattr("edgernn.frontends.LogMel._followed", jumping)
    with pytest.raises(EdgernnError, match="differs from torch"):
        to_onnx(model_of("floor").eval(), tmp_path / "model.onnx")


@every_normalisation
def test_stacked_features_stream_as_in_torch(normalise, tmp_path):
    model, path = model_of(normalise, **STACKED).eval(), tmp_path / "model.onnx"
    assert {check.backend for check in to_onnx(model, path)} == {"portable", "native"}
    x = room(30, 2, 640)
    expected = torch_run(model, x)
    assert np.abs(expected).max() > 0.1
    for backend in ("portable", "native"):
        session = Session(path, backend=backend)
        assert session.shape("T", "B") == "(T, B, 640)"
        np.testing.assert_allclose(session.run(x), expected, atol=1e-4)
        np.testing.assert_allclose(np.stack([session.step(x_t) for x_t in x]), expected, atol=1e-4)
        assert session.info["cost"]["frontend_macs"] == model.frontend.macs()


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


@every_normalisation
@pytest.mark.parametrize(
    "definition", [*list(DEFINITIONS.values())[1:], STACKED, {"window_size": 1000, "bands": 30, "stack": 3}], ids=str
)
def test_a_packed_file_computes_what_torch_computes(normalise, definition):
    model = model_of(normalise, **definition).eval()
    x = room(40, 3, model.input_size)
    stepper = Stepper(packed_alone(model), 3)
    y = []
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step()
        y.append(stepper.y.copy())
    np.testing.assert_allclose(np.stack(y), torch_run(model, x), atol=1e-4)


@pytest.mark.parametrize("backend", ["portable", "native"])
def test_the_followed_states_are_those_of_the_definition(files, backend):
    x = room(40, 2, 160)
    for normalise in ("floor", "pcen"):
        model, path = files[normalise]
        config = model.config.frontend
        session = Session(path, backend=backend)
        for x_t in x:
            session.step(x_t)
        saved = decode(session.save_state(), session._saved_model()).state
        if normalise == "floor":
            log = features(x, dataclasses.replace(config, normalise="log"))
            followed = (log - features(x, config))[-1]
        else:
            # with these numbers a feature is E / (ε + m), so that m follows from it and from E
            energy = np.expm1(features(x, dataclasses.replace(config, normalise="log"))) * config.energy_floor
            followed = energy[-1] / features(x, config, alpha=1.0, r=1.0)[-1] - config.energy_floor
        np.testing.assert_allclose(saved[f"frontend.{model.frontend.memory}"], followed, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(saved["frontend.samples"], x[-2:].transpose(1, 0, 2).reshape(2, -1)[:, -240:])


def test_a_state_goes_on_in_another_backend(files):
    x = room(40, 2, 160)
    for normalise in NORMALISATIONS:
        native, portable = (Session(files[normalise][1], backend=backend) for backend in ("native", "portable"))
        for x_t in x[:20]:
            native.step(x_t)
        portable.restore_state(native.save_state())
        for x_t in x[20:]:
            np.testing.assert_allclose(portable.step(x_t), native.step(x_t), atol=1e-4)


# names of numbers of the packed file, or of the first ones of a tensor; their new values; the refusal
PACKED_DAMAGES = {
    "hop of words": ("vocabulary", 7, "hop: expected a size up to 1073741824, and 0 for words, got 160"),
    "hop": ("hop", 500, r"front end: window: expected at least 500 numbers, got \(400,\)"),
    "large hop": ("hop", 1 << 31, "hop: expected a size up to"),
    "no hop": ("hop", 0, "expected"),
    "bands": ("bands", 39, "front end: filters: expected rows that divide 39 features"),
    "many hops": ("bands hop", [40 * 5000, 5000], "front end: expected at most 4096 hops in a step, got 5000"),
    "normalisation": ("normalisation", 3.0, "front end: normalisation: expected 0, 1 or 2, got another number"),
    "floor": ("floor", 0.0, "front end: settings: expected a positive floor and shares from 0 to 1"),
    "no floor": ("floor", np.nan, "front end: settings: expected a positive floor and shares from 0 to 1"),
    "rise": ("rise", 1.5, "front end: settings: expected a positive floor and shares from 0 to 1"),
}


@pytest.mark.parametrize("damage", PACKED_DAMAGES)
def test_a_damaged_front_end_is_refused(damage):
    names, values, message = PACKED_DAMAGES[damage]
    content = bytearray(packed_alone(model_of("floor")))
    (settings,) = struct.unpack_from("<Q", content, 64 + 96 + 16)
    places = {"bands": 32, "vocabulary": 36, "hop": 52}
    places |= {"floor": settings, "normalisation": settings + 4, "rise": settings + 8}
    for name, value in zip(names.split(), values if isinstance(values, list) else [values], strict=True):
        struct.pack_into("<f" if isinstance(value, float) else "<I", content, places[name], value)
    struct.pack_into("<I", content, 24, zlib.crc32(content[64:]))
    with pytest.raises(EdgernnError, match=message):
        Stepper(bytes(content), 1)


# place of the number of the first filter's range, its new value
RANGE_DAMAGES = {"long": (4, 1e6), "none": (4, 0.0), "late": (0, 100.0), "no number": (0, np.nan)}


@pytest.mark.parametrize("damage", RANGE_DAMAGES)
def test_a_damaged_range_of_a_filter_is_refused(damage):
    place, value = RANGE_DAMAGES[damage]
    content = bytearray(packed_alone(model_of("floor", **STACKED)))
    (ranges,) = struct.unpack_from("<Q", content, 64 + 96 + 3 * 32 + 16)
    struct.pack_into("<f", content, ranges + place, value)
    struct.pack_into("<I", content, 24, zlib.crc32(content[64:]))
    with pytest.raises(EdgernnError, match="front end: filters: expected ranges of 257 frequencies in their order"):
        Stepper(bytes(content), 1)


def test_filters_as_a_matrix_are_read_as_well(monkeypatch):
    # those of another order are stored so
    model = model_of("floor", **STACKED)
    contents = [packed_alone(model)]
    monkeypatch.setattr(packed, "filter_tensors", lambda filters: [Weight(filters)])
    contents.append(packed_alone(model))
    # the matrix (40, 257) float32, and a weight or two for each frequency
    assert len(contents[1]) - len(contents[0]) > 38_000
    outputs = []
    for content in contents:
        stepper = Stepper(content, 1)
        for x_t in room(20, 1, 640):
            stepper.x[:] = x_t
            assert stepper.step()
        outputs.append(stepper.y.copy())
    np.testing.assert_array_equal(*outputs)


def test_filters_of_another_order_are_stored_as_a_matrix():
    filters = np.zeros((2, 5), np.float32)
    filters[0, 3], filters[1, 1:3] = 1.0, 0.5
    (stored,) = packed.filter_tensors(filters)
    np.testing.assert_array_equal(stored.values, filters)
    weights, ranges = packed.filter_tensors(filters[::-1])
    assert (weights.values.tolist(), ranges.values.tolist()) == ([0.5, 0.5, 1.0], [[1, 2], [3, 1]])


def test_damaged_settings_are_not_packed(files, tmp_path):
    proto = onnx.load(files["floor"][1])
    (entry,) = proto.metadata_props
    info = json.loads(entry.value)
    info["model"]["frontend"]["normalise"] = "cmvn"
    entry.value = json.dumps(info)
    with pytest.raises(EdgernnError, match=r"model\.frontend in its edgernn metadata: expected a table"):
        pack(proto.SerializeToString(), tmp_path / "damaged.onnx")


DAMAGES = {
    "hop": (lambda frontend: frontend.update(hop=80), r"front end: expected hop \* stack = 160"),
    "window": (lambda frontend: frontend.update(window_size=300), "front end: expected states of the sizes"),
    "bands": (lambda frontend: frontend.update(bands=20), "front end: expected states of the sizes"),
    "stack": (lambda frontend: frontend.update(stack=2), r"expected hop \* stack = 160, the size of x, got 160 \* 2"),
    "no stack": (lambda frontend: frontend.update(stack=0), "model.frontend in its edgernn metadata"),
    "none": (lambda frontend: frontend.update(name=None), "front end: expected states of the sizes"),
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


def test_filters_of_another_shape_are_not_packed(files, tmp_path):
    proto = onnx.load(files["floor"][1])
    (weight,) = (w for w in proto.graph.initializer if w.name == "frontend.filters")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros((288, 39), np.float32), weight.name))
    with pytest.raises(
        EdgernnError, match=r"shape of frontend\.filters of its graph: expected \(288, 40\) .*, got \(288, 39\)"
    ):
        pack(proto.SerializeToString(), tmp_path / "damaged.onnx")


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
