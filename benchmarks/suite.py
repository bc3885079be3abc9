# SPDX-License-Identifier: Apache-2.0
"""The suite of docs/background/performance.md: `python -m benchmarks.suite --out docs/results`.

Each case is timed in a process of its own.
"""

import datetime
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from benchmarks.contenders import ORT, measure
from benchmarks.load import GROUP as LOAD
from benchmarks.load import LIMIT, measure_load
from benchmarks.own_cell import OwnGRU
from benchmarks.page import page
from benchmarks.peers import PEERS
from edgernn.bench.case import BEST, COMPILED, DENSE, FLOAT32, PORTABLE, ROOFLINE, Case, Target
from edgernn.bench.provenance import machine
from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.files import write_json
from edgernn.progress import Progress, Silent
from edgernn.runtime.timing import Rounds

FULL = Rounds(rounds=15, warmup=3, block_ms=20, group_us=50)
QUICK = Rounds(rounds=3, warmup=1, block_ms=2, group_us=50)
_SIZES = ((2, 128), (64, 128), (128, 256), (400, 1150))
_FASTEST = Target(BEST, 1.0)


def _cases() -> Iterable[Case]:
    plain = [ModelConfig.of(cell, *sizes) for cell in ("gru", "lstm") for sizes in _SIZES]
    for model in plain:
        # the largest size is bound by memory bandwidth, so the roofline is no target
        targets = (Target(ROOFLINE, 1.25), _FASTEST) if model.hidden_size <= 256 else (_FASTEST,)
        yield Case("GRU and LSTM, sequences", model, targets=targets)
    for model in plain:
        targets = (Target("LiteRT", 1.0), _FASTEST)
        yield Case("GRU and LSTM, one step a call, from Python", model, steps=1, targets=targets)
    for model in plain:
        if model.hidden_size <= 256:
            targets = (Target(ROOFLINE, 1.3),)
            yield Case("GRU and LSTM, one step a call, from C", model, steps=1, in_c=True, targets=targets)
    for sizes in ((2, 128), (128, 256)):
        for skip, target in ((0.0, Target(DENSE, 1.02)), (0.75, Target(ORT, 1 / 4)), (0.9, Target(ORT, 1 / 10))):
            yield Case("Skipping", ModelConfig.of("sarnn", *sizes), skip=skip, targets=(target,))
    yield Case("Skipping", ModelConfig.of("skiprnn", 2, 128), skip=0.8, targets=(Target(ORT, 1 / 4.5),))
    for sizes in ((2, 128), (64, 128)):
        for skip, target in ((0.0, Target(DENSE, 1.1)), (0.9, Target(ORT, 1 / 5))):
            yield Case("Skipping", ModelConfig.of("gru", *sizes, rule="delta"), skip=skip, targets=(target,))
    for cell in ("irc-gru", "irc-lstm", "ihc-lstm", "eins", "fastgrnn"):
        model = ModelConfig.of(cell, 64, 128, rank=32 if cell == "fastgrnn" else None)
        yield Case("Cells with fewer macs", model, targets=(Target(ROOFLINE, 1.4),))
    for cell in ("gru", "lstm"):
        for threads in (1, 2):
            targets = (Target(ROOFLINE, 1.4), _FASTEST)
            yield Case("Batches", ModelConfig.of(cell, 64, 128), 100, 32, threads, targets=targets)
    group = "Weights of fewer bytes"
    for cell, steps in (("gru", 1), ("gru", 100), ("lstm", 1)):
        targets = (Target(BEST, 1 / 3.5), Target("OpenVINO", 0.5))
        yield Case(group, ModelConfig.of(cell, 400, 1150), steps, weights="int8", targets=targets)
    for cell, sizes in (("gru", (2, 128)), ("gru", (64, 128)), ("gru", (128, 256)), ("lstm", (128, 256))):
        yield Case(group, ModelConfig.of(cell, *sizes), weights="int8", targets=(Target(FLOAT32, 1 / 1.5),))
    yield Case(group, ModelConfig.of("gru", 128, 256), weights="bfloat16", targets=(Target(FLOAT32, 1.0),))
    yield Case(LOAD, ModelConfig.of("gru", 2, 128), 0, targets=(Target(LIMIT, 1.0),))


