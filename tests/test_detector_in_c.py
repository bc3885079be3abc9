# SPDX-License-Identifier: Apache-2.0
"""The detectors of the C app and of firmware find the words that Python finds."""

import struct

import numpy as np
import pytest

from edgernn.runtime.firmware.detector_code import detector_header
from edgernn.runtime.word_detection import Detector, PostProcessing
from tests.apps import ROOT, need
from tests.apps import run as run_program
from tests.detector_cases import detections_of, detector_of, fixed_cases, random_cases
from tests.firmware import CHECKED, STRICT

FOLDERS = ("runtime/csrc/include", "runtime/firmware/engine", "examples/c")


def detect_in_c(case, folder):
    """Return the detections of a case (step, word, score), the same of the app and of the firmware."""
    (folder / "model_detector.h").write_text(detector_header(detector_of(case), "model"), encoding="utf-8")
    sources = [ROOT / "tests/detect.c", ROOT / "examples/c/word_detector.c"]
    includes = [word for path in (folder, *(ROOT / name for name in FOLDERS)) for word in ("-I", path)]
    compiled = run_program("gcc", "-std=c99", *CHECKED, *includes, *sources, "-lm", "-o", folder / "detect")
    assert compiled.returncode == 0, compiled.stderr
    settings = [case["settings"][name] for name in ("smoothing", "threshold", "refractory")]
    numbers = [case["seconds"], *settings, *np.float32(case["scores"]).astype(float).ravel()]
    (folder / "numbers").write_bytes(struct.pack(f"<{len(numbers)}d", *numbers))
    process = run_program("sh", "-c", f"{folder}/detect < {folder}/numbers")
    assert process.returncode == 0, process.stderr
    first, second, end = process.stdout.split("end\n")
    assert (first, end) == (second, "")
    return [line.split(" ") for line in first.splitlines()]


@pytest.mark.parametrize("case", [*fixed_cases(), *random_cases()], ids=lambda case: case["name"])
@pytest.mark.slow
def test_detections_in_c_are_those_in_python(case, tmp_path):
    need("gcc")
    words, expected = detect_in_c(case, tmp_path), detections_of(case)
    assert [(int(step), word) for step, word, _ in words] == [(word["step"], word["word"]) for word in expected]
    # float32 in C: a probability may be rounded to the other one of two integers
    np.testing.assert_allclose([float(score) for *_, score in words], [word["score"] for word in expected], atol=2e-5)


@pytest.mark.slow
def test_the_header_is_strict_c_with_any_names(tmp_path):
    need("gcc")
    detector = Detector(['say "hi" \\ ??/', "né\n1", "_silence_"], 0.04, PostProcessing(0.12, 0.7, 1.0))
    (tmp_path / "a_detector.h").write_text(detector_header(detector, "a"), encoding="utf-8")
    (tmp_path / "a.c").write_text(
        '#include <stdio.h>\n#include "a_detector.h"\nint main(void) { ADetector d; const float y[3] = {0, 0, 0}; '
        "a_detector_reset(&d); return a_detect(&d, y) != -1 || !puts(a_class_names[0]) || !puts(a_class_names[1]); }\n"
    )
    flags = [word for word in STRICT if word != "-ffreestanding"]
    words = (*flags, "-I", tmp_path, "-I", ROOT / "runtime/firmware/engine", tmp_path / "a.c", "-o", tmp_path / "a")
    compiled = run_program("gcc", *words)
    assert compiled.returncode == 0, compiled.stderr
    assert run_program(tmp_path / "a").stdout == 'say "hi" \\ ??/\nné\n1\n'
