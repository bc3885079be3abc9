# SPDX-License-Identifier: Apache-2.0
"""Tests of the kernels once more, with the library built to stop at the first bad address or undefined operation.

The training library is not among them: with these checks it takes minutes to compile.
"""

import os
import subprocess
import sys

import pytest

from tests.kernel_builds import ISA, ROOT, build, compiler, need

# every cell under every rule, every size class, and what is refused; the others differ in what they compare
TESTS = (
    "tests/test_native_op.py::test_op_equals_oracle",
    "tests/test_native_op.py::test_batch_equals_its_samples_one_by_one",
    "tests/test_native_op.py::test_final_state_may_share_memory_with_initial_state",
    "tests/test_native_rules.py",
    "tests/test_native_weights.py::test_low_rank_equals_oracle",
    "tests/test_native_weights.py::test_sparse_weights_equal_oracle",
    "tests/test_native_refusals.py",
)


def runtime_libraries() -> str:
    """What must be loaded first: the sanitizer, and the C++ library, whose functions it replaces."""
    names = ("libasan.so", "libstdc++.so.6")
    words = [[compiler(), f"-print-file-name={name}"] for name in names]
    return " ".join(subprocess.run(w, capture_output=True, text=True, check=True).stdout.strip() for w in words)


@pytest.mark.slow
def test_kernels_touch_no_memory_but_theirs(tmp_path):
    need("cmake", compiler())
    # the checks are the same at any level, and the compiler takes far less time at this one
    options = ("-DEDGERNN_SANITIZE=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG")
    build(tmp_path, *options, targets=("edgernn_ops",))
    environment = os.environ | {
        "EDGERNN_ISA": ISA,
        "EDGERNN_LIBRARY": str(tmp_path / "libedgernn_ops.so"),
        "LD_PRELOAD": runtime_libraries(),
        # Python and torch free nothing at their end
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    words = ["-m", "pytest", "-x", "-m", "not slow", "--capture=sys", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert "passed" in said
    for sign in ("AddressSanitizer", "runtime error:"):
        assert sign not in said, said[-6000:]
