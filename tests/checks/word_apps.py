# SPDX-License-Identifier: Apache-2.0
"""`make check-apps`: the apps in C and in a browser detect the words that `edgernn run --stream` detects."""

import functools
import json
import re
import signal
import struct
import subprocess
from dataclasses import asdict

import numpy as np
import pytest

import edgernn
from edgernn.errors import EdgernnError
from edgernn.export import to_onnx
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.takes import check_take
from edgernn.runtime.wav import read_wav
from edgernn.runtime.word_detection import PostProcessing
from tests.apps import (
    ROOT,
    c_program,
    listen,
    need,
    run,
)
from tests.broken_wavs import BROKEN, CONVERTED, broken_wav
from tests.detector_cases import detections_of, fixed_cases, random_cases
from tests.test_wakeword_record import BAD, phrase
from tests.tone_model import CLASSES, tone_model, tones, write_tone_model
from tests.words import RATE, tone, write_extensible_wav, write_rf64, write_wav

SPOKEN = ("left", "stop", "go", "right", "left")


def words_program():
    return c_program().parent / "words"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The exported and the packed model of tones."""
    path = write_tone_model(tmp_path_factory.mktemp("words"))
    return path, pack_file(path, path.with_suffix(".edgernn"))["packed"]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A model with random weights, which detects words at many thresholds."""
    import torch

    torch.manual_seed(3)
    network = edgernn.SequenceModel(
        "sarnn", 320, 16, len(CLASSES), output="all", frontend="logmel", hop=320, window_size=512, normalise="floor"
    )
    with torch.no_grad():
        network.head.weight *= 20
    path = tmp_path_factory.mktemp("random") / "random.onnx"
    to_onnx(network, path, metadata={"classes": CLASSES})
    return path, pack_file(path, path.with_suffix(".edgernn"))["packed"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return write_wav(tmp_path_factory.mktemp("audio") / "r.wav", tones(*SPOKEN)[:-100])


def lines_of(result):
    """The lines that the app prints for a result of `run_stream`."""
    return [f"{word['seconds']:9.2f} s  {word['word']}  {word['score']:.2f}" for word in result["detections"]]


def in_c(*arguments, data=None):
    words = [str(word) for word in (words_program(), *arguments)]
    return subprocess.run(words, input=data, capture_output=True, timeout=900)


# in C


@pytest.mark.parametrize("kind", ["model", "random_model"])
@pytest.mark.parametrize("settings", [(0.3, 0.5, 0.8), (0.1, 0.3, 0.1), (0.05, 0.9, 0.0), (0.0, 0.4, 0.55)])
def test_words_in_c_are_those_of_the_command(kind, settings, recording, request):
    path, packed = request.getfixturevalue(kind)
    expected = run_stream(path, recording, asdict(PostProcessing(*settings)))
    options = [word for option, value in zip("str", settings, strict=True) for word in (f"-{option}", value)]
    process = in_c(*options, packed, recording)
    assert process.returncode == 0, process.stderr
    *lines, last = process.stdout.decode().splitlines()
    assert lines == lines_of(expected)
    assert last == f"{recording}: {len(lines)} words in 5.0 s"
    assert f"updates skipped: {expected['skip_percent']:.1f} %\n" in process.stderr.decode()
    if kind == "model" and settings[0] == 0.3:
        assert [line.split()[2] for line in lines] == list(SPOKEN)


def riff(samples, size):
    """A wav file as a program writes it to a pipe, with this size in its header."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    note = struct.pack("<4sI", b"LIST", 5) + b"notes\0"
    head = b"WAVE" + note + form + struct.pack("<4sI", b"data", size)
    return b"RIFF" + struct.pack("<I", min(size + len(head), 2**32 - 1)) + head + samples.astype("<i2").tobytes()


@pytest.mark.parametrize("size", ["raw", 0, 2**31 - 1, 2**32 - 1, None])
def test_words_in_c_from_a_pipe(size, model, recording):
    path, packed = model
    samples = tones(*SPOKEN)[:-100]
    data = samples.astype("<i2").tobytes() + b"\1" if size == "raw" else riff(samples, size or 2 * len(samples))
    if size is None:
        # what stands after the samples of a wav file is not audio
        data += b"\xff\x7f" * 5 * RATE
    process = in_c(packed, "-", data=data)
    assert process.returncode == 0, process.stderr
    *lines, last = process.stdout.decode().splitlines()
    assert lines == lines_of(run_stream(path, recording))
    assert last == f"standard input: {len(SPOKEN)} words in 5.0 s"


@pytest.mark.parametrize("size", [2**31 - 1, 2**32 - 1])
def test_a_streamed_file_is_read_to_its_end_in_c(size, model, tmp_path):
    path, packed = model
    source = tmp_path / "streamed.wav"
    source.write_bytes(riff(tones(*SPOKEN), size))
    for data in (None, source.read_bytes()):
        process = in_c(packed, source if data is None else "-", data=data)
        assert process.returncode == 0, process.stderr
        assert process.stdout.decode().splitlines()[:-1] == lines_of(run_stream(path, source))


def test_a_pipe_that_ends_too_early_is_an_error_in_c(model):
    process = in_c(model[1], "-", data=riff(tones("left", "go"), 2 * 2 * RATE)[:-1001])
    assert process.returncode == 1
    # the words before the end are printed
    assert [line.split()[2] for line in process.stdout.decode().splitlines()] == ["left", "go"]
    expected = f"expected {2 * RATE} samples as its header says, got {2 * RATE - 501}; the file is truncated"
    assert expected in process.stderr.decode()


def test_an_interrupt_ends_with_the_summary_in_c(model):
    samples = tones("left", "go").astype("<i2").tobytes()
    command = [str(words_program()), str(model[1]), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdin.write(samples)
        process.stdin.flush()
        words = [process.stdout.readline().split()[2] for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=900) == 0
        assert words == [b"left", b"go"]
        assert re.fullmatch(rb"standard input: 2 words in \d\.\d s\n", process.stdout.read())
        assert b"updates skipped: " in process.stderr.read()


def test_a_word_is_printed_before_the_audio_ends(model):
    samples = tones("left", "go").astype("<i2").tobytes()
    command = [str(words_program()), str(model[1]), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(samples)
        process.stdin.flush()
        assert process.stdout.readline().split()[2] == b"left"
        process.stdin.close()


@pytest.mark.parametrize("kind", [*BROKEN, *CONVERTED])
def test_a_bad_recording_is_one_sentence_in_c(kind, model, tmp_path):
    path = write_wav(tmp_path / "r.wav", tone("left"))
    broken_wav(kind, path)
    process = in_c(model[1], path)
    assert (process.returncode, process.stdout) == (1, b"")
    (line,) = process.stderr.decode().splitlines()
    assert line.startswith(f"words: {path}: ")
    # the reason why a header cannot be read is in other words
    assert re.sub(r" \(.*", "", (BROKEN | CONVERTED)[kind]) in line


@pytest.mark.parametrize("kind", ["extensible", "short", "open"])
def test_wav_files_of_other_forms_are_read_in_c(kind, model, tmp_path):
    samples = tones(*SPOKEN)
    write = {
        "extensible": write_extensible_wav,
        "short": functools.partial(write_rf64, count=100, claimed=2 * len(samples)),
        "open": functools.partial(write_rf64, count=0),
    }[kind]
    path, plain = write(tmp_path / "e.wav", samples), write_wav(tmp_path / "r.wav", samples)
    expected = run_stream(model[0], plain)
    assert run_stream(model[0], path)["detections"] == expected["detections"]
    process = in_c(model[1], path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.decode().splitlines()[:-1] == lines_of(expected)


def test_other_bad_arguments_are_one_sentence_in_c(model, recording, tmp_path):
    plain, nameless = tmp_path / "plain.onnx", tmp_path / "nameless.onnx"
    to_onnx(edgernn.SequenceModel("gru", 320, 4, 2), plain)
    to_onnx(edgernn.SequenceModel("gru", 320, 4, 2, frontend="logmel", hop=320, window_size=512), nameless)
    plain, nameless = (pack_file(path, path.with_suffix(".edgernn"))["packed"] for path in (plain, nameless))
    short = write_wav(tmp_path / "short.wav", np.ones(100))
    packed = model[1]
    for words, message in (
        ([plain, recording], "expected a model that reads audio, got one without a front end; train it with"),
        ([nameless, recording], "expected the sample rate and the names of the classes in the file, got none; export"),
        ([packed, tmp_path / "none.wav"], "none.wav: no such file; check the path"),
        ([packed, short], "expected at least 320 samples, one step of the model, got 100; record more"),
        (["-t", "2", packed, recording], "threshold: expected above 0 and at most 1, got 2"),
        (["-t", "nan", packed, recording], "threshold: expected above 0 and at most 1, got nan"),
        (["-s", "-1", packed, recording], "smoothing: expected from 0 to 60 seconds, got -1"),
        (["-r", "61", packed, recording], "refractory: expected from 0 to 60 seconds, got 61"),
        (["-t", "much", packed, recording], "-t: expected a number, got much"),
    ):
        process = in_c(*words)
        assert (process.returncode, process.stdout) == (1, b""), process.stderr
        (line,) = process.stderr.decode().splitlines()
        assert message in line
    assert in_c(packed).returncode == 2
    assert in_c(packed, "-", data=b"").returncode == 1


# in JavaScript


def wav_files(folder):
    """Write wav files that the page and the command read, and others that they refuse."""
    samples = tone("left")
    yield write_wav(folder / "plain.wav", samples)
    yield write_extensible_wav(folder / "extensible.wav", samples)
    yield write_rf64(folder / "rf64.wav", samples)
    yield write_rf64(folder / "short.wav", samples, count=100, claimed=2 * len(samples))
    yield write_rf64(folder / "open.wav", samples, count=0)
    yield write_extensible_wav(folder / "extensible float.wav", samples, kind=3)
    (folder / "chunks.wav").write_bytes(riff(samples, 2 * len(samples)) + b"LIST")
    yield folder / "chunks.wav"
    (folder / "streamed.wav").write_bytes(riff(samples, 2**32 - 1))
    yield folder / "streamed.wav"
    for kind in BROKEN:
        path = write_wav(folder / f"{kind}.wav", samples)
        broken_wav(kind, path)
        yield path


def samples_of(path):
    try:
        return read_wav(path, RATE).tolist()
    except EdgernnError:
        return None


def takes_of_all_kinds():
    good = [phrase(), phrase(0.2), phrase(0.2, noise=0.0), phrase(level=0.1, noise=0.015), phrase(1.3, level=0.05)]
    good += [np.concatenate([phrase(0.3, after=0.0, noise=6e-4), phrase(0.45, level=0.009, before=0.0, noise=6e-4)])]
    good += [phrase(noise=0.02)]
    return [*(samples for name, (samples, _) in BAD.items() if name not in ("long", "empty")), *good]


def checked(samples):
    """Return the sentence of the page about a take."""
    try:
        return {"isGood": True, "advice": check_take(samples, RATE, cut=True)}
    except EdgernnError as error:
        return {"isGood": False, "advice": str(error)}


def test_the_parts_of_the_page(tmp_path):
    need("node")
    cases = [case | {"detections": detections_of(case)} for case in [*fixed_cases(), *random_cases()]]
    numbers = {"NaN": '"NaN"', "Infinity": '"Infinity"', '-"Infinity"': '"-Infinity"'}
    text = json.dumps(cases)
    for number, word in numbers.items():
        text = text.replace(number, word)
    (tmp_path / "cases.json").write_text(text, encoding="utf-8")
    files = [{"path": str(path), "samples": samples_of(path)} for path in wav_files(tmp_path)]
    assert sum(file["samples"] is None for file in files) == len(BROKEN) + 1
    (tmp_path / "wavs.json").write_text(json.dumps({"files": files}), encoding="utf-8")
    takes = [{"samples": samples.tolist()} | checked(samples) for samples in takes_of_all_kinds()]
    assert {take["isGood"] for take in takes} == {True, False}
    (tmp_path / "takes.json").write_text(json.dumps(takes), encoding="utf-8")
    environment = {name.upper(): str(tmp_path / f"{name}.json") for name in ("cases", "wavs", "takes")}
    process = run("node", "--test", ROOT / "tests" / "word_apps.test.mjs", environment=environment)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("page", ["words.html", "wakeword.html"])
@pytest.mark.parametrize("kind", ["model", "random_model"])
def test_the_page_detects_the_words_of_a_file(kind, page, recording, request):
    path, packed = request.getfixturevalue(kind)
    result = listen(page, packed, "file", recording)
    expected = run_stream(path, recording)
    assert result["error"] == ""
    assert [word["word"] for word in result["found"]] == [word["word"] for word in expected["detections"]]
    times = [[float(word[name]) for word in result["found"]] for name in ("seconds", "score")]
    np.testing.assert_allclose(times[0], [word["seconds"] for word in expected["detections"]], atol=0.021)
    np.testing.assert_allclose(times[1], [word["score"] for word in expected["detections"]], atol=0.02)
    if page == "wakeword.html":
        count = len(expected["detections"])
        assert (result["heard"], result["alarms"]) == ("5.0 s", str(count))
        assert float(result["rate"]) == pytest.approx(3600 * count / expected["seconds"], abs=0.06)
        return
    assert result["heard"] == f"5.0 s, {len(expected['detections'])} words"
    assert float(result["updated"].split()[0]) == pytest.approx(100 - expected["skip_percent"], abs=0.3)


def test_the_page_detects_the_words_of_a_microphone(model, recording):
    """The browser has a rate of its own."""
    result = listen("words.html", model[1], "microphone", recording, 6)
    assert result["error"] == ""
    expected = run_stream(model[0], recording)["detections"]
    assert [word["word"] for word in result["found"]] == [word["word"] for word in expected]
    seconds = [float(word["seconds"]) for word in result["found"]]
    np.testing.assert_allclose(seconds, [word["seconds"] for word in expected], atol=0.041)


def test_the_page_plays_a_file_at_the_speed_of_sound(model, recording):
    result = listen("words.html", model[1], "file", recording, 4)
    words = [word["word"] for word in result["found"]]
    # a slow machine may see one word more
    assert len(words) >= 4
    assert words == list(SPOKEN[: len(words)])
    assert result["seconds"] > 3.5


def test_the_page_has_the_settings_of_the_file(recording, tmp_path):
    """A threshold that no word reaches."""
    settings = {"smoothing": 0.3, "threshold": 1.0, "refractory": 0.8}
    to_onnx(tone_model(), tmp_path / "m.onnx", metadata={"classes": CLASSES, "detector": settings})
    assert run_stream(tmp_path / "m.onnx", recording)["detections"] == []
    packed = pack_file(tmp_path / "m.onnx", tmp_path / "m.edgernn")["packed"]
    assert listen("words.html", packed, "file", recording)["found"] == []
    process = in_c(packed, recording)
    assert process.stdout.decode() == f"{recording}: 0 words in 5.0 s\n"
    assert in_c("-t", "0.5", packed, recording).stdout.decode().count("\n") == 1 + len(SPOKEN)


def test_the_page_records_takes(model, tmp_path):
    """Each take has 2.5 s of what the microphone hears: a phrase with pauses, or silence."""
    result = listen("wakeword.html", model[1], "takes", write_wav(tmp_path / "loud.wav", phrase()), 1)
    assert result["error"] == ""
    assert ([take["take"] for take in result["found"]], result["advice"]) == (["me_nohash_0001.wav"], "good")
    silent = write_wav(tmp_path / "silent.wav", np.zeros(RATE, np.int16))
    result = listen("wakeword.html", model[1], "takes", silent, 2)
    assert result["found"] == []
    assert result["advice"].startswith("expected sound, got digital silence")


@pytest.mark.parametrize("page", ["words.html", "wakeword.html"])
def test_a_refused_microphone_is_said_on_the_page(model, page):
    result = listen(page, model[1], "refused")
    assert result["error"].startswith("microphone: access was refused; allow it for this page")
    assert result["error"].endswith("or choose an audio file")


def test_files_of_other_formats(model, tmp_path):
    """The browser converts another rate and two channels."""
    samples = tones(*SPOKEN)
    stereo = np.repeat(np.repeat(samples, 2), 2)
    path = write_wav(tmp_path / "r.wav", stereo, rate=2 * RATE, channels=2)
    assert [word["word"] for word in listen("words.html", model[1], "file", path)["found"]] == list(SPOKEN)
    (tmp_path / "text.wav").write_text("no sound")
    error = listen("words.html", model[1], "file", tmp_path / "text.wav")["error"]
    assert error.startswith("text.wav: expected a file with audio, such as a wav file, got another or a damaged one")
    short = write_wav(tmp_path / "short.wav", np.ones(100))
    error = listen("words.html", model[1], "file", short)["error"]
    assert error == "short.wav: expected at least 320 samples, one step of the model, got 100"


def test_the_page_refuses_a_model_that_hears_no_words(tmp_path):
    to_onnx(edgernn.SequenceModel("gru", 3, 4, 2), tmp_path / "plain.onnx")
    packed = pack_file(tmp_path / "plain.onnx", tmp_path / "plain.edgernn")["packed"]
    error = listen("words.html", packed, "refused")["error"]
    assert error.startswith("model: expected a model that reads audio, got one without a front end")
