# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests of language models: a small text in the layout of the Penn Treebank, and trainings on it."""

import lzma

import numpy as np

from edgernn.training import train

SMALL = {"embedding": 6, "hidden_size": 7, "batch_size": 4, "bptt": 5, "eval_batch": 3}
# a small AWD-LSTM
AWD = {
    **SMALL,
    "layers": 3,
    "last_size": 6,
    "tied": True,
    "vary_bptt": True,
    "bptt": 12,
    "dropout_embedding": 0.1,
    "dropout_input": 0.4,
    "dropout_hidden": 0.25,
    "dropout_output": 0.4,
    "ar": 2,
    "tar": 1,
    "weight_decay": 1.2e-6,
    "clip": 0.25,
}


def sentences(count, seed):
    """Draw sentences of a language in which a word is a good predictor of the next."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        word, line = int(rng.integers(12)), []
        for _ in range(int(rng.integers(3, 9))):
            line.append(f"w{word}")
            word = (word * 5 + int(rng.random() < 0.1)) % 12
        lines.append(" " + " ".join(line) + " \n")
    return "".join(lines)


def write_text(folder):
    """Write the files of the Penn Treebank, as they are and compressed."""
    (folder / "ptb").mkdir()
    (folder / "ptb/ptb.train.txt").write_text(sentences(90, 0) + " <unk> N \n")
    (folder / "ptb/ptb.valid.txt").write_text(sentences(20, 1))
    (folder / "ptb/ptb.test.txt.xz").write_bytes(lzma.compress((sentences(13, 2) + " unseen w1 \n").encode()))
    return folder


def run(out, folder, cell="gru", resume=False, progress=None, **settings):
    arguments = {"out": out, "data": folder, "resume": resume, "progress": progress}
    return train("ptb", cell, **arguments, settings={**SMALL, **settings})
