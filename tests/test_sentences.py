# SPDX-License-Identifier: Apache-2.0
"""Sentences of a text, word indices, and batches of unequal length."""

import math

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError
from edgernn.training.papers.tasks.sentence_vae import Sentences
from edgernn.training.papers.text import Vocabulary, read_sentences
from tests.training_helpers import PACK

# text


@pytest.mark.parametrize("suffix", list(PACK))
def test_sentences_are_lines_of_words(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(PACK[suffix](b"\n a  b\tc \r\n\n  \nd\n"))
    assert read_sentences(path) == [("a", "b", "c"), ("d",)]


def test_a_text_without_words_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b" \n\n")
    with pytest.raises(EdgernnError, match="text: expected one sentence per line, got no word"):
        read_sentences(path)


def test_a_vocabulary_numbers_words_by_frequency():
    vocabulary = Vocabulary([("b", "a", "<unk>"), ("c", "b", "<unk>", "<unk>")])
    assert list(vocabulary.words) == ["<eos>", "<unk>", "b", "a", "c"]
    assert len(vocabulary) == 5
    assert vocabulary.encode(("c", "x", "<unk>", "b")) == [4, 1, 1, 2]
    assert vocabulary.decode([2, 0, 1]) == ("b", "<eos>", "<unk>")


# batches


def sentences(count=50, seed=0):
    rng = np.random.default_rng(3)
    return Sentences([rng.integers(2, 9, rng.integers(1, 12)).tolist() for _ in range(count)], seed)


def unpadded(batch):
    return [tuple(batch.x[:n, i].tolist()) for i, n in enumerate(batch.target.tolist())]


@pytest.mark.parametrize("size", [1, 7, 50, 80])
def test_an_epoch_has_every_sentence_once(size):
    source = sentences()
    steps = source.steps_per_epoch(size)
    assert steps == math.ceil(50 / size)
    expected = sorted(map(tuple, source.sentences))
    for epoch in (0, 1):
        batches = [source.batch(epoch * steps + i, size) for i in range(steps)]
        assert sorted(s for batch in batches for s in unpadded(batch)) == expected
        assert [batch.step for batch in batches] == list(range(epoch * steps, (epoch + 1) * steps))
    assert sorted(s for batch in source.chunks(size) for s in unpadded(batch)) == expected


def test_a_batch_holds_sentences_of_nearly_one_length_the_longest_first():
    source = sentences(400)
    spreads = []
    for step in range(source.steps_per_epoch(20)):
        lengths = source.batch(step, 20).target.tolist()
        assert lengths == sorted(lengths, reverse=True)
        assert source.batch(step, 20).x.shape == (lengths[0], len(lengths))
        spreads.append(lengths[0] - lengths[-1])
    assert max(spreads) <= 1


def test_a_batch_depends_on_seed_and_step_alone():
    first, again, other = sentences(), sentences(), sentences(seed=1)
    late = [first.batch(step, 8) for step in (9, 2, 9)]
    assert torch.equal(late[0].x, late[2].x)
    assert torch.equal(late[0].x, again.batch(9, 8).x)
    epoch = [torch.equal(first.batch(i, 8).x, other.batch(i, 8).x) for i in range(7)]
    assert not all(epoch)
    assert not all(torch.equal(first.batch(i, 8).x, first.batch(i + 7, 8).x) for i in range(7))
