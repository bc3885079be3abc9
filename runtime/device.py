# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on a GPU: whether it can be, sessions that are really there, and calls whose data stay there."""

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.runtime.cuda import CudaLibrary
from edgernn.runtime.library import DOMAIN, onnxruntime

DEVICE, PROVIDER = "cuda", "CUDAExecutionProvider"
# of ONNX Runtime's session: it tells which provider got which node
RECORD = "session.record_ep_graph_assignment_info"


def require_gpu(ort: Any, library: str | None) -> None:
    """Raises EdgernnError, with what to install or do, where ONNX Runtime has no CUDA provider, and where the library
    says that no GPU can be used.

    ONNX Runtime itself would warn at most, and run on the CPU.
    """
    if hasattr(ort, "preload_dlls"):
        # finds CUDA in pip's packages; what it prints about those that are missing is said in one sentence later
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    names = set(ort.get_available_providers())
    if hasattr(ort, "get_ep_devices"):
        # a provider may also be a plug-in
        names |= {device.ep_name for device in ort.get_ep_devices()}
    if PROVIDER not in names:
        raise EdgernnError(
            "device cuda: the installed ONNX Runtime has no CUDA provider; "
            "pip uninstall onnxruntime, and then pip install 'edgernn[gpu]'"
        )
    if library is not None and (reason := CudaLibrary(library).missing()) is not None:
        raise EdgernnError(f"device cuda: {reason}")


def gpu_session(ort: Any, content: bytes, options: Any, *, stream: int | None = None, exact: bool = True) -> Any:
    """An onnxruntime.InferenceSession of a model on the first GPU, what has no kernel there on the CPU.

    stream: of CUDA, and not the default one, 0; ONNX Runtime's own where None. exact: products are float32, not tf32.
    Raises EdgernnError where the provider does not start: ONNX Runtime would go on without it.
    """
    settings = {"device_id": "0", "use_tf32": str(int(not exact))}
    if stream is not None:
        settings["user_compute_stream"] = str(stream)
    # a session of Python would catch an error of the provider and start, or run, once more on the CPU
    session = ort.InferenceSession(
        content, options, providers=[(PROVIDER, settings), "CPUExecutionProvider"], enable_fallback=0
    )
    if PROVIDER not in session.get_providers():
        raise EdgernnError(
            "device cuda: ONNX Runtime cannot start its CUDA provider, which needs an NVIDIA driver and GPU, and CUDA "
            "and cuDNN of the versions that it was built for; pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    return session


def ops_elsewhere(session: Any, ops: set[str]) -> set[str]:
    """Those of these ops of ours that the CUDA provider was not given, as far as the session recorded it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return set()
    groups = [group for group in session.get_provider_graph_assignment_info() if group.ep_name == PROVIDER]
    return ops - {node.op_type for group in groups for node in group.get_nodes() if node.domain == DOMAIN}


def to_device(array: Any) -> Any:
    """An onnxruntime.OrtValue on the GPU with a copy of an array."""
    return onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


class Call:
    """A call of a session on a GPU: `call()` runs it, `call.outputs` are OrtValues there, by name.

    inputs: arrays, which are copied once, and OrtValues. waits: whether a call returns when all is done; it needs a
    session with a stream of the caller's to be False.
    """

    def __init__(self, session: Any, inputs: Mapping[str, Any], *, waits: bool = True) -> None:
        self._session, self._binding, self._options = session, session.io_binding(), None
        if not waits:
            self._options = onnxruntime().RunOptions()
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                self._binding.bind_cpu_input(name, value)
            else:
                self._binding.bind_ortvalue_input(name, value)
        self._names = [output.name for output in session.get_outputs()]
        for name in self._names:
            self._binding.bind_output(name, DEVICE)

    def __call__(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)

    @property
    def outputs(self) -> dict[str, Any]:
        return dict(zip(self._names, self._binding.get_outputs(), strict=True))
