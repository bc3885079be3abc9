# SPDX-License-Identifier: Apache-2.0
"""Character language model task: predict each next character."""

import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import EdgernnError
from edgernn.training.datasets.find import find_files
from edgernn.training.formats import read_text
from edgernn.training.tasks.base import CLASSIFICATION, Objective, Task
from edgernn.training.tasks.sources import Sequences

# replaces every character that the training part does not have
UNKNOWN = "\ufffd"
# one in 10 characters, at the end, for the test; one in 20, before those, for validation
_TEST, _VALIDATION = 10, 20


def _metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    figures = CLASSIFICATION.metrics(y, target)
    return {**figures, "bits_per_character": figures["cross_entropy"] / math.log(2)}


@dataclass
class Char(Task):
    """Character language model task: predict each next character of a text.

    x (window, B, K): characters, one-hot over an alphabet of size K. target (window, B): index of the next character.
    Metrics: cross_entropy, the loss, in nats per character; bits_per_character, the same in bits.

    The last 10 % of the text are for the test, the 5 % before them for validation, and the first 85 % for training.
    Each part is cut into windows that do not overlap. The model begins each window in its initial state. Characters
    after the last whole window are dropped. The alphabet, `classes`, has the characters of the training part in the
    order of their code points. If the other parts have further characters, U+FFFD is the alphabet's last entry and
    replaces them.

    Settings:

    - `file`: A text in UTF-8, plain, .gz or .xz. Default: tiny-shakespeare, `tinyshakespeare/input.txt` of the data
      folder.
    - `window`: Length of the sequences in characters.

    Source: Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016. The paper's sequences are sentences, but the paper
    does not define where a sentence ends and gives no length. Windows of 64 characters are therefore used here. The
    paper holds out a tenth of the text and has no validation part.
    """

    file: str | None = None
    window: Annotated[int, Field(ge=1)] = 64

    name = "char"
    help = "Predict the next character of tiny-shakespeare, or of your own text."
    defaults = {"epochs": 10, "hidden_size": 128, "layers": 2, "batch_size": 100, "lr": 2e-3}  # noqa: RUF012
    objective = Objective("cross_entropy", False, CLASSIFICATION.loss, _metrics)
    output = "all"

    def open(self, source: Path | None, seed: int) -> None:
        path = self._path(source)
        text = read_text(path)
        test, validation = len(text) // _TEST, len(text) // _VALIDATION
        train = text[: len(text) - test - validation]
        alphabet = sorted(set(train) - {UNKNOWN})
        if set(text) - set(alphabet):
            alphabet.append(UNKNOWN)
        if validation <= self.window:
            wanted = f"at least {_VALIDATION * (self.window + 1)} characters for window={self.window}"
            raise EdgernnError(f"{path}: expected {wanted}, got {len(text)} characters; use a longer text")
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.classes = tuple(alphabet)
        self.input_size = self.output_size = len(alphabet)
        numbers = _numbers(text, alphabet)
        parts = torch.split(numbers, [len(train), validation, test])
        self.train, self.validation, self.test = (self._windows(part, seed) for part in parts)

    def baselines(self) -> dict[str, dict[str, float]]:
        (metrics,) = super().baselines().values()
        return {"frequencies of characters": metrics}

    def _path(self, source: Path | None) -> Path:
        if self.file is None:
            return find_files(self.name, "tinyshakespeare", ["input.txt"], source)[0]
        path = Path(self.file)
        if not path.is_file():
            raise EdgernnError(f"file: no such file: {path}; check the path")
        return path

    def _windows(self, part: Tensor, seed: int) -> Sequences:
        size = (len(part) - 1) // self.window * self.window
        x, y = part[:size].view(-1, self.window), part[1 : size + 1].view(-1, self.window)
        return Sequences(x, y, seed=seed, per_step=True, symbols=self.input_size)


def _numbers(text: str, alphabet: list[str]) -> Tensor:
    """Convert each character of a text to its index in the alphabet; a character outside it gets the last index."""
    dtype = np.uint8 if len(alphabet) <= 256 else np.int32
    # by code point; characters outside the alphabet map to its last entry
    indices = np.full(sys.maxunicode + 1, len(alphabet) - 1, dtype)
    indices[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    return torch.from_numpy(indices[np.frombuffer(text.encode("utf-32-le"), "<u4")])
