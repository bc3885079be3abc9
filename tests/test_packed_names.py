# SPDX-License-Identifier: Apache-2.0
"""Properties of a packed model of words that an app reads: names of classes, sample rate and features."""

import ctypes
import struct
from dataclasses import asdict

import numpy as np
import pytest

import edgernn
from edgernn.cli.frame import main
from edgernn.runtime import Session
from edgernn.runtime.describe import describe_file
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import _add_names, pack, pack_file
from edgernn.runtime.packed_format import HEADER
from edgernn.runtime.stepper import Stepper, aligned
from edgernn.runtime.word_detection import PostProcessing
from tests.models import packed_alone, write_alone
from tests.native import library
from tests.oracle_frontend import features
from tests.test_packed import damaged, word
from tests.tone_model import CLASSES, tone_model, tones, write_tone_model
from tests.words import RATE


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return write_tone_model(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def packed(exported):
    return pack(read_model(exported), exported, names=True)


class Opened:
    """A packed model that the C functions opened."""

    def __init__(self, content):
        self.library = ctypes.CDLL(library())
        self.library.edgernn_message.restype = ctypes.c_char_p
        self.file, need, self.model = aligned(content), ctypes.c_size_t(), ctypes.c_void_p()
        arguments = ctypes.c_void_p(self.file.ctypes.data), ctypes.c_size_t(len(content)), ctypes.c_int64(1)
        assert self.library.edgernn_memory(*arguments, ctypes.byref(need)) == 0
        self.memory = aligned(need.value)
        place = ctypes.c_void_p(self.memory.ctypes.data), need
        assert self.library.edgernn_open(*arguments, *place, ctypes.byref(self.model)) == 0

    def name(self, index, kind="class"):
        name, find = ctypes.c_char_p(b"unset"), getattr(self.library, f"edgernn_{kind}_name")
        assert find(self.model, ctypes.c_int64(index), ctypes.byref(name)) == 0
        return None if name.value is None else name.value.decode()

    def rate(self):
        rate = ctypes.c_int64(-1)
        assert self.library.edgernn_sample_rate(self.model, ctypes.byref(rate)) == 0
        return rate.value

    def detection(self):
        numbers = np.full(3, np.nan)
        assert self.library.edgernn_detection(self.model, ctypes.c_void_p(numbers.ctypes.data)) == 0
        return numbers.tolist()

    def features(self):
        values, bands = ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64(-1)
        assert self.library.edgernn_features(self.model, ctypes.byref(values), ctypes.byref(bands)) == 0
        return None if not values else np.ctypeslib.as_array(values, (bands.value,))

    def step(self, x):
        x, y = np.ascontiguousarray(x, np.float32), np.empty(len(CLASSES), np.float32)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
        assert self.library.edgernn_step(self.model, *pointers) == 0


def test_an_app_gets_names_rate_and_features(packed):
    opened = Opened(packed)
    assert [opened.name(i) for i in range(len(CLASSES))] == CLASSES
    assert opened.rate() == RATE
    x = (tones("left") / 2**15).astype(np.float32).reshape(50, 1, 320)
    expected = features(x, tone_model().config.frontend)
    for x_t, expected_t in zip(x, expected, strict=True):
        opened.step(x_t)
        np.testing.assert_allclose(opened.features(), expected_t[0], rtol=1e-4, atol=1e-4)


def test_an_app_gets_the_settings_of_the_detection(exported, tmp_path, capsys):
    """Those of the file, which no name precedes wrongly; a file without them has the defaults."""
    content = pack(read_model(exported), exported)
    given = {"smoothing": 0.12, "threshold": 0.875, "refractory": 2.0}
    for info, expected in (({}, asdict(PostProcessing())), ({"detector": given}, given)):
        opened = Opened(_add_names(content, {"classes": CLASSES} | info))
        assert opened.detection() == list(expected.values())
        assert [opened.name(i) for i in range(len(CLASSES))] == CLASSES
    (tmp_path / "m.edgernn").write_bytes(_add_names(content, {"classes": CLASSES, "detector": given}))
    described = describe_file(tmp_path / "m.edgernn")
    assert (described["detector"], described["classes"]) == (given, CLASSES)
    assert Session(tmp_path / "m.edgernn").step(np.zeros(320, np.float32)).shape == (len(CLASSES),)
    assert main(["info", str(tmp_path / "m.edgernn")]) == 0
    assert "smoothing 0.12, threshold 0.875, refractory 2.0" in capsys.readouterr().out


def test_a_model_without_them_has_none():
    opened = Opened(packed_alone(edgernn.SequenceModel("gru", 3, 5, 2)))
    assert (opened.name(1), opened.rate(), opened.features()) == (None, 0, None)


@pytest.mark.parametrize("index", [-1, len(CLASSES)])
def test_an_index_without_a_class_is_refused(index, packed):
    opened, name = Opened(packed), ctypes.c_char_p()
    assert opened.library.edgernn_class_name(opened.model, ctypes.c_int64(index), ctypes.byref(name)) == 1
    assert opened.library.edgernn_message().decode() == f"index: expected 0 to {len(CLASSES) - 1}, got {index}"


def test_each_of_thousands_of_names_is_found():
    names = [f"class {i}" if i % 3 else "" for i in range(5000)]
    content = _add_names(packed_alone(edgernn.SequenceModel("rnn", 1, 1, len(names))), {"classes": names})
    opened = Opened(content)
    assert [opened.name(i) for i in reversed(range(len(names)))] == names[::-1]


def test_null_pointers_are_refused(packed):
    opened = Opened(packed)
    index = [ctypes.c_int64(0)]
    functions = {"class_name": index, "channel_name": index, "sample_rate": [], "detection": [], "features": [None]}
    for name, arguments in functions.items():
        assert getattr(opened.library, f"edgernn_{name}")(opened.model, *arguments, None) == 1
        assert "expected a pointer, got null" in opened.library.edgernn_message().decode()
        assert getattr(opened.library, f"edgernn_{name}")(None, *arguments, None) == 1


def test_names_do_not_change_the_model_or_its_saved_states(exported, packed, tmp_path):
    bare = pack(read_model(exported), exported)
    assert len(packed) == len(bare) + sum(len(name) + 1 for name in CLASSES)
    assert packed[HEADER.size : len(bare)] == bare[HEADER.size :]
    x = (tones("left", "stop") / 2**15).astype(np.float32).reshape(100, 1, 320)
    steppers = [Stepper(content, 1) for content in (bare, packed)]
    for x_t in x[:60]:
        for stepper in steppers:
            stepper.x[...] = x_t
            assert stepper.step()
    steppers[0].restore_state(steppers[1].save_state())
    steppers[1].restore_state(steppers[0].save_state())
    for x_t in x[60:]:
        for stepper in steppers:
            stepper.x[...] = x_t
            assert stepper.step()
        np.testing.assert_array_equal(steppers[0].y, steppers[1].y)
    (tmp_path / "named.edgernn").write_bytes(packed)
    for path in (exported, tmp_path / "named.edgernn"):
        session = Session(path)
        session.restore_state(steppers[1].save_state())
        assert session.save_state() == steppers[1].save_state()


@pytest.mark.parametrize("classes", [["a"], None, "ab", [1] * 6])
def test_metadata_without_a_name_for_each_output_gives_a_file_without_names(classes, tmp_path):
    write_alone(edgernn.SequenceModel("rnn", 3, 4, 6), tmp_path / "m.onnx", metadata={"classes": classes})
    pack_file(tmp_path / "m.onnx", tmp_path / "m.edgernn")
    assert Opened((tmp_path / "m.edgernn").read_bytes()).name(0) is None


def test_names_of_any_letters(tmp_path):
    classes = ["يسار", "a b", ""]
    write_alone(edgernn.SequenceModel("rnn", 3, 4, 3), tmp_path / "m.onnx", metadata={"classes": classes})
    pack_file(tmp_path / "m.onnx", tmp_path / "m.edgernn")
    opened = Opened((tmp_path / "m.edgernn").read_bytes())
    assert [opened.name(i) for i in range(3)] == classes


@pytest.mark.parametrize("classes", [None, ["a", "b"]])
@pytest.mark.parametrize("channels", [None, ["ax", "höhe, 1", "t"], ["ax"]])
def test_an_app_gets_the_names_of_channels(classes, channels, tmp_path):
    model = edgernn.SequenceModel("rnn", 3, 4, 2)
    names = {"classes": classes, "channels": channels}
    if channels == ["ax"]:
        # the metadata of a file have a name for each input
        content = _add_names(packed_alone(model), {"classes": classes, "channels": channels})
    else:
        write_alone(model, tmp_path / "m.onnx", metadata=names)
        content = pack(read_model(tmp_path / "m.onnx"), tmp_path / "m.onnx", names=True)
    opened = Opened(content)
    assert [opened.name(i) for i in range(2)] == (classes or [None] * 2)
    assert [opened.name(i, "channel") for i in range(3)] == (channels if channels and len(channels) > 1 else [None] * 3)
    for index in (-1, 3):
        name = ctypes.c_char_p()
        assert opened.library.edgernn_channel_name(opened.model, ctypes.c_int64(index), ctypes.byref(name)) == 1
        assert opened.library.edgernn_message().decode() == f"index: expected 0 to 2, got {index}"


def test_words_and_audio_have_no_channels(packed):
    names = [f"c{i}" for i in range(40)]
    words = packed_alone(edgernn.SequenceModel("rnn", 3, 4, 2, vocabulary=5))
    assert _add_names(words, {"channels": names[:3]}) == words
    assert Opened(packed).name(0, "channel") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: damaged(c, 60, word(5)), "names: expected an offset in the file, got 5"),
        (lambda c: damaged(c, 60, word(len(c))), r"names: expected an offset in the file, got \d+"),
        (lambda c: damaged(c, 60, word(len(c) - 3)), "names: expected one for each of the 6 outputs, got 1"),
        (lambda c: damaged(c, len(c) - 1, b"e"), "names: expected one for each of the 6 outputs, got 5"),
        (lambda c: _longer(c, bytes(16)), "detection: expected 24 bytes behind the names, got 16"),
        (lambda c: _longer(c, struct.pack("<3d", 61, 0.5, 0.8)), "detection: expected times from 0 to 60 s, and a"),
        (lambda c: _longer(c, struct.pack("<3d", 0.3, np.nan, 0.8)), "detection: expected times from 0 to 60 s"),
        (lambda c: _longer(c, struct.pack("<3d", 0.3, 0.0, 0.8)), "detection: .* a threshold above 0 and at most 1"),
    ],
)
def test_damaged_names_are_refused(change, message, packed, tmp_path):
    check_refused(change, message, packed, tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (b"x\0" * 3, "names: expected one for each of the 4 inputs, got 3"),
        (b"x\0" * 4 + b"tail", "names: expected the end of the file .*, got 4 more bytes"),
        (bytes(5), "names: expected the end of the file .*, got 1 more bytes"),
    ],
)
def test_damaged_names_of_channels_are_refused(names, message, tmp_path):
    packed = _add_names(packed_alone(edgernn.SequenceModel("rnn", 4, 4, 2)), {"classes": ["a", "b"]})
    check_refused(lambda c: _longer(c, names), message, packed, tmp_path)


def check_refused(change, message, packed, tmp_path):
    with pytest.raises(edgernn.EdgernnError, match=message):
        Stepper(change(packed), 1)
    (tmp_path / "m.edgernn").write_bytes(change(packed))
    with pytest.raises(edgernn.EdgernnError, match="the packed model is damaged"):
        describe_file(tmp_path / "m.edgernn")


def _longer(content, names):
    return damaged(content + names, 16, struct.pack("<Q", len(content + names)))
