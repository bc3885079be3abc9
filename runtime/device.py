# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on a GPU: checks of its availability, sessions, and calls with data in GPU memory."""

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.runtime.cuda import CudaLibrary
from edgernn.runtime.library import DOMAIN, onnxruntime

DEVICE, PROVIDER = "cuda", "CUDAExecutionProvider"
# session option of ONNX Runtime that records the provider of each node
RECORD = "session.record_ep_graph_assignment_info"


def require_gpu(ort: Any, library: str | None) -> None:
    """Check that ONNX Runtime and the CUDA library can use a GPU; ONNX Runtime alone would silently use the CPU.

    Args:
        ort: The module onnxruntime.
        library: Path of the CUDA library, or None to check ONNX Runtime alone.

    Raises:
        EdgernnError: ONNX Runtime has no CUDA provider, or the CUDA library cannot be loaded or finds no usable GPU.
    """
    if hasattr(ort, "preload_dlls"):
        # finds CUDA in pip's packages; the error below replaces its prints
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    names = set(ort.get_available_providers())
    if hasattr(ort, "get_ep_devices"):
        # a provider may also be a plug-in
        names |= {device.ep_name for device in ort.get_ep_devices()}
    if PROVIDER not in names:
        raise EdgernnError(
            "device cuda: the installed ONNX Runtime has no CUDA provider; "
            "pip uninstall onnxruntime onnxruntime-gpu, and then pip install 'onnxruntime-gpu>=1.19'"
        )
    if library is not None and (reason := CudaLibrary(library).missing()) is not None:
        raise EdgernnError(
            f"device cuda: edgernn's CUDA library cannot use a GPU: {reason}; mend that, or use device cpu"
        )


def gpu_session(ort: Any, content: bytes, options: Any, *, stream: int | None = None, exact: bool = True) -> Any:
    """Create a session on the first GPU; nodes without a CUDA kernel run on the CPU.

    Args:
        ort: The module onnxruntime.
        content: Content of the ONNX file.
        options: An onnxruntime.SessionOptions.
        stream: Address of the CUDA stream to run on, but not the default stream 0. None for a stream of ONNX Runtime.
        exact: True to multiply matrices in float32, False in TF32.

    Returns:
        The onnxruntime.InferenceSession.

    Raises:
        EdgernnError: The CUDA provider does not start; ONNX Runtime would continue on the CPU.
    """
    settings = {"device_id": "0", "use_tf32": str(int(not exact))}
    if stream is not None:
        settings["user_compute_stream"] = str(stream)
    # enable_fallback would retry on the CPU after an error of the provider
    session = ort.InferenceSession(
        content, options, providers=[(PROVIDER, settings), "CPUExecutionProvider"], enable_fallback=0
    )
    if PROVIDER not in session.get_providers():
        raise EdgernnError(
            "device cuda: ONNX Runtime cannot start its CUDA provider, which needs an NVIDIA GPU and driver, and the "
            "versions of CUDA and cuDNN that it was built for; pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    return session


def unassigned_ops(session: Any, ops: set[str]) -> set[str]:
    """Find the custom ops that the CUDA provider does not run, because none of their nodes is assigned to it.

    Args:
        session: The onnxruntime.InferenceSession, created with the session config entry
            session.record_ep_graph_assignment_info (RECORD) set to "1", so that it records the provider of each node.
        ops: Op types of the domain ai.edgernn that the model contains.

    Returns:
        The ops without a node on the GPU. Empty if this version of ONNX Runtime cannot list which provider runs a node.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return set()
    groups = [group for group in session.get_provider_graph_assignment_info() if group.ep_name == PROVIDER]
    return ops - {node.op_type for group in groups for node in group.get_nodes() if node.domain == DOMAIN}


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the first GPU, and return it as an onnxruntime.OrtValue."""
    return onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


class Call:
    """A function that runs an ONNX Runtime session on a GPU, with inputs and outputs bound once by IO binding.

    Calling the object runs the session. `outputs` then maps the name of each output to an OrtValue on the GPU.

    Args:
        session: The onnxruntime.InferenceSession.
        inputs: Dict from the name of each input to an OrtValue, or to an array, which is copied to the GPU once.
        waits: True if a call waits for the GPU to finish. False needs a session on the caller's CUDA stream
            (`gpu_session`), which the caller synchronises. `close` must then end the calls.
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

    def close(self) -> None:
        """End calls that do not wait, by one that does.

        ONNX Runtime keeps the pinned memory of such calls, for example of its GRU, until a call waits. Without one, it
        frees this memory with the session, in a callback of the CUDA stream, where CUDA refuses it: the process aborts.
        """
        if self._options is not None:
            self._session.run_with_iobinding(self._binding)

    @property
    def outputs(self) -> dict[str, Any]:
        return dict(zip(self._names, self._binding.get_outputs(), strict=True))
