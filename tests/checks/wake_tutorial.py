# SPDX-License-Identifier: Apache-2.0
"""`make check-apps`: docs/how-to/wake-word.md with takes of espeak-ng; other voices say the phrase then."""

import subprocess

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.runtime.listen import listen
from edgernn.runtime.wav import FULL_SCALE, read_wav, write_wav
from tests.apps import c_program, need
from tests.apps import listen as listen_in_page

RATE = 16000
PHRASE = "purple elephant"
_VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "f1", "f2", "f3", "f4", "Alex", "Andy", "Annie", "Gene", "Lee", "Mike")
VOICES = [f"en-us+{variant}" for variant in _VARIANTS]
# heard after the training alone
UNHEARD = ["en-us+m7", "en-us+f5", "en-us+linda"]
TALK = (
    "The train to the coast leaves at seven in the morning.",
    "Please put the books back on the shelf near the window.",
    "She bought a purple coat and two pairs of brown shoes.",
    "An elephant can remember a place for many years.",
    "We could not find the street, and asked a man for the way.",
    "Turn the volume down, I cannot hear what you are saying.",
    "It rained all night, but the garden is dry again.",
    "My brother plays the trumpet in a small orchestra.",
)


def say(path, voice, text, speed=150):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(path), text], check=True)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run directory of the tutorial's commands, with its packed model."""
    need("espeak-ng")
    folder = tmp_path_factory.mktemp("tutorial")
    for i, voice in enumerate(VOICES):
        recordings = folder / "recordings" / voice
        for speed in (130, 150, 170):
            say(recordings / f"{speed}.wav", voice, PHRASE, speed)
        speaker = ["--speaker", voice.replace("+", "-")]
        assert main(["wakeword", "record", str(folder / "takes"), "--input", str(recordings), *speaker]) == 0
        for n, text in enumerate(TALK):
            say(folder / "talk" / voice.replace("+", "-") / f"{n}.wav", voice, text, 130 + 10 * (i % 5))
    bank, out = str(folder / "bank.npz"), folder / "wake"
    assert main(["wakeword", "bank", str(folder / "talk"), "--out", bank]) == 0
    words = ["wakeword", "train", str(folder / "takes"), "--bank", bank, "--phrase", PHRASE, "--out", str(out)]
    # a small part of the tutorial's training
    small = ["steps=250", "batch_size=32", "mined=192", "hours=0.05", "hidden_size=48"]
    assert main([*words, "--front", "none", *small]) == 0
    assert main(["export", str(out)]) == 0
    assert main(["pack", str(out / "model.onnx")]) == 0
    return out


@pytest.fixture(scope="module")
def stream(run, tmp_path_factory):
    """A recording of voices that were in no take: talk, then the phrase; and the times of the phrases in seconds."""
    folder, parts, times = tmp_path_factory.mktemp("stream"), [], []
    for i, voice in enumerate(UNHEARD):
        for text in (TALK[i], PHRASE):
            begin = sum(map(len, parts))
            parts += [read_wav(say(folder / "part.wav", voice, text), RATE), np.zeros(RATE // 2, np.int16)]
            if text == PHRASE:
                times.append((begin / RATE, sum(map(len, parts)) / RATE))
    path = folder / "stream.wav"
    write_wav(path, np.concatenate(parts).astype(np.float32) / np.float32(FULL_SCALE), RATE)
    return path, times


@pytest.mark.filterwarnings("ignore:sound of 22,050 Hz")
def test_voices_that_were_in_no_take_are_heard_alike_everywhere(run, stream, tmp_path):
    path, times = stream
    alarms = [alarm["seconds"] for alarm in listen(run / "model.onnx", path, tmp_path / "alarms")["alarms"]]
    hits = sum(any(begin <= seconds <= end for seconds in alarms) for begin, end in times)
    assert hits >= 2
    assert len(alarms) <= hits + 1
    program = [str(c_program().parent / "words"), str(run / "model.edgernn"), str(path)]
    lines = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [float(line.split()[0]) for line in lines[:-1]] == pytest.approx(alarms, abs=0.01)
    found = listen_in_page("wakeword.html", run / "model.edgernn", "file", path)["found"]
    assert [float(word["seconds"]) for word in found] == pytest.approx(alarms, abs=0.041)
    assert {word["word"] for word in found} == {PHRASE}
