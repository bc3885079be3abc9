# SPDX-License-Identifier: Apache-2.0
"""All checks and timings that need a GPU, in under 8 minutes: `python -m benchmarks.gpu_suite --out gpu.json`.

The suite has five parts: checks of the gradients of the fused kernels for every cell and rule, against a Python loop
over time steps; times of a training step (fused, loop, torch.nn); times of a training step of GRUs with larger H (also
in CUDA graphs); checks and times of the CUDA ops of exported models, see `gpu_ops`; one training run of full size. The
report names the parts that were left out for lack of time or tools. `run` takes any torch device, for tests.
"""

import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks import gpu_ops
from benchmarks.gpu_cases import summary
from edgernn.bench.provenance import gpu as gpu_facts
from edgernn.bench.provenance import version_of
from edgernn.cells import CELLS
from edgernn.errors import EdgernnError
from edgernn.files import write_json
from edgernn.layer import RecurrentLayer
from edgernn.machine import processor
from edgernn.names import resolve
from edgernn.rules import RULES, Kind
from edgernn.training.kernels import common, gpu, graphs

# allowed error of a gradient relative to its largest value, by the precision of matrix products
TOLERANCES = {"tf32": 1e-3, "ieee": 1e-5}
TIMED = ("gru", "lstm", "pru", "sarnn", "skiprnn", "deltagru", "d-gru", "gru-before", "irc-gru", "eins")
# options of rules that have kernels of their own
VARIANTS: dict[str, dict[str, Any]] = {"selective/16": {"group_size": 16}, "delta/kept": {"straight_through": False}}


@dataclass(frozen=True)
class SuiteSizes:
    """Sizes and limits of the checks and timings on a GPU.

    Attributes:
        check: T, B, I, H for the checks of gradients.
        timed: T, B, I, H for the timing of training steps.
        widths: Further values of H, for which the training step of a GRU is timed.
        wide_steps: Number of time steps (T) in the timings for `widths`.
        rounds: Number of timing rounds of each measurement.
        training: Arguments of `edgernn train`.
        workers: Number of concurrent processes for the checks; 0 runs them in this process.
        minutes: Time limit of the suite.
    """

    check: tuple[int, int, int, int] = (6, 17, 24, 60)
    timed: tuple[int, int, int, int] = (500, 128, 2, 128)
    widths: tuple[int, ...] = (256, 512, 1150)
    wide_steps: int = 100
    rounds: int = 7
    training: tuple[str, ...] = ("--task", "adding", "--cell", "sarnn", "T=500", "hidden_size=128", "lambda=0")
    workers: int = 8
    minutes: float = 7.5


def run(
    device: str, sizes: SuiteSizes, cells: Sequence[str], rules: Sequence[str], timed: Sequence[str]
) -> dict[str, Any]:
    """Run all parts of the suite on a torch device; return the report (JSON-compatible), which `table` summarises.

    Gradients are checked for all `cells` with the `rules` that fit. `timed` names the layers whose training is timed.
    """
    end = time.perf_counter() + 60 * sizes.minutes
    left_out: list[str] = []
    report: dict[str, Any] = {"machine": machine(device), "sizes": sizes.__dict__, "left_out": left_out}
    fitting = [(c, r) for c in cells for r in rules if RULES[r.partition("/")[0]].refusal(resolve(c)[0]) is None]
    pairs = [(cell, rule, how) for cell, rule in fitting for how in TOLERANCES]
    checked = end - 240 * sizes.minutes / 7.5
    # run beside the checks, as timings need an idle machine
    with ThreadPoolExecutor(1) as pool:
        prepared = pool.submit(gpu_ops.prepare, checked - time.perf_counter())
        report["checks"] = _checks(device, sizes, pairs, checked, left_out)
    report["throughput"] = throughput(device, sizes, timed)
    report["widths"] = {str(width): _width(device, sizes, width) for width in sizes.widths}
    try:
        clock = partial(_measure, rounds=sizes.rounds, device=device)
        report["ops"] = gpu_ops.measured(prepared.result(), device, end - 100 * sizes.minutes / 7.5, left_out, clock)
    except (EdgernnError, OSError) as error:
        left_out.append(f"the CUDA ops of exported models: {error}")
        report["ops"] = None
    report["training"] = training(device, sizes, end - time.perf_counter())
    report["seconds"] = round(time.perf_counter() - end + 60 * sizes.minutes, 1)
    return report


def machine(device: str) -> dict[str, Any]:
    """Return a dict that describes the device, the processor and the versions of packages (None if missing)."""
    versions = {name: version_of(name) for name in ("torch", "triton", "onnxruntime-gpu", "edgernn")}
    facts = {"cpu": processor(), "python": platform.python_version(), "versions": versions, "cuda": torch.version.cuda}
    if torch.device(device).type != "cuda":
        return {"device": device, **facts}
    name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    driver = gpu_facts()["driver"]
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {"device": name, "memory_gb": round(memory / 1e9), "capability": capability, "driver": driver, **facts}


