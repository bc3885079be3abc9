# SPDX-License-Identifier: Apache-2.0
"""User-defined cells: subclasses of `Cell` in Python files, named by FILE.py:CLASS wherever a cell name is accepted.

Loading such a file executes it. A training copies the file to its run directory as cell.py. When the run is used, the
copy is executed. Exported and packed models carry the equations as data and execute no Python.
"""

import ast
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from edgernn.cell_program import cell_program
from edgernn.cells.base import Cell
from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import read_bytes
from edgernn.program import ProgramError

# name of the file's copy in a run directory
KEPT = "cell.py"
_WORD = re.compile(r"(?P<file>.*\.py)(:(?P<name>[^:/\\]*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class ClassSource:
    """Origin of a user-defined cell class: its name in the Python file, and the file's content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def record(self) -> dict[str, str]:
        """Return the entry `cell_file` of config.json: "class", the class name, and "sha256", the hash of the file."""
        return {"class": self.name, "sha256": self.sha256}


_sources: dict[type[Cell], ClassSource] = {}
_modules: dict[str, ModuleType] = {}


def is_cell_file(cell: object) -> bool:
    """True if `cell` is a string of the form FILE.py:CLASS or FILE.py."""
    return isinstance(cell, str) and _WORD.fullmatch(cell) is not None


def split_word(word: str) -> tuple[Path, str]:
    """Split FILE.py:CLASS into path and class name ("" if :CLASS is missing); raise UsageError for any other text."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise UsageError(f"cell: expected FILE.py:CLASS, such as cells.py:MyCell, got {word!r}")
    return Path(match["file"]), match["name"] or ""


def label(cell: str) -> str:
    """Return a cell's short name for directory names: CLASS for FILE.py:CLASS, FILE for FILE.py, else `cell` itself."""
    if not is_cell_file(cell):
        return cell
    path, name = split_word(cell)
    return name or path.stem


def source_of(cell: type[Cell]) -> ClassSource | None:
    """Return the class name and file content of a cell that `load_cell` loaded, or None for any other class."""
    return _sources.get(cell)


def load_cell(word: str, taken: Collection[str] = ()) -> type[Cell]:
    """Load the cell class that FILE.py:CLASS names.

    Args:
        word: FILE.py:CLASS, or FILE.py if the file defines one cell. FILE is relative to the working directory.
        taken: Names of built-in cells, which the class attribute `name` of the user's cell must not repeat.

    Returns:
        The class. Files with the same content yield the same class.

    Raises:
        UsageError: The file or class is missing, the class is not a cell, its name is taken, or the file imports a
            module from its own folder.
        EdgernnError: The file cannot be executed, or one small step of the cell, run as a check, fails.
    """
    path, name = split_word(word)
    try:
        content = read_bytes(path, "a Python file")
    except FileNotFoundError:
        raise UsageError(f"cell: no such file: {path}; expected FILE.py:CLASS with the path of a Python file") from None
    module = _execute(path, content)
    cell = _find(path, module, name)
    if cell.name in taken:
        raise UsageError(
            f"{path}: {cell.__name__}: name: {cell.name!r} is the name of a built-in cell; choose another name"
        )
    _try_step(path, cell)
    _sources[cell] = ClassSource(cell.__name__, content)
    return cell


def load_kept(folder: Path, config: dict[str, Any]) -> type[Cell] | None:
    """Load the user-defined cell of a run directory from the run's copy of its file.

    Args:
        folder: The run directory.
        config: Content of its config.json.

    Returns:
        The class, or None if the run has a built-in cell.

    Raises:
        EdgernnError: The copy is missing, its SHA-256 differs from that in config.json, or `load_cell` fails on it.
    """
    entry = config.get("cell_file")
    if entry is None:
        return None
    return load_cell(f"{_checked_copy(folder, entry)}:{entry['class']}")


def kept_word(folder: Path, config: dict[str, Any], cell: str) -> str:
    """Replace the path in FILE.py:CLASS by the path of the copy of FILE.py in a run directory.

    Args:
        folder: The run directory.
        config: Content of its config.json.
        cell: Cell name or FILE.py:CLASS.

    Returns:
        COPY:CLASS, where COPY is the path of the copy; `cell` itself if it names no file or the run has no copy.

    Raises:
        EdgernnError: The copy is missing, or its SHA-256 differs from that in config.json.
    """
    entry = config.get("cell_file")
    if entry is None or not is_cell_file(cell):
        return cell
    return f"{_checked_copy(folder, entry)}:{split_word(cell)[1] or entry['class']}"


def differs(cell: str, copy: str) -> bool:
    """True if the files of two FILE.py:CLASS strings both exist and differ in content."""
    file, kept = split_word(cell)[0], split_word(copy)[0]
    return file.is_file() and kept.is_file() and file.read_bytes() != kept.read_bytes()


def _checked_copy(folder: Path, entry: Any) -> Path:
    path = folder / KEPT
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("class", "sha256")):
        raise EdgernnError(f"{folder}: config.json: cell_file: expected the keys class and sha256; train again")
    if not path.is_file():
        raise EdgernnError(f"{path}: no such file; restore it: it defines the cell that the run was trained with")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise EdgernnError(f"{path}: changed since the run began (its SHA-256 is not that in config.json); restore it")
    return path


