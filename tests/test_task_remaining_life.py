# SPDX-License-Identifier: Apache-2.0
"""The task remaining-life: windows, targets, metrics, errors, and a training."""

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError
from edgernn.training.tasks.remaining_life import RemainingLife
from tests.task_helpers import Trained, opened, parts
from tests.training_helpers import PACK, data_folder, without_pictures

LENGTHS, TESTED, LEFT = range(20, 40), (12, 15, 30), (40, 5, 150)


def engine(length, shown, seed):
    """Rows of an engine that fails after `length` cycles: the first sensor shows the wear of the last 30."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.05, (shown, 24)).round(4)
    x[:, 3] += np.maximum(np.arange(shown) - length, -30)
    x[:, 4] = 518.67
    return x


def engines():
    train = [engine(length, length, i) for i, length in enumerate(LENGTHS)]
    test = [engine(shown + left, shown, 50 + i) for i, (shown, left) in enumerate(zip(TESTED, LEFT, strict=True))]
    return train, test


def text(parts):
    # two spaces before the line break, as in the publisher's files
    rows = [f"{i} {t} {' '.join(map(str, row))}  " for i, x in enumerate(parts, 1) for t, row in enumerate(x, 1)]
    return "\n".join(rows) + "\n"


def write_engines(folder, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    train, test = engines()
    lives = "".join(f"{left} \n" for left in LEFT)
    for name, content in (("train", text(train)), ("test", text(test)), ("RUL", lives)):
        (folder / f"{name}_FD001.txt{suffix}").write_bytes(PACK[suffix](content.encode()))
    return folder


@pytest.mark.parametrize("suffix", PACK)
def test_sequences_are_the_windows_of_engines(tmp_path, suffix):
    write_engines(tmp_path / "cmapss-fd001", suffix)
    task = opened(RemainingLife(window=10, cap=25), tmp_path)
    train, test = engines()
    expected = {}
    for i, x in enumerate(train):
        for end in range(10, len(x) + 1):
            expected[x[end - 10 : end].astype(np.float32).tobytes()] = (i, len(x) - end)
    seen, numbers = [], []
    for part in parts(task)[:2]:
        keys = [x.numpy().tobytes() for x in part.x]
        for key, y in zip(keys, part.y, strict=True):
            assert y.item() == pytest.approx(expected[key][1] / 25)
        seen += keys
        numbers.append({expected[key][0] for key in keys})
    assert set(seen) == set(expected)
    assert len(seen) == len(expected)
    assert len(numbers[1]) == 2
    assert not numbers[0] & numbers[1]
    assert np.allclose(task.test.x.numpy(), np.stack([x[-10:] for x in test]), atol=1e-5)
    assert task.test.y.flatten().tolist() == pytest.approx([left / 25 for left in LEFT])
    # a constant channel is not divided by its deviation
    assert task.std[4] == 1


def test_errors_are_in_cycles(tmp_path):
    task = opened(RemainingLife(window=10, cap=25), write_engines(tmp_path))
    (batch,) = task.test.chunks()
    y = torch.tensor([[0.8], [0.4], [1.2]])
    tally = task.tally(task.test)
    tally.add(y, batch)
    figures = tally.result()
    # 20, 10 and 30 cycles; the truth is 40, 5 and 150
    assert figures["rmse"] == pytest.approx(((20 - 25) ** 2 + 5**2 + 5**2) ** 0.5 / 3**0.5)
    assert figures["rmse_uncapped"] == pytest.approx((20**2 + 5**2 + 120**2) ** 0.5 / 3**0.5)
    loss = task.objective.loss(y, batch.target).item()
    assert loss * 25**2 == pytest.approx(figures["rmse"] ** 2, rel=1e-6)
    assert task.objective.better(14.0, 15.0)


def edit(path, old, new):
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    return path


ERRORS = {
    "NaN": ("train", "518.67", "nan", "line 1: expected numbers in 26 columns, got '1 1 "),
    "word": ("test", "518.67", "hot", "line 1: expected numbers in 26 columns, got '1 1 "),
    "short line": ("train", " 518.67", "", "line 1: expected numbers in 26 columns, got '1 1 .*; get the file again"),
    "cycle": ("train", "\n1 2 ", "\n1 3 ", "engines and their cycles numbered from 1, got other numbers at engine 1"),
    "engine": (
        "train",
        "\n2 1 ",
        "\n3 1 ",
        "expected engines and their cycles numbered from 1, got other numbers at engine 2",
    ),
    "missing life": ("RUL", "40 \n", "", "expected a line for each of 3 test engines, got 2"),
    "negative life": ("RUL", "40 \n", "-4 \n", "expected remaining lives of at least 0, got -4; get the file again"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_bad_files(tmp_path, kind):
    part, old, new, message = ERRORS[kind]
    path = edit(write_engines(tmp_path) / f"{part}_FD001.txt", old, new)
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(RemainingLife(window=10), tmp_path)
    assert str(caught.value).startswith(str(path))


def test_other_bad_input(tmp_path):
    write_engines(tmp_path)
    with pytest.raises(EdgernnError, match=r"test_FD001.txt: expected at least window=13 cycles per engine, got 12 of"):
        opened(RemainingLife(window=13), tmp_path)
    (tmp_path / "train_FD001.txt").write_text("")
    with pytest.raises(EdgernnError, match="expected lines of numbers, got none; get the file again"):
        opened(RemainingLife(window=10), tmp_path)


def test_wear_is_learnt(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    write_engines(tmp_path / "data")
    settings = {"window": 10, "cap": 25, "steps": 300, "lr": 0.01, "batch_size": 50, "hidden_size": 16}
    trained = Trained(tmp_path / "run", "remaining-life", tmp_path / "data", **settings)
    task = opened(RemainingLife(window=10, cap=25), tmp_path / "data")
    y = 25 * trained.outputs(task.test.x)[:, 0]
    truth = np.minimum(LEFT, 25)
    assert trained.result["rmse"] == pytest.approx(np.sqrt(np.mean((y - truth) ** 2)), rel=1e-4)
    assert trained.result["rmse"] < 4


def fd001():
    folder = data_folder()
    return folder is not None and any((folder / "cmapss-fd001").glob("train_FD001.txt*"))


@pytest.mark.skipif(not fd001(), reason="EDGERNN_DATA has no cmapss-fd001/train_FD001.txt")
def test_cmapss_fd001():
    task = opened(RemainingLife(), data_folder())
    assert len(task.train) + len(task.validation) == 20_631 - 100 * 29
    assert len(task.test) == 100
    assert (task.test.y.min() * 125).round() == 7
    assert (task.test.y.max() * 125).round() == 145
