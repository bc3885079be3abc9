# SPDX-License-Identifier: Apache-2.0
"""The next character of a text."""

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
from edgernn.training.data import find_files
from edgernn.training.formats import read_text
from edgernn.training.tasks.base import CLASSIFICATION, Objective, Task
from edgernn.training.tasks.sources import Sequences

# stands for every character that the training part does not have
UNKNOWN = "\ufffd"
# the last tenth of the text is the test part, the twentieth before it the validation part
_TEST, _VALIDATION = 10, 20


def _metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    found = CLASSIFICATION.metrics(y, target)
    return {**found, "bits_per_character": found["cross_entropy"] / math.log(2)}


@dataclass
class Char(Task):
    """Predict each next character of a text.

    x (window, B, K): characters as one-hot vectors over an alphabet of K. target (window, B): the number of the
    character that follows each. cross_entropy, the loss, is in nats a character, bits_per_character the same in bits.
    file: a text in UTF-8, plain, .gz or .xz; none: tiny-shakespeare, `tinyshakespeare/input.txt` of the data folder.
    The last tenth of the text is the test part, the twentieth before it the validation part, the rest is trained on.
    Each is cut into windows that do not overlap, and the state begins anew in each; the few characters after the last
    whole window are left out. The alphabet, `classes`, is that of the training part in the order of code points; where
    the other parts have further characters, U+FFFD stands for them and comes last.
    Raises EdgernnError where the file is missing or no text, or a part is shorter than a window and its next character.
    Source: Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016. It says that a sequence is a sentence, without saying
    what ends one, and gives no length; windows of 64 characters are what can be repeated. It holds out a tenth and has
    no validation part.
    """

    file: str | None = None
    window: Annotated[int, Field(ge=1)] = 64

    name = "char"
    help = "predict the next character of tiny-shakespeare, or of your own text"
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
            raise EdgernnError(f"{path}: expected {wanted}, got {len(text)}")
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.classes = tuple(alphabet)
        self.input_size = self.output_size = len(alphabet)
        numbers = _numbers(text, alphabet)
        parts = torch.split(numbers, [len(train), validation, test])
        self.train, self.validation, self.test = (self._windows(part, seed) for part in parts)

    def _path(self, source: Path | None) -> Path:
        if self.file is None:
            return find_files(self.name, "tinyshakespeare", ["input.txt"], source)[0]
        path = Path(self.file)
        if not path.is_file():
            raise EdgernnError(f"file: no such file: {path}")
        return path

    def _windows(self, part: Tensor, seed: int) -> Sequences:
        size = (len(part) - 1) // self.window * self.window
        x, y = part[:size].view(-1, self.window), part[1 : size + 1].view(-1, self.window)
        return Sequences(x, y, seed=seed, per_step=True, symbols=self.input_size)


def _numbers(text: str, alphabet: list[str]) -> Tensor:
    """Each character's place in the alphabet, in as few bytes as the alphabet allows."""
    kind = np.uint8 if len(alphabet) <= 256 else np.int32
    # of every code point; what is not in the alphabet is its last
    places = np.full(sys.maxunicode + 1, len(alphabet) - 1, kind)
    places[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    return torch.from_numpy(places[np.frombuffer(text.encode("utf-32-le"), "<u4")])
