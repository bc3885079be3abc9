# SPDX-License-Identifier: Apache-2.0
"""What becomes of exported files made wrong: `python -m tests.use_mutants COUNT`.

Each is opened, run, stepped, packed and benchmarked. A fault is whatever ends neither with a result nor with an
EdgernnError, as well as a crash, a wait of minutes and a want of gigabytes.
"""

import contextlib
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
# for a process, in bytes, and for a file, in seconds
MEMORY, PATIENCE = 4 << 30, 60
# in errors of ONNX Runtime that has asked for too much
_NO_MEMORY = re.compile("bad.alloc|failed to allocate", re.IGNORECASE)


def findings(first: int, last: int) -> list[str]:
    """Faults of the mutants from one number to another, found by a process that is started again after a crash."""
    found = []
    while first < last:
        command = [sys.executable, "-m", "tests.use_mutants", str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            found += [f"mutant {line['number']}: {line['change']}: {fault}" for fault in line["faults"]]
            first = line["number"] + 1
        if done.returncode != 0:
            found.append(f"mutant {first} ended the process ({done.returncode}): {done.stderr[-1000:]}")
            first += 1
    return found


def use(first: int, last: int) -> None:
    """Print a line of JSON for each mutant, with its faults."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    originals = [path.read_bytes() for path in sorted(MODELS.iterdir())]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "mutant.onnx"
        np.savez(path.with_name("x.npz"), x=np.ones((4, 3), np.float32))
        for number in range(first, last):
            # ends the process
            signal.alarm(PATIENCE)
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

    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = main(list(words))
    *warnings, error = said.getvalue().splitlines() or [""]
    is_sentence = error.startswith("edgernn: error: ") and "--debug shows the traceback" not in error
    if status != 0 and not (is_sentence and all(line.startswith("edgernn: warning: ") for line in warnings)):
        yield f"edgernn {words[0]}: exit status {status}: {said.getvalue()}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        use(*map(int, sys.argv[1:]))
    else:
        faults = findings(0, int(sys.argv[1]))
        print("\n".join([*faults, f"{int(sys.argv[1]):,} model files made wrong: {len(faults)} faults"]))
        sys.exit(len(faults) > 0)
