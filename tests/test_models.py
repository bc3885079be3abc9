# SPDX-License-Identifier: Apache-2.0
"""The models in the repository run and give their stored outputs."""

from pathlib import Path

import numpy as np
import pytest

from edgernn.rules import RULES
from edgernn.runtime import Session

MODELS = sorted((Path(__file__).resolve().parent.parent / "models").glob("*/model.onnx"))


@pytest.mark.parametrize("backend", ["portable", "native"])
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.parent.name)
def test_model_gives_the_answers_of_its_example(path, backend):
    with np.load(path.parent / "example.npz") as example:
        session = Session(path, backend=backend)
        y = session.run(example["x"].swapaxes(0, 1))
        # a model with an output at each step returns (T, B, O)
        y = y.swapaxes(0, 1) if y.ndim == 3 else y
        # binary decisions at their threshold may fall either way; most sequences have none
        close = np.abs(y - example["y"]).max(-1) < 1e-4
    can_skip = RULES[session.info["model"]["layer"]["rule"]["name"]].can_skip
    assert close.mean() >= (0.9 if can_skip else 1)


def test_there_is_a_model_with_its_card():
    assert MODELS
    for path in MODELS:
        assert path.with_suffix(".md").is_file()
        assert (path.parent / "bench.json").is_file()
