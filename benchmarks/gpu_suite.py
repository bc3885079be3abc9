# SPDX-License-Identifier: Apache-2.0
"""All checks and timings that need a GPU: `python -m benchmarks.gpu_suite --out gpu.jsonl [STAGE...]`.

Each measurement is a line of JSON in the report as soon as it is known, so that nothing is lost if the machine is. A
second run with the same report goes on: it leaves out the checks that passed. Worker processes measure, see
`gpu_workers`; what they print is in a log beside the report.
"""

import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import torch

from benchmarks import gpu_ops
from benchmarks.build_cuda import find_or_build
from benchmarks.cuda_calls import CudaCalls
from benchmarks.gpu_cases import cases
from benchmarks.gpu_forms import forms
from benchmarks.gpu_items import TOLERANCES, VARIANTS, handlers, has_kernel, timed
from benchmarks.gpu_workers import Item, drive, measure, reason
from edgernn.bench.provenance import gpu as gpu_facts
from edgernn.bench.provenance import version_of
from edgernn.cells import CELLS
from edgernn.errors import EdgernnError
from edgernn.kernels import common
from edgernn.machine import processor
from edgernn.rules import RULES

TIMED = ("gru", "lstm", "pru", "sarnn", "skiprnn", "deltagru", "d-gru", "gru-before", "irc-gru", "eins")
# rows of papers' tables whose training is timed
RECIPES = ("decay-pmnist/decaynet", "decay-pmnist/rbn-decaynet", "eins-ptb/eins", "irc-ptb/irc-gru-2")
# shares of the time
STAGES = {"machine": 40, "gradients": 130, "ops": 75, "steps": 110, "inference": 100, "training": 160, "recipes": 200}
DEFAULT_STAGES = ("machine", "gradients", "ops", "steps", "inference")
_PACKAGES = ("torch", "triton", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "edgernn")
_MODULES = ("edgernn.training.api", "edgernn.export", "edgernn.cli", "triton", "onnxruntime")


@dataclass(frozen=True)
class SuiteSizes:
    """Sizes of the checks and timings on a GPU.

    Attributes:
        check: T, B, I, H for the checks of gradients.
        shapes: T, B, I, H for the checks of the CUDA library; empty for those of `gpu_ops.SHAPES`.
        step: T, B, I, H for the timings of training steps.
        more_steps: Further sizes T, B, I, H, for the cell gru.
        infer: T, B, H for the timings of the CUDA library.
        training: Settings of the runs of `edgernn train`.
        recipe: Settings of the runs of `edgernn train --recipe`.
        rounds: Number of timing rounds.
    """

    check: tuple[int, int, int, int] = (6, 17, 24, 60)
    shapes: tuple[tuple[int, int, int, int], ...] = ()
    step: tuple[int, int, int, int] = (500, 128, 2, 128)
    more_steps: tuple[tuple[int, int, int, int], ...] = (
        *((500, batch, 2, 128) for batch in (16, 32, 256, 1024)),
        (500, 128, 2, 64),
        *((100, 128, 2, H) for H in (256, 512)),
        (100, 20, 400, 1150),
    )
    infer: tuple[tuple[int, int, int], ...] = ((500, 1, 128), (100, 256, 128), (500, 16, 128), (500, 1, 256))
    training: tuple[str, ...] = ("T=500", "hidden_size=128", "steps=2000", "eval_every=200")
    recipe: tuple[str, ...] = ("eval_every=50",)
    rounds: int = 9


SMALL = SuiteSizes(
    check=(2, 2, 3, 20),
    shapes=((3, 2, 3, 5),),
    step=(3, 2, 2, 4),
    more_steps=((2, 2, 2, 6),),
    infer=((3, 1, 8),),
    training=("T=4", "hidden_size=4", "steps=4", "eval_every=2", "test_size=20"),
    recipe=("steps=2", "eval_every=1", "hidden_size=16", "batch_size=10"),
    rounds=1,
)


