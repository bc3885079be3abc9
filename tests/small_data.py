# SPDX-License-Identifier: Apache-2.0
"""Small files of every data set in its original format, in one folder."""

from pathlib import Path

import numpy as np

from tests.stays import write_stays
from tests.test_task_activity import write_activity
from tests.test_task_ecg import write_heart
from tests.test_task_remaining_life import write_engines
from tests.test_task_series import seizure_rows, write_rebuilt, write_twitter, write_yahoo
from tests.training_helpers import write_mnist
from tests.words import write_arabic


def write_all(folder: Path) -> Path:
    """Write all data sets except SVHN and CIFAR-10, which no cut-down recipe needs."""
    write_mnist(folder / "mnist", train=240, test=24)
    write_mnist(folder / "fashion-mnist", train=240, test=24)
    write_rebuilt(folder / "seizures", seizure_rows())
    write_twitter(folder / "twitter")
    write_yahoo(folder / "yahoo/A1Benchmark")
    write_stays(folder / "physionet2012")
    write_arabic(folder / "arabic-speech-commands")
    write_activity(folder / "hapt")
    write_heart(folder / "mit-bih")
    write_engines(folder / "cmapss-fd001")
    rng = np.random.default_rng(0)
    (folder / "tinyshakespeare").mkdir()
    (folder / "tinyshakespeare/input.txt").write_text("".join(rng.choice(list("abcdefgh \n"), 20_000)))
    (folder / "ptb").mkdir()
    words = [f"w{i}" for i in range(30)]
    for part, lines in (("train", 200), ("valid", 60), ("test", 60)):
        text = "".join(f" {' '.join(rng.choice(words, rng.integers(4, 12)))} \n" for _ in range(lines))
        (folder / f"ptb/ptb.{part}.txt").write_text(text)
    return folder
