# SPDX-License-Identifier: Apache-2.0
"""The CUDA library's ops against torch, through its plain C functions: `python -m edgernn.bench.gpu_ops`

That command checks a few ops at small sizes, so that compute-sanitizer can watch it; `gpu_suite` checks and times all.
Nothing here needs ONNX Runtime. A library that computes in the processor's memory is checked on the device "cpu".
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells import CELLS, EINS, Cell, ForgetBias
from edgernn.cells.recurrent import recurrent_weights
from edgernn.errors import EdgernnError
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES, Kind
from edgernn.runtime.cuda import CudaLibrary, Sizes
from edgernn.runtime.library import CUDA, CUDA_OPTION, cuda_library_path, library_missing, library_path

# those that run on a GPU
ON_GPU = tuple(name for name, rule in RULES.items() if not (rule.masks or (rule.kind is Kind.TIME and rule.can_skip)))
# of y and the states, absolute: they are about 1
TOLERANCE = 1e-4
# T, B, I, H
SHAPES = ((1, 1, 3, 5), (13, 3, 24, 60), (40, 1, 2, 128), (5, 70, 64, 128), (3, 2, 128, 256))
SMALL = ("gru", "lstm-peephole", "gru+selective", "lstm+skip", "gru-before+selective+low-rank")
TIMED = ("gru", "lstm", "pru", "gru+selective", "gru+skip", "gru-before", "irc-gru", "eins")
# T, B, H
TIMES = ((500, 1, 128), (100, 256, 128))
_RANK, _SHARE, _DRAWS = 4, 0.4, 8
_OPTIONS: tuple[tuple[str, Callable[..., Cell]], ...] = (
    *CELLS.items(),
    ("eins", partial(EINS, a="x")),
    ("eins", partial(EINS, a="x", forget_bias=1.0)),
    *((name, partial(cell, forget_bias=1.0)) for name, cell in CELLS.items() if issubclass(cell, ForgetBias)),
)


@dataclass(frozen=True)
class Form:
    """What a layer is made of; square: where I is H alone. biases: whether gates whose bias is optional have one."""

    kind: str
    biases: bool
    make: Callable[..., Cell]
    rule: str
    rank: int
    square: bool

    def layer(self, I: int, H: int) -> RecurrentLayer:
        """With weights N(0, 1/(4·columns)), so that rounding errors die out."""
        cell = self.make(I, H, recurrent=recurrent_weights(self.rank or None))
        layer = RecurrentLayer(cell, RULES[self.rule](I, H))
        for parameter in cell.parameters():
            nn.init.normal_(parameter, std=0.5 / parameter.shape[-1] ** 0.5)
        if layer.rule.can_skip:
            layer.rule.force(_SHARE)
        return layer.eval()


def forms() -> dict[str, Form]:
    """Of every layer of ours under a rule that runs on a GPU, by `form_name`."""
    found: dict[str, Form] = {}
    for square, rank, rule, (_, make) in itertools.product((False, True), (0, _RANK), ON_GPU, _OPTIONS):
        sizes = (5, 5) if square else (3, 5)
        cell = make(*sizes)
        # a cell without recurrent weights has no rank
        if rank and "R" not in dict(cell.named_parameters()):
            continue
        biases = isinstance(cell, ForgetBias) and cell.forget_bias is not None
        layer = RecurrentLayer(make(*sizes, recurrent=recurrent_weights(rank or None)), RULES[rule](*sizes))
        form = Form(layer.kind, biases, make, rule, rank, square)
        found.setdefault(form_name(layer.kind, biases), form)
    return found


def form_name(kind: str, biases: bool) -> str:
    """What a form is called in `forms` and in reports."""
    return f"{kind} with biases" if biases else kind


Outputs = tuple[Tensor, list[Tensor], Tensor, Tensor]


class PackedLayer:
    """A layer's weights, packed on a device, and calls of its op, which write into memory that is poisoned before."""

    def __init__(self, library: CudaLibrary, layer: RecurrentLayer, form: Form, device: str) -> None:
        from edgernn.export.trace import layer_weights

        self._library, self._layer, self._device = library, layer, device
        self._sizes = Sizes(layer.cell.input_size, layer.cell.hidden_size, form.rank, form.biases)
        weights = [w.detach().to(device, torch.float32).contiguous() for w in layer_weights(layer).values()]
        self._packed = torch.empty(library.packed_bytes(layer.kind, self._sizes), dtype=torch.uint8, device=device)
        library.pack(layer.kind, self._sizes, [w.data_ptr() for w in weights], self._packed.data_ptr(), self._stream)
        # they are read until the device has packed them
        self._weights = weights

    @property
    def _stream(self) -> int:
        return 0 if self._device == "cpu" else int(torch.cuda.current_stream().cuda_stream)

    def bound(self, x: Tensor, states: Sequence[Tensor]) -> tuple[Callable[[], None], Outputs]:
        """A call of the op, and what it writes: y, the states after the last step, updates and macs.

        The last two are -1 where the rule never skips.
        """
        (T, B), H = x.shape[:2], self._sizes.hidden
        y, after = x.new_full((T, B, H), torch.nan), [torch.full_like(state, torch.nan) for state in states]
        updates, macs = (torch.full(shape, -1, device=x.device) for shape in ((T, B), (B,)))
        counts = (updates.data_ptr(), macs.data_ptr()) if self._layer.rule.can_skip else (0, 0)
        before, behind = ([state.data_ptr() for state in those] for those in (states, after))
        places = (self._packed.data_ptr(), T, B, x.data_ptr(), before, y.data_ptr(), behind, *counts, self._stream)

        def call() -> None:
            self._library.run(self._layer.kind, self._sizes, *places)

        return call, (y, after, updates, macs)


