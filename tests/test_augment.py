# SPDX-License-Identifier: Apache-2.0
"""Random changes of training sequences."""

import json

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.training import train
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.augment import Augmentation
from edgernn.training.tasks.sources import Batch
from tests.task_helpers import opened, parts
from tests.training_helpers import Stop, snapshot, without_pictures

T, B = 40, 50
STD = torch.tensor([1.0, 2.0, 4.0])


def changed(x, target=None, lengths=None, seed=0, **settings):
    target = torch.zeros(x.shape[1]) if target is None else target
    batch = Batch(x, target, per_step=target.ndim == 2, lengths=lengths)
    return Augmentation(**settings).augmented(batch, STD, seed, 3)


def test_jitter_is_in_units_of_each_channel():
    noise = changed(torch.zeros(T, B, 3), jitter=0.1).x
    assert noise.std((0, 1)).tolist() == pytest.approx([0.1, 0.2, 0.4], rel=0.1)


def test_a_factor_holds_for_a_channel_of_a_sequence():
    x = changed(torch.ones(T, B, 3), scaling=0.1).x
    assert torch.equal(x, x[:1].expand(T, B, 3))
    assert float(x[0].std()) == pytest.approx(0.1, rel=0.2)
    assert float(x[0].mean()) == pytest.approx(1, abs=0.03)


def test_sensors_are_rotated_alike_and_keep_their_lengths():
    x = torch.randn(T, B, 6)
    y = changed(x, rotation=20.0).x
    a, b = (v.view(T, B, 2, 3).double() for v in (x, y))
    # lengths, and angles within and between sensors and steps, stay
    for product in (
        lambda v: (v * v).sum(-1),
        lambda v: (v[:, :, 0] * v[:, :, 1]).sum(-1),
        lambda v: (v * v[:1]).sum(-1),
    ):
        torch.testing.assert_close(product(a), product(b), rtol=0, atol=1e-4)
    triples = torch.linalg.det(b[:3, :, 0].transpose(0, 1)) / torch.linalg.det(a[:3, :, 0].transpose(0, 1))
    torch.testing.assert_close(triples, torch.ones(B, dtype=torch.float64), rtol=0, atol=1e-3)
    up = torch.tensor([0.0, 0, 1]).expand(1, 4000, 3)
    cosine = changed(up, rotation=20.0).x[0, :, 2].double()
    # of a rotation by an angle of variance v about a random axis: 1 - (2/3) (1 - exp(-v/2))
    assert float(cosine.mean()) == pytest.approx(1 - 2 / 3 * (1 - np.exp(-(np.deg2rad(20) ** 2) / 2)), abs=2e-3)


def test_a_warp_keeps_order_ends_and_the_labels_of_steps():
    lengths = torch.randint(2, T + 1, (B,))
    lengths[0] = T
    time = torch.arange(T, dtype=torch.float32)[:, None].expand(T, B)
    padding = torch.arange(T)[:, None] >= lengths
    x, target = time.clone().masked_fill(padding, 0)[..., None], time.long().masked_fill(padding, -1)
    batch = changed(x, target, lengths, warp=0.5)
    moved = batch.x[..., 0]
    assert (moved[padding] == 0).all()
    assert (batch.target[padding] == -1).all()
    rises = moved.diff(dim=0) > 0
    assert rises[~padding[1:]].all()
    last = moved[lengths - 1, torch.arange(B)]
    torch.testing.assert_close(last, lengths.float() - 1, rtol=0, atol=1e-4)
    assert ((moved - batch.target).abs()[~padding] <= 0.5001).all()
    assert float((moved - time).abs()[~padding].max()) > 1


def arrays(folder, channels=3):
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=60)
    np.savez(folder / "d.npz", x=rng.normal(y[:, None, None], 1, (60, 8, channels)), y=y)
    return folder / "d.npz"


def test_only_training_batches_change_and_each_step_anew(tmp_path):
    plain, task = (opened(Arrays(**s), arrays(tmp_path)) for s in ({}, {"jitter": 0.1, "rotation": 10.0, "warp": 0.2}))
    for a, b in zip(parts(plain), parts(task), strict=True):
        assert all(torch.equal(u.x, v.x) for u, v in zip(a.chunks(), b.chunks(), strict=True))
    first = task.train.batch(0, 60).x
    assert torch.equal(first, task.train.batch(0, 60).x)
    assert not torch.equal(first, plain.train.batch(0, 60).x)
    assert task.mean == plain.mean


def test_a_resumed_training_draws_the_same_changes(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    settings = {"steps": 12, "hidden_size": 4, "checkpoint_every": 3, "jitter": 0.2, "scaling": 0.1, "lr_warmup": 3}
    path = arrays(tmp_path)
    train(path, "gru", out=tmp_path / "whole", **settings)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(path, "gru", out=tmp_path / "cut", progress=Stop(8), **settings)
    train(path, "gru", out=tmp_path / "cut", resume=True, **settings)
    assert snapshot(tmp_path / "cut") == snapshot(tmp_path / "whole")
    recorded = json.loads((tmp_path / "cut/config.json").read_text())
    assert recorded["task"]["settings"]["jitter"] == 0.2


def test_what_cannot_be_changed_is_refused(tmp_path):
    with pytest.raises(
        EdgernnError, match=r"rotation: expected channels in threes, .*, got 4; choose them with features"
    ):
        opened(Arrays(rotation=10.0), arrays(tmp_path, 4))
    with pytest.raises(UsageError, match=r"jitter, scaling, rotation, warp: expected none with predict=next"):
        Arrays(jitter=0.1, predict="next")
