# SPDX-License-Identifier: Apache-2.0
"""A user's own cell out of a Python file, named FILE.py:CLASS wherever a cell's name may stand.

To load such a file is to execute it. A run directory keeps a copy (`KEPT`), which is executed when the run is used;
exported and packed files carry the equations as data and execute nothing.
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
from edgernn.program import ProgramError

# the copy of the file in a run directory
KEPT = "cell.py"
_WORD = re.compile(r"(?P<file>.*\.py)(:(?P<name>[^:/\\]*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class ClassSource:
    """Where a class comes from: its name in the file, and the file's content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def record(self) -> dict[str, str]:
        """The entry `cell_file` of config.json."""
        return {"class": self.name, "sha256": self.sha256}


_sources: dict[type[Cell], ClassSource] = {}
_modules: dict[str, ModuleType] = {}


def is_cell_file(cell: object) -> bool:
    """True for a word FILE.py:CLASS, or FILE.py where the file has one cell."""
    return isinstance(cell, str) and _WORD.fullmatch(cell) is not None


def split_word(word: str) -> tuple[Path, str]:
    """The file and the class of a word; the class is "" where the word has none."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise UsageError(f"cell: expected FILE.py:CLASS, got {word!r}")
    return Path(match["file"]), match["name"] or ""


def label(cell: str) -> str:
    """A cell as the name of a directory has it: the class for FILE.py:CLASS. Reads no file."""
    if not is_cell_file(cell):
        return cell
    path, name = split_word(cell)
    return name or path.stem


def source_of(cell: type[Cell]) -> ClassSource | None:
    """The source of a class that `load_cell` has loaded, None for any other."""
    return _sources.get(cell)


def load_cell(word: str, taken: Collection[str] = ()) -> type[Cell]:
    """Load FILE.py:CLASS; the same content gives the same class.

    Args:
        word: FILE is relative to the working directory. `:CLASS` may be left out where the file has one cell.
        taken: The names of built-in cells, which no other cell may have.

    Raises:
        UsageError: The file or the class is missing, or the class is no cell or has the name of a built-in one.
        EdgernnError: The file cannot be executed, or the cell cannot make a step.
    """
    path, name = split_word(word)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"cell: no such file: {path}") from None
    except IsADirectoryError:
        raise UsageError(f"cell: expected a file, got the folder {path}") from None
    module = _execute(path, content)
    cell = _find(path, module, name)
    if cell.name in taken:
        raise UsageError(f"{path}: {cell.__name__} has the name of a built-in cell, {cell.name!r}; rename it")
    _try_step(path, cell)
    _sources[cell] = ClassSource(cell.__name__, content)
    return cell


def load_kept(folder: Path, config: dict[str, Any]) -> type[Cell] | None:
    """The cell of a run directory out of its copy, None for a built-in cell; config: the content of config.json.

    Raises:
        EdgernnError: The copy is missing, or is not what config.json says.
    """
    entry = config.get("cell_file")
    if entry is None:
        return None
    return load_cell(f"{_checked_copy(folder, entry)}:{entry['class']}")


def kept_word(folder: Path, config: dict[str, Any], cell: str) -> str:
    """The word for the copy in a run directory in place of FILE.py:CLASS; `cell` itself where the run keeps none.

    Raises:
        EdgernnError: As `load_kept`.
    """
    entry = config.get("cell_file")
    if entry is None or not is_cell_file(cell):
        return cell
    return f"{_checked_copy(folder, entry)}:{split_word(cell)[1] or entry['class']}"


def differs(cell: str, copy: str) -> bool:
    """True if the file of one word is there and has another content than that of the other."""
    file, other = split_word(cell)[0], split_word(copy)[0]
    return file.is_file() and other.is_file() and file.read_bytes() != other.read_bytes()


def _checked_copy(folder: Path, entry: Any) -> Path:
    path = folder / KEPT
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("class", "sha256")):
        raise EdgernnError(f"{folder}: its config.json has no class and sha256 in cell_file; train again")
    if not path.is_file():
        raise EdgernnError(f"{path}: no such file; it has the cell that the run was trained with")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise EdgernnError(f"{path}: changed since the run began, by the SHA-256 in config.json; restore it")
    return path


def _execute(path: Path, content: bytes) -> ModuleType:
    key = hashlib.sha256(content).hexdigest()
    if key in _modules:
        return _modules[key]
    module = ModuleType(f"edgernn_cell_{key[:12]}")
    module.__file__ = str(path)
    # what reads annotations or sources of a class looks its module up
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
        raise EdgernnError(f"{path}: {_where(path, error)}{_said(error)}") from error
    _modules[key] = module
    return module


def _check_alone(path: Path, tree: ast.Module) -> None:
    """Raise UsageError where the file imports one beside it, which a run directory would lack."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." if node.level else str(node.module)]
        for name in (name.partition(".")[0] for name in names):
            beside = not name or (path.parent / f"{name}.py").is_file()
            if beside or (path.parent / name / "__init__.py").is_file():
                what = name or "what lies beside it"
                raise UsageError(
                    f"{path}: line {node.lineno}: it imports {what}, but a run keeps one file; put all in one"  # type: ignore[attr-defined]
                )