def check(device: str, size: tuple[int, int, int, int], cell: str, rule: str, how: str) -> dict[str, Any]:
    """Compare the gradients of the fused GPU kernels with those of a Python loop over time steps in float64.

    New inputs are drawn if rounding flips an update decision near its threshold, because all later steps then differ.
    With tf32 and a rule that decides from the data, they are also drawn if the error is too large: rounding may have
    changed the slope of a surrogate gradient. At most 8 inputs are drawn, and the smallest error counts.

    Args:
        device: The torch device that computes both gradients, such as cuda.
        size: The sizes (T, B, I, H).
        cell: Name of the cell.
        rule: Name of the update rule, or a key of VARIANTS.
        how: Precision of matrix products: tf32, or ieee for float32.

    Returns:
        The entry of the report. `error` is the largest error of a gradient relative to its largest absolute value, or
        None if decisions differ in all draws. `tensor` is the name of that gradient, `drawn` the number of draws,
        and `passed` says whether the error is within TOLERANCES.
    """
    T, B, I, H = size
    entry: dict[str, Any] = {"cell": cell, "rule": rule, "precision": how, "drawn": 0, "error": None, "tensor": None}
    begun = time.perf_counter()
    with torch.backends.cudnn.flags(allow_tf32=how == "tf32"):
        again = RULES[rule.partition("/")[0]].kind is not Kind.TIME and how != "ieee"
        while entry["drawn"] < 8 and (entry["error"] is None or (again and entry["error"] > TOLERANCES[how])):
            torch.manual_seed(entry["drawn"])
            entry["drawn"] += 1
            loop, fused = (_layer(cell, rule, I, H).to(device) for _ in range(2))
            fused.load_state_dict(loop.state_dict())
            fused.unroller = gpu.GpuUnroller(fused)
            x = torch.randn(T, B, I, device=device)
            state = [s.detach() for s in fused.initial_state(B, x)]
            mine, u = _gradients(fused, x, state)
            truth, other_u = _gradients(loop.double(), x.double(), [s.double() for s in state])
            if u is not None and other_u is not None and not torch.equal(u, other_u):
                continue
            errors = {n: float((mine[n] - t).abs().max() / t.abs().max().clamp(min=1e-6)) for n, t in truth.items()}
            tensor, error = max(errors.items(), key=lambda item: item[1])
            if entry["error"] is None or error < entry["error"]:
                entry |= {"tensor": tensor, "error": error}
    entry["seconds"] = round(time.perf_counter() - begun, 2)
    entry["passed"] = entry["error"] is not None and entry["error"] <= TOLERANCES[how]
    return entry


def _layer(cell: str, rule: str, I: int, H: int) -> RecurrentLayer:
    kind, rule_kind = resolve(cell, rule.partition("/")[0])
    options: Mapping[str, Any] = rule_kind.check_options
    # with the thresholds 0 of check_options, products would read every value
    options = {"theta_x": 0.4, "theta_h": 0.1, "learn_thresholds": True} if rule_kind.kind is Kind.COLUMN else options
    return RecurrentLayer(kind(I, H), rule_kind(I, H, **options, **(VARIANTS[rule] if "/" in rule else {})))


