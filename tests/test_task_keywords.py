# SPDX-License-Identifier: Apache-2.0
"""The tasks of recorded words: layouts, features, noise, background, errors, and a training."""

import json
import shutil

import numpy as np
import pytest
import torch

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.training import find_task
from edgernn.training.plan import choose
from edgernn.training.tasks.keywords import Keywords, OwnWords
from edgernn.training.tasks.mixing import background_clips, mixed, noise_clips, quiet_frames, shifted
from edgernn.training.tasks.parts import Folds
from edgernn.training.tasks.recordings import PARTS, noise_parts, word_files
from edgernn.training.tasks.tables import Tables
from tests.broken_wavs import BROKEN, broken_wav
from tests.task_helpers import Trained, opened, parts
from tests.training_helpers import data_folder, without_pictures
from tests.words import (
    RATE,
    tone,
    write_arabic,
    write_english,
    write_english_test_set,
    write_noise,
    write_own,
    write_wav,
)


@pytest.fixture
def english(tmp_path):
    write_english(tmp_path / "speech-commands")
    return opened(Keywords(corpus="speech-commands"), tmp_path)


def names_of(files):
    return {part: sorted(f"{file.word}/{file.path.name}" for file in members) for part, members in files.items()}


# layouts


def test_lists_of_speech_commands_decide_the_parts(tmp_path):
    files = names_of(word_files(write_english(tmp_path), 0, RATE))
    for part, table in (("validation", "validation_list.txt"), ("test", "testing_list.txt")):
        assert files[part] == sorted((tmp_path / table).read_text().split())
    assert len(files["train"]) == 3 * 6
    assert len({name for members in files.values() for name in members}) == 3 * 8


def test_tables_of_the_arabic_set_decide_the_parts(tmp_path):
    files = names_of(word_files(write_arabic(tmp_path), 0, RATE))
    assert [len(files[part]) for part in PARTS] == [8, 2, 2]
    assert files["test"] == ["left/00000200_NO_01.wav", "right/00000200_NO_01.wav"]
    task = opened(Keywords(), tmp_path)
    assert task.classes == ("left", "right", "_silence_")


def test_the_test_set_of_speech_commands_is_split_by_speaker(tmp_path):
    folder = tmp_path / "speech-commands-test"
    write_english_test_set(folder)
    task = opened(Keywords(corpus="speech-commands-test", silence=0.0), tmp_path)
    assert task.classes == ("no", "yes", "_unknown_", "_silence_")
    assert [len(files) for files in names_of(word_files(folder, 0, RATE)).values()] == [32, 4, 4]
    (folder / "_silence_").rename(folder / "silence")
    with pytest.raises(EdgernnError, match="_silence_"):
        opened(Keywords(corpus="speech-commands-test"), tmp_path)


def test_no_speaker_is_in_two_parts(tmp_path):
    for word in ("left", "right"):
        for speaker in range(30):
            write_wav(tmp_path / word / f"{speaker:08x}_nohash_1.wav", tone(word, speaker))
    files = word_files(tmp_path, 0, RATE)
    speakers = [{file.path.name.partition("_")[0] for file in files[part]} for part in PARTS]
    assert [len(s) for s in speakers] == [24, 3, 3]
    assert len(set.union(*speakers)) == 30
    assert names_of(files) != names_of(word_files(tmp_path, 1, RATE))


def test_a_folder_of_the_user_is_split_by_class(tmp_path):
    files = word_files(write_own(tmp_path, count=20), 0, RATE)
    for part, count in zip(PARTS, (16, 2, 2), strict=True):
        assert [file.word for file in files[part]].count("left") == count
        assert [file.word for file in files[part]].count("right") == count
    assert find_task(str(tmp_path)) == (OwnWords, tmp_path)
    assert find_task(str(tmp_path / "left")) == (OwnWords, tmp_path / "left")
    (tmp_path / "csv").mkdir()
    assert find_task(str(tmp_path / "csv"))[0] is Tables


def test_each_file_is_tested_in_one_fold(tmp_path):
    write_own(tmp_path, count=10)
    folds = [names_of(word_files(tmp_path, seed, RATE, Folds(5))) for seed in range(5)]
    tests = [fold["test"] for fold in folds]
    assert sorted(name for names in tests for name in names) == sorted(
        name for part in folds[0].values() for name in part
    )
    for fold in folds:
        assert [len(fold[part]) for part in PARTS] == [14, 2, 4]
        assert [name.partition("/")[0] for name in fold["test"]] == ["left", "left", "right", "right"]
    with pytest.raises(EdgernnError, match=r"class 'left' in the test part of the data, got none; add files or lower"):
        word_files(tmp_path, 10, RATE, Folds(11))
    with pytest.raises(UsageError, match="split_by, folds: expected neither"):
        word_files(write_english(tmp_path / "lists"), 0, RATE, Folds(3))


