# SPDX-License-Identifier: Apache-2.0
"""Text as sentences of words, and the numbers of these words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgernn.errors import EdgernnError
from edgernn.training.formats import read_text

# what ends a sentence, and what stands for every word that is not in a vocabulary
END, UNKNOWN = "<eos>", "<unk>"
Sentence = tuple[str, ...]


def read_sentences(path: Path) -> list[Sentence]:
    """The words of each line of a text, plain, .gz or .xz, which stand apart by spaces; lines without any are left out.

    Raises EdgernnError where no word is there.
    """
    sentences = [tuple(words) for line in read_text(path).splitlines() if (words := line.split())]
    if not sentences:
        raise EdgernnError(f"{path}: expected a sentence a line, got no word")
    return sentences


class Vocabulary:
    """Words by number: END is 0, UNKNOWN 1, then those of a text from the most frequent on, and by the alphabet.

    `words` has them in this order. The training part of the Penn Treebank, which has UNKNOWN itself, gives 10,000.
    """

    end, unknown = 0, 1

    def __init__(self, sentences: Iterable[Sentence]) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        del counts[END], counts[UNKNOWN]
        self.words: Sequence[str] = (END, UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word)))
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Iterable[str]) -> list[int]:
        """The numbers of words; no END is added."""
        return [self._numbers.get(word, self.unknown) for word in sentence]

    def decode(self, numbers: Iterable[int]) -> Sentence:
        return tuple(self.words[number] for number in numbers)
