# SPDX-License-Identifier: Apache-2.0
"""The task activity: windows, users, labels, background, errors, and a training."""

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.tasks.activity import Activity
from edgernn.training.tasks.confusion import Confusion, masked_cross_entropy
from edgernn.training.tasks.sources import Batch
from edgernn.training.tasks.windows import UNCOUNTED, cut, windows_of
from tests.task_helpers import Trained, opened, parts
from tests.training_helpers import data_folder, without_pictures

TRAIN, TEST = [1, 3, 5, 6], [2, 4]


def streams(seed=0):
    """Streams of 200 to 260 steps, two per user, in which each label has a level of its own."""
    rng = np.random.default_rng(seed)
    label, offset, exp_user, x = [], [0], [], []
    for experiment, user in enumerate(sorted([*TRAIN, *TEST] * 2), 1):
        labels = np.repeat([0, *rng.permutation(np.arange(1, 7)), 9], rng.integers(25, 33, 8))
        x.append(np.eye(13)[labels][:, 1:7] + rng.normal(0, 0.1, (len(labels), 6)))
        label.append(labels)
        offset.append(offset[-1] + len(labels))
        exp_user.append((experiment, user))
    return {
        "x": np.concatenate(x).astype(np.float32),
        "label": np.concatenate(label).astype(np.uint8),
        "offset": np.array(offset),
        "exp_user": np.array(exp_user),
        "train_users": np.array(TRAIN),
        "test_users": np.array(TEST),
    }


def write_activity(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "hapt.npz", **{**streams(), **changes})
    return folder / "hapt.npz"


@pytest.mark.parametrize("lead", [0, 3, 9])
@pytest.mark.parametrize("length", [10, 11, 19, 20, 57])
def test_windows_count_every_step_once(length, lead):
    counted = np.zeros(length, int)
    for i, (begin, first) in enumerate(cut(length, 10, lead)):
        assert 0 <= begin <= length - 10
        counted[first : begin + 10] += 1
        assert first == 0 if i == 0 else first - begin >= lead
    assert (counted == 1).all()
    quiet = np.arange(length) % 3 == 0
    x, target, background = windows_of(np.arange(length)[:, None], np.arange(length), quiet, 10, lead)
    # marks are those of the steps, also in a lead-in
    assert (background == (x[..., 0] % 3 == 0)).all()
    assert target[target != UNCOUNTED].tolist() == list(range(length))
    assert (x[..., 0][target != UNCOUNTED] == target[target != UNCOUNTED]).all()


def test_parts_have_users_of_their_own_and_every_labelled_step(tmp_path):
    data = streams()
    write_activity(tmp_path)
    task = opened(Activity(window=50, lead=10), tmp_path)
    stream = np.searchsorted(data["offset"], np.arange(len(data["x"])), side="right") - 1
    user = data["exp_user"][stream, 1]
    place = {row.tobytes(): i for i, row in enumerate(data["x"])}
    seen = []
    for part in parts(task):
        counted = part.y != UNCOUNTED
        steps = np.array([place[row.numpy().tobytes()] for row in part.x[counted]])
        label = data["label"][steps].astype(int)
        assert np.array_equal(np.where(label == 0, -1, label - 1), part.y[counted])
        # transitions are not counted: all other steps of these users are
        users = set(user[steps])
        assert len(steps) == np.isin(user[data["label"] < 7], list(users)).sum()
        seen.append(users)
    assert seen[2] == set(TEST)
    assert len(seen[1]) == 1
    assert seen[0] | seen[1] == set(TRAIN)
    assert not seen[0] & seen[1]
    mean = task.train.x.reshape(-1, 6).mean(0)
    assert np.allclose(task.mean, mean, atol=1e-6)


def test_folds_validate_every_user_once(tmp_path):
    write_activity(tmp_path)
    tasks = [opened(Activity(window=50, lead=10, folds=4), tmp_path, seed) for seed in range(5)]
    validation = [task.validation.x.unique(dim=0) for task in tasks]
    assert torch.equal(tasks[0].validation.x, tasks[4].validation.x)
    assert len(torch.cat(validation[:4]).unique(dim=0)) == sum(map(len, validation[:4]))
    for task in tasks:
        rows = torch.cat([task.train.x, task.validation.x])
        assert len(rows) == len(tasks[0].train.x) + len(tasks[0].validation.x)
    with pytest.raises(EdgernnError, match="folds: expected at most 4, one for each training group, got 5; lower it"):
        opened(Activity(window=50, lead=10, folds=5), tmp_path)


def test_background_is_unlabelled_or_rest(tmp_path):
    write_activity(tmp_path)
    task, resting = (opened(Activity(window=50, lead=10, rest=rest), tmp_path) for rest in (False, True))
    batch, rested = next(task.test.chunks()), next(resting.test.chunks())
    counted = batch.target != UNCOUNTED
    assert torch.equal(task.background(batch)[counted], batch.target[counted] == -1)
    expected = (batch.target[counted] == -1) | (batch.target[counted] >= 3)
    assert torch.equal(resting.background(rested)[counted], expected)
    part = batch.part(1, 2)
    assert torch.equal(task.background(part), task.background(batch)[:, 1::2])


