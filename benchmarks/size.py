# SPDX-License-Identifier: Apache-2.0
"""Counts lines and modules of the source tree: `python -m benchmarks.size`."""

import subprocess
import sys
import tempfile

from benchmarks import ROOT

CODE = {".py", ".c", ".cc", ".cu", ".h", ".in", ".js", ".json", ".mjs", ".toml", ".ts"}
PRODUCT, APART = ("edgernn", "export", "runtime", "training"), ("training/papers", "benchmarks")
# prints the number of edgernn's modules after a training of two steps
TRAINING = """
import sys
from edgernn.cli.frame import main
assert main(["train", "--task", "adding", "--cell", "gru", "T=5", "steps=2", "hidden_size=4", "--out", "run"]) == 0
print(sum(name.partition(".")[0] == "edgernn" for name in sys.modules))
"""


def lines(*folders: str, without: tuple[str, ...] = ()) -> int:
    """Count the lines of code in the tracked files of folders, but not of those in `without`."""
    names = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in names.splitlines() if not name.startswith(without)]
    return sum(path.read_bytes().count(b"\n") for path in paths if path.suffix in CODE and path.is_file())


def modules_loaded() -> int:
    """Count the modules of edgernn that a training on generated data imports."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", TRAINING], cwd=folder, capture_output=True, text=True, check=True
        )
    return int(process.stdout.splitlines()[-1])


if __name__ == "__main__":
    for what, number in (
        ("lines of product", lines(*PRODUCT, without=APART)),
        ("lines of papers and benchmarks", lines(*APART)),
        ("lines of tests", lines("tests")),
        ("modules in training/ itself", len(list((ROOT / "training").glob("*.py")))),
        ("modules loaded by edgernn train --task adding", modules_loaded()),
    ):
        print(f"{what:48} {number:>7,}")
