# SPDX-License-Identifier: Apache-2.0
"""Description of the machine that a benchmark ran on."""

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

import edgernn
from edgernn.machine import processor
from edgernn.runtime.library import instruction_set


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None if it is missing. edgernn has it in its source."""
    if package == "edgernn":
        return edgernn.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return a dict that describes the machine: processor, cores, instruction set, versions of Python and packages."""
    packages = ("edgernn", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "torch")
    versions = {name: version for name in packages if (version := version_of(name)) is not None}
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "instruction_set": instruction_set(),
        "versions": versions,
    }


def gpu() -> dict[str, str]:
    """Return the name of the first GPU as `gpu` and the version of its driver as `driver`.

    Without nvidia-smi, or if it fails, they are the strings "unknown GPU" and "unknown".
    """
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
        name, driver = (word.strip() for word in output.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        name, driver = "unknown GPU", "unknown"
    return {"gpu": name, "driver": driver}
