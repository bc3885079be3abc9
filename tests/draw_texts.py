# SPDX-License-Identifier: Apache-2.0
"""Draw texts of the project at random, to be read by someone who does not know it.

    python -m tests.draw_texts SEED

prints twenty docstrings, ten help texts and ten error messages of the source files, numbered, each with its place. A
seed gives the texts of the same places again after they were reworded.
"""

import ast
import inspect
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgernn.cli.frame import group

ROOT = Path(__file__).parents[1]
FOLDERS = ("edgernn", "export", "runtime", "training", "docs")
COUNTS = {"docstring": 20, "help text": 10, "error": 10}
_ERRORS = {"EdgernnError", "UsageError", "ProgramError", "NothingToDrawError", "UnsupportedError", "ValueError"}


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def _docstrings() -> Iterator[str]:
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
                signature = ""
                if isinstance(node, ast.FunctionDef):
                    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                    signature = f"def {node.name}({ast.unparse(node.args)}){result}"
                elif isinstance(node, ast.ClassDef):
                    signature = f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
                yield f"{path}: {signature}\n{ast.get_docstring(node)}"


def _errors() -> Iterator[str]:
    for path, tree in _trees():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            call = node.exc
            if not isinstance(call.func, ast.Name) or call.func.id not in _ERRORS:
                continue
            text = call.args[0]
            if isinstance(text, ast.Constant | ast.JoinedStr):
                yield f"{path}:{node.lineno}: {ast.unparse(text)}"


def _help_texts() -> Iterator[str]:
    yield from _help_of(group, click.Context(group, info_name="edgernn"))


def _help_of(command: click.Command, context: click.Context) -> Iterator[str]:
    if command.help:
        yield f"{context.command_path}\n{inspect.cleandoc(command.help)}"
    for option in command.params:
        if isinstance(option, click.Option) and option.help:
            yield f"{context.command_path} {'/'.join(option.opts)}: {option.help}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if child := command.get_command(context, name):
                yield from _help_of(child, click.Context(child, parent=context, info_name=name))


def draw(seed: int) -> list[str]:
    """Draw the texts of one seed.

    Args:
        seed: Seed of the random numbers.

    Returns:
        The texts, each with its kind, number and place.
    """
    numbers = random.Random(seed)
    pools = {"docstring": _docstrings, "help text": _help_texts, "error": _errors}
    chosen = []
    for kind, pool in pools.items():
        chosen += [(kind, text) for text in numbers.sample(list(pool()), COUNTS[kind])]
    return [f"[{i}] {kind}: {text}" for i, (kind, text) in enumerate(chosen, 1)]


if __name__ == "__main__":
    print("\n\n".join(draw(int(sys.argv[1]))))
