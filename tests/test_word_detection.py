# SPDX-License-Identifier: Apache-2.0
"""Detection of words in scores, and `edgernn run --stream` on recordings."""

import contextlib
import json
import shutil
import struct
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from scipy.signal import resample_poly

import edgernn
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.export import to_onnx
from edgernn.runtime import Session
from edgernn.runtime.run_file import run_file
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.wav import UNKNOWN_SIZE, _low_pass, _read_header, _resampled, read_wav, warn_of_conversion
from edgernn.runtime.wav import write_wav as write_float_wav
from edgernn.runtime.word_detection import DetectedWord, Detector, PostProcessing
from edgernn.training.tasks.keywords import Keywords
from tests.broken_wavs import BROKEN, broken_wav, replace_header
from tests.detector_cases import detector_of, fixed_cases, random_scores
from tests.models import write_alone
from tests.words import RATE, tone, write_extensible_wav, write_rf64, write_wav

CLASSES = ["left", "right", "_unknown_", "_silence_"]


def plain_detections(scores, classes, width, gap, threshold):
    """The definition, step by step."""
    p = np.exp(scores.astype(float))
    p = np.floor(2**16 * p / p.sum(1, keepdims=True) + 0.5).astype(int)
    detections, free = [], 0
    for t in range(len(p)):
        average = sum(p[t - i] for i in range(min(t + 1, width))) / (2**16 * width)
        spoken = [(average[k], -k) for k, name in enumerate(classes) if not name.startswith("_")]
        score, k = max(spoken)
        if t >= free and score >= threshold:
            detections.append((t, -k, score))
            free = t + max(gap, 1)
    return detections


