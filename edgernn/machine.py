# SPDX-License-Identifier: Apache-2.0
"""Model name of the processor, for reports of times; `bench.provenance` describes the whole machine."""

import platform
from pathlib import Path


def processor() -> str:
    """Return the model name of the CPU, or "unknown"."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
