# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and measurements behind the figures of the documentation; README.md lists the command of each figure."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's arguments, whose help is the docstring `doc` as it stands."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def command_of(name: str) -> str:
    """Return the command that runs the benchmark `name` with the arguments of this process."""
    return shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])


def write_measured(measure: Callable[[], Any], doc: str | None, default: Path | None = None) -> None:
    """Measure, and write the report to the JSON file that the option --out names."""
    from edgernn.files import write_json

    parser = parser_of(doc)
    parser.add_argument("--out", type=Path, default=default, required=default is None)
    out = parser.parse_args().out
    write_json(out, measure())
