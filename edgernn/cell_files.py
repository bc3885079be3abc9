# SPDX-License-Identifier: Apache-2.0
"""User-defined cells and networks: classes in Python files, named by FILE.py:CLASS.

A cell is a subclass of `Cell`, a network any other subclass of torch.nn.Module. Loading such a file executes it. A
training copies the file to its run directory as cell.py or network.py. When the run is used, the copy is executed.
Exported and packed models carry the equations as data and execute no Python.
"""

import ast
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from edgernn.cell_program import cell_program
from edgernn.cells.base import Cell
from edgernn.cells.gate import Gate
from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import read_bytes
from edgernn.program import ProgramError

# name of a cell's file in a run directory
KEPT = "cell.py"
# the copy of a file in a run directory, by its entry in config.json
_COPIES = {"cell_file": KEPT, "network_file": "network.py"}
# names of all copies
COPIES = tuple(_COPIES.values())
_WORD = re.compile(r"(?P<file>.*\.py)(:(?P<name>[^:/\\]*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class ClassSource:
    """Origin of a user-defined class: its name in the Python file, the file's content, and its entry in config.json."""

    name: str
    content: bytes
    entry: str = "cell_file"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def kept(self) -> str:
        """Name of the file's copy in a run directory."""
        return _COPIES[self.entry]

    def record(self) -> dict[str, dict[str, str]]:
        """Return the entry of config.json: "class", the class name, and "sha256", the hash of the file."""
        return {self.entry: {"class": self.name, "sha256": self.sha256}}


_sources: dict[type[nn.Module], ClassSource] = {}
_modules: dict[str, ModuleType] = {}
_Module = TypeVar("_Module", bound=nn.Module)


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


def source_of(kind: type[nn.Module]) -> ClassSource | None:
    """Return the origin of a class that `load_cell` or `load_network` loaded, or None for any other class."""
    return _sources.get(kind)


def is_network(word: object) -> bool:
    """True if `word` is FILE.py:CLASS with a network, not a cell; the file is executed."""
    if not is_cell_file(word):
        return False
    path, name = split_word(str(word))
    module = _execute(path, _read(path))
    networks = _networks(module)
    return vars(module).get(name) in networks.values() if name else bool(networks) and not _cells(module)


def load_network(word: str) -> type[nn.Module]:
    """Load the network class that FILE.py:CLASS names, or FILE.py if the file defines one network.

    FILE is relative to the working directory. Files with the same content yield the same class. UsageError is raised if
    the file or class is missing, the class is not a network, or the file imports a module from its own folder, and
    EdgernnError if the file cannot be executed.
    """
    if not is_cell_file(word):
        raise UsageError(f"network: expected FILE.py:CLASS, such as my_net.py:Net, got {word!r}; name a Python file")
    path, name = split_word(word)
    content = _read(path)
    module = _execute(path, content)
    networks = _networks(module)
    if not name and len(networks) == 1:
        (name,) = networks
    if not name:
        got = ", ".join(networks) or "none"
        raise UsageError(f"{path}: expected one subclass of torch.nn.Module, got {got}; write {path}:CLASS")
    if name in _cells(module):
        raise UsageError(f"{path}: {name}: expected a network, got a cell; name it with --cell")
    if name not in networks:
        if name not in vars(module) and networks:
            raise UsageError(f"{path}: {nearest('class', name, networks)}; give the name of a network of this file")
        got = "no such class" if name not in vars(module) else "something else, or a class from another file"
        raise UsageError(f"{path}: {name}: expected a subclass of torch.nn.Module in this file, got {got}; define it")
    _sources[networks[name]] = ClassSource(name, content, "network_file")
    return networks[name]


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, "a Python file")
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}; expected FILE.py:CLASS with the path of a Python file") from None


def _defined(module: ModuleType, base: type[_Module]) -> dict[str, type[_Module]]:
    """Return the subclasses of `base` that a loaded Python file defines, by name."""
    return {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }


def _cells(module: ModuleType) -> dict[str, type[Cell]]:
    return _defined(module, Cell)  # type: ignore[type-abstract]


def _networks(module: ModuleType) -> dict[str, type[nn.Module]]:
    cells = _cells(module)
    return {name: value for name, value in _defined(module, nn.Module).items() if name not in cells}


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
    content = _read(path)
    module = _execute(path, content)
    cell = _find(path, module, name)
    if cell.name in taken:
        raise UsageError(
            f"{path}: {cell.__name__}: name: {cell.name!r} is the name of a built-in cell; choose another name"
        )
    _try_step(path, cell)
    _sources[cell] = ClassSource(cell.__name__, content)
    return cell


