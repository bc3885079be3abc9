# SPDX-License-Identifier: Apache-2.0
"""The errors where a package of an extra is missing; `make check-wheel` tests an environment without them."""

import re
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
        (["cells"], ["torch"], "edgernn cells: needs torch; pip install 'torch>=2.9'"),
        (["data", "list"], ["torch"], "edgernn data list: needs torch; pip install 'torch>=2.9'"),
        # the error names the extra, whichever of its packages is imported first
        (
            ["train", "--task", "adding", "--cell", "gru"],
            ["annotated_types", "pydantic", "torch"],
            "edgernn train: needs torch; pip install 'torch>=2.9' 'pydantic>=2.10' 'annotated-types>=0.7'",
        ),
        (["cells"], ["pydantic"], "edgernn cells: needs pydantic; pip install 'pydantic>=2.10'"),
        (["pack", "m.onnx"], ["onnx"], "edgernn pack: needs onnx; pip install 'onnx>=1.19'"),
        (
            ["cells"],
            ["onnxruntime", "torch"],
            "edgernn cells: needs torch; pip install 'onnxruntime>=1.19' 'torch>=2.9'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.slow
def test_verb_says_what_to_install(words, without, message, tmp_path):
    (tmp_path / "m.onnx").touch()
    words = [str(tmp_path / word) if word == "m.onnx" else word for word in words]
    process = python(VERB, *words, without=without)
    assert process.stderr == f"edgernn: error: {message}\n"
    assert process.returncode == 2
    assert process.stdout == ""


@pytest.mark.slow
def test_help_without_the_extra_says_what_lists_the_settings():
    process = python(VERB, "train", "--help", without=["torch"])
    assert process.returncode == 0
    assert "The list of settings: needs torch; pip install 'torch>=2.9'" in process.stdout
    assert "Example:" in process.stdout


@pytest.mark.slow
def test_extra_gpu_is_named_where_its_onnx_runtime_is_installed(tmp_path):
    metadata = tmp_path / "onnxruntime_gpu-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.0\n")
    process = python(VERB, "cells", without=["onnxruntime", "torch"], path=str(tmp_path))
    words = "'onnxruntime-gpu>=1.19' 'torch>=2.9'"
    assert process.stderr == f"edgernn: error: edgernn cells: needs torch; pip install {words}\n"


@pytest.mark.slow
def test_name_of_python_says_what_to_install():
    code = """
import edgernn
for wanted in (edgernn.UsageError, ImportError):
    try:
        edgernn.SequenceModel
    except wanted as error:
        print(error)
    try:
        edgernn.runtime.Session
    except wanted as error:
        print(error)
"""
    process = python(code, without=["onnx", "torch"])
    lines = [
        "edgernn.SequenceModel: needs torch; pip install 'onnx>=1.19' 'torch>=2.9'",
        "edgernn.runtime.Session: needs onnx; pip install 'onnx>=1.19'",
    ]
    assert process.stdout.splitlines() == lines * 2, process.stderr


@pytest.mark.slow
def test_an_imported_module_says_what_to_install():
    code = """
import importlib, edgernn
for name in edgernn._MODULES:
    try:
        importlib.import_module(f"edgernn.{name}")
    except ImportError as error:
        print(error)
"""
    process = python(code, without=["torch"])
    modules = ("cells", "convert", "costs", "export", "model", "nn", "rules", "training")
    expected = [f"edgernn.{name}: needs torch; pip install 'torch>=2.9'" for name in modules]
    assert process.stdout.splitlines() == expected, process.stderr


def test_no_text_names_a_package_that_is_not_ours():
    """No package index has a package edgernn of this project, so nobody may be told to install one from there."""
    files = [
        path
        for folder in ("edgernn", "export", "runtime", "training", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".txt", ".toml", ".mjs")
    ]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")]
    told = re.compile(r"(pip|pipx|npm) (install|i) [^`\n]*?(?<![\w./-])edgernn(?!-[0-9.]+-)(?![\w./-])")
    assert len(files) > 200
    assert [path for path in files if told.search(path.read_text(encoding="utf-8"))] == []
    assert told.search("pip install 'edgernn[cpu]'")
    assert told.search("pip install -U edgernn")


@pytest.mark.slow
def test_a_module_of_no_extra_is_reported_as_it_is():
    code = """
from edgernn.extras import needed_by
with needed_by("edgernn cells"):
    import torch.no_such_module
"""
    process = python(code, without=[])
    assert process.stderr.endswith("ModuleNotFoundError: No module named 'torch.no_such_module'\n")


def test_a_copy_of_the_source_without_metadata_has_no_extras_and_a_version(monkeypatch):
    import importlib.metadata

    import edgernn
    from edgernn.bench.provenance import version_of
    from edgernn.extras import needed_by

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needed_by("edgernn cells"):
        import no_such_module  # noqa: F401
    assert version_of("edgernn") == edgernn.__version__