def test_other_words_are_unknown(tmp_path):
    write_english(tmp_path, words=("left", "right", "stop", "go"))
    task = opened(OwnWords(words="stop,left", unknown=0.5, silence=0.25), tmp_path)
    assert task.classes == ("stop", "left", "_unknown_", "_silence_")
    # 12 clips of words in training, 2 in the test
    for part, words, unknown, silence in ((task.train, 12, 6, 3), (task.test, 2, 1, 1)):
        batches = [part.batch(i, 8) for i in range(part.steps_per_epoch(8))]
        labels = torch.cat([batch.target for batch in batches]).tolist()
        assert [labels.count(i) for i in range(4)] == [words / 2, words / 2, unknown, silence]
        assert len(part) == len(labels)
    with pytest.raises(UsageError, match=r"words: expected names of folders in .*, got 'up'; the folders are go, left"):
        opened(OwnWords(words="left,up"), tmp_path)
    with pytest.raises(UsageError, match="words: expected each word once, got 'left,left'"):
        opened(OwnWords(words="left,left"), tmp_path)


def test_folders_of_unknown_words_and_silence_have_their_class(tmp_path):
    write_own(tmp_path, words=("left", "right"))
    for name in ("_unknown_", "_silence_"):
        for i in range(10):
            write_wav(tmp_path / name / f"{i}.wav", tone("go", i) if name == "_unknown_" else np.arange(RATE) % (9 + i))
    task = opened(OwnWords(silence=0), tmp_path)
    assert task.classes == ("left", "right", "_unknown_", "_silence_")
    (batch,) = task.test.chunks()
    assert sorted(batch.target.tolist()) == [0, 1, 2, 3]
    assert batch.background[:, batch.target == 3].all()
    assert not batch.background[:, batch.target != 3].all(0).any()


# noise and changes


def test_noise_of_the_test_is_in_no_other_part(tmp_path):
    write_noise(tmp_path, names=("a", "b", "c", "d"))
    noise = noise_parts(tmp_path, RATE, RATE)
    assert {part: [len(n) for n in members] for part, members in noise.items()} == {
        "train": [4.8 * RATE] * 3,
        "validation": [1.2 * RATE] * 3,
        "test": [6 * RATE],
    }
    pieces = [{n[i : i + 50].tobytes() for n in members for i in range(len(n) - 50)} for members in noise.values()]
    assert len(set.union(*pieces)) == sum(map(len, pieces))


def test_few_recordings_of_noise_are_cut_and_none_is_generated(tmp_path):
    write_noise(tmp_path, names=("a",))
    assert [len(n) for (n,) in noise_parts(tmp_path, RATE, RATE).values()] == [3.6 * RATE, 1.2 * RATE, 1.2 * RATE]
    generated = noise_parts(None, RATE, RATE)
    assert not np.array_equal(generated["train"][0], generated["test"][0])
    for noise in generated.values():
        # brown noise has its energy at low frequencies
        low = [np.square(np.diff(n)).mean() / np.square(n).mean() for n in noise]
        assert low[0] > low[1] > low[2]
    with pytest.raises(EdgernnError, match=r"a\.wav: expected at least 10 s of noise, got 6 s; record more"):
        noise_parts(tmp_path, 2 * RATE, RATE)
    with pytest.raises(EdgernnError, match="noise_folder: expected a folder with wav files of noise, got none in"):
        noise_parts(tmp_path / "none", RATE, RATE)


def test_signal_to_noise_ratio_is_the_one_that_is_set():
    rng = np.random.default_rng(0)
    clips = np.stack([tone("left", i) for i in range(20)]).astype(np.float32) / 2**15
    noise = [rng.normal(0, 0.3, 10 * RATE).astype(np.float32)]
    added = mixed(clips, noise, rng, 320, 1.0, 12.0, 12.0) - clips
    for clip, extra in zip(clips, added, strict=True):
        loud = clip.reshape(50, 320)[~quiet_frames(clip[None], 320)[0]]
        ratio = 10 * np.log10(np.square(loud).mean() / np.square(extra).mean())
        assert ratio == pytest.approx(12, abs=0.01)
    assert np.array_equal(mixed(clips, noise, rng, 320, 0.0, 12.0, 12.0), clips)
    share = [(m != c).any() for m, c in zip(mixed(clips, noise, rng, 320, 0.5, 0, 9), clips, strict=True)]
    assert 2 <= sum(share) <= 18