def copy_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the Python file in a run directory, from its config.json, or None if the run has no code."""
    return next((copy for key, copy in _COPIES.items() if config.get(key) is not None), None)


def load_kept(folder: Path, config: dict[str, Any]) -> type[nn.Module] | None:
    """Load the user-defined cell or network of a run directory from the run's copy of its file.

    Args:
        folder: The run directory.
        config: Content of its config.json.

    Returns:
        The class, or None if the run has no code of its user.

    Raises:
        EdgernnError: The copy is missing, its SHA-256 differs from that in config.json, or the file cannot be loaded.
    """
    copy = _checked_copy(folder, config)
    if copy is None:
        return None
    return load_network(copy) if is_network(copy) else load_cell(copy)


def kept_word(folder: Path, config: dict[str, Any], cell: str) -> str:
    """Replace the path in FILE.py:CLASS by the path of the copy of FILE.py in a run directory.

    Args:
        folder: The run directory.
        config: Content of its config.json.
        cell: Name of a cell, or FILE.py:CLASS of a cell or network.

    Returns:
        COPY:CLASS, where COPY is the path of the copy; `cell` itself if it names no file or the run has no copy.

    Raises:
        EdgernnError: The copy is missing, or its SHA-256 differs from that in config.json.
    """
    if not is_cell_file(cell) or (copy := _checked_copy(folder, config)) is None:
        return cell
    path, kept = split_word(copy)
    return f"{path}:{split_word(cell)[1] or kept}"


def differs(cell: str, copy: str) -> bool:
    """True if the files of two FILE.py:CLASS strings both exist and differ in content."""
    file, kept = split_word(cell)[0], split_word(copy)[0]
    return file.is_file() and kept.is_file() and file.read_bytes() != kept.read_bytes()


def _checked_copy(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return COPY:CLASS of a run directory, after checks of the copy; None if the run has no code of its user."""
    key = next((key for key in _COPIES if config.get(key) is not None), None)
    if key is None:
        return None
    entry, path = config[key], folder / _COPIES[key]
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("class", "sha256")):
        raise EdgernnError(f"{folder}: config.json: {key}: expected the keys class and sha256; train again")
    if not path.is_file():
        what = key.removesuffix("_file")
        raise EdgernnError(f"{path}: no such file; restore it: it defines the {what} that the run was trained with")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise EdgernnError(f"{path}: changed since the run began (its SHA-256 is not that in config.json); restore it")
    return f"{path}:{entry['class']}"


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
        reason = f"{_line_prefix(path, error)}{described(error)}"
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
                raise UsageError(f"{path}: line {line}: imports {imported}; put all code of the class in one file")


def line_of(kind: type, error: BaseException) -> str:
    """Return "line N: " for the line of a user-defined class's file that raised an error, or "" if it is unknown."""
    # traceback lines name the file from which the same content was first loaded
    return _line_prefix(Path(str(sys.modules[kind.__module__].__file__)), error)


def _line_prefix(path: Path, error: BaseException) -> str:
    """Return "line N: " for the line of the file that raised an error, or "" if it is unknown."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: " if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def described(error: BaseException) -> str:
    """Return the type and the message of an error in one line."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _find(path: Path, module: ModuleType, name: str) -> type[Cell]:
    """Return the cell class `name` of a loaded Python file, or its only cell class if `name` is ""."""
    defined = _cells(module)
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
        remedy = "name a network with --network" if value in _networks(module).values() else "name such a class"
        raise UsageError(f"{path}: {name}: expected a subclass of edgernn.Cell, got {kind}; {remedy}")
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
    gates = getattr(cell, "gates", None)
    names = [gate.name for gate in gates if isinstance(gate, Gate)] if isinstance(gates, tuple) else []
    if not isinstance(gates, property) and not (names and len(set(names)) == len(gates or ())):
        raise UsageError(
            f"{prefix}: gates: expected a tuple of Gate with different names, as in gates = (Gate('z'), Gate('n')), "
            f"got {gates!r:.80}"
        )
    return cell


@cache
def _try_step(path: Path, cell: type[Cell]) -> None:
    """Run one step of a user's cell with small sizes; raise EdgernnError if it fails, before any data are read."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # equations that mix x and h require I = H
        if _step_error(cell, 2) is not None and (error := _step_error(cell, 3)) is not None:
            text = line_of(cell, error) + (str(error) if isinstance(error, UsageError) else described(error))
            raise EdgernnError(f"{path}: {cell.__name__}: a test step fails: {text}; correct the cell") from error


def _step_error(cell_type: type[Cell], inputs: int) -> Exception | SystemExit | None:
    """Run one step of a cell with I = `inputs` and H = 3, and return its error."""
    try:
        cell = cell_type(inputs, 3)
    except TypeError as error:
        missing = "missing" in str(error) and "argument" in str(error)
        return None if missing else error
    except (Exception, SystemExit) as error:
        return error
    x = torch.zeros(1, 2, inputs * (1 + cell.reads_last))
    state = cell.zero_state(2, x)
    try:
        new = cell.step(cell.project(x, None)[0], x[0], state, cell.constants(x))
    except (Exception, SystemExit) as error:
        return error
    got = [_kind(value) for value in (new if isinstance(new, Iterable) else [new])]
    if got != [_kind(value) for value in state]:
        states = "one state" if len(state) == 1 else f"{len(state)} states"
        expected = f"a tuple of {states} of shape (B, H) in {str(x.dtype).removeprefix('torch.')}"
        return UsageError(f"update: expected {expected}, got {', '.join(got)} with B=2, H=3")
    return None


def _kind(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} in {str(value.dtype).removeprefix('torch.')}"


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
