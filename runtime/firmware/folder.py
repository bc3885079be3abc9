# SPDX-License-Identifier: Apache-2.0
"""`edgernn pack --target c`: writes a model as a folder of C files to compile into a firmware."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgernn.errors import UsageError
from edgernn.files import replacing
from edgernn.runtime.firmware.detector_code import detector_header
from edgernn.runtime.firmware.model_code import ModelCode
from edgernn.runtime.firmware.model_content import LayerContent, ModelContent, graph_content, stack_content
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.info import read_model
from edgernn.runtime.input_check import OnNonfinite
from edgernn.runtime.packed import read_packable
from edgernn.runtime.step_graph.pack import is_graph, pack_graph
from edgernn.runtime.weights import parse

ENGINE = Path(__file__).with_name("engine")
# headers of C and POSIX, which a file of that name would hide from the firmware, as its folder is on the include path
_HEADERS = frozenset(
    """
    aio assert complex cpio ctype dirent dlfcn errno fcntl fenv float fmtmsg fnmatch ftw glob grp iconv inttypes iso646
    langinfo libgen limits locale malloc math memory monetary mqueue ndbm netdb nl_types poll pthread pwd regex sched
    search semaphore setjmp signal spawn stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib
    stdnoreturn string strings stropts syslog tar termios tgmath threads time trace uchar ucontext ulimit unistd utime
    utmpx wchar wctype wordexp alloca endian features link paths reent newlib unwind varargs edgernn
    """.split()  # noqa: SIM905
)
# bytes in which a C file says that edgernn wrote it
_COMMENT = 4096
# the list of neurons to update has 16-bit numbers
_MOST_NEURONS = 2**16 - 1


def pack_folder(
    model: Path,
    out: Path,
    name: str = "model",
    on_nonfinite: OnNonfinite = "error",
    options: GraphOptions = PLAIN,
) -> dict[str, Any]:
    """Convert an ONNX file to C99 source for a microcontroller.

    Args:
        model: A file that edgernn exported, or a streaming file of another tool.
        out: The folder to write.
        name: Name of the files, and prefix of the C functions, such as model in model_step.
        on_nonfinite: What a step does if a number of x is NaN or infinite. "error": the step returns an error and keeps
            the state. "hold": the step replaces the number by the last finite number of the same channel. "reset": the
            step restores the initial state, and then does the same as "hold".
        options: What the user says of a file of another tool, or of a network of one's own.

    Returns:
        Dict with the paths `model` and `folder`, the sorted file names `files`, and two sizes in bytes: `weights`, in
        flash, and `state`, in RAM.

    Raises:
        EdgernnError: The file cannot be read, or the native library, which checks the model, is missing.
        UsageError: The model has a part for which there is no C code, the name is not a C identifier or is that of
            a header of C, `on_nonfinite` is not "error" and the model reads words, or a file would be replaced that
            is not of edgernn.
    """
    files = c_files(read_model(model), model, name, on_nonfinite, options)
    for path in (out / file for file in files.texts if not (ENGINE / file).is_file()):
        # lines of the first comment may break anywhere
        if path.is_file() and not all(word in path.read_bytes()[:_COMMENT] for word in (b"Generated", b"edgernn")):
            raise UsageError(f"{path}: expected none, or a file that edgernn wrote, got another; choose another --name")
    # all are written before the first replaces another, so that a full disk leaves no mixture of two models
    with ExitStack() as written:
        for file, text in files.texts.items():
            written.enter_context(replacing(out / file)).write_bytes(text.encode())
    sizes = {"weights": files.weight_bytes, "state": files.state_bytes}
    return {"model": str(model), "folder": str(out), "files": sorted(files.texts), **sizes}


@dataclass(frozen=True)
class CFiles:
    """C files of a model, and the memory that it takes.

    Attributes:
        texts: Dict from file name to text.
        weight_bytes: Size of the constant arrays, in flash.
        state_bytes: Size of the struct with the state of one stream, in RAM.
    """

    texts: dict[str, str]
    weight_bytes: int
    state_bytes: int


def c_files(
    content: bytes,
    path: Path,
    name: str = "model",
    on_nonfinite: OnNonfinite = "error",
    options: GraphOptions = PLAIN,
) -> CFiles:
    """Generate the C files of a model.

    Args:
        content: The content of the ONNX file.
        path: Path of the model's file, for error messages and comments.
        name: Name of the files and prefix of the C functions.
        on_nonfinite: What a step does if a number of x is NaN or infinite. "error": the step returns an error and keeps
            the state. "hold": the step replaces the number by the last finite number of the same channel. "reset": the
            step restores the initial state, and then does the same as "hold".
        options: What the user says of a file of another tool, or of a network of one's own.

    Returns:
        The files and sizes.

    Raises:
        EdgernnError: The content is not that of a valid exported file, or the native library, which checks it, is
            missing.
        UsageError: The model has a part for which there is no C code, the name is not a C identifier or is that of
            a header of C, or `on_nonfinite` is not "error" and the model reads words.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"--name: expected a C identifier of small letters, digits and _, such as model, got {name!r}")
    if name.startswith("edgernn_"):
        raise UsageError(f"--name: expected a name that does not begin with edgernn_, as other files do, got {name!r}")
    if name in _HEADERS:
        raise UsageError(f"--name: expected a name other than that of a header, got {name!r}; {name}.h would be hidden")
    model = _content(content, path, options)
    if model.vocabulary and on_nonfinite != "error":
        raise UsageError(
            f"--on-nonfinite: expected 'error', got {on_nonfinite!r} for a model that reads word indices, which are "
            "always finite; leave the option out"
        )
    code = ModelCode(model, path, name, on_nonfinite)
    _check(code.layers, path)
    texts = {f"{name}.c": code.source(), f"{name}.h": code.header()}
    needed = ["clang.flags", "edgernn_math.h", "gcc.flags", *code.headers]
    if model.detector is not None:
        texts[f"{name}_detector.h"] = detector_header(model.detector, name)
        needed.append("edgernn_detector.h")
    texts |= {engine: (ENGINE / engine).read_text(encoding="utf-8") for engine in needed}
    cmake = (ENGINE / "model.cmake.in").read_text(encoding="utf-8")
    texts[f"{name}.cmake"] = cmake.replace("@NAME@", name)
    return CFiles(texts, code.weight_bytes, code.state_bytes)


def _content(content: bytes, path: Path, options: GraphOptions) -> ModelContent:
    proto = parse(content, path, external="read")
    if is_graph(proto):
        graph = pack_graph(proto, path, len(content), replace(options, weights=None))
        return graph_content(graph, options.weights)
    options.refuse(path)
    return stack_content(read_packable(content, path), path)


def _check(layers: Sequence[LayerContent], path: Path) -> None:
    """Raise UsageError if there is no C code for a layer of the model; `path` is the model's file, for the message."""
    for layer in layers:
        rule = layer.rule
        if not rule.has_code:
            raise UsageError(
                f"{path}: layer {layer.name}: expected an update rule with C code, such as selective or skip, got "
                "a rule without C code; run the model with the native library"
            )
        if layer.hidden > _MOST_NEURONS:
            raise UsageError(
                f"{path}: layer {layer.name}: expected at most {_MOST_NEURONS} neurons for C code, got {layer.hidden}; "
                "run the model with the native library"
            )
        for name, weight in layer.weights.items():
            if not np.isfinite(weight.floats).all():
                raise UsageError(
                    f"{path}: layer {layer.name}: weight {name}: expected finite numbers, got a NaN or an infinity; "
                    "train the model again"
                )