@pytest.mark.parametrize("smoothing", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("refractory", [0.0, 0.1, 0.5])
def test_detections_are_those_of_the_definition_in_parts_of_any_size(smoothing, refractory):
    scores = random_scores(400)
    for threshold in (0.3, 0.6, 0.95):
        settings = PostProcessing(smoothing, threshold, refractory)
        width, gap = max(1, round(smoothing / 0.02)), round(refractory / 0.02)
        expected = plain_detections(scores, CLASSES, width, gap, threshold)
        assert len(expected) > 2
        for size in (1, 3, 50, 400):
            detector = Detector(CLASSES, 0.02, settings)
            words = [word for begin in range(0, 400, size) for word in detector.feed(scores[begin : begin + size])]
            assert [(word.step, word.label) for word in words] == [(t, k) for t, k, _ in expected]
            assert [word.score for word in words] == [score for *_, score in expected]


@pytest.mark.parametrize("case", fixed_cases(), ids=lambda case: case["name"])
def test_fixed_scores_have_fixed_detections_also_after_a_reset(case):
    detector, scores = detector_of(case), np.float32(case["scores"])
    for _ in range(2):
        assert [(word.step, word.label) for word in detector.feed(scores)] == case["detections"]
        detector.reset()


def test_large_scores_are_finite_and_other_classes_are_never_detected():
    scores = np.full((10, 4), -2e4, np.float32)
    scores[3, 1], scores[6, 2], scores[8, 3] = 2e4, 2e4, 2e4
    assert Detector(CLASSES, 0.1, PostProcessing(0.1, 0.9, 0.0)).feed(scores) == [DetectedWord(3, 1, 1.0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.0}, "threshold: expected above 0 and at most 1, got 0"),
        ({"threshold": float("nan")}, "threshold: expected above 0 and at most 1, got nan"),
        ({"smoothing": -1.0}, "smoothing: expected from 0 to 60 seconds, got -1"),
        ({"refractory": 61.0}, "refractory: expected from 0 to 60 seconds, got 61"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        PostProcessing(**settings)


def test_a_detector_needs_a_word():
    with pytest.raises(UsageError, match=r"at least one word to detect besides .*, got _silence_"):
        Detector(["_silence_"], 0.1, PostProcessing())


# recordings


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of two words with random weights that detects something in tones."""
    import torch

    torch.manual_seed(3)
    network = edgernn.SequenceModel(
        "sarnn", 320, 16, 4, output="all", frontend="logmel", hop=320, window_size=512, bands=12
    )
    with torch.no_grad():
        network.head.weight *= 20
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    to_onnx(network, path, metadata={"classes": CLASSES})
    return path


@pytest.fixture
def recording(tmp_path):
    return write_wav(tmp_path / "r.wav", np.concatenate([tone("left", 1), tone("go", 2), tone("right", 3)])[:-100])


def test_a_recording_runs_step_by_step(model, recording, capsys):
    words = [
        "run",
        str(model),
        "--stream",
        str(recording),
        "--threshold",
        "0.3",
        "--smoothing",
        "0.1",
        "--refractory",
        "0.1",
    ]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    x = read_wav(recording, RATE)[: 149 * 320].reshape(149, 320).astype(np.float32) / 2**15
    session = Session(model)
    y = session.run(x)
    expected = plain_detections(y, CLASSES, 5, 5, 0.3)
    assert len(expected) > 2
    assert [word["seconds"] for word in result["detections"]] == pytest.approx([(t + 1) / 50 for t, *_ in expected])
    assert [word["word"] for word in result["detections"]] == [CLASSES[k] for _, k, _ in expected]
    assert result["seconds"] == pytest.approx(2.98)
    assert result["updates_a_second"] == pytest.approx(session.updates.sum() / 2.98)
    assert result["macs_a_second"] == pytest.approx(session.macs.sum() / 2.98, rel=0.01)
    assert result["skip_percent"] == pytest.approx(100 * (1 - session.updates.mean() / 16))
    assert result["block_macs_a_second"] == 0
    assert result["frontend_macs_a_second"] == 50 * session.info["cost"]["frontend_macs"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    first = result["detections"][0]
    assert lines[0] == f"{first['seconds']:9.2f} s  {first['word']}  {first['score']:.2f}"
    assert f"r.wav: {len(expected)} words in 3.0 s (native backend)" in lines[len(expected)]
    portable = run_stream(model, recording, {"smoothing": 0.1, "threshold": 0.3, "refractory": 0.1}, backend="portable")
    assert portable["detections"] == [pytest.approx(word, abs=1e-4) for word in result["detections"]]


DETECTOR = {"smoothing": 0.1, "threshold": 0.3, "refractory": 0.1}


def with_detector(model, path, detector):
    """Write a copy of an exported model with these settings of the detection."""
    proto = onnx.load(model)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == "edgernn")
    entry.value = json.dumps(json.loads(entry.value) | {"detector": detector})
    onnx.save(proto, path)
    return path


def test_the_settings_of_the_file_hold_unless_others_replace_them(model, recording, tmp_path):
    path = with_detector(model, tmp_path / "m.onnx", DETECTOR)
    expected = run_stream(model, recording, DETECTOR)["detections"]
    assert run_stream(path, recording)["detections"] == expected != run_stream(model, recording)["detections"]
    replaced = run_stream(path, recording, {"threshold": None, "refractory": 60.0})["detections"]
    assert replaced == expected[:1]


@pytest.mark.parametrize(
    "detector",
    [
        DETECTOR | {"threshold": 0},
        DETECTOR | {"smoothing": 61},
        DETECTOR | {"refractory": "0.1"},
        DETECTOR | {"threshold": True},
        {"threshold": 0.5},
        [0.1, 0.3, 0.1],
    ],
)
def test_wrong_settings_in_a_file_are_refused(detector, model, recording, tmp_path):
    path = with_detector(model, tmp_path / "m.onnx", detector)
    with pytest.raises(EdgernnError, match="value detector in its edgernn metadata: expected null or a table of smoo"):
        run_stream(path, recording)


def test_a_training_on_streams_stores_its_settings():
    task = Keywords(stream=3.0, threshold=0.7, refractory=2.0)
    assert task.detector == {"smoothing": 0.3, "threshold": 0.7, "refractory": 2.0}
    # clips are not detected
    assert Keywords(threshold=0.7).detector is None


@pytest.mark.parametrize("kind", BROKEN)
def test_bad_recordings_are_one_sentence(kind, model, tmp_path, capsys):
    path = write_wav(tmp_path / "r.wav", tone("left"))
    broken_wav(kind, path)
    assert main(["run", str(model), "--stream", str(path)]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"edgernn: error: {path}: ")
    assert BROKEN[kind] in error
    assert error.count("\n") == 1


def test_an_rf64_file_is_read(tmp_path):
    samples = tone("left")
    assert (read_wav(write_rf64(tmp_path / "r.wav", samples), RATE) == samples).all()
    # the size beside the samples counts, unless it points to the other one
    short = write_rf64(tmp_path / "short.wav", samples, count=100, claimed=2 * len(samples))
    assert (read_wav(short, RATE) == samples).all()
    # a recorder that was stopped before it wrote the size
    assert (read_wav(write_rf64(tmp_path / "open.wav", samples, count=0), RATE)[: len(samples)] == samples).all()


def test_an_extensible_wav_file_is_read(tmp_path):
    """Python's module wave refuses such a file before 3.12."""
    samples = tone("left")
    path = write_extensible_wav(tmp_path / "r.wav", samples)
    assert (read_wav(path, RATE) == samples).all()
    path = write_extensible_wav(tmp_path / "float.wav", samples, kind=3)
    with pytest.raises(
        EdgernnError, match="expected 16-bit PCM samples, got floating-point samples of 16 bits; convert"
    ):
        read_wav(path, RATE)


def sine(rate, hertz=440.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)


# type of the samples, of which int24 are the upper bytes of int32, and the value of full scale
SAMPLES = {
    "uint8": lambda x: np.rint(x * 2**7 + 2**7).astype(np.uint8),
    "int16": lambda x: np.rint(x * 2**15).astype(np.int16),
    "int24": lambda x: np.rint(x * 2**31).astype("<i4").view(np.uint8).reshape(*x.shape, 4)[..., 1:],
    "int32": lambda x: np.rint(x * 2**31).astype(np.int32),
    "float32": lambda x: x.astype(np.float32),
    "float64": lambda x: x,
}


def write_samples(path, kind, rate, channels):
    """Write a wav file of the samples (S, channels) of a kind."""
    samples = SAMPLES[kind](channels)
    width = samples.shape[-1] if kind == "int24" else samples.dtype.itemsize
    frame = width * channels.shape[1]
    form = struct.pack("<HHIIHH", 3 if "float" in kind else 1, channels.shape[1], rate, rate * frame, frame, 8 * width)
    data = samples.tobytes()
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def test_the_filter_of_a_rate_is_designed_once():
    samples = np.random.default_rng(0).standard_normal(15_991).astype(np.float32)
    designed = _low_pass.cache_info().misses
    for _ in range(3):
        resampled = _resampled(Path("r.wav"), samples, 15_991, RATE)
    assert _low_pass.cache_info().misses <= designed + 1
    assert np.array_equal(resampled, resample_poly(samples, RATE, 15_991))


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize(("rate", "count"), [(RATE, 1), (44_100, 2), (8000, 3), (48_000, 1), (15_991, 1)])
def test_sound_of_any_kind_is_mixed_down_and_resampled(tmp_path, kind, rate, count):
    # the channels add to the tone, and a part of each cancels
    other = 0.2 * sine(rate, 1000.0)
    channels = np.stack([sine(rate) + other * (k - (count - 1) / 2) for k in range(count)], 1)
    path = write_samples(tmp_path / "r.wav", kind, rate, channels)
    warn_of_conversion.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = read_wav(path, RATE)
        read_wav(path, RATE)
    assert len(caught) == ((kind, rate, count) != ("int16", RATE, 1))
    if caught:
        bits = {"uint8": 8, "int24": 24}.get(kind, 8 * np.dtype("i4" if kind == "int24" else kind).itemsize)
        number = "one channel" if count == 1 else f"{count} channels"
        wanted = f"sound of {rate:,} Hz, {number} and {bits} bits is read as one channel of 16 bits at 16,000 Hz"
        assert str(caught[0].message) == wanted
    assert samples.dtype == np.int16
    assert len(samples) == RATE
    # the edges have no samples beyond them
    error = (samples / 2**15 - sine(RATE))[400:-400]
    assert np.abs(error).max() < (0.02 if kind == "uint8" else 0.005)


def test_sound_that_cannot_be_converted(tmp_path, monkeypatch):
    warn_of_conversion.cache_clear()
    path = write_samples(tmp_path / "r.wav", "float32", RATE, np.full((9, 1), np.nan))
    with pytest.warns(EdgernnWarning), pytest.raises(EdgernnError, match=r"r\.wav: expected finite samples, got NaN"):
        read_wav(path, RATE)
    # whole numbers of 16 bits that are stored as floats; a decoder's overshoot is cut
    path = write_samples(tmp_path / "r.wav", "float32", RATE, 12000 * sine(RATE)[:, None])
    with pytest.raises(EdgernnError, match=r"expected samples from -1 to 1, got up to .*e\+0[34]; divide"):
        read_wav(path, RATE)
    assert read_wav(write_samples(path, "float32", RATE, np.full((9, 1), 1.5)), RATE).tolist() == [2**15 - 1] * 9
    for begin, content, message in (
        (24, struct.pack("<I", 2**31), "expected 1,000 to 384,000 samples per second, got 2,147,483,648; convert"),
        (22, b"\0\0", "expected one channel, got 0; convert it"),
        (32, b"\4\0", "expected 2 bytes for a sample of all channels, got 4 in the header"),
    ):
        replace_header(write_samples(path, "int16", RATE, np.zeros((9, 1))), begin, content)
        with pytest.raises(EdgernnError, match=message):
            read_wav(path, RATE)
    write_samples(path, "int16", 8000, np.zeros((9, 1)))
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    with (
        pytest.warns(EdgernnWarning, match="sound of 8,000 Hz"),
        pytest.raises(EdgernnError, match="expected 16000 samples per second, got 8000; install scipy to resample"),
    ):
        read_wav(path, RATE)


def test_chunks_of_a_wav_file(tmp_path):
    samples = tone("left")
    plain = write_wav(tmp_path / "r.wav", samples).read_bytes()
    # an unknown chunk of an odd size, and bytes after the samples
    note = b"LIST" + struct.pack("<I", 5) + b"notes\0"
    (tmp_path / "notes.wav").write_bytes(plain[:12] + note + plain[12:] + note)
    assert (read_wav(tmp_path / "notes.wav", RATE) == samples).all()
    (tmp_path / "samples first.wav").write_bytes(plain[:12] + plain[36:] + plain[12:36])
    with pytest.raises(EdgernnError, match=r"damaged one \(no format before the samples\)"):
        read_wav(tmp_path / "samples first.wav", RATE)
    for begin, content, reason in (
        (16, struct.pack("<I", 14), "unknown format"),
        (16, struct.pack("<I", 2**31), "a truncated header"),
        (8, b"AVI ", "it does not begin with RIFF, a size and WAVE"),
    ):
        path = write_wav(tmp_path / "b.wav", samples)
        replace_header(path, begin, content)
        with pytest.raises(EdgernnError, match=rf"damaged one \({reason}\)"):
            read_wav(path, RATE)
    replace_header(write_wav(tmp_path / "b.wav", samples), 20, struct.pack("<H", 0xFFFE))
    with pytest.raises(EdgernnError, match="expected 16-bit PCM samples, got unknown samples of 16 bits; convert it"):
        read_wav(tmp_path / "b.wav", RATE)
    replace_header(write_wav(tmp_path / "b.wav", samples), 34, struct.pack("<H", 12))
    with pytest.raises(EdgernnError, match="expected samples of 16 bits, got 12; convert it with"):
        read_wav(tmp_path / "b.wav", RATE)


def test_sizes_of_samples_that_are_odd(tmp_path):
    """The last byte of an odd size is no sample, but the file must have it."""
    path = write_wav(tmp_path / "r.wav", np.array([1, 2, 3]))
    for size, outcome in (
        (6, [1, 2, 3]),
        (5, [1, 2]),
        (3, [1]),
        (1, "expected samples, got none"),
        (7, "4 samples .* 3;"),
    ):
        replace_header(path, 40, struct.pack("<I", size))
        if isinstance(outcome, list):
            assert read_wav(path, RATE).tolist() == outcome
        else:
            with pytest.raises(EdgernnError, match=outcome):
                read_wav(path, RATE)
    # a header of 3 bytes with 2 present
    path.write_bytes(path.read_bytes()[:46])
    replace_header(path, 40, struct.pack("<I", 3))
    with pytest.raises(EdgernnError, match="expected 2 samples as its header says, got 1; the file is truncated"):
        read_wav(path, RATE)


def test_a_long_format_is_not_copied(tmp_path):
    samples = tone("left")
    plain = write_wav(tmp_path / "r.wav", samples).read_bytes()
    added = 10_000_000
    form = struct.pack("<I", 16 + added) + plain[20:36] + bytes(added)
    content = plain[:16] + form + plain[36:]
    path = tmp_path / "long.wav"
    path.write_bytes(content)
    assert (read_wav(path, RATE) == samples).all()
    tracemalloc.start()
    assert _read_header(content).begin == 44 + added
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_header_that_claims_gigabytes_allocates_nothing(tmp_path):
    path = write_wav(tmp_path / "r.wav", tone("left"))
    data = bytearray(path.read_bytes())
    data[40:44] = struct.pack("<I", UNKNOWN_SIZE - 2)
    path.write_bytes(data)
    with pytest.raises(EdgernnError, match="as its header says, got 16000"):
        read_wav(path, RATE)


@pytest.mark.parametrize("size", [UNKNOWN_SIZE, 2**31 - 1, 2**32 - 1])
def test_a_streamed_file_has_the_samples_up_to_its_end(size, tmp_path):
    """A program that cannot seek claims a size that no file has."""
    samples = tone("left")
    path = write_wav(tmp_path / "r.wav", samples)
    data = bytearray(path.read_bytes())
    data[40:44] = struct.pack("<I", size)
    path.write_bytes(data + b"\1")
    assert (read_wav(path, RATE) == samples).all()
    path.write_bytes(data[:44])
    with pytest.raises(EdgernnError, match="expected samples, got none; record it again"):
        read_wav(path, RATE)


def test_inputs_much_longer_than_a_clip_name_the_option_for_recordings(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_wav(tmp_path / "r.wav", tone("left"))
    assert main(["run", str(model), "--input", "r.wav"]) == 2
    assert f"r.wav: expected --stream FILE.wav, as {model} detects words in a recording" in capsys.readouterr().err
    shutil.copy(model, "words.onnx")
    # a warning that is not expected is an error
    for steps, warning in ((500, ""), (501, "x.npz: 10 s of sound as one sequence; use --stream")):
        np.savez("x.npz", x=np.zeros((steps, 320), np.float32))
        with pytest.warns(EdgernnWarning, match=warning) if warning else contextlib.nullcontext():
            run_file(Path("words.onnx"), Path("x.npz"), Path("y.npy"))


def test_a_long_recording_is_read_in_blocks(model, tmp_path, monkeypatch):
    recording = write_wav(tmp_path / "r.wav", np.tile([*tone("left", 1), *tone("go", 2), *tone("right", 3)], 30))
    settings = {"smoothing": 0.1, "threshold": 0.3, "refractory": 0.1}
    expected = run_stream(model, recording, settings)
    assert len(expected["detections"]) > 30
    monkeypatch.setattr("edgernn.runtime.run_stream.BLOCK", 101)
    tracemalloc.start()
    result = run_stream(model, recording, settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the file and its samples as int16, and no copy of all samples as float32
    assert peak < 2.5 * recording.stat().st_size
    scores = [[word.pop("score") for word in run["detections"]] for run in (result, expected)]
    assert result == expected
    np.testing.assert_allclose(*scores, rtol=1e-9)


def test_a_missing_and_a_short_recording(model, tmp_path):
    with pytest.raises(EdgernnError, match=r"none\.wav: no such file"):
        run_stream(model, tmp_path / "none.wav")
    with pytest.raises(EdgernnError, match="expected a wav file, got a folder; give a regular file"):
        run_stream(model, tmp_path)
    path = write_wav(tmp_path / "r.wav", np.ones(100))
    with pytest.raises(UsageError, match=r"expected at least 320 samples, one step of the model, got 100; record more"):
        run_stream(model, path)


def test_models_that_cannot_hear_words_are_refused(recording, tmp_path):
    plain, nameless, wrong = (tmp_path / f"{name}.onnx" for name in ("plain", "nameless", "wrong"))
    write_alone(edgernn.SequenceModel("gru", 320, 4, 2), plain)
    audio = edgernn.SequenceModel("gru", 320, 4, 3, frontend="logmel", hop=320, window_size=512, bands=12)
    write_alone(audio, nameless)
    write_alone(audio, wrong, metadata={"classes": CLASSES})
    for path, message in (
        (plain, "expected a model that reads audio, got one without a front end; train it with frontend=logmel"),
        (nameless, "expected the names of its classes in the file, got none; export the model from its run directory"),
        (wrong, "expected y with a score for each of its 4 classes, got 3 numbers; export the model from its run"),
    ):
        with pytest.raises(EdgernnError, match=message):
            run_stream(path, recording)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "or --stream FILE.wav with a recording; add one of them"),
        (["--input", "x.npz", "--stream", "r.wav"], "--stream: expected neither --input nor --output"),
        (
            ["--input", "x.npz", "--output", "y.npz", "--threshold", "0.5"],
            "--threshold: expected together with --stream",
        ),
        (["--stream", "r.wav", "--threshold", "2"], "threshold: expected above 0 and at most 1, got 2"),
    ],
)
def test_options_that_do_not_belong_together(words, message, model, capsys):
    assert main(["run", str(model), *words]) == 2
    assert message in capsys.readouterr().err


def test_written_samples_are_read_again(tmp_path):
    samples = np.array([0, 0.5, -1, 1, 2, -0.25], np.float32)
    write_float_wav(tmp_path / "r.wav", samples, 8000)
    assert read_wav(tmp_path / "r.wav", 8000).tolist() == [0, 16384, -32768, 32767, 32767, -8192]
