# SPDX-License-Identifier: Apache-2.0
"""Find edgernn's CUDA library, or build it if it is missing. The build needs nvcc, cmake and the source tree."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from edgernn.errors import EdgernnError
from edgernn.runtime.library import CUDA_FILE, CUDA_OPTION, cuda_library_path, library_missing, library_path


def find_or_build(seconds: float) -> str:
    """Find edgernn's CUDA library, or build it with cmake and copy it beside the CPU library."""
    missing = library_missing("cuda")
    if missing is None:
        return cuda_library_path()
    import edgernn

    root = Path(edgernn.__file__).resolve().parents[1]
    if shutil.which("nvcc") is None or shutil.which("cmake") is None or not (root / "CMakeLists.txt").is_file():
        raise EdgernnError(
            f"{missing}; to have this command build the CUDA library, install nvcc and cmake, and run edgernn from its "
            "source tree"
        )
    folder, end = root / "build" / "cuda", time.perf_counter() + seconds
    configure = ["cmake", "-S", str(root), "-B", str(folder), f"-D{CUDA_OPTION}=ON"]
    build = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1), "--target", "edgernn_cuda"]
    for words in (configure, build):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, end - time.perf_counter()))
        except subprocess.TimeoutExpired:
            raise EdgernnError(
                f"{' '.join(words)} did not finish within the time limit of {seconds:.0f} s; run this command by hand"
            ) from None
        if done.returncode != 0:
            raise EdgernnError(
                "cannot build the CUDA library; correct the error that follows and try again: "
                f"{' '.join(words)} failed: {(done.stderr or done.stdout)[-500:]}"
            )
    target = Path(library_path() if library_missing() is None else edgernn.runtime.__file__).with_name(CUDA_FILE)
    shutil.copy2(folder / CUDA_FILE, target)
    return cuda_library_path()