def _gradients(layer: RecurrentLayer, x: Tensor, state: list[Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    x = x.detach().requires_grad_()
    state = [s.detach().clone().requires_grad_() for s in state]
    y, last, trace = layer(x, tuple(state))
    (y.sin().sum() + sum(s.cos().sum() for s in last) + trace.budget).backward()
    tensors = {"y": y.detach(), "x": x.grad, **{f"state {i}": s.grad for i, s in enumerate(state)}}
    tensors |= {name: p.grad for name, p in layer.named_parameters()}
    masks = [mask.flatten() for mask in (trace.decisions, trace.sent_inputs) if mask is not None]
    return {name: g.double() for name, g in tensors.items() if g is not None}, torch.cat(masks) if masks else None


def _checks(
    device: str, sizes: SuiteSizes, pairs: Sequence[tuple[str, str, str]], end: float, left_out: list[str]
) -> list[dict[str, Any]]:
    if not sizes.workers:
        return [check(device, sizes.check, *pair) for pair in pairs]
    entries = []
    with ProcessPoolExecutor(sizes.workers, multiprocessing.get_context("spawn")) as pool:  # compilation dominates
        waiting = {pool.submit(check, device, sizes.check, *pair): pair for pair in pairs}
        try:
            for done in as_completed(waiting, timeout=max(1.0, end - time.perf_counter())):
                cell, rule, how = waiting.pop(done)
                if (error := done.exception()) is None:
                    entries.append(done.result())
                else:
                    failed = {"cell": cell, "rule": rule, "precision": how, "passed": False}
                    entries.append({**failed, "error": None, "failure": f"{type(error).__name__}: {error}"[:500]})
        except TimeoutError:
            left_out.append(f"{len(waiting)} of {len(pairs)} checks: out of time")
        pool.shutdown(cancel_futures=True)
    return entries


def throughput(device: str, sizes: SuiteSizes, names: Sequence[str]) -> dict[str, Any]:
    """Time training steps of torch.nn's GRU and LSTM, and of the layers `names` as Python loop and as fused kernels.

    The result is a dict from the name of an implementation to its times in milliseconds, see `_measure`.
    """
    T, B, I, H = sizes.timed
    x = torch.randn(T, B, I, device=device)
    runs: dict[str, Callable[[], None]] = {}
    for name, kind in (("torch.nn.GRU", nn.GRU), ("torch.nn.LSTM", nn.LSTM)):
        runs[name] = _both_ways(kind(I, H).to(device), x, "high")
    for name in names:
        loop, fused = (_layer_of(name, I, H, device) for _ in range(2))
        fused.unroller = gpu.GpuUnroller(fused)
        runs[f"{name}, loop"] = _both_ways(loop, x, "high")
        runs[f"{name}, fused"] = _both_ways(fused, x, "high")
        if torch.device(device).type == "cuda":
            runs[f"{name}, fused bf16"] = _both_ways(fused, x, "medium")
    return _measure(runs, sizes.rounds, device)


def _width(device: str, sizes: SuiteSizes, H: int) -> dict[str, Any]:
    """Time a training step of GRUs with H neurons; return a dict from implementation to its times, see `_measure`."""
    _, B, I, _ = sizes.timed
    x = torch.randn(sizes.wide_steps, B, I, device=device)
    loop, fused = (_layer_of("gru", I, H, device) for _ in range(2))
    fused.unroller = gpu.GpuUnroller(fused)
    runs = {
        "torch.nn.GRU": _both_ways(nn.GRU(I, H).to(device), x, "high"),
        "gru, loop": _both_ways(loop, x, "high"),
        "gru, fused": _both_ways(fused, x, "high"),
    }
    if torch.device(device).type == "cuda":
        recorded = _layer_of("gru", I, H, device)
        recorded.unroller = graphs.GraphUnroller()
        runs["gru, graphs"] = _both_ways(recorded, x, "high")
    return _measure(runs, sizes.rounds, device)


def _layer_of(name: str, I: int, H: int, device: str) -> RecurrentLayer:
    cell, rule = resolve(name)
    return RecurrentLayer(cell(I, H), rule(I, H)).to(device)


def _both_ways(module: nn.Module, x: Tensor, products: str) -> Callable[[], None]:
    def run() -> None:
        torch.set_float32_matmul_precision(products)
        module.zero_grad()
        module(x)[0].sum().backward()

    return run


def _measure(runs: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, Any]:
    """Time functions in turns; return a dict by name: median `ms` per call, quartiles `q1` and `q3`, or `failure`."""
    before = torch.get_float32_matmul_precision()
    times: dict[str, list[float]] = {name: [] for name in runs}
    failures: dict[str, str] = {}
    try:
        for number in range(rounds + 2):
            for name, run in runs.items():
                if name in failures:
                    continue
                try:
                    spent = _clock(run, device)
                except Exception as error:  # any failure of a compiler or a driver belongs in the report
                    failures[name] = f"{type(error).__name__}: {error}"[:500]
                    continue
                if number >= 2:
                    times[name].append(spent)
    finally:
        torch.set_float32_matmul_precision(before)
    figures: dict[str, Any] = {name: {"failure": failure} for name, failure in failures.items()}
    for name, all_spent in times.items():
        if name in failures:
            continue
        low, median, high = statistics.quantiles(all_spent, n=4) if len(all_spent) > 1 else all_spent * 3
        figures[name] = {"ms": round(median, 4), "q1": round(low, 4), "q3": round(high, 4)}
    return figures


def _clock(run: Callable[[], None], device: str) -> float:
    if torch.device(device).type != "cuda":
        begun = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begun)
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def training(device: str, sizes: SuiteSizes, seconds: float) -> dict[str, Any]:
    """Run `edgernn train`; return the dict in its result.json, or its latest metrics as `last` if `seconds` run out."""
    if seconds < 5:
        return {"stopped": "not started: out of time"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [sys.executable, "-m", "edgernn", "train", *sizes.training, "--device", device, "--out", str(out)]
        begun = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate()
        report: dict[str, Any] = {"command": " ".join(["edgernn train", *sizes.training]), "device": device}
        report["wall_seconds"] = round(time.perf_counter() - begun, 1)
        result, metrics = out / "result.json", out / "metrics.jsonl"
        if result.exists():
            return {**report, **json.loads(result.read_text(encoding="utf-8"))}
        lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        last = json.loads(lines[-1]) if lines else {"said": output[-500:]}
        return {**report, "stopped": "time", "last": last}


def table(report: dict[str, Any]) -> str:
    """Summarise the report of the GPU suite as text."""
    machine, checks, timings = report["machine"], report["checks"], report["throughput"]
    T, B, I, H = report["sizes"]["timed"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    lines = [f"{machine['device']}, driver {machine.get('driver', 'none')}, {versions}", ""]
    for how, tolerance in TOLERANCES.items():
        mine = [c for c in checks if c["precision"] == how]
        worst = max((c["error"] for c in mine if c["error"] is not None), default=float("nan"))
        passed = sum(c["passed"] for c in mine)
        lines.append(f"gradients, {how}: {passed} of {len(mine)} within {tolerance:g}, worst error {worst:.1e}")
    lines += [f"  failed: {c['cell']} + {c['rule']}, {c['precision']}, {_why(c)}" for c in checks if not c["passed"]]
    lines += ["", f"forward + backward, T={T} B={B} I={I} H={H}: ms, ratio to torch.nn.GRU, ratio to the loop"]
    lines += _rows(timings)
    for width, figures in report["widths"].items():
        lines += [f"H={width}, T={report['sizes']['wide_steps']}", *_rows(figures)]
    if report["ops"] is not None:
        lines += ["", *_ops(report["ops"])]
    trained = report["training"]
    value = f"{trained['metric']} {trained[trained['metric']]:.3g}, " if "metric" in trained else ""
    steps = f", {trained['steps']} steps in {trained['seconds']:.0f} s" if "seconds" in trained else ""
    lines += ["", f"training: {value}stopped: {trained['stopped']}{steps}", ""]
    lines += [f"left out: {note}" for note in report["left_out"]]
    return "\n".join([*lines, f"{report['seconds']:.0f} s in all"])


def _ops(report: dict[str, Any]) -> list[str]:
    checks = report["checks"]
    worst = max((c["error"] for c in checks if c["error"] is not None), default=float("nan"))
    passed = sum(c["passed"] for c in checks)
    lines = [f"CUDA ops: {passed} of {len(checks)} within {gpu_ops.TOLERANCE:g} of torch, worst error {worst:.1e}"]
    lines += [f"  failed: {c['op']}, {c['failure']}" for c in checks if not c["passed"]]
    lines += [f"compute-sanitizer's {s['tool']}: {'passed' if s['passed'] else s['said']}" for s in report["sanitized"]]
    for name, timed in report["timed"].items():
        lines += [f"CUDA ops, forward, {name}: ms, ratio to torch.nn.GRU", *_rows(timed)]
    return [*lines, *(f"in ONNX Runtime: {summary(entry)}" for entry in report["exported"])]


def _why(check: dict[str, Any]) -> str:
    if check.get("failure"):
        return str(check["failure"])
    if check["error"] is None:
        return f"its decisions differ in all of {check['drawn']} draws"
    return f"{check['tensor']}: {check['error']:.1e}"


def _rows(timings: dict[str, Any]) -> list[str]:
    baseline = timings.get("torch.nn.GRU", {}).get("ms")
    rows = []
    for name, figures in timings.items():
        if "failure" in figures:
            rows.append(f"  {name:24s} failed: {figures['failure'][:120]}")
            continue
        loop = timings.get(f"{name.split(',')[0]}, loop", {}).get("ms")
        ratios = [f"{figures['ms'] / other:8.2f}" if other else " " * 8 for other in (baseline, loop)]
        rows.append(f"  {name:24s} {figures['ms']:10.3f} {' '.join(ratios)}")
    return rows


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="JSON file to write.")
@click.option("--device", default="cuda", show_default=True, help="Torch device to measure, such as cuda:0.")
def main(out: Path, device: str) -> None:
    """Run all checks and timings on the GPU, write the JSON file and print a summary."""
    if not torch.cuda.is_available():
        raise click.ClickException("torch finds no GPU; run this on a machine with a GPU and a CUDA build of torch")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise click.ClickException("TRITON_INTERPRET=1 is set: unset it to run the kernels on the GPU")
    try:
        report = run(device, SuiteSizes(), tuple(CELLS), (*common.FUSED, *VARIANTS), TIMED)
    except EdgernnError as error:
        raise click.ClickException(str(error)) from None
    write_json(out, report)
    click.echo(table(report))


if __name__ == "__main__":
    main()
