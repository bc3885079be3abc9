# SPDX-License-Identifier: Apache-2.0
"""Reader of texts as sentences of words, and vocabularies that number the words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgernn.errors import EdgernnError
from edgernn.training.formats import read_text

# the end of a sentence, and the replacement of words outside the vocabulary
END, UNKNOWN = "<eos>", "<unk>"
Sentence = tuple[str, ...]


def read_sentences(path: Path) -> list[Sentence]:
    """Read the sentences of a text, plain, .gz or .xz: a line each, with words separated by spaces.

    Empty lines are skipped. EdgernnError is raised for a text without a word.
    """
    sentences = [tuple(words) for line in read_text(path).splitlines() if (words := line.split())]
    if not sentences:
        raise EdgernnError(f"{path}: expected one sentence per line, got no word; add sentences to the file")
    return sentences


class Vocabulary:
    """Vocabulary that maps the words of a text to numbers, from 0.

    END, the mark for the end of a sentence, is 0. UNKNOWN, which replaces words outside the vocabulary, is 1. The other
    words follow by falling frequency, ties alphabetically. `words` lists all words in this order. The training part of
    the Penn Treebank, which contains UNKNOWN, gives 10,000 words.
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
        """Convert words to their numbers, with UNKNOWN for a word outside the vocabulary; no END is appended."""
        return [self._numbers.get(word, self.unknown) for word in sentence]

    def decode(self, numbers: Iterable[int]) -> Sentence:
        return tuple(self.words[number] for number in numbers)
