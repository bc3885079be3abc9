# SPDX-License-Identifier: Apache-2.0
"""The package in one folder, as it is installed, for tools that read the sources; and how tests run these tools."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = sysconfig.get_paths()["purelib"]


def run(*words, status=0, **options):
    """Standard output of a command, which must end with this exit status."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def generator():
    """The script runtime/csrc/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "runtime" / "csrc" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_package(folder):
    """Copy the Python files of all rooms to a folder, each room to where pyproject.toml says that it is installed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    for place, room in settings["wheel"]["packages"].items():
        shutil.copytree(ROOT / room, folder / place, ignore=shutil.ignore_patterns("csrc", "__pycache__"))


def python_without_editable_install(*words, path, **options):
    """Run Python where `path` comes before this environment's packages: -S leaves its editable install out."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (path, SITE)))}
    return run(sys.executable, "-S", *words, env=environment, **options)
