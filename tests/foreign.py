# SPDX-License-Identifier: Apache-2.0
"""Programs for other systems and processors: their compilers, and how they run here, in qemu or wine."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.apps import ROOT, need, run

LINUX, ARM, WINDOWS = "x86_64-linux-gnu", "aarch64-linux-gnu", "x86_64-w64-mingw32"
COMPILERS = {
    LINUX: ("gcc", "g++"),
    ARM: ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"),
    WINDOWS: ("x86_64-w64-mingw32-gcc-posix", "x86_64-w64-mingw32-g++-posix"),
}
_QEMU = "qemu-aarch64", "qemu-aarch64-static"
INCLUDE = ROOT / "runtime" / "csrc" / "include"


def qemu() -> str:
    tools = [tool for tool in map(shutil.which, _QEMU) if tool]
    if not tools:
        pytest.skip("qemu-aarch64 is not installed")
    return tools[0]


@functools.cache
def _wine() -> dict[str, str]:
    """Return the variables of wine, whose Windows has a folder that is removed when this process exits."""
    need("wine")
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    variables = {"WINEPREFIX": str(folder), "WINEDEBUG": "-all", "DISPLAY": ""}
    # a server that stays: a program cannot start while the server of the program before it ends
    server = shutil.which("wineserver") or next(map(str, Path("/usr/lib/wine").glob("wineserver*")), None)
    assert server is not None, "wine has no wineserver"
    subprocess.run([server, "-p"], env=os.environ | variables, check=True)
    atexit.register(subprocess.run, [server, "-k"], env=os.environ | variables)
    return variables


def compiler(target: str, source: Path) -> str:
    """Return the compiler of a target for a source file; skip the test without it."""
    name = COMPILERS[target][source.suffix == ".cc"]
    need(name)
    return name


def compiled(target: str, source: Path, folder: Path, *options: object) -> Path:
    """Compile a program with these further options into a folder; return its path."""
    path = folder / f"{source.stem}.exe"
    words = [compiler(target, source), "-Wall", "-Wextra", "-Werror", source, *options, "-o", path]
    process = run(*words)
    assert process.returncode == 0, process.stderr
    return path


def output(
    target: str, program: Path, *words: object, libraries: Path, processor: str = "", isa: str = "", data: bytes = b""
) -> bytes:
    """Return what a program prints: in qemu on 64-bit Arm, in wine on Windows.

    Args:
        target: The program's target.
        program: The program.
        words: Its arguments.
        libraries: Folder with its shared libraries.
        processor: Name of qemu's processor; default: all features.
        isa: EDGERNN_ISA.
        data: Its standard input.

    Returns:
        The standard output.

    Raises:
        AssertionError: The program failed.
    """
    command, variables = [], {"EDGERNN_ISA": isa}
    if target == LINUX:
        variables["LD_LIBRARY_PATH"] = str(libraries)
    elif target == ARM:
        command = [qemu(), "-L", f"/usr/{ARM}", "-E", f"LD_LIBRARY_PATH={libraries}", "-cpu", processor or "max"]
    else:
        command = ["wine"]
        # those of the compiler, for programs in C++
        folders = [libraries, *(Path(_file_of(name)).parent for name in ("libstdc++-6.dll", "libwinpthread-1.dll"))]
        paths = ";".join("Z:" + str(folder.resolve()).replace("/", "\\") for folder in folders)
        variables |= _wine() | {"WINEPATH": paths}
    words = list(map(str, [*command, program, *words]))
    # files, as wine's server keeps pipes open after the program's end
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        options = {"stdout": stdout, "stderr": stderr, "timeout": 300, "env": os.environ | variables}
        status = subprocess.run(words, input=data, **options).returncode
        stderr.seek(0)
        assert status == 0, f"exit status {status}: {stderr.read().decode(errors='replace')}"
        stdout.seek(0)
        return stdout.read()


@functools.cache
def _file_of(name: str) -> str:
    return run(COMPILERS[WINDOWS][1], f"-print-file-name={name}").stdout.strip()


def instruction_sets() -> list[str]:
    """Return those of this x86-64 processor, from the slowest to the fastest, as Linux reports its features."""
    (line, *_) = re.findall(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    features, names = set(line.split()), ["baseline"]
    needed = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
    for name, flags in (needed | {"avx512vnni": {"avx512_vnni"}}).items():
        if not flags <= features:
            break
        names.append(name)
    return names