def check(
    library: CudaLibrary, op: str, form: Form, shapes: Iterable[tuple[int, int, int, int]], device: str
) -> dict[str, Any]:
    """The worst error of y and the states against torch's loop in float64, and whether counts are right.

    A decision near its threshold may fall either way and changes all that follows: inputs are drawn again where it did.
    """
    found: dict[str, Any] = {"op": op, "error": 0.0, "shape": None, "passed": True}
    for T, B, I, H in shapes:
        shape = (T, B, H if form.square else I, H)
        for seed in range(_DRAWS):
            torch.manual_seed(seed)
            error = _error(library, form, shape, device)
            if error is not None:
                break
        if error is None or not error <= TOLERANCE:
            why = "its decisions differ in all draws" if error is None else f"wrong by {error:.1e}"
            return {**found, "error": error, "shape": shape, "passed": False, "failure": why}
        if error >= found["error"]:
            found |= {"error": error, "shape": shape}
    return found


def _error(library: CudaLibrary, form: Form, shape: tuple[int, int, int, int], device: str) -> float | None:
    T, B, I, H = shape
    layer = form.layer(I, H).to(device)
    x = torch.randn(T, B, I, device=device)
    states = [0.5 * torch.randn(B, width, device=device) for width in layer.widths.values()]
    for place, name in enumerate(layer.states):
        if name in layer.rule.memory:
            states[place].fill_(layer.rule.memory[name].start)
    call, (y, after, updates, macs) = PackedLayer(library, layer, form, device).bound(x, states)
    call()
    with torch.no_grad():
        true_y, true_after, trace = layer.double()(x.double(), tuple(state.double() for state in states))
    if trace.decisions is not None:
        if not torch.equal(updates, trace.decisions.sum(-1)):
            return None
        if not bool(((macs >= 0) & (macs <= T * layer.macs())).all()):
            return float("nan")
    pairs = zip((y, *after), (true_y, *true_after), strict=True)
    errors = [float((got.double() - true).abs().max()) for got, true in pairs]
    # max would lose what is no number
    return max(errors) if all(error == error for error in errors) else float("nan")


def check_all(library: CudaLibrary, device: str, end: float, left_out: list[str]) -> list[dict[str, Any]]:
    """Every op of the library, until the time `end`; those of which torch has no layer are failures."""
    known, found, kernels = forms(), [], library.kernels()
    ops = sorted(kernels | {name for name, form in known.items() if form.kind in kernels})
    for done, op in enumerate(ops):
        if time.perf_counter() > end:
            left_out.append(f"{len(ops) - done} of {len(ops)} CUDA ops, for want of time")
            break
        try:
            if op not in known:
                raise EdgernnError("torch has no such layer")
            found.append(check(library, op, known[op], SHAPES, device))
        # whatever a launch makes of it belongs in the report
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"[:500]
            found.append({"op": op, "error": None, "shape": None, "passed": False, "failure": failure})
    return found


def calls(library: CudaLibrary, device: str, T: int, B: int, H: int) -> dict[str, Callable[[], Any]]:
    """What is timed beside torch's layers, forward alone, for T steps of B sequences with I = 2."""
    known, x = forms(), torch.randn(T, B, 2, device=device)
    runs: dict[str, Callable[[], Any]] = {}
    for name, kind in (("torch.nn.GRU", nn.GRU), ("torch.nn.LSTM", nn.LSTM)):
        runs[name] = partial(torch.inference_mode()(kind(2, H).to(device)), x)
    for op in TIMED:
        if op in library.kernels() and op in known:
            layer = known[op].layer(2, H).to(device)
            states = [torch.zeros(B, width, device=device) for width in layer.widths.values()]
            runs[op] = _held(PackedLayer(library, layer, known[op], device), x, states)
    return runs


