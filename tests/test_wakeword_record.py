# SPDX-License-Identifier: Apache-2.0
"""`edgernn wakeword record`: takes from files and from a microphone, and the checks of each."""

import io
import json

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.runtime.takes import check_take
from edgernn.runtime.wav import read_wav
from tests.fake_microphone import by_sounddevice
from tests.words import RATE, write_wav


def phrase(seconds=0.8, level=0.2, before=0.8, after=0.8, noise=1e-4, rate=RATE):
    """Two tones of a phrase with noise around, as int16."""
    rng, count = np.random.default_rng(0), [round(s * rate) for s in (before, seconds, after)]
    t = np.arange(count[1]) / rate
    tones = np.where(t < seconds / 2, np.sin(2 * np.pi * 440 * t), np.sin(2 * np.pi * 880 * t))
    samples = np.concatenate([np.zeros(count[0]), level * tones, np.zeros(count[2])])
    samples = samples + noise * rng.normal(size=len(samples))
    return np.clip(np.rint(samples * 2**15), -(2**15), 2**15 - 1).astype(np.int16)


BAD = {
    "silence": (np.zeros(RATE, np.int16), "expected sound, got digital silence; check that the microphone is neither"),
    "quiet": (phrase(level=0.001, noise=1e-6), r"louder than -50 dB of full scale, got -63 dB; come closer"),
    "clipped": (phrase(level=3.0), r"expected no clipping, got \d+ samples at full scale; go farther"),
    "long": (phrase(after=10.0), r"expected a take of 0.02 to 5 s, got 11.60 s; cut it to one phrase"),
    "long phrase": (phrase(3.0), r"expected a phrase of at most 2.5 s, got 3.0 s; cut the take to one phrase, or"),
    "empty": (np.ones(10, np.int16), r"expected a take of 0.02 to 5 s, got 0.00 s"),
    "start": (phrase(before=0.0), "got speech at the start; leave a pause there"),
    "end": (phrase(after=0.0), "got speech at the end; leave a pause there"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_take_that_cannot_be_used_is_refused_in_a_sentence(kind):
    samples, message = BAD[kind]
    with pytest.raises(EdgernnError, match=message):
        check_take(samples, RATE, cut=True)


@pytest.mark.parametrize(
    ("samples", "advice"),
    [
        (phrase(), None),
        (phrase(before=0.0, after=0.0, noise=0.0), None),
        (phrase(0.2), "the phrase takes 0.20 s: one short word is in much of what people say"),
        (phrase(0.2, noise=0.0), "the phrase takes 0.20 s"),
        (phrase(level=0.1, noise=0.015), "louder than the noise; record in a quieter place, or come closer"),
    ],
)
def test_a_take_that_can_be_used_may_have_advice(samples, advice):
    sentence = check_take(samples, RATE, cut="noise" in (advice or ""))
    assert (sentence is None) if advice is None else (advice in sentence)


def test_a_single_sample_at_full_scale_is_no_clipping():
    samples = phrase()
    samples[[9000, 9001, 9100]] = 2**15 - 1
    assert check_take(samples, RATE) is None
    samples[9002] = -(2**15)
    with pytest.raises(EdgernnError, match="got 3 samples at full scale"):
        check_take(samples, RATE)


@pytest.mark.filterwarnings("ignore:sound of 44,100 Hz")
def test_files_of_two_rates_become_numbered_takes_of_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_wav(tmp_path / "in" / "a.wav", phrase())
    write_wav(tmp_path / "in" / "deep" / "b.WAV", phrase(rate=44100), rate=44100)
    write_wav(tmp_path / "in" / "c.wav", np.zeros(RATE, np.int16))
    (tmp_path / "in" / "d.wav").write_text("no sound")
    write_wav(tmp_path / "short.wav", phrase(0.2))
    words = ["wakeword", "record", "takes", "--input", "in", "--input", "short.wav", "--speaker", "anna"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["files"] == [f"takes/anna_nohash_000{i}.wav" for i in (1, 2, 3)]
    np.testing.assert_array_equal(read_wav(tmp_path / "takes/anna_nohash_0001.wav", RATE), phrase())
    assert len(read_wav(tmp_path / "takes/anna_nohash_0002.wav", RATE)) == 2.4 * RATE
    assert "0.20 s" in result["advice"]["takes/anna_nohash_0003.wav"]
    assert "got digital silence" in result["refused"]["in/c.wav"]
    assert result["refused"]["in/d.wav"].startswith("expected a wav file with 16-bit PCM samples, got another")
    # nothing is overwritten, and another speaker has numbers of his own
    before = {path: path.read_bytes() for path in (tmp_path / "takes").iterdir()}
    assert main([*words[:5], "--speaker", "bob"]) == 0
    out, err = capsys.readouterr()
    assert out == "takes: 2 new takes, 2 takes refused\n"
    assert "in/a.wav: good\nin/c.wav: expected sound, got digital silence" in err
    assert main(words) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in set((tmp_path / "takes").iterdir()) - set(before)} == {
        *(f"bob_nohash_000{i}.wav" for i in (1, 2)),
        *(f"anna_nohash_000{i}.wav" for i in (4, 5, 6)),
    }


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--input", "silent.wav"], 1, "silent.wav: expected sound, got digital silence"),
        (["--input", "none.wav"], 1, "none.wav: no such file"),
        (["--input", "empty"], 2, "empty: expected wav files, got none; name a folder with recordings"),
        (["--input", "takes"], 2, "--input: expected a folder other than that of the takes, got takes"),
        (["--speaker", "../x"], 2, "speaker: expected a name of letters, digits and -, got '../x'"),
    ],
)
def test_bad_sources_are_refused_and_nothing_is_written(words, status, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "takes"):
        (tmp_path / name).mkdir()
    write_wav(tmp_path / "silent.wav", np.zeros(RATE, np.int16))
    assert main(["wakeword", "record", "takes", *words]) == status
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "takes").iterdir())


def test_a_microphone_records_takes_until_enough_are_good(tmp_path, monkeypatch, capsys):
    """The second take is silent, and is asked for again; the end of standard input stops."""
    monkeypatch.chdir(tmp_path)
    heard = [phrase(), np.zeros(int(2.4 * RATE)), phrase(0.6)]

    class Speaker(io.StringIO):
        def readline(self):
            # a block of what was heard before precedes the take
            by_sounddevice(monkeypatch, np.concatenate([np.ones(1600), heard.pop(0)]), lambda: None)
            return "\n"

    monkeypatch.setattr("sys.stdin", Speaker())
    assert main(["wakeword", "record", "takes", "--takes", "2", "--seconds", "2.4"]) == 0
    out, err = capsys.readouterr()
    assert out == "takes: 2 new takes, 1 take refused\n"
    assert err.count("speak now") == 3
    assert "take 2, attempt 2: expected sound, got digital silence" in err
    assert "take 2, attempt 3: good" in err
    np.testing.assert_array_equal(read_wav(tmp_path / "takes/take_0001.wav", RATE), phrase())
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["wakeword", "record", "takes"]) == 0
    assert capsys.readouterr().out == "takes: 0 new takes\n"


def test_a_refused_microphone_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    by_sounddevice(monkeypatch, None, lambda: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["wakeword", "record", "takes"]) == 1
    assert "microphone: expected one that can be heard" in capsys.readouterr().err
    assert not (tmp_path / "takes").exists()
