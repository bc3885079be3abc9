# SPDX-License-Identifier: Apache-2.0
"""Names are unique: no two classes of the package and no two files of its folders share a name by accident."""

import ast
from collections import defaultdict
from pathlib import PurePath

import pytest

from tests.source_tree import ROOT

PACKAGES = ("edgernn", "export", "runtime", "training", "docs")
# file names with the same role in every folder
PARTS = {"__init__.py", "base.py", "list.h", "generate.py"}
# verbs of the command line, named as typed
VERBS = "edgernn/cli"
# pairs of a task and its network
TASKS = {"brits.py", "draw.py", "sentence_vae.py"}
# pairs with the same role in two packages
PAIRS = {
    # the configuration of a model and that of a training
    "config.py",
}


def several(names):
    """Return the names of (name, place) pairs that have more than one place, with their places."""
    places = defaultdict(set)
    for name, place in names:
        places[name].add(place)
    return {name: sorted(group) for name, group in places.items() if len(group) > 1}


def classes(source, place):
    return [(node.name, place) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def sources(*suffixes):
    return [
        path for package in PACKAGES for suffix in suffixes for path in sorted((ROOT / package).rglob(f"*{suffix}"))
    ]


def shared_files(paths):
    kept = [PurePath(path) for path in paths]
    shared = several((path.name, str(path)) for path in kept if VERBS not in path.as_posix())
    return {name: places for name, places in shared.items() if name not in PARTS | TASKS | PAIRS}


def test_classes_have_names_of_their_own():
    paths = sources(".py")
    assert len(paths) > 150
    shared = several(pair for path in paths for pair in classes(path.read_text("utf-8"), str(path.relative_to(ROOT))))
    assert shared == {}


def test_files_have_names_of_their_own():
    paths = [path.relative_to(ROOT) for path in sources(".py", ".h", ".cc", ".cu")]
    assert shared_files(paths) == {}


def test_every_exception_is_needed():
    paths = [path.relative_to(ROOT) for path in sources(".py", ".h", ".cc", ".cu")]
    assert several((path.name, str(path)) for path in paths).keys() >= PARTS | TASKS | PAIRS


@pytest.mark.parametrize("name", ["stream.py", "run.py", "gpu.py"])
def test_a_shared_file_name_is_found(name):
    paths = [f"runtime/{name}", f"training/formats/{name}"]
    assert shared_files(paths) == {name: paths}
    assert shared_files([f"runtime/{name}", f"edgernn/cli/{name}"]) == {}


def test_a_shared_class_name_is_found():
    pairs = [*classes("class Table: ...", "a.py"), *classes("def f():\n    class Table: ...", "b.py")]
    assert several(pairs) == {"Table": ["a.py", "b.py"]}
