# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured on."""

import platform
from pathlib import Path


def processor() -> str:
    """The processor's own name for itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
