# SPDX-License-Identifier: Apache-2.0
"""Wake words: the bank of mel energies, composed streams, mined streams, the threshold, and bad recordings."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgernn.runtime.word_detection
from edgernn.cli import wakeword_train
from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.runtime import Session
from edgernn.runtime.event_rate import poisson_interval
from edgernn.runtime.wav import write_wav
from edgernn.training import train
from edgernn.training.frozen import divided
from edgernn.training.run_directory import STATE
from edgernn.training.tasks import confusion, wake_front, wakewords
from edgernn.training.tasks.mel_bank import ENERGIES, load_bank, read_recordings
from edgernn.training.tasks.mel_streams import Composer, Scene, step_labels
from tests.oracle_frontend import filter_bank
from tests.training_helpers import Stop, snapshot, without_pictures
from tests.wake_data import CONFIG, RATE, TOY, record, tones, write_wake_words


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return write_wake_words(tmp_path_factory.mktemp("wake"))


SMALL = {"hidden_size": 4, "batch_size": 4, "steps": 10, "eval_every": 10}


def settings(sounds, **changes):
    return {
        "takes": str(sounds / "takes"),
        "bank": str(sounds / "bank.npz"),
        "phrase": "hey edge",
        **TOY,
        **SMALL,
        **changes,
    }


def test_a_bank_has_the_energies_of_the_front_end_without_silence(tmp_path):
    bank = read_recordings(record(tmp_path / "talk", {"a_nohash_1.wav": tones(1000, seconds=0.5)}), CONFIG)
    assert (bank.group.tolist(), bank.source.tolist()) == (["a"], ["talk"])
    # a tone of amplitude 0.2 has the mean power 0.02
    assert float(bank.level[0]) == pytest.approx(10 * np.log10(0.02), abs=0.3)
    assert 50 <= bank.lengths[0] <= 55
    middle = ENERGIES[bank.recording(0)[25]]
    n = np.arange(128)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / 128)
    at = int(0.25 * RATE) + 24 * 80 - 48 - int(0.25 * RATE)
    spectrum = np.abs(np.fft.rfft(window * 0.2 * np.sin(2 * np.pi * 1000 * (at + n) / RATE))) ** 2
    expected = filter_bank(CONFIG, 128) @ spectrum
    loudest = expected.argmax()
    assert 10 * np.log10(middle[loudest] / expected[loudest]) == pytest.approx(0, abs=0.5)
    assert bank.minutes() == pytest.approx(0.5 / 60, rel=0.1)


def test_a_model_hears_energies_as_samples():
    torch.manual_seed(0)
    model = edgernn.SequenceModel("gru", 320, 4, 2, output="all", frontend="logmel", normalise="pcen", stack=4, hop=80)
    model = model.double()
    samples = torch.randn(6, 3, 320).double() * 0.1
    signal = samples.transpose(0, 1).reshape(3, -1)
    before = torch.zeros(3, model.frontend.widths["samples"]).double()
    energies = model.frontend.energies(torch.cat([before, signal], 1))
    stacked = energies.view(6, 4, 3, 40).transpose(1, 2).reshape(6, 3, 160)
    with torch.no_grad(), model.frontend.on_energies():
        heard, state = model(stacked[:2])
        more, _ = model(stacked[2:], state)
    torch.testing.assert_close(torch.cat([heard, more]), model(samples)[0].detach())
    with pytest.raises(UsageError, match=r"x: expected shape \(T >= 1, B, 320\), got \(6, 3, 160\)"):
        model(stacked)


def test_a_stream_has_the_phrase_at_its_level_among_other_speech(sounds):
    bank = load_bank(sounds / "bank.npz", CONFIG)
    takes = read_recordings(sounds / "takes", CONFIG)
    composer = Composer(takes, bank.chosen(~bank.is_noise), bank.chosen(bank.is_noise), augments=False)
    scene = Scene(-30.0, np.inf, 0, np.ones(8, np.float32))
    energies, (begin, end) = composer.stream(np.random.default_rng(0), scene, 300, phrase=3, after=20)
    take = ENERGIES[takes.recording(3)]
    assert end - begin == len(take)
    assert end <= 280
    gain = energies[begin:end][take > 0] / take[take > 0]
    np.testing.assert_allclose(gain, gain[0], rtol=1e-4)
    assert 10 * np.log10(gain[0]) == pytest.approx(-30 - takes.level[3], abs=3.01)
    # other speech on both sides, and none in a stream of noise alone
    assert energies[:begin].any() or begin < 30
    assert energies[end:].any()
    silent = Composer(takes, bank.chosen(np.zeros(len(bank), bool)), bank.chosen(bank.is_noise), augments=False)
    noisy, place = silent.stream(np.random.default_rng(0), Scene(-30.0, 10.0, 0, np.ones(8, np.float32)), 300)
    assert place is None
    assert 0 < noisy.max() < energies.max()


def test_long_recordings_are_heard_as_often_as_they_are_long(sounds):
    bank = load_bank(sounds / "bank.npz", CONFIG)
    short = int(np.flatnonzero(~bank.is_noise)[0])
    frames = bank.recording(short)
    whole = dataclasses.replace(
        bank.chosen(np.array([short] * 4)),
        frames=np.concatenate([np.tile(frames, (30, 1)), *[frames] * 3]),
        begin=np.cumsum([0, 30 * len(frames), *[len(frames)] * 3]),
    )
    composer = Composer(bank.chosen(np.zeros(0, np.int64)), whole, bank.chosen(bank.is_noise), augments=False)
    heard = np.zeros(4)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        for recording, *_ in composer.talk(rng, composer.scene(rng), 1000)[1]:
            heard[recording] += 1
    # 30 of 33 parts, where a draw by recordings gives one of 4
    assert heard[0] / heard.sum() == pytest.approx(30 / 33, abs=0.04)


def test_a_fifth_of_the_streams_have_alarms_of_an_earlier_model(sounds, monkeypatch):
    bank = load_bank(sounds / "bank.npz", CONFIG)
    takes, noise = read_recordings(sounds / "takes", CONFIG), bank.chosen(bank.is_noise)
    composer = Composer(takes, bank.chosen(~bank.is_noise), noise, augments=True)
    more, stream, composed = dataclasses.replace(composer, speech=takes), Composer.stream, []

    def counting(self, *arguments):
        composed.append(self is more)
        return stream(self, *arguments)

    monkeypatch.setattr(Composer, "stream", counting)
    streams = wakewords._Streams(composer, more, 4, seed=0)
    assert streams.fingerprint != wakewords._Streams(composer, None, 4, seed=0).fingerprint
    batches = [streams.batch(step, 20) for step in range(10)]
    assert 0.12 < np.mean(composed) < 0.28
    assert 0.4 < np.mean([(batch.target == 1).any(0).numpy() for batch in batches]) < 0.6
    # a batch depends on its step alone, and mined streams take the place of others without the phrase
    torch.testing.assert_close(streams.batch(3, 20).x, batches[3].x, rtol=0, atol=0)
    streams.hard = np.array([5])
    mined = torch.from_numpy(streams.mined(5).reshape(streams.steps, -1))
    found = [torch.equal(x, mined) for step in range(10) for x in streams.batch(step, 20).x.unbind(1)]
    assert 0.2 < np.mean(found) < 0.4


def test_the_steps_round_the_end_of_the_phrase_should_hear_it():
    # frames 10 before the end (at 100) to 16 after it, four a step, and a step beside them without a target
    target = step_labels((60, 100), 40, 4, (-10, 16), 1)
    assert np.flatnonzero(target == 1).tolist() == list(range(22, 30))
    assert np.flatnonzero(target == -1).tolist() == [21, 30]
    assert not step_labels(None, 40, 4, (-10, 16), 1).any()


def test_a_resumed_training_with_mined_streams_equals_one_in_one_go(sounds, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments = {"settings": settings(sounds), "checkpoint_every": 7}
    train("wakeword", "gru", out=whole, **arguments)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train("wakeword", "gru", out=cut, progress=Stop(9), **arguments)
    assert load_file(cut / STATE)["task.hard"].shape == (5,)
    run = train("wakeword", "gru", out=cut, resume=True, **arguments)
    assert snapshot(cut) == snapshot(whole)
    # the chosen threshold is in the exported file, and the model runs
    session = Session(run.export(), backend="portable")
    assert session.info["detector"] == run["detector"]
    assert session.info["classes"] == ["hey edge", "_silence_"]
    assert session.step(np.zeros(320, np.float32)).shape == (2,)
    division = json.loads((cut / "split.json").read_text())
    assert [len(division[part]) for part in ("train", "validation", "test")] == [3, 1, 1]


def test_the_threshold_is_the_highest_with_the_wanted_hits_on_validation():
    detector = wakewords.Detector(("hey", "_silence_"), 0.04, wakewords.PostProcessing(0.0, 0.5, 0.2))
    phrases = np.zeros((50, 4, 2))
    for i, peak in enumerate((0.96, 0.8, 0.7, 0.3)):
        phrases[20, i, 0] = peak
    # a detection long before the phrase is no hit
    phrases[2, 3, 0] = 0.99
    others = np.zeros((9000, 10, 2))
    others[[100, 103, 2000], 0, 0] = 0.75
    speakers = ["a", "a", "b", "b"]
    heard = wakewords._Heard(
        detector, 0.04, phrases, [(15.0, 25.0)] * 4, speakers, {"talk": others, "noise": others[:, 1:]}
    )
    assert heard.threshold(0.75) == 0.7
    assert heard.threshold(0.25) == 0.95
    assert heard.threshold(1.0) == 0.3
    figures = heard.figures(0.7)
    # the second of two alarms 0.12 s apart is in the refractory time
    assert (figures["hits"], figures["talk_false_alarms"], figures["noise_false_alarms"]) == (0.75, 2, 0)
    bounds = confusion.interval(np.array([2.0, 1.0]), np.array([2.0, 2.0]))
    assert (figures["hits_low"], figures["hits_high"]) == bounds
    assert figures["false_alarms_an_hour"] == figures["talk_false_alarms_an_hour"] == pytest.approx(2.0)
    assert figures["hours"] == pytest.approx(1.0)


def test_intervals_of_counts_are_exact():
    assert poisson_interval(0) == (0.0, pytest.approx(3.6889, abs=1e-4))
    assert poisson_interval(10) == (pytest.approx(4.7954, abs=1e-4), pytest.approx(18.3904, abs=1e-4))
    # only terms near the count are summed
    assert poisson_interval(10_000) == (pytest.approx(9804.9525, abs=1e-4), pytest.approx(10197.9516, abs=1e-4))


def loud(seconds=0.5):
    return np.clip(10 * tones(700, seconds=seconds), -1, 1)


BAD_TAKES = {
    "silence": ({"a/1.wav": np.zeros(800, np.float32)}, "expected recordings with sound, got silent ones alone"),
    "few": ({"a/1.wav": tones(500), "a/2.wav": tones(600)}, "expected at least 3 takes of the phrase, got 2"),
    "long": (
        {f"{s}/1.wav": tones(500 + s, seconds=3 if s == 1 else 0.5) for s in range(3)},
        r"got 2 that can be used \(.*1/1\.wav: expected a phrase of at most 2\.5 s, got 3\.0 s; cut the take",
    ),
    "clipped": (
        {f"{s}/1.wav": loud() if s == 2 else tones(500 + 90 * s, seconds=0.5) for s in range(3)},
        r"expected at least 3 takes .*, got 2 that can be used \(.*2/1\.wav: expected no clipping, got \d+ samples at",
    ),
    "twice": (
        {f"{s}/1.wav": tones(500 + 90 * (s > 0), seconds=0.5) for s in range(3)},
        r"got 2 that can be used \(.*2/1\.wav: expected a recording of its own, got that of 1/1\.wav; remove one",
    ),
    "none": ({}, "expected a folder with wav files, got none"),
}


@pytest.mark.parametrize("bad", BAD_TAKES)
def test_bad_takes_are_refused_with_a_remedy(bad, sounds, tmp_path):
    takes, message = BAD_TAKES[bad]
    (tmp_path / "takes").mkdir()
    record(tmp_path / "takes", takes)
    with pytest.raises(EdgernnError, match=message):
        train("wakeword", "gru", out=tmp_path / "run", settings=settings(sounds, takes=str(tmp_path / "takes")))
    assert not (tmp_path / "run").exists()


def test_bad_banks_are_refused_with_a_remedy(sounds, tmp_path):
    noise = tmp_path / "noise.npz"
    bank = load_bank(sounds / "bank.npz", CONFIG)
    bank.chosen(bank.is_noise).save(noise)
    with pytest.raises(EdgernnError, match=r"expected at least 0\.1 min of speech for the train part, got 0\.0; make"):
        train("wakeword", "gru", out=tmp_path / "run", settings=settings(sounds, bank=str(noise)))
    with pytest.raises(EdgernnError, match=r"front end, sample_rate=8000 .* bands=10 .*, got those of .* bands=8"):
        train("wakeword", "gru", out=tmp_path / "run", settings=settings(sounds, bands=10))
    named = dataclasses.replace(bank, source=np.where(bank.is_noise, bank.source, "noise"))
    named.save(tmp_path / "named.npz")
    with pytest.raises(EdgernnError, match="expected speech from folders of other names than noise, got noise as"):
        train("wakeword", "gru", out=tmp_path / "run", settings=settings(sounds, bank=str(tmp_path / "named.npz")))
    wrong = {
        "begin": (bank.begin[:-1], np.int64(3)),
        "level": (np.float32(1), bank.name),
        "frames": (bank.frames[:, 1:],),
    }
    for name, array in ((name, array) for name, arrays in wrong.items() for array in arrays):
        np.savez(tmp_path / "other.npz", **{**vars(bank), name: array})
        with pytest.raises(EdgernnError, match="expected a bank of recordings, got other arrays"):
            load_bank(tmp_path / "other.npz", CONFIG)
    with pytest.raises(UsageError, match="phrase: expected another name than _silence_, which means no word"):
        train("wakeword", "gru", out=tmp_path / "run", settings=settings(sounds, phrase="_silence_"))


@pytest.mark.parametrize(("speakers", "groups"), [(3, 3), (1, 10)])
def test_pieces_of_a_long_recording_stay_with_their_speaker(speakers, groups, tmp_path):
    sounds = {f"{speaker}/long.wav": tones(500, 900, seconds=31) for speaker in range(speakers)}
    bank = read_recordings(record(tmp_path / "talk", sounds), CONFIG)
    assert (len(bank), len(set(bank.group))) == (10 * speakers, groups)


def test_a_recording_of_the_bank_that_holds_the_phrase_is_named(sounds, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    random = np.random.default_rng(1)
    # 70 s of other tones, whose pieces of 7 s are the rows that the model hears
    talk = {"room.wav": tones(*random.uniform(300, 3500, 350), seconds=0.2)}
    bank = load_bank(sounds / "bank.npz", CONFIG)
    # a recording of the same name in another folder is another one
    for folder, files in (("room", talk), ("hall", {"room.wav": tones(500)})):
        bank = bank.joined(read_recordings(record(tmp_path / folder, files), CONFIG))
    bank.save(tmp_path / "bank.npz")
    find = wakewords.Detector.find

    def finding(self, average, threshold, *arguments):
        # 7.05 s, of which a step of 40 ms is not whole
        word = edgernn.runtime.word_detection.DetectedWord(24, 0, 0.95)
        return [word] if len(average) == 176 else find(self, average, threshold, *arguments)

    monkeypatch.setattr(wakewords.Detector, "find", finding)
    text = r"room\.wav sounds like the phrase at 1\.0 s and at 9 other places; listen there"
    changed = settings(sounds, bank=str(tmp_path / "bank.npz"), steps=1)
    with pytest.warns(EdgernnWarning, match=text):
        train("wakeword", "gru", out=tmp_path / "run", settings=changed)


@pytest.mark.filterwarnings("ignore:sound of 8,000 Hz")
def test_commands_make_a_bank_and_a_model_with_its_threshold(sounds, tmp_path, capsys, monkeypatch):
    without_pictures(monkeypatch)
    bank, run = tmp_path / "bank.npz", tmp_path / "run"
    words = ["wakeword", "bank", str(sounds / "talk"), "--noise", str(sounds / "hiss"), "--out", str(bank)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"talk: 40 recordings, 2\.\d min of distinct speech\n.*bank\.npz: 2\.\d min of distinct", printed)
    assert main(words) == 2
    assert "expected a new file, got" in capsys.readouterr().err
    words = ["wakeword", "bank", str(sounds / "talk"), str(record(tmp_path / "talk", {"a.wav": tones(500)}))]
    assert main([*words, "--out", str(tmp_path / "other.npz")]) == 2
    assert "FOLDER: expected different names, got talk, talk" in capsys.readouterr().err
    small = [f"{name}={value}" for name, value in {**SMALL, "steps": 2, "hours": 0.01, "mined": 6}.items()]
    words = ["wakeword", "train", str(sounds / "takes"), "--bank", str(bank), "--phrase", "hey edge", "--out", str(run)]
    assert main([*words, *small]) == 0
    printed = capsys.readouterr().out
    result, series = (json.loads((run / f"{name}.json").read_text()) for name in ("result", "series"))
    chosen = result["detector"]["threshold"]
    assert series["validation_hits"][series["threshold"].index(chosen)] == result["validation_hits"]
    assert re.search(rf"^ +{chosen:g} .*chosen on the validation part: \d+\.\d % hits there$", printed, re.MULTILINE)
    assert re.search(r"talk: \d+ false alarms? in 0\.00833 h composed of \d\.\d distinct minutes, an hour", printed)
    assert main(["export", str(run)]) == 0
    assert Session(run / "model.onnx", backend="portable").info["detector"]["threshold"] == chosen


def test_a_short_phrase_and_bad_takes_beside_others_are_warnings(sounds, tmp_path):
    takes = {f"{s}_nohash_{i}.wav": tones(900 + 50 * s + 25 * i, seconds=0.2) for s in range(5) for i in range(2)}
    record(tmp_path / "one", takes | {"0_nohash_2.wav": loud()})
    task = wakewords.WakeWord(takes=str(tmp_path / "one"), bank=str(sounds / "bank.npz"))
    task.adapted(ModelConfig(frontend=CONFIG))
    with (
        pytest.warns(EdgernnWarning, match=r"^1 take left out: .*0_nohash_2\.wav: expected no clipping"),
        pytest.warns(EdgernnWarning, match=r"0_nohash_0\.wav: the phrase takes 0\.2\d s: one short word is in much"),
    ):
        task.open(None, 0)
    assert "10 takes of 5 speakers" in task.summary[0]


FRONT = {"layers": 2, "hidden_size": 8, "last_size": 6}


@pytest.fixture(scope="module")
def front(sounds, tmp_path_factory):
    toy = {name: value for name, value in TOY.items() if name not in ("hours", "mined")}
    settings = {**toy, **FRONT, "batch_size": 8, "steps": 80, "eval_every": 80, "bank": str(sounds / "words.npz")}
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        patch.setattr(wake_front, "_BATCHES", 2)
        out = tmp_path_factory.mktemp("front") / "run"
        return train("wake-front", "gru", out=out, settings={**settings, "lr": 0.03})


def test_folders_are_words_if_a_pattern_tells_speakers(tmp_path):
    words = {f"{word}/{name}_1.wav": tones(400, 900) for word in ("hello", "stop") for name in ("anna", "bo", "cy")}
    folder = record(tmp_path / "words", words)
    assert {*wake_front.words_of(read_recordings(folder, CONFIG, pattern="{}_*"))} == {"words/hello", "words/stop"}
    # without it, the outermost folder is the speaker
    read_recordings(folder, CONFIG).save(tmp_path / "bank.npz")
    toy = {name: value for name, value in TOY.items() if name not in ("hours", "mined")}
    message = r"expected folders of at least 2 words, .*, got 0; make a bank of .* with --split-by '\{}_\*'"
    with pytest.raises(EdgernnError, match=message):
        train("wake-front", "gru", out=tmp_path / "run", settings={**toy, "bank": str(tmp_path / "bank.npz")})


def test_a_front_hears_the_words_of_several_speakers(front):
    names = json.loads((front.path / "config.json").read_text())["task"]["classes"]
    assert names == [*(f"words/{word}" for word in range(5)), "_unknown_"]
    assert front["accuracy"] > 0.4


def test_a_front_sets_the_size_of_the_model_and_its_start(front, tmp_path):
    expected = {"start_run": str(front.path), "layers": "2", "hidden_size": "8", "last_size": "6", "steps": "1500"}
    assert wakeword_train._front_settings(front.path) == expected
    assert wakeword_train._front_settings(Path("none")) == {}
    config = json.loads((front.path / "config.json").read_text())
    config["model"]["layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(front.path / "model.safetensors", tmp_path)
    with pytest.raises(UsageError, match=r"--front: expected a model of at least 2 layers, got .* with 1; name a run"):
        wakeword_train._front_settings(tmp_path)
    # a run of before the setting last_size
    del config["model"]["last_size"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model": config["model"] | {"layers": 2}}))
    assert wakeword_train._front_settings(tmp_path).keys() == expected.keys() - {"last_size"}


def test_only_a_gru_with_random_weights_begins_with_the_front_of_the_zoo(front, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGERNN_MODELS", str(tmp_path / "none"))
    assert wakeword_train._front_settings(None) == {}
    with pytest.raises(UsageError, match=r"^--front: nosuch: "):
        wakeword_train._front_settings(Path("nosuch"))
    monkeypatch.setenv("EDGERNN_MODELS", str(tmp_path))
    (tmp_path / "wake-front").mkdir()
    (tmp_path / "wake-front" / "entry.json").write_text("{}")
    front.export(tmp_path / "wake-front" / "model.onnx")
    assert wakeword_train._front_settings(None)["hidden_size"] == "8"
    assert wakeword_train._front_settings(None, cell="lstm") == {}
    assert wakeword_train._front_settings(None, has_start=True) == {}


def test_the_layers_of_a_front_stay_and_their_features_are_computed_once(front, sounds, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    changes = {**FRONT, "start_run": str(front.path), "start_frozen": 1, "composed": 5, "checkpoint_every": 7}
    changes["steps"] = 20
    before_step, periods = wakewords.WakeWord.before_step, {}

    def noting(self, model, step, *arguments):
        before_step(self, model, step, *arguments)
        periods.setdefault(self._streams.period, step)

    monkeypatch.setattr(wakewords.WakeWord, "before_step", noting)
    arguments = {"settings": settings(sounds, **changes)}
    run = train("wakeword", "gru", out=tmp_path / "whole", **arguments)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train("wakeword", "gru", out=tmp_path / "cut", progress=Stop(15), **arguments)
    train("wakeword", "gru", out=tmp_path / "cut", resume=True, **arguments)
    assert snapshot(tmp_path / "cut") == snapshot(tmp_path / "whole")
    # features change where the carried state begins anew
    assert [*periods.values()] == [0, wakewords.CARRIED]
    before, after = (load_file(path / "model.safetensors") for path in (front.path, run.path))
    moved = {name for name in after if name not in before or not torch.equal(before[name], after[name])}
    assert moved == {*(name for name in after if name.startswith("layers.1.")), "head.weight", "head.bias"}
    model = run.model
    lower, upper = divided(model, 1)
    x = torch.randn(6, 3, 320)
    with torch.no_grad():
        features, _ = lower(x)
        torch.testing.assert_close(upper(features)[0], model(x)[0])
    with pytest.raises(UsageError, match=r"start_frozen: expected all weights of these layers in .*, got none of the"):
        train("wakeword", "gru", out=tmp_path / "a", settings={**arguments["settings"], "hidden_size": 5})
    with pytest.raises(UsageError, match="start_frozen: expected start_run, whose layers are kept, got none; set it"):
        train("wakeword", "gru", out=tmp_path / "a", settings={"start_frozen": 1})
    with pytest.raises(UsageError, match="start_frozen: expected fewer layers than the model has, got 2; lower it"):
        train("wakeword", "gru", out=tmp_path / "a", settings={**arguments["settings"], "start_frozen": 2})


def test_a_model_that_misses_the_wanted_hits_is_not_the_best():
    score = wakewords.WakeWord(wanted_hits=0.9).objective
    assert score.missed({"hits": 0.95, "false_alarms_an_hour": 3.0}) == 0
    assert score.missed({"hits": 0.0, "false_alarms_an_hour": 0.0}) == pytest.approx(0.9)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_pauses_of_a_noisy_take_are_no_part_of_the_phrase(noise, tmp_path):
    random = np.random.default_rng(0)
    quiet = np.zeros(RATE // 2, np.float32)
    sound = np.concatenate([quiet, tones(500, 900, level=0.3), quiet])
    sound += noise * random.standard_normal(len(sound)).astype(np.float32)
    (tmp_path / "takes" / "anna" / "near").mkdir(parents=True)
    write_wav(tmp_path / "takes" / "anna" / "near" / "1.wav", sound, RATE)
    bank = read_recordings(tmp_path / "takes", CONFIG)
    # 0.5 s, with a frame before and two after; the speaker is the outermost folder
    assert 50 <= bank.lengths[0] <= 54
    assert bank.group.tolist() == ["anna"]
