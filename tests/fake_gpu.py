# SPDX-License-Identifier: Apache-2.0
"""A fake GPU for tests of Python code: ONNX Runtime's CUDA provider and our library, with the CPU behind them."""

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from benchmarks.cuda_calls import Sizes
from benchmarks.gpu_forms import form_name, forms
from edgernn.export.layer_functions import layer_weights
from edgernn.layer import RecurrentLayer
from edgernn.runtime import library_path
from edgernn.runtime.device import PROVIDER
from tests.kernel_builds import compiler


def build_library(folder: Path) -> Path:
    """Build the fake CUDA library from tests/fake_cuda.cc."""
    library = folder / "libedgernn_cuda.so"
    source, real = Path(__file__).with_name("fake_cuda.cc"), f'-DREAL="{library_path()}"'
    subprocess.run([compiler(), "-shared", "-fPIC", "-O1", real, source, "-o", library, "-ldl"], check=True)
    return library


class DeviceValue(onnxruntime.OrtValue):
    """A value with a device; arrays on the fake device do not share memory with NumPy."""

    device = "cpu"

    @classmethod
    def ortvalue_from_numpy(cls, array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> "DeviceValue":
        assert device_id == 0
        held = array if device_type == "cpu" else array.copy()
        value = cls(onnxruntime.OrtValue.ortvalue_from_numpy(held)._ortvalue, held)
        value.device = device_type
        return value

    def numpy(self) -> np.ndarray:
        return super().numpy().copy()


class Binding:
    """A fake IOBinding: checks devices and records the CPU arrays that are copied."""

    def __init__(self, session: "Gpu") -> None:
        self.real, self.session = session.real.io_binding(), session

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self.session.copied.append(name)
        self.real.bind_ortvalue_input(name, DeviceValue.ortvalue_from_numpy(array, "cuda"))

    def bind_ortvalue_input(self, name: str, value: DeviceValue) -> None:
        assert value.device == "cuda", name
        self.real.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: DeviceValue) -> None:
        assert value.device == "cuda", name
        self.real.bind_ortvalue_output(name, value)

    def bind_output(self, name: str, device: str) -> None:
        assert device == "cuda", name
        self.real.bind_output(name)

    def get_outputs(self) -> list[Any]:
        return list(self.real.get_outputs())


class Gpu:
    """A fake InferenceSession. copied: names of inputs bound as CPU arrays; runs: options of each run."""

    def __init__(self, content: bytes, options: Any, providers: list[Any], enable_fallback: int = 1) -> None:
        self.settings = dict([providers[0]] if isinstance(providers[0], tuple) else []).get(PROVIDER)
        assert self.settings is None or enable_fallback == 0
        self.real = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.copied: list[str] = []
        self.runs: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def get_providers(self) -> list[str]:
        return [PROVIDER] * (self.settings is not None and FakeRuntime.starts) + ["CPUExecutionProvider"]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [Group(group) for group in self.real.get_provider_graph_assignment_info()]

    def io_binding(self) -> Any:
        return Binding(self) if self.settings is not None else self.real.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self.runs.append(options)
        self.real.run_with_iobinding(getattr(binding, "real", binding))


class Group:
    """The nodes assigned to one provider."""

    def __init__(self, real: Any) -> None:
        self.ep_name, self.get_nodes = FakeRuntime.takes, real.get_nodes


class FakeRuntime:
    """A fake onnxruntime module.

    provides: The CUDA provider is available. starts: The provider starts. takes: The provider that the nodes are
    assigned to.
    """

    provides, starts, takes = True, True, PROVIDER
    OrtValue, InferenceSession = DeviceValue, Gpu
    SessionOptions, RunOptions = onnxruntime.SessionOptions, onnxruntime.RunOptions

    @classmethod
    def get_available_providers(cls) -> list[str]:
        return [PROVIDER] * cls.provides + ["CPUExecutionProvider"]

    @staticmethod
    def preload_dlls() -> None:
        print("Failed to load libcudnn.so")


def install(monkeypatch: pytest.MonkeyPatch, library: Path | None, **facts: Any) -> None:
    """Fake a machine with a GPU and these attributes of FakeRuntime. library: Path of the CUDA library, or None."""
    from edgernn.bench import gpu_times as bench
    from edgernn.errors import EdgernnError
    from edgernn.runtime import device, open_model, session, stream
    from edgernn.runtime import library as libraries

    def path() -> str:
        if library is None:
            raise EdgernnError("the CUDA library libedgernn_cuda is not installed")
        return str(library)

    for module in (libraries, session, bench):
        monkeypatch.setattr(module, "cuda_library_path", path)
    for module in (libraries, open_model, device, stream, bench):
        monkeypatch.setattr(module, "onnxruntime", lambda: FakeRuntime)
    for name, value in facts.items():
        monkeypatch.setattr(FakeRuntime, name, value)


class TorchLibrary:
    """A CudaCalls on CPU memory by torch's loop. `error` is added to y, and the last `unwritten` steps are not."""

    def __init__(self, kernels: str, error: float = 0.0, unwritten: int = 0) -> None:
        self._kernels, self._error, self._unwritten = kernels, error, unwritten
        self._layers: dict[int, RecurrentLayer] = {}

    def kernels(self) -> set[str]:
        return set(self._kernels.split())

    def missing(self) -> str | None:
        return None

    def packed_bytes(self, kind: str, sizes: Sizes) -> int:
        return 1

    def pack(self, kind: str, sizes: Sizes, weights: Sequence[int], packed: int, stream: int = 0) -> None:
        form = replace(forms()[form_name(kind, sizes.biases)], group_size=sizes.group_size)
        layer = self._layers[packed] = form.layer(sizes.input, sizes.hidden)
        for weight, at in zip(layer_weights(layer).values(), weights, strict=True):
            weight.data.copy_(_memory(at, *weight.shape))

    def run(
        self,
        kind: str,
        sizes: Sizes,
        packed: int,
        steps: int,
        batch: int,
        x: int,
        states: Sequence[int],
        y: int,
        new_states: Sequence[int],
        updates: int = 0,
        macs: int = 0,
        stream: int = 0,
    ) -> None:
        layer = self._layers[packed]
        widths = layer.widths.values()
        before = tuple(_memory(at, batch, width).clone() for at, width in zip(states, widths, strict=True))
        with torch.no_grad():
            result, last, trace = layer(_memory(x, steps, batch, sizes.input), before)
        _memory(y, steps, batch, sizes.hidden)[: steps - self._unwritten] = (result + self._error)[
            : steps - self._unwritten
        ]
        for at, value in zip(new_states, last, strict=True):
            _memory(at, *value.shape).copy_(value)
        if trace.decisions is not None:
            _memory(updates, steps, batch, kind=ctypes.c_int64).copy_(trace.decisions.sum(-1))
            _memory(macs, batch, kind=ctypes.c_int64).fill_(steps * layer.macs())


def _memory(at: int, *shape: int, kind: Any = ctypes.c_float) -> torch.Tensor:
    """Return a tensor that shares the memory at an address."""
    return torch.from_numpy(np.ctypeslib.as_array((kind * int(np.prod(shape))).from_address(at)).reshape(shape))