def _own_cases() -> Iterable[Case]:
    for rule, skip in (("always", None), ("selective", 0.9)):
        targets = (Target(COMPILED, 1.1), Target(PORTABLE, 1 / 10))
        model = ModelConfig.of(OwnGRU, 16, 128, rule=rule)
        yield Case("A cell of your own", model, skip=skip, compiled="gru", targets=targets)


CASES = tuple(_cases())
# cases outside the suite, selected with `only`
OWN_CASES = tuple(_own_cases())


def chosen(only: str | None) -> tuple[Case, ...]:
    """Select benchmark cases by name."""
    cases = CASES if only is None else tuple(case for case in (*CASES, *OWN_CASES) if only in case.name)
    if not cases:
        raise UsageError(f"--only: expected a part of a benchmark case's name, such as {CASES[0].name!r}, got {only!r}")
    return cases


def run_suite(
    path: Path,
    cases: Sequence[Case] = CASES,
    settings: Rounds = FULL,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time benchmark cases, and rewrite the report after each case.

    If a case fails, or its process crashes, the report has the reason, and the next case runs.
    """
    report: dict[str, Any] = {
        "quick": settings == QUICK,
        "command": command,
        "begun": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {"rounds": settings.rounds, "block_ms": settings.block_ms},
        "peers": {peer.name: peer.version() for peer in PEERS},
        "cases": [],
    }
    progress = progress or Silent()
    for done, case in enumerate(cases):
        report["cases"].append(alone(case, settings))
        write_json(path, report)
        progress.note(f"[{done + 1}/{len(cases)}] {summary(report['cases'][-1])}")
    return report


def alone(case: Case, settings: Rounds) -> dict[str, Any]:
    """Time a benchmark case in a new process, which may use as many processors as the case has threads."""
    work = measure_load if case.group == LOAD else measure
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), _pin, (case.threads,)) as pool:
            return pool.submit(work, case, settings).result()
    except Exception as error:  # a runtime may raise any exception, or end the process
        return {"name": case.name, "group": case.group, "failed": " ".join(str(error).split())}


def _pin(threads: int) -> None:
    """Limit this process to `threads` processors, so that libraries start only `threads` threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def summary(entry: dict[str, Any]) -> str:
    """Describe a case in one line: µs per step, and for each performance target the ratio of times and the limit."""
    if "failed" in entry:
        return f"{entry['name']}: {entry['failed']}"
    us = entry["contenders"]["edgernn"]["us"]
    figures = [f"{t['value']:.3g} x {t['against']} (at most {t['limit']:.3g})" for t in entry["targets"] if t["value"]]
    return f"{entry['name']}: {us:.3g} µs, {', '.join(figures)}".rstrip(", ")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench"), help="Folder for the report.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--quick", is_flag=True, help="Run fewer and shorter timing rounds; the report is marked as quick.")
@click.option("--only", metavar="TEXT", help="Time only the cases whose names contain TEXT, such as lstm.")
def main(out: Path, device: str, quick: bool, only: str | None) -> None:
    """Time the cases of docs/background/performance.md, and write performance.json, or cuda.json for a GPU."""
    settings, words = QUICK if quick else FULL, shlex.join(["python", "-m", "benchmarks.suite", *sys.argv[1:]])
    if device == "cuda":
        from benchmarks.gpu_cases import cases, run_cases
        from edgernn.bench.gpu_cases import gpu_page

        print(gpu_page(run_cases(out / "cuda.json", cases(only), settings, command=words, progress=Progress())))
    else:
        path = out / "performance.json"
        print(page(run_suite(path, chosen(only), settings, command=words, progress=Progress())))


if __name__ == "__main__":
    main()
