# SPDX-License-Identifier: Apache-2.0
"""Measures models in C on microcontrollers: `python -m benchmarks.firmware`.

It writes docs/results/microcontrollers.json. qemu counts instructions, so the figures do not depend on the machine.
"""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgernn
from benchmarks import ROOT, write_measured
from benchmarks.wasm import TRAINED, adding
from edgernn.bench.microcontroller import Emulated, emulate, targets
from edgernn.export.exported_model import read_exported
from edgernn.export.rounding import rounded
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack
from tests.models import contractive, exported_alone
from tests.test_frontends import room
from tests.test_packed import steps

STEPS = 50
# options of the rules whose models have random weights; the period skips 90 % of STEPS
RULES = {"delta": {"theta_x": 0.1, "theta_h": 0.1}, "periodic": {"period": 10}}


def models() -> dict[str, tuple[bytes, NDArray[np.float32]]]:
    """Return exported models with their inputs (T, I) by name."""
    x = adding()[0, :STEPS]
    measured = {"adding-sarnn (2, 128)": (read_model(TRAINED), x)}
    for hidden in (128, 32):
        for weights in ("float32", "int8"):
            model = rounded(contractive("gru", input_size=2, hidden_size=hidden, output_size=1), weights)
            measured[f"gru (2, {hidden}), {weights}"] = exported_alone(model, weights), x
    for rule, options in RULES.items():
        for weights in ("float32", "int8"):
            sizes = {"input_size": 2, "hidden_size": 128, "output_size": 1}
            model = contractive("gru", rule, rule_options=options, **sizes)
            measured[f"gru (2, 128), {rule}, {weights}"] = exported_alone(rounded(model, weights), weights), x
    sarnn = rounded(read_exported(TRAINED)[0], "int8")
    measured["adding-sarnn (2, 128), int8"] = exported_alone(sarnn, "int8"), x
    audio = edgernn.SequenceModel("gru", 160, 96, 12, frontend="logmel", normalise="pcen").eval()
    measured["pcen and gru (40, 96), int8"] = exported_alone(rounded(audio, "int8"), "int8"), room(STEPS, 1, 160)[:, 0]
    return measured


def described(emulated: Emulated, y: NDArray[np.float32]) -> dict[str, Any]:
    return {
        "instructions": round(emulated.instructions),
        "code": emulated.engine_bytes,
        "weights": emulated.weight_bytes,
        "state": emulated.state_bytes,
        "stack": emulated.stack_bytes,
        "updates": float(emulated.updates.mean()),
        "worst_error": float(np.abs(emulated.y - y).max()),
    }


def version(*words: str) -> str:
    """Return the first line that a tool prints about its version."""
    return subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def measure() -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for name, (content, x) in models().items():
        y = steps(pack(content, Path("model.onnx")), x[:, None])[0][:, 0]
        rows[name] = {target: described(emulate(content, x, target), y) for target in targets()}
    tools = ("arm-none-eabi-gcc", "riscv64-unknown-elf-gcc", "qemu-system-arm")
    return {
        "steps": STEPS,
        "titles": {target: settings["title"] for target, settings in targets().items()},
        "versions": {tool: version(tool) for tool in tools},
        "models": rows,
    }


if __name__ == "__main__":
    write_measured(measure, __doc__, ROOT / "docs" / "results" / "microcontrollers.json")
