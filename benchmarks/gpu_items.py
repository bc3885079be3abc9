# SPDX-License-Identifier: Apache-2.0
"""The measurements of `gpu_suite`, by the name in the key `do` of an item.

`python -m benchmarks.gpu_items DEVICE [LIBRARY]` is a worker of the suite, see `gpu_workers`.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import gpu_ops
from benchmarks.cuda_calls import CudaCalls
from benchmarks.gpu_forms import forms
from benchmarks.gpu_workers import Handler, Item, reason, serve
from edgernn.errors import EdgernnError
from edgernn.kernels import common, gpu, graphs
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from edgernn.rules import RULES, PerColumn

# allowed error of a gradient relative to its largest value, by the precision of matrix products
TOLERANCES = {"tf32": 1e-3, "ieee": 1e-5}
# options of rules that have kernels of their own
VARIANTS: dict[str, dict[str, Any]] = {"selective/16": {"group_size": 16}, "delta/kept": {"straight_through": False}}
_TORCH_PRODUCTS = {"bf16": "medium", "tf32": "high", "ieee": "highest"}


@contextmanager
def products(kernels: str, torchs: str | None = None) -> Iterator[None]:
    """Context manager that sets the precision of matrix products: bf16, tf32 or ieee (float32)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_TORCH_PRODUCTS[torchs or kernels])
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=kernels != "ieee"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def grad(item: Item, device: str) -> dict[str, Any]:
    """Compare the gradients of the fused GPU kernels with those of a Python loop over time steps in float64.

    New inputs are drawn if rounding flips an update decision near its threshold, because all later steps then differ.
    With tf32 and a rule that decides from the data, they are also drawn if the error is too large: rounding may have
    changed the slope of a surrogate gradient. At most 8 inputs are drawn, and the smallest error counts.
    """
    cell, rule, how = item["cell"], item["rule"], item["how"]
    T, B, I, H = item["size"]
    result: dict[str, Any] = {"drawn": 0, "error": None, "tensor": None}
    again = not RULES[rule.partition("/")[0]].schedules and how != "ieee"
    # torch's own products would add an error of their own
    with products(how, "ieee"):
        while result["drawn"] < 8 and (result["error"] is None or (again and result["error"] > TOLERANCES[how])):
            torch.manual_seed(result["drawn"])
            result["drawn"] += 1
            loop, fused = (_layer(cell, rule, I, H).to(device) for _ in range(2))
            fused.load_state_dict(loop.state_dict())
            fused.unrolled.unroller = gpu.GpuUnroller(fused.unrolled)
            x = torch.randn(T, B, I, device=device)
            state = [s.detach() for s in fused.initial_state(B, x)]
            computed, u = _gradients(fused, x, state)
            expected, expected_u = _gradients(loop.double(), x.double(), [s.double() for s in state])
            if u is not None and expected_u is not None and not torch.equal(u, expected_u):
                continue
            errors = {
                n: float((computed[n] - g).abs().max() / g.abs().max().clamp(min=1e-6)) for n, g in expected.items()
            }
            tensor, error = max(errors.items(), key=lambda pair: pair[1])
            if result["error"] is None or error < result["error"]:
                result |= {"tensor": tensor, "error": error}
    result["passed"] = result["error"] is not None and result["error"] <= TOLERANCES[how]
    if not result["passed"]:
        differs = f"its decisions differ in all of {result['drawn']} draws"
        result["failure"] = differs if result["error"] is None else f"{result['tensor']}: {result['error']:.1e}"
    return result


def _layer(cell: str, rule: str, I: int, H: int) -> RecurrentLayer:
    kind, rule_kind = resolve(cell, rule.partition("/")[0])
    options: Mapping[str, Any] = rule_kind.check_options
    # with the thresholds 0 of check_options, products would read every value
    if issubclass(rule_kind, PerColumn):
        options = {"theta_x": 0.4, "theta_h": 0.1, "learn_thresholds": True}
    return RecurrentLayer(kind(I, H), rule_kind(I, H, **options, **(VARIANTS[rule] if "/" in rule else {})))


def has_kernel(cell: str, rule: str) -> bool:
    """Return True if the training kernels take a cell under a rule."""
    if RULES[rule.partition("/")[0]].refusal(resolve(cell)[0]) is not None:
        return False
    return common.refusal(_layer(cell, rule, 2, 16).unrolled) is None


