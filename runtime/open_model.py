# SPDX-License-Identifier: Apache-2.0
"""Loading of an exported file into ONNX Runtime, and the choice of its backend."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgernn.errors import EdgernnError, EdgernnWarning
from edgernn.runtime.device import DEVICE, RECORD, gpu_session, require_gpu, unassigned_ops
from edgernn.runtime.graph_facts import check_facts
from edgernn.runtime.info import kernels, not_utf8, read_info
from edgernn.runtime.interface import Value, state_sizes
from edgernn.runtime.library import no_native, onnxruntime, op_names, register
from edgernn.runtime.weights import parse

if TYPE_CHECKING:
    import onnx


def open_model(
    path: Path, content: bytes, library: str | None, threads: int, device: str, stream: int | None
) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """Load an exported file into ONNX Runtime, and check its graph and metadata.

    If the library of custom ops lacks a kernel that the model needs, the session is created without the library. ONNX
    Runtime then runs the functions in the file, which define each custom op by standard operators.

    Args:
        path: Path of the file, for error messages.
        content: The file's content.
        library: Path of the library of custom ops to register (native, or CUDA for a GPU), or None.
        threads: Number of threads that ONNX Runtime uses within an operator.
        device: "cpu" or "cuda".
        stream: Handle of a CUDA stream (cudaStream_t) as an integer, or None for ONNX Runtime's own stream.

    Returns:
        The onnxruntime.InferenceSession, the file's metadata as `read_info` returns it, and a dict from the name of
        each state (B, H) to H.

    Raises:
        EdgernnError: The file cannot be loaded, its graph or metadata is invalid, or the device is not available.
    """
    model = parse(content, path)
    try:
        session, failure = _create(path, content, library, threads, device, stream), None
    except EdgernnError as error:
        if library is None:
            raise
        # ONNX Runtime does not use a node's portable function if the registered library lacks its kernel
        session, failure = _create(path, content, None, threads, device, stream), error
    try:
        text = session.get_modelmeta().custom_metadata_map.get("edgernn")
        inputs, outputs = (
            [Value(v.name, v.type, tuple(v.shape)) for v in values]
            for values in (session.get_inputs(), session.get_outputs())
        )
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    info = read_info(text, path, networks=True)
    sizes = state_sizes(info, inputs, outputs, len(content), path)
    check_facts(model, info, path)
    if failure is not None and no_native(kernels(info), device) is None:
        raise failure
    return session, info, sizes


def open_session(path: Path, model: "bytes | onnx.ModelProto", library: str | None, threads: int) -> Any:
    """Create an ONNX Runtime session from the content of a file, without checks of its metadata.

    Args:
        path: Path of the file, for error messages.
        model: The file's content, or the model that `parse` made of it.
        library: Path of the native library of custom ops to register, or None.
        threads: Number of threads that ONNX Runtime uses within an operator.

    Returns:
        The onnxruntime.InferenceSession, on a CPU.

    Raises:
        EdgernnError: The file cannot be loaded, or refers to another file.
    """
    if isinstance(model, bytes):
        # ONNX Runtime would read any file that a tensor names
        parse(model, path)
    else:
        model = model.SerializeToString()
    return _create(path, model, library, threads, "cpu", None)


def _create(path: Path, content: bytes, library: str | None, threads: int, device: str, stream: int | None) -> Any:
    ort = onnxruntime()
    if device == DEVICE:
        require_gpu(ort, library)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # errors are raised, so they need no log
    options.log_severity_level = 4
    try:
        if library is not None:
            register(options, library, threads)
        if device == DEVICE:
            options.add_session_config_entry(RECORD, "1")
            return gpu_session(ort, content, options, stream=stream)
        # enable_fallback would print an error and retry
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except EdgernnError:
        raise
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except Exception as error:  # the classes of ONNX Runtime's exceptions have no common base
        raise EdgernnError(
            f"{path}: ONNX Runtime cannot load the model: {first_line(error)}; export the model again"
        ) from None


def is_foreign(content: bytes, path: Path) -> bool:
    """Return True for the content of an ONNX file without metadata of edgernn: that of another tool."""
    return all(entry.key != "edgernn" for entry in parse(content, path, external="check").metadata_props)


def first_line(error: Exception) -> str:
    """Return the first line of the message of an ONNX Runtime error; the other lines only repeat it."""
    return str(error).partition("\n")[0]


def choose_backend(requested: str, session: Any, kernels: list[str], device: str) -> Literal["native", "portable"]:
    """Choose the backend for a model; warn if "auto" falls back to the slower portable operators.

    The native backend runs the custom ops of edgernn's library. The portable backend runs standard ONNX operators.

    Args:
        requested: "auto" (native if possible), "native" or "portable".
        session: The onnxruntime.InferenceSession.
        kernels: Names of the kernels that the model needs, such as gru+selective.
        device: "cpu" or "cuda".

    Returns:
        The backend, "native" or "portable".

    Raises:
        EdgernnError: "native" is requested, but the library or one of the kernels is not available.
    """
    if requested == "portable":
        return "portable"
    reason = no_native(kernels, device)
    if reason is None and device == DEVICE and (ops := unassigned_ops(session, set(op_names(len(kernels))))):
        reason = f"ONNX Runtime's CUDA provider does not run {', '.join(sorted(ops))}"
    if reason is None:
        return "native"
    if requested == "native":
        raise EdgernnError(f"backend: native is not available: {reason}; use backend portable or auto")
    warnings.warn(f"{reason}; running the portable operators, which are slower", EdgernnWarning, stacklevel=3)
    return "portable"
