# SPDX-License-Identifier: Apache-2.0
"""Keyword models that are trained on streams: the streams, the room of the test, its scores, and a training."""

import csv
import json

import numpy as np
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.wav import read_wav
from edgernn.training.tasks.keywords import OwnWords
from edgernn.training.tasks.mixing import faded, spoken_part
from edgernn.training.tasks.rooms import Acoustics, Room, Spoken
from edgernn.training.tasks.spotting import Spotted
from edgernn.training.tasks.streams import step_targets
from edgernn.training.tasks.windows import UNCOUNTED
from tests.task_helpers import Trained, opened
from tests.training_helpers import without_pictures
from tests.words import PITCH, RATE, tone, write_noise, write_own

HOP = 320


@pytest.fixture
def folder(tmp_path):
    write_own(tmp_path / "words", words=("left", "right", "go"), count=12)
    write_noise(tmp_path / "words/_background_noise_")
    return tmp_path / "words"


@pytest.fixture
def task(folder):
    return opened(OwnWords(words="left,right", unknown=0.5, stream=3.0, room=0.05, talk=0.2), folder)


def acoustics(noisy=1.0, low=12.0, high=12.0):
    noise = np.random.default_rng(0).normal(0, 0.3, 10 * RATE).astype(np.float32)
    return Acoustics([noise], noisy, low, high, HOP, RATE)


def pitch_of(samples):
    """The name of the loudest tone."""
    spectrum = np.abs(np.fft.rfft(samples))
    frequency = spectrum.argmax() * RATE / len(samples)
    return min(PITCH, key=lambda word: abs(PITCH[word] - frequency))


# words and scenes


def test_a_clip_is_cut_to_its_word():
    clip = np.zeros(RATE, np.float32)
    clip[3200:6400] = 0.5
    part = spoken_part(clip, HOP)
    assert len(part) == 3200 + 2 * HOP
    np.testing.assert_array_equal(part[HOP:-HOP], 0.5)
    clip[:] = 0
    assert not len(spoken_part(clip, HOP))
    clip[:] = 0.5
    whole = spoken_part(clip, HOP)
    assert len(whole) == RATE
    assert 0 < whole[0] < 0.01 > whole[-1] > 0
    np.testing.assert_allclose(faded(np.ones(4, np.float32), 2), [0.25, 0.75, 0.75, 0.25])


def test_the_words_of_a_scene_stand_where_it_says_at_the_ratio_that_is_set():
    words = [(i, spoken_part(tone(name, i).astype(np.float32) / 2**15, HOP)) for i, name in enumerate(PITCH)]
    levels = []
    for seed in range(20):
        scene = acoustics().scene(np.random.default_rng(seed), [*words, None], 8 * RATE)
        assert [word.label for word in scene.words] == [0, 1, 2, 3]
        begins = [word.begin for word in scene.words]
        assert all(i * 1.6 * RATE <= begin < (i + 1) * 1.6 * RATE for i, begin in enumerate(begins))
        inside = np.zeros(8 * RATE, bool)
        for word, name in zip(scene.words, PITCH, strict=True):
            assert pitch_of(scene.samples[word.begin : word.end]) == name
            inside[word.begin : word.end] = True
        noise = np.square(scene.samples[~inside]).mean()
        for word in scene.words:
            power = np.square(scene.samples[word.begin + 2 * HOP : word.end - 2 * HOP]).mean() - noise
            assert 10 * np.log10(power / noise) == pytest.approx(12, abs=1.5)
        levels.append(10 * np.log10(noise) + 12)
    assert -51.5 < min(levels) < -40
    assert -25 < max(levels) < -13.5
    silent = acoustics(noisy=0.0).scene(np.random.default_rng(0), [None, words[0]], 4 * RATE)
    assert not silent.samples[: silent.words[0].begin].any()
    assert not acoustics(noisy=0.0).scene(np.random.default_rng(0), [], RATE).samples.any()


