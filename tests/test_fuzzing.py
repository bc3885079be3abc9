# SPDX-License-Identifier: Apache-2.0
"""The reader of packed models is given what libFuzzer makes of tests/corpus; `make fuzz` does so for longer.

tests/corpus/found has the files that once did harm.
"""

import os
import subprocess
from pathlib import Path

import pytest

from edgernn.runtime.stepper import Stepper
from tests.kernel_builds import build, need
from tests.make_corpus import FOLDER, models

SECONDS = 60


def need_fuzzer() -> None:
    need("cmake", "clang++")
    words = ["clang++", "-print-resource-dir"]
    resources = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    if not list(resources.rglob("libclang_rt.fuzzer*")):
        pytest.skip("clang's libFuzzer is not installed")


@pytest.mark.slow
def test_no_file_does_harm(tmp_path, say):
    need_fuzzer()
    # the checks are the same at any level, and the compiler takes far less time at this one
    options = ("-DEDGERNN_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
    program = build(tmp_path, *options, targets=("edgernn_fuzz",)) / "edgernn_fuzz"
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={SECONDS}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]
    words = [
        program,
        *limits,
        "-print_final_stats=1",
        f"-artifact_prefix={tmp_path}/",
        found,
        FOLDER,
        FOLDER.parent / "found",
    ]
    environment = os.environ | {"EDGERNN_ISA": ""}
    # the system says of a process that it once had as much memory as the one it came from, here all of pytest's
    shell = ["sh", "-c", '"$@"; exit $?', "sh", *map(str, words)]
    done = subprocess.run(shell, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    stats = dict(
        line.removeprefix("stat::").split(":") for line in done.stderr.splitlines() if line.startswith("stat:")
    )
    runs = int(stats["number_of_executed_units"])
    say(f"libFuzzer: {runs:,} packed models in {SECONDS} s, {int(stats['new_units_added'])} of them of a new kind")
    # far fewer would mean that it does not get past what is checked first
    assert runs > 2000
    assert len(list(found.iterdir())) > 2 * len(list(FOLDER.iterdir()))


@pytest.mark.parametrize("name", models())
def test_the_fuzzer_starts_from_models(name):
    stepper = Stepper((FOLDER / name).read_bytes(), 2)
    assert stepper.step(), stepper.refusal()