def test_loss_and_figures_leave_out_steps_without_a_label():
    rng = np.random.default_rng(0)
    y, target = rng.normal(size=(30, 4, 3)), rng.integers(-2, 3, (30, 4))
    entropy = np.log(np.exp(y).sum(-1)) - np.take_along_axis(y, target.clip(0)[..., None], -1)[..., 0]
    weight = np.array([1.0, 2.0, 0.5])
    tensors = torch.from_numpy(y), torch.from_numpy(target)
    assert masked_cross_entropy(*tensors).item() == pytest.approx(entropy[target >= 0].sum() / 120)
    expected = (weight[target] * entropy)[target >= 0].sum() / 120
    assert masked_cross_entropy(*tensors, torch.from_numpy(weight)).item() == pytest.approx(expected)
    tally = Confusion(("a", "b", "c"))
    for half in (slice(0, 2), slice(2, 4)):
        tally.add(tensors[0][:, half], Batch(tensors[0], tensors[1][:, half]))
    predicted, counted = y.argmax(-1), target >= 0
    figures = tally.result()
    assert figures["accuracy"] == pytest.approx((predicted == target)[counted].mean())
    assert figures["cross_entropy"] == pytest.approx(entropy[counted].mean())
    f1 = []
    for i, name in enumerate("abc"):
        hits = ((predicted == i) & (target == i)).sum()
        recall, precision = hits / (target == i).sum(), hits / ((predicted == i) & counted).sum()
        assert figures[f"recall_{name}"] == pytest.approx(recall)
        assert figures[f"precision_{name}"] == pytest.approx(precision)
        f1.append(2 * recall * precision / (recall + precision))
    assert figures["macro_f1"] == pytest.approx(np.mean(f1))
    assert Confusion(("a", "b")).result()["precision_a"] == 0


CHANGES = {
    "x": (lambda d: np.where(np.arange(6) == 2, np.nan, d["x"]), r"x: expected finite numbers .*, got nan at index"),
    "label": (lambda d: d["label"] + 7, "label: expected 0 to 12, got 7 to 1"),
    "offset": (lambda d: d["offset"][:-1], "offset: expected 13 row numbers in ascending order"),
    "exp_user": (lambda d: d["exp_user"][:, :1], r"exp_user: expected shape \(streams, 2\), got \(12, 1\)"),
    "train_users": (
        lambda d: np.array([1, 2]),
        r"test_users: expected each user once, .* got user 2 in .*train_users, too; get the file",
    ),
    "test_users": (lambda d: np.array([99]), "expected at least one recording of a user in the test part, got none"),
}


def test_a_user_who_is_listed_twice_is_refused(tmp_path):
    """Else the user could be in the training and the validation part."""
    write_activity(tmp_path, train_users=np.array([*TRAIN, sorted(TRAIN)[0]]))
    with pytest.raises(
        EdgernnError, match=rf"train_users: expected each .* got user {sorted(TRAIN)[0]} twice; get the file"
    ):
        opened(Activity(window=50, lead=10), tmp_path)


@pytest.mark.parametrize("name", CHANGES)
def test_bad_files(tmp_path, name):
    change, message = CHANGES[name]
    path = write_activity(tmp_path, **{name: change(streams())})
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Activity(window=50, lead=10), tmp_path)
    assert str(caught.value).startswith(str(path))


def test_other_bad_input(tmp_path):
    write_activity(tmp_path, label=np.zeros(len(streams()["x"]), np.uint8))
    with pytest.raises(EdgernnError, match="expected steps with a label from 1 to 6 in the train part, got none"):
        opened(Activity(window=50, lead=10), tmp_path)
    with pytest.raises(EdgernnError, match="expected recordings of at least window=600 steps, got one of 2"):
        opened(Activity(), tmp_path)
    write_activity(tmp_path, label=np.array(["sitting"]))
    with pytest.raises(EdgernnError, match=r"label: expected whole numbers with 1 axes, got <U7 \(1,\)"):
        opened(Activity(), tmp_path)
    with pytest.raises(UsageError, match="lead: expected fewer steps than window=10, got 10"):
        Activity(window=10, lead=10)


@pytest.mark.slow
def test_levels_are_learnt(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    write_activity(tmp_path / "data")
    settings = {"window": 50, "lead": 10, "steps": 150, "lr": 0.02, "hidden_size": 16}
    trained = Trained(tmp_path / "run", "activity", tmp_path / "data", **settings)
    assert trained.result["accuracy"] > 0.9
    task = opened(Activity(window=50, lead=10), tmp_path / "data")
    y, target = trained.outputs(task.test.x).argmax(-1), task.test.y.numpy()
    assert trained.result["accuracy"] == pytest.approx((y == target)[target >= 0].mean())
    assert trained.result["recall_lying"] == pytest.approx((y == 5)[target == 5].mean())


def hapt():
    folder = data_folder()
    return folder is not None and (folder / "hapt" / "hapt.npz").is_file()


@pytest.mark.skipif(not hapt(), reason="EDGERNN_DATA has no hapt/hapt.npz")
def test_hapt():
    task = opened(Activity(), data_folder())
    labelled = [int((part.y >= 0).sum()) for part in parts(task)]
    with np.load(data_folder() / "hapt" / "hapt.npz") as data:
        assert sum(labelled) == ((data["label"] > 0) & (data["label"] < 7)).sum()
        users = np.repeat(data["exp_user"][:, 1], np.diff(data["offset"]))
        of_test = np.isin(users, data["test_users"]) & (data["label"] > 0) & (data["label"] < 7)
    assert labelled[2] == of_test.sum()
