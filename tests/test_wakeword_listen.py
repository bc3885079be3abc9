# SPDX-License-Identifier: Apache-2.0
"""`edgernn wakeword listen`: alarms of recordings and of a microphone, and their clips."""

import json
import os
import signal
import warnings

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.wav import read_wav
from tests.fake_microphone import by_arecord, by_sounddevice
from tests.tone_model import tones, write_tone_model
from tests.words import RATE, write_wav

SPOKEN = ("left", "stop", "go", "right")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tone_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def heard(model, *options, capsys):
    assert main(["wakeword", "listen", str(model), "--json", *options]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_alarms_are_the_detections_of_run_with_the_sound_before_them(model, tmp_path, capsys):
    path = write_wav(tmp_path / "r.wav", tones(*SPOKEN))
    result, printed = heard(model, "--input", str(path), capsys=capsys)
    expected = run_stream(model, path)["detections"]
    alarms = result["alarms"]
    assert [{k: v for k, v in alarm.items() if k != "clip"} for alarm in alarms] == expected
    assert [alarm["word"] for alarm in alarms] == list(SPOKEN)
    assert result["alarms_an_hour"] == pytest.approx(3600 * 4 / result["seconds"])
    samples = read_wav(path, RATE)
    for alarm in alarms:
        end = round(alarm["seconds"] * RATE)
        np.testing.assert_array_equal(read_wav(tmp_path / alarm["clip"], RATE), samples[max(0, end - 2 * RATE) : end])
        assert f"{alarm['seconds']:9.2f} s  {alarm['word']}  {alarm['score']:.2f}  {alarm['clip']}\n" in printed
    # nothing is overwritten
    again, _ = heard(model, "--input", str(path), "--clips", "alarms", capsys=capsys)
    assert [alarm["clip"] for alarm in again["alarms"]] == [f"alarms/alarm_{word}_0002.wav" for word in SPOKEN]
    assert len(list((tmp_path / "alarms").iterdir())) == 8


def test_settings_replace_those_of_the_file(model, tmp_path, capsys):
    path = write_wav(tmp_path / "r.wav", tones(*SPOKEN))
    result, _ = heard(model, "--input", str(path), "--refractory", "60", capsys=capsys)
    assert [alarm["word"] for alarm in result["alarms"]] == ["left"]
    assert result["settings"] == {"smoothing": 0.3, "threshold": 0.5, "refractory": 60.0}


def test_a_microphone_is_heard_until_ctrl_c(model, monkeypatch, capsys, tmp_path):
    by_sounddevice(monkeypatch, tones(*SPOKEN), interrupt)
    assert main(["wakeword", "listen", str(model)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("microphone: 4 alarms in 4.1 s, 3512.2 an hour (95 %: 957.0 to 8992.6); clips in alarms")
    assert [line.split()[2] for line in err.splitlines()] == list(SPOKEN)


def test_arecord_is_used_without_sounddevice(model, monkeypatch, tmp_path, capsys):
    tones(*SPOKEN).tofile(tmp_path / "samples.raw")
    by_arecord(monkeypatch, tmp_path, f"cat {tmp_path}/samples.raw; echo no more >&2")
    assert main(["wakeword", "listen", str(model)]) == 1
    *alarms, error = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in alarms] == list(SPOKEN)
    assert "microphone: expected one that can be heard, got the error 'no more'; check that it is plugged in" in error


def test_a_refused_microphone_is_a_sentence(model, monkeypatch, tmp_path, capsys):
    by_sounddevice(monkeypatch, None, interrupt)
    assert main(["wakeword", "listen", str(model)]) == 1
    assert "got the error 'Error querying device -1'; check that it is plugged in" in capsys.readouterr().err
    by_arecord(
        monkeypatch, tmp_path, "echo 'arecord: main:831: audio open error: No such file or directory' >&2; exit 1"
    )
    assert main(["wakeword", "listen", str(model)]) == 1
    assert "audio open error: No such file or directory'; check that it" in capsys.readouterr().err
    (tmp_path / "bin" / "arecord").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["wakeword", "listen", str(model)]) == 2
    error = capsys.readouterr().err
    assert "needs sounddevice; pip install 'sounddevice>=0.5', or pass recordings with --input" in error
    assert not (tmp_path / "alarms").exists()


def test_a_mute_microphone_is_warned_of_once(model, monkeypatch, capsys):
    by_sounddevice(monkeypatch, np.zeros(12 * RATE), interrupt)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["wakeword", "listen", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err.count("microphone: expected sound, got digital silence; check that it is neither muted nor refused") == 1
    assert out.startswith("microphone: 0 alarms in 12.1 s, 0.0 an hour (95 %: 0.0 to 1097.5)")


def test_a_packed_model_is_refused(model, tmp_path, capsys):
    write_wav(tmp_path / "r.wav", tones("left"))
    pack_file(model, tmp_path / "m.edgernn")
    assert main(["wakeword", "listen", "m.edgernn", "--input", "r.wav"]) == 2
    assert "m.edgernn: expected a file that `edgernn export` wrote, got a packed model" in capsys.readouterr().err


def test_a_recording_shorter_than_a_step_is_refused(model, tmp_path, capsys):
    write_wav(tmp_path / "r.wav", np.ones(100))
    assert main(["wakeword", "listen", str(model), "--input", "r.wav"]) == 2
    assert (
        "r.wav: expected at least 320 samples, one step of the model, got 100; record more" in capsys.readouterr().err
    )