def _where(path: Path, error: BaseException) -> str:
    """The line of the file in which an error arose, as far as it is known."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: " if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def _said(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _find(path: Path, module: ModuleType, name: str) -> type[Cell]:
    """The class of a name, checked."""
    defined = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Cell) and value.__module__ == module.__name__
    }
    complete = {key: value for key, value in defined.items() if not inspect.isabstract(value)}
    if not name:
        if len(complete) == 1:
            return _checked(path, *complete.values())
        found = f"it has {', '.join(complete)}; write {path}:CLASS" if complete else "it has none"
        raise UsageError(f"{path}: expected one subclass of edgernn.Cell, {found}")
    if name not in vars(module):
        if not complete:
            raise UsageError(f"{path}: unknown class {name!r}: the file has no subclass of edgernn.Cell")
        raise UsageError(f"{path}: {nearest('class', name, complete)}")
    value = vars(module)[name]
    if not (isinstance(value, type) and issubclass(value, Cell)):
        what = f"a {type(value).__name__}" if not isinstance(value, type) else "another class"
        raise UsageError(f"{path}: {name}: expected a subclass of edgernn.Cell, got {what}")
    if name not in defined:
        raise UsageError(f"{path}: {name} is imported from {value.__module__}; expected a class of the file's own")
    return _checked(path, value)


def _checked(path: Path, cell: type[Cell]) -> type[Cell]:
    where = f"{path}: {cell.__name__}"
    if inspect.isabstract(cell):
        raise UsageError(f"{where} defines no update(p, state)")
    name = getattr(cell, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: expected a name of letters, digits and _.+-, as name = 'mine', got {name!r}")
    if not isinstance(getattr(cell, "gates", None), tuple | property):
        raise UsageError(f"{where}: expected a tuple of gates, as gates = (Gate('z'), Gate('n'))")
    return cell


@cache
def _try_step(path: Path, cell: type[Cell]) -> None:
    """Make a step at a small size, so that a mistake in the equations is told before data are read."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # equations that mix x and h take I = H alone
        if _step(path, cell, 2) is not None and (error := _step(path, cell, 3)) is not None:
            # the same content may have been read elsewhere first
            read = Path(str(sys.modules[cell.__module__].__file__))
            raise EdgernnError(f"{path}: {cell.__name__}: {_where(read, error)}{_of_step(cell, error)}") from error


def _step(path: Path, cell: type[Cell], inputs: int) -> Exception | None:
    """Why a step is not possible with I inputs and H = 3, None where it is, or where options have no defaults."""
    try:
        made = cell(inputs, 3)
    except TypeError as error:
        missing = "missing" in str(error) and "argument" in str(error)
        return None if missing else error
    except Exception as error:
        return error
    x = torch.zeros(1, 2, inputs * (1 + made.reads_last))
    state = made.zero_state(2, x)
    try:
        new = made.step(made.project(x, None)[0], x[0], state, made.constants(x))
    except Exception as error:
        return error
    shapes = [tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__ for value in new]
    expected = [tuple(value.shape) for value in state]
    if shapes != expected:
        one = "one state" if len(state) == 1 else f"{len(state)} states"
        return UsageError(f"update: expected a tuple of {one} of shape (B, H), got shapes {shapes} with B=2, H=3")
    return None


def _of_step(cell: type[Cell], error: Exception) -> str:
    if isinstance(error, KeyError):
        gates = cell.gates if isinstance(cell.gates, tuple) else ()
        known = ", ".join([*(gate.name for gate in gates), "x", *(cell.own if isinstance(cell.own, dict) else ())])
        return f"p has no {error.args[0]!r}; it has {known}"
    return str(error) if isinstance(error, UsageError) else _said(error)


def why_portable(cell: type[Cell], options: dict[str, Any], input_size: int, hidden_size: int) -> str | None:
    """Why the native library cannot run a user's cell by its program, None where it can."""
    if cell not in _sources:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            cell_program(cell(input_size, hidden_size, **options))
    except ProgramError as error:
        return f"{cell.name}: {error}"
    return None
