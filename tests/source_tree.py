# SPDX-License-Identifier: Apache-2.0
"""Helpers that run tools on the sources."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = sysconfig.get_paths()["purelib"]


def run(*words, status=0, **options):
    """Run a command that must end with this exit status; return its standard output."""
    process = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout


def load_script(path):
    """Import a script as a module; it imports the modules beside it, as when it runs."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def first_sequence(folder):
    """Write the first sequence of examples/adding.csv, which an empty line ends, into a folder; return its path."""
    path = folder / "x.csv"
    path.write_text((ROOT / "examples" / "adding.csv").read_text(encoding="utf-8").partition("\n\n")[0] + "\n")
    return path


def generator():
    """Import the script runtime/csrc/generate.py as a module."""
    return load_script(ROOT / "runtime" / "csrc" / "generate.py")


def python_without_editable_install(*words, path, **options):
    """Run Python with `path` before this environment's packages; -S disables the editable install."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (path, SITE)))}
    return run(sys.executable, "-S", *words, env=environment, **options)
