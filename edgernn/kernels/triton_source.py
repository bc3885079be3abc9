# SPDX-License-Identifier: Apache-2.0
"""Loads generated Python source with Triton kernels."""

import hashlib
import linecache
from functools import cache
from types import ModuleType


@cache
def load(source: str) -> ModuleType:
    """Load Python source with Triton functions as a module; the same source gives the same module."""
    name = f"edgernn_kernels_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    # Triton looks up the source of functions by file and line
    file = f"{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(name)
    exec(compile(source, file, "exec"), module.__dict__)
    return module
