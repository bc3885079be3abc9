# SPDX-License-Identifier: Apache-2.0
"""`make check-apps`: the shipped models of English words detect the same words in C, Python, Node and a browser."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.spoken_words import TOLERANCE, alike, detected_in_c, detected_in_node
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.wav import write_wav
from edgernn.runtime.word_detection import PostProcessing
from edgernn.runtime.zoo import find_model
from tests.apps import ROOT, listen, need, need_wasm, run
from tests.checks.word_apps import lines_of
from tests.spoken_words import CLEAR, HOP, RATE, missing_data, write_spoken


@pytest.fixture(scope="module", params=["english-room-delta", "english-room-gru"])
def shipped(request, tmp_path_factory):
    """A shipped model: its name, its exported and its packed file."""
    path = find_model(Path(request.param))
    packed = tmp_path_factory.mktemp("shipped") / "model.edgernn"
    return request.param, path, pack_file(path, packed)["packed"]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A recording of the ten words in noise, and the words."""
    if missing := missing_data():
        pytest.skip(missing)
    path = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    return path, write_spoken(path, CLEAR)


def in_python(path, recording, settings=PostProcessing()):  # noqa: B008
    detections = run_stream(path, recording, asdict(settings))["detections"]
    return [(round(word["seconds"], 2), word["word"]) for word in detections]


def check_alike(name, detections, expected):
    """Check for the same words, at the same times without `delta`, whose decisions may flip with the last digit."""
    if name != "english-room-delta":
        assert detections == expected
    assert [word for _, word in detections] == [word for _, word in expected]
    np.testing.assert_allclose([t for t, _ in detections], [t for t, _ in expected], atol=TOLERANCE)


def test_a_shipped_recording_has_the_same_word_in_each_app(shipped, tmp_path):
    need("node")
    need_wasm()
    name, path, packed = shipped
    # the first clip of both models has an indistinct "off"
    clip = np.load(path.parent / "example.npz")["x"][0].ravel()
    recording, settings = tmp_path / "example.wav", PostProcessing(smoothing=0.1, threshold=0.2)
    write_wav(recording, clip, RATE)
    expected = in_python(path, recording, settings)
    assert expected[0][1] == "off"
    assert detected_in_c(packed, recording, settings) == expected
    check_alike(name, detected_in_node(packed, recording, settings), expected)


def test_ten_words_in_noise_are_the_same_in_each_app(shipped, spoken):
    need("node")
    need_wasm()
    name, path, packed = shipped
    recording, words = spoken
    expected = in_python(path, recording)
    assert len({word for _, word in expected} & set(words)) >= 9
    assert detected_in_c(packed, recording) == expected
    check_alike(name, detected_in_node(packed, recording), expected)
    result = listen("words.html", packed, "file", recording)
    assert result["error"] == ""
    check_alike(name, [(float(word["seconds"]), word["word"]) for word in result["found"]], expected)


@pytest.mark.parametrize(("rate", "first"), [(44_100, 0), (48_000, HOP // 2)])
def test_most_words_are_the_same_through_a_microphone(rate, first, shipped, spoken):
    """A microphone has another rate, and steps that begin at other samples."""
    need("node")
    need_wasm()
    _, path, packed = shipped
    expected = in_python(path, spoken[0])
    heard = detected_in_node(packed, spoken[0], rate=rate, first=first)
    assert alike(expected, heard) >= len(expected) - 2
    assert alike(heard, expected) >= len(heard) - 2


def test_the_page_hears_most_words_from_the_microphone_of_chromium(shipped, spoken):
    _, path, packed = shipped
    expected = in_python(path, spoken[0])
    result = listen("words.html", packed, "microphone", spoken[0], 19.5)
    assert result["error"] == ""
    heard = [(float(word["seconds"]), word["word"]) for word in result["found"]]
    # the microphone begins up to a second after the file
    best = max(alike(expected, [(t + late, word) for t, word in heard]) for late in np.arange(0, 1, 0.1))
    assert best >= len(expected) - 3


def test_make_example_words(spoken):
    """The default model of the Makefile is the shipped one."""
    process = run(
        "make", "--silent", "--old-file", "setup", "example-words", f"WAV={spoken[0]}", "-C", ROOT, timeout=600
    )
    assert process.returncode == 0, process.stderr
    expected = run_stream(find_model(Path("english-room-delta")), spoken[0])
    *lines, last = process.stdout.splitlines()[-len(expected["detections"]) - 1 :]
    assert lines == lines_of(expected)
    assert last == f"{spoken[0]}: {len(lines)} words in 20.0 s"
