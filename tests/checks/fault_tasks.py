# SPDX-License-Identifier: Apache-2.0
"""Short trainings of every task, on small generated data, for tests/checks/fault_commands.py."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.training_helpers import SMALL
from tests.wake_data import TOY, write_wake_words

_SHARED = {"hidden_size": 8, "batch_size": 10, "steps": 12, "eval_every": 4, "checkpoint_every": 2}
TRAIN = {**_SHARED, "T": SMALL["T"], "test_size": 50}
# of a task whose steps take long
_SLOW = {"steps": 6, "eval_every": 3, "checkpoint_every": 1}
# the front end alone
_WORDS = {name: value for name, value in TOY.items() if name not in ("hours", "mined")}


@dataclass(frozen=True)
class Training:
    """A short training.

    task: Name of the task, or of the user's data in the folder that `write_data` fills. cell: Name of the cell.
    settings: Settings other than those in `_SHARED`; None: the task has no such setting. pictures: Whether the pictures
    of the run are drawn.
    """

    task: str
    cell: str
    settings: dict[str, Any] = field(default_factory=dict)
    pictures: bool = False

    @property
    def name(self) -> str:
        return f"train {self.task} {self.cell}"

    def all_settings(self) -> dict[str, Any]:
        return {name: value for name, value in {**_SHARED, **self.settings}.items() if value is not None}


TRAININGS = (
    Training("adding", "sarnn", {"T": 10, "test_size": 50, "skip": 0.8}),
    Training("adding", "lstm", {"T": 10, "keep": "best"}, pictures=True),
    Training("memorization", "pru", {"test_size": 50}),
    Training("binary-addition", "gru", {"digits": 4, "test_size": 50}),
    Training("char", "pru", {"window": 16}),
    Training("mnist-rows", "sarnn"),
    Training("fashion-rows", "gru"),
    Training("mnist-permuted", "lstm", {**_SLOW, "batch_size": 4}),
    Training("seizures", "sarnn"),
    Training("twitter", "gru"),
    Training("yahoo", "lstm"),
    Training("brits", "lstm", {"batch_size": 8, "direction": "both"}),
    Training("draw", "lstm", {**_SLOW, "glimpses": 3, "latent": 4, "read_size": 3, "write_size": 3}),
    Training(
        "l2l",
        "lstm",
        {
            **_SLOW,
            **{"hidden_size": 3, "batch_size": None, "width": 2, "minibatch": 5, "run_steps": 4, "unroll": 2},
            **{"optimisees": 2, "trials": 2, "tuning": 1},
        },
    ),
    Training("sentence-vae", "lstm", {**_SLOW, "embedding": 5, "kl_steps": 2, "removed": 2}),
    Training("ptb", "lstm", {"embedding": 8, "bptt": 8, "eval_batch": 20, "test_batch": 20}),
    Training("keywords", "gru", {**_SLOW, "batch_size": 4}),
    Training("wakeword", "gru", {**_SLOW, **TOY, "batch_size": 4, "steps": 6, "eval_every": 3}),
    Training("wake-front", "gru", {**_SLOW, **_WORDS, "batch_size": 4, "bank": "words.npz"}),
    Training("activity", "gru", {"window": 50, "lead": 10}),
    Training("ecg", "lstm", {**_SLOW, "window": 300, "lead": 30}),
    Training("remaining-life", "pru", {"window": 10, "cap": 25}),
    # the user's own data
    Training("own.npz", "gru-before"),
    Training("tables", "gru"),
    Training("recordings", "sarnn", {**_SLOW, "batch_size": 4}),
)


def write_data(folder: Path) -> None:
    """Write small files of every data set, and the user's data own.npz, tables/ and recordings/."""
    from tests.small_data import write_all
    from tests.test_task_tables import write_files
    from tests.words import write_own

    write_all(folder)
    random = np.random.default_rng(0)
    x, y = random.standard_normal((60, 9, 2)).astype(np.float32), random.integers(3, size=60)
    np.savez(folder / "own.npz", x=x, y=y)
    names = write_files(folder / "tables")
    (folder / "tables" / "labels.csv").write_text("".join(f"{name},{'abc'[i % 3]}\n" for i, name in enumerate(names)))
    write_own(folder / "recordings")
    write_wake_words(folder)
