# SPDX-License-Identifier: Apache-2.0
"""Count the instructions of a model on a microcontroller that qemu emulates, and the flash and memory it takes."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.bench.measure import Settings, example_input
from edgernn.errors import EdgernnError
from edgernn.runtime.firmware.folder import CFiles, c_files
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.info import read_model
from edgernn.runtime.open_model import is_foreign
from edgernn.runtime.session import Session
from edgernn.runtime.step_graph.pack import pack_graph
from edgernn.runtime.stepper import Stepper
from edgernn.runtime.weights import parse

TIMEOUT = 300  # seconds
DEFAULT_STEPS = 50


def qemu_folder() -> Path:
    """Return the folder with the emulated boards: start code, linker scripts and the list of targets."""
    from edgernn.runtime import firmware

    return Path(firmware.__file__).with_name("qemu")


def targets() -> dict[str, dict[str, Any]]:
    """Return a dict from the name of an emulated microcontroller to its settings: compiler, flags, board, emulator."""
    listed: dict[str, dict[str, Any]] = json.loads((qemu_folder() / "targets.json").read_text(encoding="utf-8"))
    return listed


@dataclass(frozen=True)
class Emulated:
    """Outputs and costs of a model on an emulated microcontroller.

    Attributes:
        y: Outputs (T, output size).
        updates: Number of updated neurons at each step (T,).
        instructions: Mean number of instructions of a step.
        engine_bytes: Bytes of code in flash, without weights.
        weight_bytes: Bytes of weights in flash.
        state_bytes: Bytes of the state of one stream in RAM.
        stack_bytes: Bytes of stack that a step takes in RAM, including the print functions of the test program.
    """

    y: NDArray[np.float32]
    updates: NDArray[np.int64]
    instructions: float
    engine_bytes: int
    weight_bytes: int
    state_bytes: int
    stack_bytes: int


def missing_tool(target: str) -> str | None:
    """Return an error message if a program that emulates the microcontroller `target` is missing, else None."""
    settings = targets()[target]
    for tool in (settings["compiler"], settings["emulator"][0]):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; run: apt-get install {settings['packages']}"
    return None


def emulate(
    content: bytes,
    x: NDArray[Any],
    target: str,
    path: Path = Path("model.onnx"),
    options: GraphOptions = PLAIN,
) -> Emulated:
    """Compile a model to C, and run it step by step on an emulated microcontroller.

    Args:
        content: The content of the ONNX file.
        x: Inputs (T, I), or word indices (T,).
        target: Name of the microcontroller, one of `targets`.
        path: Path of the model's file, for error messages.
        options: What the user says of a file of another tool.

    Returns:
        Outputs and costs.

    Raises:
        EdgernnError: A tool is missing, or the program fails.
        UsageError: No C code exists for a layer of the model.
    """
    if (reason := missing_tool(target)) is not None:
        raise EdgernnError(reason)
    files, settings = c_files(content, path, options=options), targets()[target]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        (folder / "inputs.h").write_text(_inputs(x), encoding="utf-8")
        code = _build(folder, settings)
        words = [*settings["emulator"], "-nographic", "-icount", "shift=0", "-semihosting", "-kernel"]
        process = _run([*words, str(folder / "program")])
    return _read(process, len(x), code, files)


def _inputs(x: NDArray[Any]) -> str:
    """Format x as C code: the bits of the floats (T, I), or the word indices (T,), as an array of 32-bit integers."""
    if x.ndim == 1:
        words = ", ".join(map(str, x.tolist()))
        return f"#define STEPS {len(x)}\n#define INPUT_OF(t) inputs[t]\nstatic const int32_t inputs[] = {{{words}}};\n"
    bits = ", ".join(f"0x{number:08x}u" for number in x.astype("<f4").view("<u4").ravel().tolist())
    return (
        f"#define STEPS {len(x)}\n#define INPUT_OF(t) ((const float*)(const void*)inputs + (t) * MODEL_INPUT)\n"
        f"static const uint32_t inputs[] = {{{bits}}};\n"
    )


def _build(folder: Path, settings: dict[str, Any]) -> int:
    """Compile the test program with the model's C files in `folder`; return the size of the model's code in bytes."""
    boards, board = qemu_folder(), settings["board"]
    compiler = [settings["compiler"], *settings["flags"], f"@{folder / 'gcc.flags'}", "-I", str(boards)]
    _run([*compiler, "-c", str(folder / "model.c"), "-o", str(folder / "model.o")])
    sources = [str(boards / f"{name}.c") for name in ("measure_steps", "board", board)]
    link = ["-nostdlib", "-nostartfiles", "-Wl,--gc-sections", "-T", str(boards / f"{board}.ld"), "-I", str(folder)]
    _run([*compiler, *link, *sources, str(folder / "model.o"), "-o", str(folder / "program")])
    size = settings["compiler"].removesuffix("gcc") + "size"
    sections = _run([size, "-A", str(folder / "model.o")]).splitlines()
    return sum(int(line.split()[1]) for line in sections if line.startswith(".text"))


def _run(words: list[str]) -> str:
    try:
        process = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise EdgernnError(f"{words[0]}: expected the program to end within {TIMEOUT} s; use fewer steps") from None
    if process.returncode != 0:
        raise EdgernnError(
            f"{words[0]}: failed with status {process.returncode}; correct the error that it reports: "
            f"{process.stderr[-2000:]}"
        )
    # qemu prints semihosting output to standard error
    return process.stdout + process.stderr


def _read(text: str, steps: int, code: int, files: CFiles) -> Emulated:
    rows = [[int(word, 16) for word in line.split()] for line in text.splitlines()]
    if len(rows) != steps + 1 or len(rows[-1]) != 3:
        raise EdgernnError(
            f"qemu: expected a line of output for each of {steps} steps and a line of three counts, got {len(rows)} "
            f"lines: {text[:200]!r}; report a bug"
        )
    units, unit, stack = rows.pop()
    numbers = np.array(rows, np.uint32)
    return Emulated(
        numbers[:, :-1].copy().view(np.float32),
        numbers[:, -1].astype(np.int64),
        units * unit / 256 / steps,
        code,
        files.weight_bytes,
        files.state_bytes,
        stack,
    )


def bench_on_target(
    model: Path,
    target: str,
    *,
    x: NDArray[Any] | None = None,
    steps: int | None = None,
    options: GraphOptions = PLAIN,
) -> dict[str, Any]:
    """Run a model on an emulated microcontroller, compare its outputs with `Session`, and count its instructions.

    Args:
        model: An exported file, or a streaming file of another tool, which runs on random numbers.
        target: Name of the microcontroller, one of `targets`.
        x: Inputs (T, B, I), or word indices (T, B), of which the first sequence is run. Default: `example.npz` beside
            the model, else random numbers.
        steps: Number of steps. Default: all steps of x, else 50.
        options: What the user says of a file of another tool.

    Returns:
        JSON-compatible dict. `instructions` and `updates` (updated neurons) are means per step. `flash` is a dict of
        the bytes of `code` and `weights`, `memory` a dict of the bytes of `state` and `stack`. `worst_error` is the
        largest absolute difference from the outputs of `Session`, or of the packed file of another tool, whose weights
        have the same type.

    Raises:
        EdgernnError: A tool is missing, or the program fails.
        UsageError: No C code exists for a layer of the model.
    """
    content = read_model(model)
    if is_foreign(content, model):
        proto = parse(content, model, external="read")
        stepper = Stepper(pack_graph(proto, model, len(content), options).content.data, 1)
        shape, source = (steps or DEFAULT_STEPS, stepper.x.shape[1]), "standard normal"
        inputs = np.random.default_rng(0).standard_normal(shape, np.float32)
        outputs = list(_step_packed(stepper, inputs))
    else:
        session = Session(model)
        settings = Settings(steps=steps or (None if x is not None else DEFAULT_STEPS))
        values, source = example_input(model, session, settings, x)
        inputs = values[:, 0]
        outputs = [session.step(x_t) for x_t in inputs]
    emulated = emulate(content, inputs, target, model, options)
    expected = np.stack(outputs).reshape(emulated.y.shape)
    return {
        "model": str(model),
        "target": target,
        "title": targets()[target]["title"],
        "input": source,
        "steps": len(inputs),
        "instructions": round(emulated.instructions),
        "updates": float(emulated.updates.mean()),
        "flash": {"code": emulated.engine_bytes, "weights": emulated.weight_bytes},
        "memory": {"state": emulated.state_bytes, "stack": emulated.stack_bytes},
        "worst_error": float(np.abs(emulated.y - expected).max()),
    }


def _step_packed(stepper: Stepper, inputs: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for x_t in inputs:
        stepper.x[...] = x_t
        if not stepper.step():
            raise EdgernnError(stepper.refusal())
        yield stepper.y[0].copy()


def target_text(report: dict[str, Any]) -> str:
    """Format a report of `bench_on_target` as text."""
    flash, memory = report["flash"], report["memory"]
    return (
        f"{report['model']} on {report['title']}, emulated by qemu, {report['steps']} steps of {report['input']}:\n"
        f"instructions a step   {report['instructions']:,}, {report['updates']:.1f} neurons updated\n"
        f"flash                 {flash['code']:,} bytes of code, {flash['weights']:,} of weights\n"
        f"memory                {memory['state']:,} bytes a stream, {memory['stack']:,} of stack in a step\n"
        f"error                 {report['worst_error']:.1e} at most, against Session"
    )