def _held(op: PackedLayer, x: Tensor, states: Sequence[Tensor]) -> Callable[[], Any]:
    """A call that keeps what it reads and writes."""
    call, outputs = op.bound(x, states)
    return lambda: (call(), op, x, states, outputs)


def find_or_build(seconds: float) -> str:
    """The CUDA library, built and laid beside the other one if it is not there but nvcc and the sources are.

    Raises EdgernnError where it cannot be had, or not in so many seconds.
    """
    missing = library_missing("cuda")
    if missing is None:
        return cuda_library_path()
    import edgernn

    root = Path(edgernn.__file__).resolve().parents[1]
    if shutil.which("nvcc") is None or shutil.which("cmake") is None or not (root / "CMakeLists.txt").is_file():
        raise EdgernnError(missing)
    folder, end = root / "build" / "cuda", time.perf_counter() + seconds
    configure = ["cmake", "-S", str(root), "-B", str(folder), f"-D{CUDA_OPTION}=ON"]
    build = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1), "--target", "edgernn_cuda"]
    for words in (configure, build):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, end - time.perf_counter()))
        except subprocess.TimeoutExpired:
            raise EdgernnError(f"{' '.join(words)} was not done in {seconds:.0f} s") from None
        if done.returncode != 0:
            raise EdgernnError(f"{' '.join(words)} failed: {(done.stderr or done.stdout)[-500:]}")
    beside = Path(library_path() if library_missing() is None else edgernn.runtime.__file__).with_name(CUDA)
    shutil.copy2(folder / CUDA, beside)
    return cuda_library_path()


def sanitize(tool: str, seconds: float) -> dict[str, Any]:
    """The small checks under compute-sanitizer. Raises EdgernnError where it is not there or takes too long."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise EdgernnError("it is not installed")
    words = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "edgernn.bench.gpu_ops"]
    # every tensor in an allocation of its own, so that what is read beside it is seen
    around = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, seconds), env=around)
    except subprocess.TimeoutExpired:
        raise EdgernnError(f"it was not done in {seconds:.0f} s") from None
    return {"tool": tool, "passed": done.returncode == 0, "said": (done.stdout + done.stderr)[-1000:]}


@dataclass(frozen=True)
class Prepared:
    """What can be done beside other work: the library, and what compute-sanitizer said."""

    path: str
    sanitized: list[dict[str, Any]]
    left_out: list[str]


def prepare(seconds: float) -> Prepared:
    """Raises EdgernnError where there is no library."""
    end, sanitized, left_out = time.perf_counter() + seconds, [], []
    path = find_or_build(seconds)
    for tool in ("memcheck", "racecheck"):
        try:
            sanitized.append(sanitize(tool, end - time.perf_counter()))
        except EdgernnError as error:
            left_out.append(f"compute-sanitizer's {tool}: {error}")
    return Prepared(path, sanitized, left_out)


def measured(
    prepared: Prepared,
    device: str,
    end: float,
    left_out: list[str],
    clock: Callable[[dict[str, Callable[[], Any]]], dict[str, Any]],
) -> dict[str, Any]:
    """Checks and times of all ops, and of exported files in ONNX Runtime where it has a CUDA provider.

    clock: makes figures of calls by name. Raises EdgernnError where the library finds no GPU.
    """
    library = CudaLibrary(prepared.path)
    if device != "cpu" and (reason := library.missing()) is not None:
        raise EdgernnError(reason)
    left_out += prepared.left_out
    found: dict[str, Any] = {"checks": check_all(library, device, end, left_out), "sanitized": prepared.sanitized}
    found["timed"] = {f"T={T} B={B} H={H}": clock(calls(library, device, T, B, H)) for T, B, H in TIMES}
    found["exported"] = _exported(end, left_out)
    return found


def _exported(end: float, left_out: list[str]) -> list[dict[str, Any]]:
    """A few cases of `edgernn bench --device cuda --suite --quick`."""
    from edgernn.bench.gpu_cases import cases, run_cases
    from edgernn.bench.suite import QUICK

    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases("(2, 128)"):
            if time.perf_counter() > end:
                left_out.append(f"{case.name} in ONNX Runtime, for want of time")
                continue
            try:
                made += run_cases(Path(folder) / "cuda.json", [case], QUICK)["cases"]
            except EdgernnError as error:
                left_out.append(f"exported files in ONNX Runtime: {error}")
                break
    return made


def main(library: CudaLibrary | None = None, device: str = "cuda") -> int:
    library, known = library or CudaLibrary(cuda_library_path()), forms()
    if (reason := library.missing()) is not None and device == "cuda":
        print(reason, file=sys.stderr)
        return 1
    found = [check(library, op, known[op], SHAPES[:2], device) for op in SMALL if op in library.kernels()]
    for each in found:
        print(each["op"], f"{each['error']:.1e}" if each["passed"] else each["failure"])
    return 0 if found and all(each["passed"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
