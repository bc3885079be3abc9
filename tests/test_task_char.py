# SPDX-License-Identifier: Apache-2.0
"""The task of predicting the next character of a text."""

import math

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.settings import bind, fields_of
from edgernn.training.tasks.char import Char
from tests.task_helpers import Trained, opened
from tests.training_helpers import PACK, data_folder

pytestmark = pytest.mark.usefixtures("no_pictures")

# 1000 characters from "a" to "u"
TEXT = "".join(chr(97 + place * place * 7 % 1009 % 21) for place in range(1000))


def write(path, text=TEXT, suffix=""):
    path = path.with_name(path.name + suffix)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(PACK[suffix](text.encode()))
    return path


def make_task(tmp_path, text=TEXT, **settings):
    return opened(Char(file=str(write(tmp_path / "mine.txt", text)), **settings))


def read_back(task, part):
    """Return the text of each sequence and of its targets."""
    x, y = (torch.cat(parts, 1) for parts in zip(*[(b.x, b.target) for b in part.chunks()], strict=True))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert (x.sum(-1) == 1).all()
    texts = [["".join(task.classes[i] for i in row) for row in number.T] for number in (x.argmax(-1), y)]
    return list(zip(*texts, strict=True))


# inputs


@pytest.mark.parametrize("folder", ["", "tinyshakespeare"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_tiny_shakespeare_is_found_in_the_data_folder(tmp_path, folder, suffix, monkeypatch):
    write(tmp_path / folder / "input.txt", suffix=suffix)
    monkeypatch.setenv("EDGERNN_DATA", str(tmp_path))
    assert opened(Char(window=8)).classes == tuple("abcdefghijklmnopqrstu")


def test_a_file_of_the_user_goes_before_the_data_folder(tmp_path):
    write(tmp_path / "input.txt", "x" * 1000)
    assert opened(Char(file=str(write(tmp_path / "mine.txt")), window=8), tmp_path).input_size == 21


@pytest.mark.parametrize("window", [1, 8, 32, 49])
def test_each_part_is_cut_into_windows_with_the_next_characters(tmp_path, window):
    task = make_task(tmp_path, window=window)
    parts = {"train": TEXT[:850], "validation": TEXT[850:900], "test": TEXT[900:]}
    for name, text in parts.items():
        starts = range(0, len(text) - window, window)
        expected = [(text[i : i + window], text[i + 1 : i + window + 1]) for i in starts]
        assert read_back(task, getattr(task, name)) == expected
        assert len(expected[-1][1]) == window


def test_the_whole_set_is_never_one_hot(tmp_path):
    task = make_task(tmp_path, window=16)
    assert task.train.x.dtype == torch.uint8
    assert task.train.x.shape == (53, 16)
    batch = task.train.batch(0, 5)
    assert batch.x.shape == (16, 5, 21)
    assert batch.x.dtype == torch.float32
    assert batch.target.shape == (16, 5)


def test_training_windows_are_shuffled_by_the_seed(tmp_path):
    path = str(write(tmp_path / "mine.txt"))
    one, same, other = (opened(Char(file=path, window=16), seed=seed).train.batch(0, 53) for seed in (0, 0, 1))
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)


# the alphabet


def test_alphabet_is_that_of_the_training_part_in_order(tmp_path):
    task = make_task(tmp_path, "zéa\n中" * 200, window=4)
    assert task.classes == ("\n", "a", "z", "é", "中")
    assert task.input_size == task.output_size == 5


@pytest.mark.parametrize("start", ["", "\ufffd"])
def test_characters_of_the_held_out_parts_alone_are_unknown(tmp_path, start):
    text = (start + TEXT)[:899] + "!" + TEXT[900:950] + "?" + TEXT[951:]
    task = make_task(tmp_path, text, window=1)
    assert task.classes == (*"abcdefghijklmnopqrstu", "\ufffd")
    assert "".join(x for x, _ in read_back(task, task.test)) == text[900:-1].replace("?", "\ufffd")
    assert read_back(task, task.validation)[-1][1] == "\ufffd"


def test_a_large_alphabet_is_told_apart(tmp_path):
    text = "".join(chr(0x4E00 + i % 700) for i in range(4000)) + "\U0001f600" * 6
    task = make_task(tmp_path, text, window=10)
    assert len(task.classes) == 701
    assert read_back(task, task.train)[40] == (text[400:410], text[401:411])


def test_alphabet_is_kept_with_the_run(tmp_path):
    run = Trained(tmp_path / "run", "char", file=write(tmp_path / "mine.txt"), window=8, steps=1)
    assert run.config["task"]["classes"] == list("abcdefghijklmnopqrstu")


def test_a_changed_text_has_another_fingerprint(tmp_path):
    one = make_task(tmp_path, window=8).fingerprint
    assert one == make_task(tmp_path, window=9).fingerprint
    assert (
        one != make_task(tmp_path, TEXT[:-1] + "a" * (TEXT[-1] != "a") + "b" * (TEXT[-1] == "a"), window=8).fingerprint
    )


# metrics


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_char_trains_and_its_metrics_are_those_of_numpy(tmp_path, packed):
    file = write(tmp_path / "mine.txt", suffix=packed)
    run = Trained(tmp_path / "run", "char", file=file, window=9, steps=60, hidden_size=16, lr=1e-2, eval_every=20)
    test = TEXT[900:]
    numbers = np.array([ord(character) - 97 for character in test])
    # 11 windows of 9 of 100 characters
    x = np.eye(21, dtype=np.float32)[numbers[:99].reshape(11, 9)]
    y, target = run.outputs(x), numbers[1:100].reshape(11, 9)
    p = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
    nats = -np.log(np.take_along_axis(p, target[..., None], -1)).mean()
    assert run.result["metric"] == "cross_entropy"
    assert run.result["cross_entropy"] == pytest.approx(nats, rel=1e-5)
    assert run.result["bits_per_character"] == pytest.approx(nats / math.log(2), rel=1e-5)
    assert run.result["accuracy"] == pytest.approx((y.argmax(-1) == target).mean(), abs=1e-12)
    assert run.losses[-1] < run.losses[0] < 1.2 * math.log(21)


def test_an_even_guess_costs_the_logarithm_of_the_alphabet():
    metrics = Char.objective.metrics(torch.zeros(5, 3, 8), torch.arange(15).view(5, 3) % 8)
    assert metrics["cross_entropy"].item() == pytest.approx(math.log(8))
    assert metrics["bits_per_character"].item() == pytest.approx(3)
    assert Char.objective.better(1.1, 1.2)


# errors


def test_a_window_needs_a_step():
    with pytest.raises(UsageError, match="window: expected a whole number of at least 1, got '0'"):
        bind({"window": "0"}, task=fields_of(Char))


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(EdgernnError, match=r"file: no such file: .*nowhere\.txt"):
        opened(Char(file=str(tmp_path / "nowhere.txt")))
    with pytest.raises(EdgernnError, match="file: no such file"):
        opened(Char(file=str(tmp_path)))
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    monkeypatch.setattr("edgernn.training.datasets.find.cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(EdgernnError, match=r"char needs input\.txt"):
        opened(Char())


@pytest.mark.parametrize("length", [0, 1, 179])
def test_a_short_text_is_named(tmp_path, length):
    with pytest.raises(EdgernnError, match=rf"mine.txt: expected at least 180 characters for window=8, got {length}"):
        make_task(tmp_path, TEXT[:length], window=8)


def test_the_shortest_text_has_a_window_in_each_part(tmp_path):
    task = make_task(tmp_path, TEXT[:180], window=8)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [19, 1, 2]


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(b"abc\xff" * 400)
    with pytest.raises(EdgernnError, match=r"mine.txt: expected text in UTF-8, got 0xff at byte 3"):
        opened(Char(file=str(path)))


# the real text


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set: no tiny-shakespeare")
def test_real_tiny_shakespeare():
    task = opened(Char())
    assert len(task.classes) == 65
    assert "".join(task.classes[:13]) == "\n !$&',-.3:;?"
    # 1,115,394 characters: 948,086 for training, 55,769 for validation, 111,539 for test, in windows of 64
    assert [len(part) for part in (task.train, task.validation, task.test)] == [14_813, 871, 1742]
    first = "".join(task.classes[i] for i in task.train.x[0].tolist())
    assert first.startswith("First Citizen:\nBefore we proceed any further, hear me speak.")