def test_a_word_is_the_target_from_its_middle_to_after_its_end():
    words = [Spoken(2, 10 * HOP, 20 * HOP - 5), Spoken(1, 60 * HOP, 64 * HOP)]
    target, background = step_targets(words, 70, 3, HOP, RATE)
    expected = np.full(70, 3)
    # 10 steps after the end, and then 5 steps to let go
    expected[14:30] = 2
    expected[30:35] = UNCOUNTED
    expected[62:70] = 1
    assert target.tolist() == expected.tolist()
    assert (~background).nonzero()[0].tolist() == [*range(10, 30), *range(60, 70)]


# training streams


def test_an_epoch_of_streams_has_every_word_once_and_marks_its_background(task):
    assert task.output == "all"
    assert task.classes == ("left", "right", "_unknown_", "_silence_")
    epoch = [task.train.batch(i, 4) for i in range(task.train.steps_per_epoch(4))]
    labels = []
    for batch in epoch:
        assert batch.x.shape == (150, batch.target.shape[1], HOP)
        assert batch.background.shape == batch.target.shape
        assert bool((batch.target[batch.background] != 0).all() & (batch.target[batch.background] != 1).all())
        for stream in batch.target.T:
            ends = [int(stream[t]) for t in range(150) if stream[t] in (0, 1, 2) and stream[t - 1] != stream[t]]
            labels += ends
    # 10 clips each of left and right in training, and half as many unknown ones
    assert [labels.count(i) for i in range(3)] == [10, 10, 10]
    again = task.train.batch(1, 4)
    assert torch.equal(epoch[1].x, again.x)
    assert not torch.equal(epoch[1].x, task.train.batch(1 + len(epoch), 4).x)


def test_clips_of_the_test_end_in_silence(task):
    batch = next(task.test.chunks())
    assert len(batch.x) == len(batch.background) == 60
    assert not batch.x[50:].any()
    assert batch.background[50:].all()


# the room


def test_a_room_has_words_for_the_share_of_its_time_and_only_noise_of_the_test(task):
    room = task._room
    (recording,) = room.recordings()
    assert len(recording.samples) == 180 * RATE
    spoken = sum(word.end - word.begin for word in recording.words)
    assert spoken / len(recording.samples) == pytest.approx(0.2, abs=0.01)
    assert {word.label for word in recording.words} == {0, 1, 2}
    for word in recording.words:
        name = pitch_of(recording.samples[word.begin : word.end])
        assert {"left": 0, "right": 1, "go": 2}[name] == word.label
    (again,) = room.recordings()
    np.testing.assert_array_equal(recording.samples, again.samples)
    train, test = task.train.acoustics.noise, room.acoustics.noise
    assert not {n[:50].tobytes() for n in train} & {n[:50].tobytes() for n in test}


def test_a_long_room_is_cut_into_recordings_of_one_length(task):
    room = Room(task.test, acoustics(), 0.2, 0.01)
    recordings = list(room.recordings())
    assert [len(recording.samples) for recording in recordings] == [360 * RATE] * 2
    assert not np.array_equal(recordings[0].samples, recordings[1].samples)


def test_a_room_of_silent_words_is_refused(task):
    task.test.samples[:] = 0
    with pytest.raises(EdgernnError, match="room: expected audible words in the test files, got only silent clips"):
        next(task._room.recordings())


def test_hits_misses_wrong_words_and_false_alarms():
    words = [Spoken(0, 100, 200), Spoken(1, 400, 500), Spoken(1, 600, 700), Spoken(0, 900, 1000)]
    times = [(50, 0), (150, 0), (180, 1), (551, 1), (620, 0), (990, 0), (2000, 1)]
    spotted = Spotted(hours=0.5)
    spotted.add(words, times, 50)
    # before the first word, twice in the first word, too late for the second, and at the end
    assert (spotted.hits, spotted.wrong, spotted.missed, spotted.false_alarms) == (2, 1, 1, 4)
    spotted.add([Spoken(0, 0, 10)], [(60, 0)], 50)
    assert (spotted.hits, spotted.words) == (3, 5)
    assert spotted.figures() == {"hits": 0.6, "wrong": 0.2, "missed": 0.2, "false_alarms_an_hour": 8}
    nothing = Spotted(hours=1.0)
    nothing.add([], [(5, 1)], 50)
    assert nothing.figures()["false_alarms_an_hour"] == 1


