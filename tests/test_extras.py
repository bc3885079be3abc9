# SPDX-License-Identifier: Apache-2.0
"""The errors where a package of an extra is missing; `make check-wheel` tests an environment without them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# a module set to None cannot be imported, as if it were not installed
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({packages}))\n"
VERB = "from edgernn.__main__ import run; run()"


def python(code, *words, without, path=""):
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.append({path!r})\n" + WITHOUT.format(packages=without) + code,
            *words,
        ],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "without", "message"),
    [
        (["cells"], ["torch"], "edgernn cells: needs torch; pip install 'edgernn[cpu,train]'"),
        (["data", "list"], ["torch"], "edgernn data list: needs torch; pip install 'edgernn[cpu,train]'"),
        # the error names the extra, whichever of its packages is imported first
        (
            ["train", "--task", "adding", "--cell", "gru"],
            ["annotated_types", "pydantic", "torch"],
            "edgernn train: needs torch; pip install 'edgernn[cpu,train]'",
        ),
        (["cells"], ["pydantic"], "edgernn cells: needs pydantic; pip install 'edgernn[cpu,train]'"),
        (["pack", "m.onnx"], ["onnx"], "edgernn pack: needs onnx; pip install 'edgernn[cpu]'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_verb_says_what_to_install(words, without, message, tmp_path):
    (tmp_path / "m.onnx").touch()
    words = [str(tmp_path / word) if word == "m.onnx" else word for word in words]
    process = python(VERB, *words, without=without)
    assert process.stderr == f"edgernn: error: {message}\n"
    assert process.returncode == 2
    assert process.stdout == ""


def test_help_without_the_extra_says_what_lists_the_settings():
    process = python(VERB, "train", "--help", without=["torch"])
    assert process.returncode == 0
    assert "The list of settings: needs torch; pip install 'edgernn[cpu,train]'" in process.stdout
    assert "Example:" in process.stdout


def test_extra_gpu_is_named_where_its_onnx_runtime_is_installed(tmp_path):
    metadata = tmp_path / "onnxruntime_gpu-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.0\n")
    process = python(VERB, "cells", without=["torch"], path=str(tmp_path))
    assert process.stderr == "edgernn: error: edgernn cells: needs torch; pip install 'edgernn[gpu,train]'\n"


def test_name_of_python_says_what_to_install():
    code = """
import edgernn
for wanted in (edgernn.UsageError, ImportError):
    try:
        edgernn.SequenceModel
    except wanted as error:
        print(error)
"""
    process = python(code, without=["torch"])
    assert process.stdout == "edgernn.SequenceModel: needs torch; pip install 'edgernn[cpu,train]'\n" * 2, (
        process.stderr
    )


def test_a_module_of_no_extra_is_reported_as_it_is():
    code = """
from edgernn.extras import needed_by
with needed_by("edgernn cells"):
    import torch.no_such_module
"""
    process = python(code, without=[])
    assert process.stderr.endswith("ModuleNotFoundError: No module named 'torch.no_such_module'\n")