def test_clips_without_a_word_have_all_levels():
    rng = np.random.default_rng(0)
    clips = background_clips([rng.normal(0, 1, 10 * RATE).astype(np.float32)], rng, 300, 1600)
    power = np.square(clips).mean(1)
    assert 10 <= (power == 0).sum() <= 60
    level = 10 * np.log10(power[power > 0])
    assert -70.1 < level.min() < -60
    assert -20 < level.max() < -9.9
    assert not noise_clips([np.zeros(RATE, np.float32)], rng, 1, 1600).any()


def test_quiet_frames_are_those_without_the_tone():
    clip = np.zeros((1, 3200), np.float32)
    clip[0, 960:1920] = 0.5
    clip[0, 2240:2560] = 0.01
    assert quiet_frames(clip, 320).tolist() == [[True, True, True, False, False, False, True, True, True, True]]
    assert quiet_frames(np.zeros((1, 640), np.float32), 320).all()


def test_shift():
    rng = np.random.default_rng(0)
    clips = np.tile(np.arange(1, 101, dtype=np.float32), (200, 1))
    moved = shifted(clips, rng, 5)
    begins = {int(row[50] - 51) for row in moved}
    assert begins == set(range(-5, 6))
    assert all(row[0] == 0 for row in moved if row[50] < 51)
    for row in moved:
        count = int(row[50] - 51)
        np.testing.assert_array_equal(row, np.pad(clips[0], 5)[5 + count : 105 + count])
    # shifted by more than its length, a clip is all zeros
    far = shifted(clips[:, :2], rng, 100)
    assert (0, 0) in {tuple(row) for row in far}
    assert {tuple(row) for row in far} <= {(0, 0), (0, 1), (2, 0), (1, 2)}


def test_a_short_recording_of_noise_is_repeated():
    stretch = noise_clips([np.array([1, -1, 3], np.float32)], np.random.default_rng(0), 1, 8)[0]
    np.testing.assert_allclose(stretch / stretch[0], [1, -1, 3, 1, -1, 3, 1, -1], rtol=1e-6)
    assert np.square(stretch).mean() == pytest.approx(1)


def test_training_batches_change_and_those_of_the_test_do_not(english):
    first, again, later = english.train.batch(0, 4), english.train.batch(0, 4), english.train.batch(5, 4)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, later.x)
    for part in parts(english)[1:]:
        one, two = next(part.chunks()), next(part.chunks())
        assert torch.equal(one.x, two.x)
    test = next(english.test.chunks())
    clean = np.stack([tone(word, 10 + i) for i, word in enumerate(("left", "right", "stop"))]) / 2**15
    # steps of 20 ms
    assert test.x.shape == (50, 4, 320)
    np.testing.assert_array_equal(test.x[:, :3].transpose(0, 1).reshape(3, RATE).numpy(), clean.astype(np.float32))
    assert english.train.fingerprint != english.test.fingerprint


def test_background_is_silence_and_the_quiet_frames_of_words(english):
    assert english.marks_background
    for part in parts(english):
        batch = next(part.chunks()) if part is not english.train else part.batch(0, 20)
        silence = batch.target == english.classes.index("_silence_")
        marks = english.background(batch)
        assert marks.shape == batch.x.shape[:2]
        assert marks[:, silence].all()
        # a tone is 0.4 s long: 20 or 21 frames of 50
        assert set((~marks[:, ~silence]).sum(0).tolist()) <= {20, 21}
    half = batch.part(1, 2)
    assert torch.equal(half.background, batch.background[:, 1::2])