# settings and trainings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stream": 0.5}, r"stream: expected 0, or at least seconds=1, the length of a clip, got 0.5"),
        ({"stream": 3.0, "silence": 0.0}, "silence: expected a share above 0 with stream"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        OwnWords(**settings)


SETTINGS = {"hidden_size": 32, "steps": 200, "batch_size": 8, "lr": 0.01, "stream": 3.0, "room": 0.05, "talk": 0.2}


@pytest.mark.slow
def test_a_run_hears_a_room_and_its_file_detects_the_words(folder, tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    run = tmp_path / "run"
    trained = Trained(run, str(folder), snr_low=15.0, mask_channels=0, normalise="floor", **SETTINGS)
    result, series = trained.result, json.loads((run / "series.json").read_text())
    # one clip of each word
    assert result["accuracy_words"] > 0.6
    assert result["room_hours"] == pytest.approx(0.05)
    assert result["room_words"] > 10
    assert result["room_hits"] + result["room_wrong"] + result["room_missed"] == pytest.approx(1)
    assert result["room_hits"] > 0.7
    # a gru updates every neuron, 50 times a second
    assert (result["room_skip_percent"], result["room_updates_a_second"]) == (0, 32 * 50)
    assert result["room_macs_a_second"] == result["room_macs_a_second_dense"] == 50 * result["macs"]
    at = series["room_threshold"].index(0.5)
    assert series["room_hits"][at] == pytest.approx(result["room_hits"], rel=1e-4)
    detected = [a + b for a, b in zip(series["room_hits"], series["room_wrong"], strict=True)]
    assert detected[-1] < detected[0]
    assert (run / "detections.png").stat().st_size > 5000
    # the exported file on the first minute of the room
    assert main(["export", str(run)]) == 0
    capsys.readouterr()
    assert main(["run", str(run / "model.onnx"), "--stream", str(run / "room.wav"), "--json"]) == 0
    detections = json.loads(capsys.readouterr().out)["detections"]
    rows = list(csv.DictReader((run / "room.csv").read_text().splitlines()))
    assert len(read_wav(run / "room.wav", RATE)) == 60 * RATE
    spotted = Spotted(hours=1 / 60)
    classes = trained.config["task"]["classes"]
    spotted.add(
        [Spoken(classes.index(row["word"]), float(row["begin"]), float(row["end"])) for row in rows],
        [(word["seconds"], classes.index(word["word"])) for word in detections],
        0.5,
    )
    assert spotted.hits > 0.7 * spotted.words > 3


def test_a_model_that_needs_the_whole_sequence_is_refused(folder, tmp_path, capsys):
    words = ["--cell", "gru", "--out", str(tmp_path / "run"), "stream=3", "bidirectional=true"]
    assert main(["train", "--task", str(folder), *words]) == 2
    assert "stream: expected a model that runs step by step, got one that needs the whole" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_room_is_the_same_with_another_seed(folder):
    (one,), (two,) = (
        opened(OwnWords(words="left", stream=3.0, room=0.01), folder, seed)._room.recordings() for seed in (0, 1)
    )
    assert [word.begin for word in one.words] == [word.begin for word in two.words]


def test_a_rule_with_a_budget_trains_on_streams(folder, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    words = [f"{key}={value}" for key, value in (SETTINGS | {"steps": 6, "background": 4, "lambda": 0.01}).items()]
    run = ["--cell", "sarnn", "--out", str(tmp_path / "run"), "group_size=16"]
    assert main(["train", "--task", str(folder), *run, *words]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    skipped, quiet = result["room_skip_percent"], result["room_skip_percent_background"]
    assert 0 <= skipped <= 100
    assert 0 <= quiet <= 100
    assert result["room_updates_a_second"] == pytest.approx(32 * 50 * (1 - skipped / 100))
    assert result["room_macs_a_second"] <= result["room_macs_a_second_dense"]