def _execute(path: Path, content: bytes) -> ModuleType:
    key = hashlib.sha256(content).hexdigest()
    if key in _modules:
        return _modules[key]
    module = ModuleType(f"edgernn_cell_{key[:12]}")
    module.__file__ = str(path)
    # inspect and typing look up a class's module in sys.modules
    sys.modules[module.__name__] = module
    try:
        tree = ast.parse(content, str(path))
        _check_alone(path, tree)
        exec(compile(tree, str(path), "exec"), module.__dict__)
    except EdgernnError:
        del sys.modules[module.__name__]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        reason = f"{_line_prefix(path, error)}{_describe(error)}"
        raise EdgernnError(f"{path}: cannot be executed: {reason}; correct the file") from error
    _modules[key] = module
    return module


def _check_alone(path: Path, tree: ast.Module) -> None:
    """Raise UsageError if the parsed file imports a module from its own folder: runs keep a copy of one file only."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." if node.level else str(node.module)]
        for name in (name.partition(".")[0] for name in names):
            is_local = not name or (path.parent / f"{name}.py").is_file()
            if is_local or (path.parent / name / "__init__.py").is_file():
                line = node.lineno  # type: ignore[attr-defined]
                imported = f"{name} from its own folder" if name else "from its own folder"
                raise UsageError(f"{path}: line {line}: imports {imported}; put all code of the cell in one file")


def _line_prefix(path: Path, error: BaseException) -> str:
    """Return "line N: " for the line of the file that raised an error, or "" if it is unknown."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: " if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def _describe(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _find(path: Path, module: ModuleType, name: str) -> type[Cell]:
    """Return the cell class `name` of a loaded Python file, or its only cell class if `name` is "".

    Raise UsageError if the file has no such class, or the class is not a valid cell.
    """
    defined = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Cell) and value.__module__ == module.__name__
    }
    complete = {key: value for key, value in defined.items() if not inspect.isabstract(value)}
    if not name:
        if len(complete) == 1:
            return _checked(path, *complete.values())
        if not complete:
            raise UsageError(f"{path}: expected one subclass of edgernn.Cell, got none; define one")
        classes = ", ".join(complete)
        raise UsageError(f"{path}: expected one subclass of edgernn.Cell, got {classes}; write {path}:CLASS")
    if name not in vars(module):
        if not complete:
            raise UsageError(f"{path}: unknown class {name!r}: the file has no subclass of edgernn.Cell; define one")
        raise UsageError(f"{path}: {nearest('class', name, complete)}; give the name of a cell class of this file")
    value = vars(module)[name]
    if not (isinstance(value, type) and issubclass(value, Cell)):
        kind = f"a {type(value).__name__}" if not isinstance(value, type) else "another class"
        raise UsageError(
            f"{path}: {name}: expected a subclass of edgernn.Cell, got {kind}; give the name of such a class"
        )
    if name not in defined:
        raise UsageError(
            f"{path}: {name}: expected a class defined in this file, got one imported from {value.__module__}; "
            "define it here"
        )
    return _checked(path, value)


