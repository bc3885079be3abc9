# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: finding them, --json and --debug, and one line for every error.

A verb is a module of its own name in this package, with a click command named `command` made by `verb`, or a `Family`
of them, and a line in VERBS. Heavy imports stand inside its function, so that `edgernn --help` imports click and
nothing else of weight.
"""

import contextlib
import functools
import importlib
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

import edgernn
from edgernn.errors import EdgernnError, EdgernnWarning, MissingPackageError, UsageError, nearest
from edgernn.extras import needed_by
from edgernn.files import FULL
from edgernn.signals import number_of, raising

# the verbs and their one line in `edgernn --help`
VERBS = {
    "train": "Train a cell on a task; leaves a run directory.",
    "reproduce": "Lay a paper's table beside ours, training what is missing.",
    "sweep": "Train cells, rules and settings in all combinations.",
    "plot": "Draw runs: learning, update patterns, what skipping costs.",
    "export": "Turn a run into one .onnx file and check it.",
    "pack": "Turn a model file into one that C steps without ONNX Runtime.",
    "bench": "Time a model beside ONNX Runtime's own operators.",
    "run": "Run a model on a file of inputs.",
    "data": "List data sets, and fetch one.",
    "cells": "List the cells and update rules, and what they cost.",
}
FAILURE, USAGE = 1, 2
# and the number of a signal: the exit status of what a signal ended
SIGNAL = 128


# title, text and rows (word, what it is) of parts of a help, from the eager options that stand before --help
Sections = Callable[..., Iterable[tuple[str, str, list[tuple[str, str]]]]]


class Verb(click.Command):
    """A command whose help ends with its settings, if any, and an example that can be run as it stands."""

    example: str = ""
    sections: Sections | None = None

    def invoke(self, ctx: click.Context) -> Any:
        with needed_by(ctx.command_path):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.sections is not None:
            try:
                with needed_by("The list of settings"):
                    _write(formatter, self.sections(**ctx.params))
            except MissingPackageError as error:
                formatter.write(f"\n{error}\n")
        formatter.write(f"\nExample:\n  {self.example}\n")


def _write(formatter: click.HelpFormatter, sections: Iterable[tuple[str, str, list[tuple[str, str]]]]) -> None:
    for title, text, rows in sections:
        with formatter.section(title):
            if text:
                formatter.write(textwrap.indent(text, " " * formatter.current_indent) + "\n\n")
            if rows:
                formatter.write_dl(rows)


class Family(click.Group):
    """Verbs under one name. Its help ends with an example, too."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # an option that stands here is reported by click itself
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise nearest("verb", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            formatter.write(f"\nExample:\n  {self.example}\n")


class Verbs(Family):
    """The verbs of VERBS, each imported when it is asked for by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"edgernn.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


_debug = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback with an error.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(edgernn.__version__, message="edgernn %(version)s")
@_debug
def group() -> None:
    """Train light recurrent cells, export them as one ONNX file, run it fast, and know what it costs.

    `edgernn VERB --help` says more, and ends with an example.
    """


def verb(
    example: str, text: Callable[[Any], str], sections: Sections | None = None
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a verb from a function that returns its result, an object that JSON can hold.

    example: a command line that runs. text: turns the result into what is printed without --json; None prints
    nothing. sections: further parts of the help. The function's options stand below this decorator; --json and --debug
    are added. Only the result goes to standard output: whatever is printed on the way goes to standard error.
    """

    def decorate(function: Callable[..., Any]) -> Verb:
        @functools.wraps(function)
        def run(as_json: bool, **options: Any) -> None:
            with contextlib.redirect_stdout(sys.stderr):
                result = function(**options)
            if result is not None:
                click.echo(json.dumps(result, indent=2, allow_nan=False) if as_json else text(result))

        made: Verb = click.command(cls=Verb)(_json(_debug(run)))
        made.example, made.sections = example, sections
        return made

    return decorate


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 0, 1 for a failure, 2 for wrong usage, 128 plus the number of the signal that ended it, such as
        130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if args is None else args)
    with warnings.catch_warnings():
        warnings.showwarning = functools.partial(_show, warnings.showwarning)
        return _main(words)


def _show(others: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """A warning of ours in one line, and those of other packages as Python shows them."""
    if issubclass(category, EdgernnWarning):
        print(f"edgernn: warning: {_one_line(str(message))}", file=sys.stderr)
    else:
        others(message, category, *where)


def _main(words: list[str]) -> int:
    try:
        # not group.main: it turns an interrupt into an error without its message
        with raising(), group.make_context("edgernn", list(words)) as context:
            group.invoke(context)
        # what is still in the buffer may fail to be written
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        # the reader has gone; the interpreter would complain once more when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt as error:
        print(f"edgernn: {str(error) or 'interrupted'}", file=sys.stderr)
        return SIGNAL + number_of(error)
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        message, status = _explain(error)
        print(f"edgernn: error: {message}", file=sys.stderr)
        return status


def _explain(error: Exception) -> tuple[str, int]:
    """One line about an error, and the exit status."""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context else ""
        return _one_line(error.format_message()).rstrip(".") + hint, error.exit_code
    if isinstance(error, UsageError):
        return _one_line(str(error)), USAGE
    if isinstance(error, EdgernnError):
        return _one_line(str(error)), FAILURE
    if isinstance(error, OSError) and error.strerror:
        return _explain_system(error), FAILURE
    return f"{type(error).__name__}: {_one_line(str(error))} (--debug shows where)", FAILURE


def _explain_system(error: OSError) -> str:
    """The operating system's error: its path, the reason, and what to do."""
    text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    notes = getattr(error, "__notes__", [])
    if not notes and error.errno in FULL:
        notes = ["what was there before is kept; free some space and give the command again"]
    if isinstance(error, FileExistsError | NotADirectoryError):
        notes = ["expected a folder, and a file of that name is there; remove it, or name another place"]
    return "; ".join([text, *notes])


def _one_line(text: str) -> str:
    return " ".join(text.split())
