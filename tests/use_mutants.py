# SPDX-License-Identifier: Apache-2.0
"""Uses corrupted exported files: `python -m tests.use_mutants COUNT`.

Opens, runs, steps, packs and benchmarks each file. Each must end with a result or an EdgernnError; anything else is a
fault, also a crash, a timeout and excessive use of memory.
"""

import argparse
import contextlib
import datetime
import io
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants import mutant, packed_mutant

MODELS = Path(__file__).resolve().parent / "corpus" / "models"
# limits: bytes per process, seconds per file
MEMORY, TIMEOUT = 4 << 30, 60
# errors of ONNX Runtime after a failed allocation
_NO_MEMORY = re.compile("bad.alloc|failed to allocate", re.IGNORECASE)


def find_faults(first: int, last: int, module: str = "tests.use_mutants") -> list[str]:
    """Return the faults of a range of mutants, using a process of a module that is restarted after a crash."""
    faults = []
    while first < last:
        command = [sys.executable, "-m", module, str(first), str(last)]
        process = subprocess.run(command, capture_output=True, text=True)
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            faults += [f"mutant {line['number']}: {line['change']}: {fault}" for fault in line["faults"]]
            first = line["number"] + 1
        if process.returncode != 0:
            faults.append(f"mutant {first} ended the process ({process.returncode}): {process.stderr[-1000:]}")
            first += 1
    return faults


def limit_memory() -> None:
    """Let requests for more than MEMORY fail."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run_mutants(first: int, last: int) -> None:
    """Print a line of JSON for each mutant, with its faults."""
    limit_memory()
    originals = [path.read_bytes() for path in sorted(MODELS.iterdir())]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "mutant.onnx"
        np.savez(path.with_name("x.npz"), x=np.ones((4, 3), np.float32))
        for number in range(first, last):
            # terminates the process
            signal.alarm(TIMEOUT)
            change, content = mutant(originals[number % len(originals)], number)
            path.write_bytes(content)
            faults = list(_faults(path, random.Random(number)))
            print(json.dumps({"number": number, "change": change, "faults": faults}), flush=True)


def _faults(path: Path, draw: random.Random) -> Iterator[str]:
    from edgernn.bench import Settings, bench
    from edgernn.runtime import Session
    from edgernn.runtime.stepper import Stepper

    for backend in ("auto", "portable"):
        yield from _fault(backend, lambda backend=backend: _stream(Session(path, backend=backend)))
    yield from _fault("bench", lambda: bench(path, Settings(steps=2, rounds=1, warmup=0, block_ms=1)))
    yield from _command("run", str(path), "--input", str(path.with_name("x.npz")), "--output", str(path) + ".csv")
    yield from _command("pack", str(path))
    packed = path.with_suffix(".edgernn")
    if packed.exists():
        content = packed.read_bytes()
        packed.unlink()
        for wrong in (content, *(packed_mutant(content, draw) for _ in range(4))):
            yield from _fault("packed", lambda wrong=wrong: Stepper(wrong, 2).step())


def _fault(name: str, call: Callable[[], Any]) -> Iterator[str]:
    from edgernn.errors import EdgernnError

    try:
        call()
    except EdgernnError as error:
        if _NO_MEMORY.search(str(error)):
            yield f"{name}: {error}"
    except Exception:
        yield f"{name}: {traceback.format_exc()}"


def _stream(session: Any) -> None:
    frame = np.ones((2, *session.channels), np.float32 if session.vocabulary is None else np.int64)
    session.run(np.stack([frame] * 3))
    session.step(frame)


def _command(*words: str) -> Iterator[str]:
    from edgernn.cli.frame import main

    output = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
        status = main(list(words))
    *warnings, error = output.getvalue().splitlines() or [""]
    is_sentence = error.startswith("edgernn: error: ") and "--debug shows the traceback" not in error
    if status != 0 and not (is_sentence and all(line.startswith("edgernn: warning: ") for line in warnings)):
        yield f"edgernn {words[0]}: exit status {status}: {output.getvalue()}"


def main(module: str, run: Callable[[int, int], None], command: str, **facts: int) -> int:
    """Run the command line of a module that uses damaged files: COUNT, or the first file and the one after the last.

    Args:
        module: The module, which runs itself for a range of files.
        run: Uses a range of files, and prints a line of JSON for each one, with its faults.
        command: The command of the makefile, without the number of files.
        facts: Further entries of the report that --out writes.
    """
    if len(sys.argv) == 3 and sys.argv[2].isdigit():
        run(*map(int, sys.argv[1:]))
        return 0
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("count", type=int, help="Number of damaged files.")
    parser.add_argument("--out", type=Path, help="Write the number of faults to this JSON file.")
    arguments = parser.parse_args()
    faults = find_faults(0, arguments.count, module)
    print("\n".join([*faults, f"{arguments.count:,} damaged files: {len(faults)} faults"]))
    if arguments.out is not None:
        from edgernn.bench.provenance import machine
        from edgernn.files import write_json

        report = {
            "command": f"{command}={arguments.count}",
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "files": arguments.count,
            "faults": len(faults),
        }
        write_json(arguments.out, report | facts)
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main("tests.use_mutants", run_mutants, "make check-models MODELS"))