def _gradients(layer: RecurrentLayer, x: Tensor, state: list[Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    x = x.detach().requires_grad_()
    state = [s.detach().clone().requires_grad_() for s in state]
    y, last, trace = layer(x, tuple(state))
    (y.sin().sum() + sum(s.cos().sum() for s in last) + trace.budget).backward()
    tensors = {"y": y.detach(), "x": x.grad, **{f"state {i}": s.grad for i, s in enumerate(state)}}
    tensors |= {name: p.grad for name, p in layer.named_parameters()}
    masks = [mask.flatten() for mask in (trace.decisions, trace.sent_inputs) if mask is not None]
    return {name: g.double() for name, g in tensors.items() if g is not None}, torch.cat(masks) if masks else None


def named_layer(name: str, I: int, H: int, device: str, unroller: Callable[[RecurrentLayer], Any] | None) -> nn.Module:
    """Build the layer of a cell, such as gru or sarnn, with the implementation of its loop that `unroller` makes."""
    cell, rule = resolve(name)
    layer = RecurrentLayer(cell(I, H), rule(I, H)).to(device)
    if unroller is not None:
        layer.unroller = unroller(layer)
    return layer


def warm(item: Item, device: str) -> dict[str, Any]:
    """Compile the kernels of a layer, which Triton keeps on disk, so that a later timing need not."""
    with products(item["how"]):
        layer = named_layer(item["name"], item["I"], item["H"], device, gpu.GpuUnroller)
        layer(torch.randn(2, 16, item["I"], device=device))[0].sum().backward()
        return gpu.resources(layer)


# implementations of the loop of a layer to time: precision of products, and unroller
_IMPLEMENTATIONS: dict[str, tuple[str, Callable[[RecurrentLayer], Any] | None]] = {
    "fused": ("tf32", gpu.GpuUnroller),
    "fused bf16": ("bf16", gpu.GpuUnroller),
    "graphs": ("tf32", lambda layer: graphs.GraphUnroller()),
    "loop": ("tf32", None),
}


def step(item: Item, device: str) -> dict[str, Any]:
    """Time the training step of a layer, forward and backward, beside torch.nn's GRU, or LSTM for the cell lstm."""
    T, B, I, H = item["size"]
    name, x = item["name"], torch.randn(T, B, I, device=device)
    kind = {"lstm": nn.LSTM}.get(name, nn.GRU)
    runs = {f"torch.nn.{kind.__name__}": _both_ways(kind(I, H).to(device), x, "tf32")}
    resources = {}
    for how in item["how"]:
        precision, unroller = _IMPLEMENTATIONS[how]
        layer = named_layer(name, I, H, device, unroller)
        runs[f"{name}, {how}"] = _both_ways(layer, x, precision)
        if unroller is gpu.GpuUnroller:
            resources[precision] = partial(gpu.resources, layer)
    times = timed(runs, device, item["rounds"])
    told = {}
    for precision, usage in resources.items():
        with products(precision):
            told[precision] = usage()
    return {"times": times, "resources": told}


Marks = Callable[[], None]


def _both_ways(module: nn.Module, x: Tensor, how: str) -> Callable[[Marks], None]:
    def run(mark: Marks) -> None:
        module.zero_grad()
        with products(how):
            loss = module(x)[0].sum()
            mark()
            loss.backward()

    return run


def timed(runs: Mapping[str, Callable[[Marks], None]], device: str, rounds: int, calls: int = 1) -> dict[str, Any]:
    """Time functions in turns, after two rounds for warm-up; only a GPU makes more than one call in a row."""
    spent: dict[str, list[list[float]]] = {name: [] for name in runs}
    failures: dict[str, str] = {}
    for number in range(rounds + 2):
        for name, run in runs.items():
            if name in failures:
                continue
            try:
                parts = _parts(run, device, calls if number else 1)
            except Exception as error:  # any failure of a compiler or a driver belongs in the report
                failures[name] = reason(error)
                continue
            if number >= 2:
                spent[name].append(parts)
    figures: dict[str, Any] = {}
    for name, all_parts in spent.items():
        if name in failures:
            figures[name] = {"failure": failures[name]}
            continue
        totals = [sum(parts) for parts in all_parts]
        figures[name] = {"ms": statistics.median(totals), "min": min(totals), "max": max(totals)}
        if len(all_parts[0]) == 2:
            forward, backward = zip(*all_parts, strict=True)
            figures[name] |= {"forward": statistics.median(forward), "backward": statistics.median(backward)}
        figures[name] = {key: round(value, 4) for key, value in figures[name].items()}
    return figures


def _parts(run: Callable[[Marks], None], device: str, calls: int) -> list[float]:
    """Return the milliseconds of each part of a call; of `calls` calls of functions with one part, the mean."""
    if torch.device(device).type != "cuda":
        times = [time.perf_counter()]
        run(lambda: times.append(time.perf_counter()))
        times.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in itertools.pairwise(times)]
    event: Any = torch.cuda.Event
    events = [event(enable_timing=True)]
    events[0].record()

    def mark() -> None:
        events.append(event(enable_timing=True))
        events[-1].record()

    for _ in range(calls):
        run(mark)
    if len(events) > 1 and calls > 1:
        raise ValueError("calls: expected 1 for functions with two parts")
    mark()
    events[-1].synchronize()
    return [float(a.elapsed_time(b)) / calls for a, b in itertools.pairwise(events)]


@cache
def _library(path: str, device: str) -> CudaCalls:
    library = CudaCalls(path)
    if device != "cpu" and (why := library.missing()) is not None:
        raise EdgernnError(f"the CUDA library cannot use a GPU: {why}; run nvidia-smi to check GPU and driver")
    return library


_forms = cache(forms)


def op(item: Item, device: str, library: str) -> dict[str, Any]:
    """Compare a kernel of the CUDA library with the same layer in torch in float64, see `gpu_ops.check`."""
    shapes = item.get("shapes") or gpu_ops.SHAPES
    return gpu_ops.check(_library(library, device), item["op"], _forms()[item["op"]], shapes, device)


def infer(item: Item, device: str, library: str) -> dict[str, Any]:
    """Time kernels of the CUDA library beside torch.nn's GRU and LSTM, which use cuDNN."""
    T, B, H = item["size"]
    calls = gpu_ops.calls(_library(library, device), device, T, B, H)
    runs = {name: partial(_one_part, call) for name, call in calls.items()}
    times = timed(runs, device, item["rounds"], 20)
    with products("ieee"):
        exact = timed({"torch.nn.GRU": runs["torch.nn.GRU"]}, device, item["rounds"], 20)
    return {"times": times | {"torch.nn.GRU, float32": exact["torch.nn.GRU"]}}


def _one_part(call: Callable[[], Any], mark: Marks) -> None:
    call()


def sanitize(item: Item, device: str, library: str) -> dict[str, Any]:
    """Run a few checks under NVIDIA's compute-sanitizer, see `gpu_ops.sanitize`."""
    return gpu_ops.sanitize(item["tool"], item["seconds"])


def exported(item: Item, device: str, library: str) -> dict[str, Any]:
    """Measure a case of `edgernn bench --device cuda --suite --quick`: an exported model in ONNX Runtime."""
    from benchmarks.gpu_cases import cases, run_cases, summary
    from benchmarks.suite import QUICK

    (case,) = [case for case in cases() if case.name == item["case"]]
    with tempfile.TemporaryDirectory() as folder:
        entry = run_cases(Path(folder) / "cuda.json", [case], QUICK)["cases"][0]
    if "failed" in entry:
        return {"failure": entry["failed"]}
    return {"summary": summary(entry), "entry": entry}


def handlers(device: str, library: str) -> dict[str, Handler]:
    """Return a dict from the name of a measurement to its function, for a torch device and the CUDA library's path."""
    measurements = {"grad": grad, "warm": warm, "step": step}
    of_library = {"op": op, "infer": infer, "sanitize": sanitize, "exported": exported}
    return {name: partial(function, device=device) for name, function in measurements.items()} | {
        name: partial(function, device=device, library=library) for name, function in of_library.items()
    }


def fault(device: str) -> str | None:
    """Return why the GPU does not work any more, such as after an illegal access to memory, or None if it does."""
    if torch.device(device).type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        return reason(error)
    return None


if __name__ == "__main__":
    serve(handlers(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""), partial(fault, sys.argv[1]))