def _checked(path: Path, cell: type[Cell]) -> type[Cell]:
    prefix = f"{path}: {cell.__name__}"
    if inspect.isabstract(cell):
        raise UsageError(f"{prefix}: expected a method update(p, state), got none; define it")
    name = getattr(cell, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or is_cell_file(name):
        raise UsageError(
            f"{prefix}: name: expected letters, digits and _.+-, without the ending .py, as in name = 'mine', got "
            f"{name!r}"
        )
    if not isinstance(getattr(cell, "gates", None), tuple | property):
        raise UsageError(
            f"{prefix}: gates: expected a tuple, as in gates = (Gate('z'), Gate('n')), got another type or none"
        )
    return cell


@cache
def _try_step(path: Path, cell: type[Cell]) -> None:
    """Run one step of a user's cell with small sizes; raise EdgernnError if it fails, before any data are read."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # equations that mix x and h require I = H
        if _step_error(cell, 2) is not None and (error := _step_error(cell, 3)) is not None:
            # traceback lines name the file from which the same content was first loaded
            loaded = Path(str(sys.modules[cell.__module__].__file__))
            text = f"{_line_prefix(loaded, error)}{_describe_step(cell, error)}"
            raise EdgernnError(f"{path}: {cell.__name__}: a test step fails: {text}; correct the cell") from error


def _step_error(cell_type: type[Cell], inputs: int) -> Exception | None:
    """Run one step of a cell with I = `inputs` and H = 3, and return its error.

    The result is None if the step succeeds, or if the cell's constructor needs further arguments.
    """
    try:
        cell = cell_type(inputs, 3)
    except TypeError as error:
        missing = "missing" in str(error) and "argument" in str(error)
        return None if missing else error
    except Exception as error:
        return error
    x = torch.zeros(1, 2, inputs * (1 + cell.reads_last))
    state = cell.zero_state(2, x)
    try:
        new = cell.step(cell.project(x, None)[0], x[0], state, cell.constants(x))
    except Exception as error:
        return error
    shapes = [tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__ for value in new]
    expected = [tuple(value.shape) for value in state]
    if shapes != expected:
        states = "one state" if len(state) == 1 else f"{len(state)} states"
        return UsageError(f"update: expected a tuple of {states} of shape (B, H), got shapes {shapes} with B=2, H=3")
    return None


def _describe_step(cell: type[Cell], error: Exception) -> str:
    if isinstance(error, KeyError):
        gates = cell.gates if isinstance(cell.gates, tuple) else ()
        known = ", ".join(
            [*(gate.name for gate in gates), "x", *(cell.vectors if isinstance(cell.vectors, dict) else ())]
        )
        return f"p has no {error.args[0]!r}; it has {known}"
    return str(error) if isinstance(error, UsageError) else _describe(error)


def why_portable(cell: type[Cell], options: dict[str, Any], input_size: int, hidden_size: int) -> str | None:
    """Explain why the native library cannot run a user-defined cell.

    Args:
        cell: The class.
        options: Options of its constructor.
        input_size: I.
        hidden_size: H.

    Returns:
        The reason, or None for built-in cells and for cells that the library can run.
    """
    if cell not in _sources:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            cell_program(cell(input_size, hidden_size, **options))
    except ProgramError as error:
        return f"{cell.name}: {error}"
    return None
