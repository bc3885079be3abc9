# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernels in the CUDA library against torch: `python -m benchmarks.gpu_ops`.

The command checks a few kernels at small sizes, fast enough for compute-sanitizer; `gpu_suite` checks and times all.
The checks do not need ONNX Runtime. With the device "cpu", they check a library that emulates the GPU on the CPU.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cuda_calls import CudaCalls, Sizes
from benchmarks.gpu_forms import GROUPS, Form, forms
from edgernn.errors import EdgernnError
from edgernn.layer import RecurrentLayer
from edgernn.runtime.library import cuda_library_path

# absolute error of y and the states, which are of order 1
TOLERANCE = 1e-4
# sizes (T, B, I, H) of the checks
SHAPES = ((1, 1, 3, 5), (13, 3, 24, 60), (40, 1, 2, 128), (5, 70, 64, 128), (3, 2, 128, 256))
SMALL = ("gru", "lstm-peephole", "gru+selective", GROUPS, "lstm+skip", "gru-before+selective+low-rank")
SMALL += ("gru+topk", "gru+delta")
TIMED = ("gru", "lstm", "pru", "gru+selective", GROUPS, "gru+skip", "gru+topk", "gru+delta")
TIMED += ("gru-before", "irc-gru", "eins")
_DRAWS = 8

Outputs = tuple[Tensor, list[Tensor], Tensor, Tensor]


class PackedLayer:
    """A layer whose weights are copied to a device in the memory layout of its CUDA kernel.

    Args:
        library: The CUDA library.
        layer: The layer.
        form: The layer's variant.
        device: The device of the weights, cuda or cpu.
    """

    def __init__(self, library: CudaCalls, layer: RecurrentLayer, form: Form, device: str) -> None:
        from edgernn.export.layer_functions import layer_weights

        self._library, self._layer, self._device = library, layer, device
        sizes = (layer.cell.input_size, layer.cell.hidden_size, form.rank, form.biases)
        self._sizes = Sizes(*sizes, layer.rule.group_size)
        weights = [w.detach().to(device, torch.float32).contiguous() for w in layer_weights(layer).values()]
        self._packed = torch.empty(
            library.packed_bytes(layer.kernel_name, self._sizes), dtype=torch.uint8, device=device
        )
        library.pack(
            layer.kernel_name, self._sizes, [w.data_ptr() for w in weights], self._packed.data_ptr(), self._stream
        )
        # packing is asynchronous and reads them
        self._weights = weights

    @property
    def _stream(self) -> int:
        return 0 if self._device == "cpu" else int(torch.cuda.current_stream().cuda_stream)

    def bound(self, x: Tensor, states: Sequence[Tensor]) -> tuple[Callable[[], None], Outputs]:
        """Return a function that calls the kernel on these inputs; outputs start as NaN, or -1 for integers."""
        (T, B), H = x.shape[:2], self._sizes.hidden
        y, after = x.new_full((T, B, H), torch.nan), [torch.full_like(state, torch.nan) for state in states]
        updates, macs = (torch.full(shape, -1, device=x.device) for shape in ((T, B), (B,)))
        counts = (updates.data_ptr(), macs.data_ptr()) if self._layer.rule.can_skip else (0, 0)
        old, new = ([state.data_ptr() for state in tensors] for tensors in (states, after))
        arguments = (self._packed.data_ptr(), T, B, x.data_ptr(), old, y.data_ptr(), new, *counts, self._stream)

        def call() -> None:
            self._library.run(self._layer.kernel_name, self._sizes, *arguments)

        return call, (y, after, updates, macs)


def check(
    library: CudaCalls, op: str, form: Form, shapes: Iterable[tuple[int, int, int, int]], device: str
) -> dict[str, Any]:
    """Compare a CUDA kernel with the same layer in torch, in float64: outputs, states and numbers of updated neurons.

    Rounding may flip an update decision near its threshold, which changes all later steps. The check then draws new
    inputs.
    """
    entry: dict[str, Any] = {"op": op, "error": 0.0, "shape": None, "passed": True}
    for T, B, I, H in shapes:
        shape = (T, B, H if form.square else I, H)
        for seed in range(_DRAWS):
            torch.manual_seed(seed)
            error = _error(library, form, shape, device)
            if error is not None:
                break
        if error is None or not error <= TOLERANCE:
            why = "its decisions differ in all draws" if error is None else f"wrong by {error:.1e}"
            return {**entry, "error": error, "shape": shape, "passed": False, "failure": why}
        if error >= entry["error"]:
            entry |= {"error": error, "shape": shape}
    return entry


def _error(library: CudaCalls, form: Form, shape: tuple[int, int, int, int], device: str) -> float | None:
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
    # max may drop NaN
    return max(errors) if all(error == error for error in errors) else float("nan")


def calls(library: CudaCalls, device: str, T: int, B: int, H: int) -> dict[str, Callable[[], Any]]:
    """Build the functions to time: each runs a forward pass with I = 2, in torch or by a kernel of `library`.

    The sizes are `T`, `B` and `H`. The result is a dict from name to function, for torch.nn.GRU and LSTM and for the
    kernels that are listed in TIMED.
    """
    known, x = forms(), torch.randn(T, B, 2, device=device)
    runs: dict[str, Callable[[], Any]] = {}
    for name, kind in (("torch.nn.GRU", nn.GRU), ("torch.nn.LSTM", nn.LSTM)):
        runs[name] = partial(torch.inference_mode()(kind(2, H).to(device)), x)
    for op in TIMED:
        if op in known and known[op].kernel_name in library.kernels():
            layer = known[op].layer(2, H).to(device)
            states = [torch.zeros(B, width, device=device) for width in layer.widths.values()]
            runs[op] = _held(PackedLayer(library, layer, known[op], device), x, states)
    return runs


def _held(op: PackedLayer, x: Tensor, states: Sequence[Tensor]) -> Callable[[], Any]:
    """Return a function that calls a layer's CUDA kernel. The function keeps its input and output tensors alive."""
    call, outputs = op.bound(x, states)
    return lambda: (call(), op, x, states, outputs)


def sanitize(tool: str, seconds: float) -> dict[str, Any]:
    """Run this module under NVIDIA's compute-sanitizer, for at most `seconds`."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise EdgernnError("expected the program compute-sanitizer in PATH, got none; install CUDA")
    words = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu_ops"]
    # one allocation per tensor, so that reads beyond a tensor are detected
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, seconds), env=environment)
    except subprocess.TimeoutExpired:
        raise EdgernnError(
            f"compute-sanitizer was stopped at the time limit of {seconds:.0f} s; run it by hand: {' '.join(words)}"
        ) from None
    return {"tool": tool, "passed": done.returncode == 0, "said": (done.stdout + done.stderr)[-1000:]}


def main(library: CudaCalls | None = None, device: str = "cuda") -> int:
    """Compare the CUDA kernels that are listed in SMALL with torch layers, and print the errors.

    Returns the exit status: 0 if all pass, else 1.
    """
    library, known = library or CudaCalls(cuda_library_path()), forms()
    if (reason := library.missing()) is not None and device == "cuda":
        print(reason, file=sys.stderr)
        return 1
    entries = [
        check(library, op, known[op], SHAPES[:2], device) for op in SMALL if known[op].kernel_name in library.kernels()
    ]
    for entry in entries:
        print(entry["op"], f"{entry['error']:.1e}" if entry["passed"] else entry["failure"])
    return 0 if entries and all(entry["passed"] for entry in entries) else 1


if __name__ == "__main__":
    sys.exit(main())