def test_files_of_other_lengths(tmp_path):
    write_own(tmp_path, words=("left", "right"), count=3)
    for i in range(3):
        write_wav(tmp_path / f"left/{i}.wav", tone("left", i, 0.5))
        write_wav(tmp_path / f"right/{i}.wav", np.concatenate([np.zeros(RATE), tone("right", i), np.zeros(RATE)]))
    with pytest.warns(EdgernnWarning, match=r"3 of 6 sounds are longer than a clip, such as right/\d\.wav with 3 s:"):
        task = opened(OwnWords(silence=0), tmp_path)
    for clip, label in zip(task.train.samples, task.train.label, strict=True):
        assert clip[4 * RATE // 5 :].any() == (label == 1) or label == 1
        assert np.count_nonzero(clip) > (0.15 if label == 0 else 0.35) * RATE


def test_copies_in_two_parts_or_of_two_words_are_named(tmp_path):
    write_own(tmp_path, words=("left", "right"), count=20)
    shutil.copy(tmp_path / "left/3.wav", tmp_path / "right/copy.wav")
    with pytest.warns(EdgernnWarning, match=r"the same sound in left/3\.wav \(\w+\) and right/copy\.wav \("):
        opened(OwnWords(), tmp_path)
    (tmp_path / "right/copy.wav").unlink()
    for i in range(10):
        shutil.copy(tmp_path / "left/3.wav", tmp_path / f"left/copy-{i}.wav")
    with pytest.warns(EdgernnWarning, match=r"the same sound in left/.* \(train\) and left/.* \((validation|test)\)"):
        opened(OwnWords(stream=3.0), tmp_path)


# errors: one sentence each


@pytest.mark.parametrize("kind", BROKEN)
def test_bad_files(tmp_path, kind):
    path = write_own(tmp_path / "words") / "left" / "0.wav"
    broken_wav(kind, path)
    with pytest.raises(EdgernnError) as caught:
        opened(OwnWords(), tmp_path / "words")
    assert str(caught.value).startswith(f"{path}: ")
    assert BROKEN[kind] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_folders(tmp_path):
    (tmp_path / "down").mkdir()
    with pytest.raises(EdgernnError, match=r"down: expected wav files of the class 'down', got none; add files, or"):
        opened(OwnWords(), write_own(tmp_path, words=("left", "right")))
    shutil.rmtree(tmp_path / "down")
    shutil.rmtree(tmp_path / "right")
    write_own(tmp_path, words=("left",))
    with pytest.raises(EdgernnError, match="for each of at least 2 classes, got only 'left'; add another class"):
        opened(OwnWords(), tmp_path)
    write_wav(tmp_path / "right/0.wav", tone("right"))
    with pytest.raises(EdgernnError, match=r"right: expected at least 3 wav files of the class 'right', got 1; record"):
        opened(OwnWords(), tmp_path)
    with pytest.raises(EdgernnError, match="got none, and 10 wav files in the folder itself; move each"):
        opened(OwnWords(), tmp_path / "left")
    english = write_english(tmp_path / "english")
    (english / "testing_list.txt").write_text("left/00000001_nohash_0.wav\n")
    with pytest.raises(EdgernnError, match=r"right: expected wav files of the class 'right' in the test part"):
        opened(OwnWords(), english)
    (english / "testing_list.txt").write_text("left/00000000_nohash_0.wav\n")
    with pytest.raises(
        EdgernnError,
        match=r"got file left/00000000_nohash_0\.wav in .*validation_list\.txt, too; remove one of the two",
    ):
        opened(OwnWords(), english)
    (english / "testing_list.txt").write_text("left/none.wav\nleft/neither.wav\n")
    with pytest.raises(
        EdgernnError, match=r"testing_list.txt: expected a list of files that exist, got 'left/none.wav' \(2 missing"
    ):
        opened(OwnWords(), english)


def test_sounds_of_another_format_are_refused_with_a_remedy(tmp_path):
    own = write_own(tmp_path / "own")
    (own / "right/new.FLAC").touch()
    with pytest.raises(EdgernnError) as caught:
        opened(OwnWords(), own)
    remedy = "convert it with ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le NEW.wav"
    assert str(caught.value) == f"{own}/right/new.FLAC: expected wav files alone, got .FLAC; {remedy}"
    write_wav(own / "right/new.wav", tone("right"))
    opened(OwnWords(), own)
    # a folder without wav files is one of words, too, unless it has csv files
    (tmp_path / "flac/left").mkdir(parents=True)
    (tmp_path / "flac/left/0.flac").touch()
    assert find_task(str(tmp_path / "flac"))[0] is OwnWords
    with pytest.raises(EdgernnError, match=r"0\.flac: expected wav files alone, got \.flac; convert it with ffmpeg"):
        opened(OwnWords(), tmp_path / "flac")
    (tmp_path / "flac/left/0.csv").touch()
    assert find_task(str(tmp_path / "flac"))[0] is Tables
    noise = tmp_path / "noise"
    noise.mkdir()
    (noise / "a.mp3").touch()
    with pytest.raises(EdgernnError, match=r"a\.mp3: expected wav files alone, got \.mp3; convert it with ffmpeg"):
        noise_parts(noise, RATE, RATE)


def test_names_in_capitals_are_read(tmp_path):
    own = write_own(tmp_path)
    for path in own.glob("*/*.wav"):
        path.rename(path.with_suffix(".WAV"))
    assert find_task(str(own))[0] is OwnWords
    assert len(opened(OwnWords(silence=0), own).test.label) >= 2


def test_dot_files_are_no_recordings_and_others_are_named(tmp_path):
    own = write_own(tmp_path)
    count = sum(len(part) for part in word_files(own, 0, RATE).values())
    word = next(path.parent for path in own.glob("*/*.wav"))
    (word / "._0.wav").write_bytes(b"\0\5\x16\7")
    shutil.copy(next(word.glob("[!.]*.wav")), word / ".hidden.wav")
    opened(OwnWords(), own)
    (word / "more").mkdir()
    for path in (word / "more" / "1.wav", own / "2.wav", word / "notes.txt"):
        path.touch()
    with pytest.warns(
        EdgernnWarning, match=f"not read: 2.wav, {word.name}/more/1.wav, {word.name}/notes.txt; only .wav"
    ):
        opened(OwnWords(), own)
    assert sum(len(part) for part in word_files(own, 0, RATE).values()) == count


def test_bad_settings(tmp_path):
    with pytest.raises(UsageError, match="frontend: expected logmel, as the recordings are raw audio, got a model"):
        choose("keywords", "gru", None, {"frontend": "none"})
    with pytest.raises(UsageError, match="snr_low: expected at most snr_high=10, got 20"):
        Keywords(snr_low=20, snr_high=10)
    with pytest.raises(UsageError, match=r"corpus: expected one of .*, speech-commands-test, got 'german'"):
        Keywords(corpus="german")
    with pytest.raises(EdgernnError, match=r"keywords: no dataset/ .* in "):
        opened(Keywords(), tmp_path)


def test_an_error_leaves_no_run_behind(tmp_path, capsys):
    write_own(tmp_path / "words", words=("left",))
    assert main(["train", "--task", str(tmp_path / "words"), "--cell", "gru", "--out", str(tmp_path / "run")]) == 1
    assert "add another class" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# training


def test_tones_are_learnt(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    write_own(tmp_path / "words", words=("left", "right", "go"), count=12)
    write_noise(tmp_path / "words/_background_noise_")
    settings = {"hidden_size": 32, "steps": 150, "batch_size": 16, "lr": 0.01, "mask_channels": 0}
    trained = Trained(tmp_path / "run", str(tmp_path / "words"), **settings)
    assert trained.result["accuracy_words"] == 1
    assert trained.config["task"]["classes"] == ["go", "left", "right", "_silence_"]
    series = json.loads((tmp_path / "run/series.json").read_text())
    task = opened(OwnWords(), tmp_path / "words")
    (batch,) = task.test.chunks()
    predicted = trained.outputs(batch.x.transpose(0, 1)).argmax(-1)
    assert trained.result["accuracy"] == pytest.approx(np.mean(predicted == batch.target.numpy()))
    right = predicted == batch.target.numpy()
    assert series["recall"] == pytest.approx([right[batch.target.numpy() == i].mean() for i in range(4)])


def test_background_weighs_in_the_budget(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    write_own(tmp_path / "words")
    words = ["hidden_size=8", "steps=4", "batch_size=10", "background=4", "lambda=0.01"]
    run = ["--cell", "sarnn", "--out", str(tmp_path / "run")]
    assert main(["train", "--task", str(tmp_path / "words"), *run, *words]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert 0 <= result["skip_percent_foreground"] <= 100


def arabic_words():
    folder = data_folder()
    return folder is not None and (folder / "arabic-speech-commands" / "dataset").is_dir()


@pytest.mark.skipif(not arabic_words(), reason="EDGERNN_DATA has no arabic-speech-commands/dataset")
def test_arabic_speech_commands():
    task = opened(Keywords(), data_folder())
    assert len(task.classes) == 41
    assert [int((part.label < 40).sum()) for part in parts(task)] == [7200, 2400, 2400]
    assert [np.unique(part.label, return_counts=True)[1].tolist() for part in parts(task)] == [
        [180] * 40,
        [60] * 40,
        [60] * 40,
    ]