class Report:
    """The report of the suite: a file with one JSON object per line. Entries are appended, also by several threads.

    Args:
        path: The file. Entries that it has already are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def tell(self, stage: str, entry: dict[str, Any]) -> None:
        """Append an entry of a stage."""
        line = json.dumps({"stage": stage, **entry}, default=str)
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All entries; a last line that was cut off is left out."""
        entries = []
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                try:
                    entries.append(json.loads(line))
                except ValueError:
                    continue
        return entries

    def passed(self) -> list[Item]:
        """Return the items of the checks that passed."""
        return [entry["item"] for entry in self.entries if entry.get("passed")]


class Suite:
    """Runs the stages of the suite. Each stage is a method of its name.

    Args:
        report: The report.
        device: The torch device, such as cuda.
        sizes: Sizes of the checks and timings.
        log: File that receives what the workers print.
        workers: Number of concurrent worker processes for checks; 0 measures in this process.
        library: Path of the CUDA library. Default: find or build it.
    """

    def __init__(
        self, report: Report, device: str, sizes: SuiteSizes, log: IO[str], workers: int, library: str | None = None
    ) -> None:
        self._report, self._device, self._sizes, self._log, self._workers = report, device, sizes, log, workers
        self._library, self._built = library, threading.Event()
        self._no_library: str | None = None
        self._stage, self._end = "", 0.0

    def run(self, stages: Sequence[str], seconds: float, say: Callable[[str], None]) -> None:
        """Run stages in their order. Each has its share of the time, and what earlier stages left."""
        begun, shares = time.monotonic(), sum(STAGES[stage] for stage in stages)
        if {"ops", "inference"} & set(stages):
            # nvcc compiles while the stage gradients runs
            threading.Thread(target=self._find_library, args=[seconds], daemon=True).start()
        for stage in stages:
            left = begun + seconds - time.monotonic()
            # what is left goes to the stages in proportion to their shares
            limit = left * STAGES[stage] / shares
            shares -= STAGES[stage]
            if limit < 1:
                self._report.tell(stage, {"left_out": "the whole stage: out of time"})
                continue
            say(f"[{time.monotonic() - begun:.0f} s] {stage}, at most {limit:.0f} s")
            self._stage, self._end = stage, time.monotonic() + limit
            try:
                getattr(self, stage)()
            except Exception as error:  # no stage may stop the next one
                self._tell({"failure": reason(error)})

    def _tell(self, entry: dict[str, Any]) -> None:
        self._report.tell(self._stage, entry)

    def _drive(self, items: Sequence[Item], workers: int, seconds: float, share: float = 1.0) -> None:
        if not self._workers:
            known = handlers(self._device, self._library or "")
            for item in items:
                self._tell(measure(known, item))
            return
        now = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu_items", self._device, self._library or ""]
        end = now + share * (self._end - now)
        drive(items, self._tell, command, self._log, workers=workers, seconds=seconds, end=end)

    def _find_library(self, seconds: float) -> None:
        try:
            self._library = self._library or find_or_build(seconds)
        except (EdgernnError, OSError) as error:
            self._no_library = str(error)
        finally:
            self._built.set()

    def _wait_for_library(self) -> str:
        if not self._built.wait(max(0.0, self._end - time.monotonic())):
            raise EdgernnError("the CUDA library is not compiled yet; run this stage again")
        if self._no_library is not None or self._library is None:
            raise EdgernnError(self._no_library or "no CUDA library")
        return self._library

    def machine(self) -> None:
        """Describe the machine, and measure the speed of copies, products and launches."""
        versions = {name: version_of(name) for name in _PACKAGES}
        facts = {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}
        failures = {}
        for module in _MODULES:
            try:
                importlib.import_module(module)
            except Exception as error:
                failures[module] = reason(error)
        tools = {name: shutil.which(name) for name in ("nvcc", "cmake", "ninja", "compute-sanitizer")}
        self._tell({**facts, "cuda": torch.version.cuda, "imports_failed": failures, "tools": tools})
        if torch.device(self._device).type != "cuda":
            return
        properties: Any = torch.cuda.get_device_properties(self._device)
        named = {"device": properties.name, "driver": gpu_facts()["driver"], "cudnn": torch.backends.cudnn.version()}
        counts = {"sms": properties.multi_processor_count, "memory_gb": round(properties.total_memory / 1e9)}
        self._tell({**named, **counts, "shared_memory": properties.shared_memory_per_block_optin})
        a = torch.zeros(1 << 30, device=self._device)
        b, one = torch.empty_like(a), torch.zeros(1, device=self._device)
        runs = {"copy of 4 GB": partial(_call, lambda: b.copy_(a)), "launch": partial(_call, lambda: one.add_(1))}
        self._tell({"times": timed(runs, self._device, 5, 20)})

    def gradients(self) -> None:
        """Check the gradients of the fused kernels: first one cell of each family under each kind of rule."""
        rules = (*common.FUSED, *VARIANTS)
        pairs = [(c, r) for r in rules for c in CELLS if has_kernel(c, r)]
        families = {name.partition("-")[0]: name for name in reversed(CELLS)}.values()
        kinds = {RULES[rule.partition("/")[0]].kind: rule for rule in reversed(rules)}.values()
        first = [pair for pair in pairs if pair[0] in families and pair[1] in kinds]
        order = dict.fromkeys([*first, *(pair for at in range(5) for pair in pairs[at::5])])
        size = list(self._sizes.check)
        items = [{"do": "grad", "cell": c, "rule": r, "how": how, "size": size} for c, r in order for how in TOLERANCES]
        self._drive(self._open(items), self._workers, 90)

    def ops(self) -> None:
        """Check the kernels of the CUDA library."""
        kernels, known = CudaCalls(self._wait_for_library()).kernels(), forms()
        names = [name for name, form in known.items() if form.kernel_name in kernels]
        self._tell({"kernels": len(kernels), "unknown": sorted(kernels - {known[name].kernel_name for name in names})})
        order = dict.fromkeys([*gpu_ops.SMALL, *gpu_ops.TIMED, *(n for at in range(7) for n in names[at::7])])
        shapes = {"shapes": self._sizes.shapes} if self._sizes.shapes else {}
        items = [{"do": "op", "op": name, **shapes} for name in order if name in names]
        self._drive(self._open(items), min(self._workers, 3), 25)

    def _open(self, items: Iterable[Item]) -> list[Item]:
        """Return the items of checks that have not passed in this report."""
        passed = [json.dumps(item, sort_keys=True) for item in self._report.passed()]
        return [item for item in items if json.dumps(item, sort_keys=True) not in passed]

    def steps(self) -> None:
        """Time training steps of layers beside cuDNN and the Python loop, after their kernels are compiled."""
        _, _, I, H = self._sizes.step
        hows = ("tf32", "bf16")
        compiled = [{"do": "warm", "name": name, "I": I, "H": H, "how": how} for name in TIMED for how in hows]
        self._drive(compiled, self._workers, 60, 0.4)
        fused, rounds = ["fused", "fused bf16"], self._sizes.rounds
        items = [
            self._step(name, self._sizes.step, [*fused, *(["loop"] * (name in ("gru", "sarnn")))]) for name in TIMED
        ]
        for size in self._sizes.more_steps:
            graphs = ["graphs"] if self._device != "cpu" and size[3] > 128 else []
            items.insert(2, self._step("gru", size, [*fused, *graphs, *(["loop"] * bool(graphs))]))
        self._drive([{**item, "rounds": rounds} for item in items], 1, 60)

    @staticmethod
    def _step(name: str, size: Sequence[int], how: list[str]) -> Item:
        return {"do": "step", "name": name, "size": list(size), "how": how}

    def inference(self) -> None:
        """Time the kernels of the CUDA library, then exported models in ONNX Runtime, and run compute-sanitizer."""
        self._wait_for_library()
        items: list[Item] = [
            {"do": "infer", "size": list(size), "rounds": self._sizes.rounds} for size in self._sizes.infer
        ]
        if torch.device(self._device).type == "cuda":
            items += [{"do": "exported", "case": case.name} for case in cases("(2, 128)")]
            items += [{"do": "sanitize", "tool": tool, "seconds": 60} for tool in ("memcheck", "racecheck")]
        self._drive(items, 1, 70)

    def training(self) -> None:
        """Train the adding task by fused kernels, by cuDNN and by the Python loop."""
        words = ["--task", "adding", *self._sizes.training]
        runs = [
            ("adding gru fused", [*words, "--cell", "gru"], "edgernn"),
            ("adding gru cudnn", [*words, "--cell", "gru"], "benchmarks.cudnn_training"),
            ("adding sarnn fused", [*words, "--cell", "sarnn", "lambda=0"], "edgernn"),
            ("adding gru loop", [*words, "--cell", "gru", "backend=torch"], "edgernn"),
        ]
        for place, (name, settings, module) in enumerate(runs):
            self._train(name, settings, (self._end - time.monotonic()) / (len(runs) - place), module)

    def recipes(self) -> None:
        """Time the training of rows of papers' tables, whose data EDGERNN_DATA must have."""
        for place, name in enumerate(RECIPES):
            words = ["--recipe", name, *self._sizes.recipe]
            self._train(name, words, (self._end - time.monotonic()) / (len(RECIPES) - place))

    def _train(self, name: str, words: list[str], seconds: float, module: str = "edgernn") -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", module, *(["train"] * (module == "edgernn")), *words]
            out = Path(folder) / "run"
            begun = time.monotonic()
            with subprocess.Popen(
                [*command, "--device", self._device, "--out", str(out)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process:
                output = _output(process, seconds)
            self._log.write(f"--- {name}\n{output[-3000:]}\n")
            entry = {"train": name, "words": words, "wall": round(time.monotonic() - begun, 1)}
            self._tell({**entry, "status": process.returncode, **_progress(out, output)})


def _call(call: Callable[[], Any], mark: Callable[[], None]) -> None:
    call()


def _output(process: "subprocess.Popen[str]", seconds: float) -> str:
    """Return what a process prints. After `seconds` it is interrupted, and 10 s later killed."""
    for limit, number in ((max(1.0, seconds), signal.SIGINT), (10.0, signal.SIGKILL)):
        try:
            return process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    return process.communicate()[0]


def _progress(out: Path, output: str) -> dict[str, Any]:
    """Return the last metrics of a training run, its ms per step after the first evaluation, and its result."""
    metrics = out / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    entry: dict[str, Any] = {}
    if lines:
        first, last = (lines[0] if len(lines) > 1 else {"seconds": 0.0, "step": 0}), lines[-1]
        spent = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
        entry |= {"last": last, "ms_per_step": round(1e3 * spent, 3), "evaluations": len(lines)}
    if (out / "result.json").is_file():
        entry["result"] = json.loads((out / "result.json").read_text())
    return entry or {"failure": output[-600:]}


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Summarise the entries of a report as text: failures, times and what was left out."""
    lines = []
    for do, what in (("grad", "gradients"), ("op", "CUDA ops")):
        checks = latest(entry for entry in entries if (entry.get("item") or {}).get("do") == do)
        if not checks:
            continue
        for how in dict.fromkeys(check["item"].get("how", "") for check in checks):
            same = [check for check in checks if check["item"].get("how", "") == how]
            worst = max((c["error"] for c in same if c.get("error") is not None), default=float("nan"))
            passed = sum(bool(c.get("passed")) for c in same)
            lines.append(f"{what}{f', {how}' * bool(how)}: {passed} of {len(same)} passed, worst error {worst:.1e}")
        for check in checks:
            if not check.get("passed"):
                words = (str(value) for key, value in check["item"].items() if key in ("op", "cell", "rule", "how"))
                lines.append(f"  failed: {' '.join(words)}: {check.get('failure')}")
    fallbacks = 0
    for entry in entries:
        item = entry.get("item") or {}
        if "times" in entry:
            lines += [
                "",
                f"{entry['stage']} {item.get('name', '')} {item.get('size', '')}: ms, ratio",
                *_rows(entry["times"]),
            ]
        elif "train" in entry:
            speed = f"{entry['ms_per_step']} ms per step" if "ms_per_step" in entry else entry.get("failure", "")[-200:]
            lines.append(f"training, {entry['train']}: {speed}")
        elif item.get("do") == "exported":
            lines.append(f"in ONNX Runtime: {entry.get('summary') or entry.get('failure')}")
        elif item.get("do") == "sanitize":
            said = entry.get("failure") or entry.get("said", "")
            lines.append(f"compute-sanitizer's {item['tool']}: {'passed' if entry.get('passed') else said}")
        elif "failure" in entry and item.get("do") not in ("grad", "op"):
            lines.append(f"failed: {entry['stage']} {item or ''}: {entry['failure']}")
        elif "left_out" in entry:
            lines.append(f"left out: {entry['stage']}: {entry['left_out']}")
        usages = [entry, *(entry.get("resources") or {}).values()]
        fallbacks += sum(len(usage.get("smaller") or ()) for usage in usages)
    return "\n".join([*lines, f"kernels that needed a smaller form than planned: {fallbacks}"])


def latest(checks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last entry of each item, as a check may have been repeated."""
    return list({json.dumps(check["item"], sort_keys=True): check for check in checks}.values())


def _rows(times: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line per implementation, with the ratio of its time to that of the first one, cuDNN."""
    first = next(iter(times.values())).get("ms")
    rows = []
    for name, figures in times.items():
        if "failure" in figures:
            rows.append(f"  {name:28s} failed: {figures['failure'][:120]}")
            continue
        parts = [f"{part} {figures[part]:.3f}" for part in ("forward", "backward") if part in figures]
        ratio = f"{figures['ms'] / first:8.2f}" if first else ""
        rows.append(f"  {name:28s} {figures['ms']:10.3f} {ratio}  {' '.join(parts)}".rstrip())
    return rows


@click.command()
@click.argument("stages", nargs=-1, type=click.Choice(list(STAGES)))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="JSON Lines file to write or to continue.")
@click.option("--seconds", default=420.0, show_default=True, help="Time limit of all stages together.")
@click.option("--device", default="cuda", show_default=True, help="Torch device to measure, such as cuda:0.")
@click.option("--library", help="Path of the CUDA library.  [default: find it, or build it with nvcc]")
@click.option("--small", is_flag=True, help="Use tiny sizes; with --device cpu, this tries the suite without a GPU.")
def main(stages: tuple[str, ...], out: Path, seconds: float, device: str, library: str | None, small: bool) -> None:
    """Run checks and timings on the GPU, write a line per measurement and print a summary.

    STAGES: machine, gradients, ops, steps, inference, training, recipes. Default: the first five.
    """
    on_cpu = torch.device(device).type == "cpu"
    if not on_cpu and not torch.cuda.is_available():
        raise click.ClickException("torch finds no GPU; run this on a machine with a GPU and a CUDA build of torch")
    if not on_cpu and os.environ.get("TRITON_INTERPRET") == "1":
        raise click.ClickException("TRITON_INTERPRET=1 is set: unset it to run the kernels on the GPU")
    if on_cpu and not small:
        raise click.ClickException("--device cpu: expected --small too, as the interpreter of kernels is slow; add it")
    if on_cpu:
        os.environ["TRITON_INTERPRET"] = "1"
    sizes = SMALL if small else SuiteSizes()
    report = Report(out)
    with out.with_suffix(".log").open("a", encoding="utf-8") as log:
        # compilation takes one core per worker
        workers = max(1, (os.cpu_count() or 2) - 2)
        Suite(report, device, sizes, log, workers, library).run(stages or DEFAULT_STAGES, seconds, click.echo)
    click.echo(table(report.entries))


if __name__ == "__main__":
    main()
