# SPDX-License-Identifier: Apache-2.0
"""Builds of the native code for tests: one instruction set, in a separate folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
# the native sources; checks that change them set EDGERNN_SOURCES to a copy
SOURCES = Path(os.environ.get("EDGERNN_SOURCES", ROOT))
ISA = "avx2"


def need(*tools: str) -> None:
    """Skip the test if a tool or the instruction set is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    if " avx2 " not in flags:
        pytest.skip(f"this processor lacks {ISA}")


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def build(folder: Path, *options: str, targets: tuple[str, ...] = ("all",), sources: Path = SOURCES) -> Path:
    """Build CMake targets in a folder with these options; build.txt there has what the compilers print."""
    configure = ["cmake", "-S", sources, "-B", folder, f"-DEDGERNN_ISAS={ISA}", *options]
    for words in (configure, ["cmake", "--build", folder, "--parallel", "2", "--target", *targets]):
        process = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert process.returncode == 0, process.stdout + process.stderr
        (folder / "build.txt").write_text(process.stdout + process.stderr, encoding="utf-8")
    return folder


def incremental_build(name: str, *options: str, targets: tuple[str, ...]) -> Path:
    """Build in a folder that persists, so that the next run recompiles changed files only."""
    folder = SOURCES / "build" / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        return build(folder, *options, targets=targets)
