# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from edgernn.runtime.library import instruction_set


def machine() -> dict[str, Any]:
    """Processor, cores, the native library's instruction set, and versions."""
    versions = {}
    for name in ("edgernn", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "instruction_set": instruction_set(),
        "versions": versions,
    }


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
