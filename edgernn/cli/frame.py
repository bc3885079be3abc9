# SPDX-License-Identifier: Apache-2.0
"""Code that all commands share: finding a command by its name, the options --json and --debug, one-line errors.

Each command is a module of the same name in this package, with an entry in COMMANDS. The module defines `command`: a
function with the decorator `json_command`, or a `CommandGroup`. Modules import heavy packages inside functions, so that
`edgernn --help` imports no package but click.
"""

import contextlib
import difflib
import functools
import importlib
import json
import math
import os
import shlex
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

import edgernn
from edgernn.errors import EdgernnError, EdgernnWarning, MissingPackageError, UsageError, nearest, without_controls
from edgernn.extras import needed_by
from edgernn.files import FULL
from edgernn.signals import number_of, raising

# from the name of each command to its summary in `edgernn --help`
COMMANDS = {
    "train": "Train a recurrent cell on a task and write a run directory.",
    "reproduce": "Train the runs of a paper's table and compare the figures.",
    "sweep": "Train all combinations of cells, rules and settings.",
    "plot": "Plot training runs: learning curves, updates, trade-offs.",
    "evaluate": "Test a trained model on new data, or with other settings.",
    "export": "Export a run as one ONNX file and verify it.",
    "calibrate": "Make a trained dense model cheaper without training.",
    "stream": "Give any recurrent ONNX file states, to run it in chunks.",
    "pack": "Convert an ONNX file to a packed model for C programs.",
    "bench": "Time a model beside ONNX Runtime's GRU and LSTM.",
    "run": "Run a model on a file of inputs, or detect words in a recording.",
    "wakeword": "Record, train and try a phrase that wakes an app.",
    "models": "List the trained models of the repository, or add one.",
    "data": "List data sets, or download one.",
    "cells": "List cells and update rules with their costs.",
    "info": "Describe a model: channels, classes, states, sizes, origin.",
    "help": "Show the help of a command.",
}
FAILURE, USAGE = 1, 2
# variable that a shell sets to ask for completions, see docs/how-to/install.md
_COMPLETE = "_EDGERNN_COMPLETE"
# a process that a signal ended exits with SIGNAL + the signal's number
SIGNAL = 128


# gets the eager options that stand before --help; returns sections of the help: title, text and rows (word, meaning)
Sections = Callable[..., Iterable[tuple[str, str, list[tuple[str, str]]]]]


class Command(click.Command):
    """Click command whose help ends with a list of KEY=VALUE settings, if it has any, and a runnable example."""

    example: str = ""
    sections: Sections | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "KEY=VALUE" in " ".join(self.collect_usage_pieces(ctx)) and (setting := _setting(error, words)):
                raise click.UsageError(f"{error.format_message()} Did you mean the setting {setting}?", ctx) from None
            raise
        except click.UsageError as error:
            if "extra argument" in error.message and any("--input" in param.opts for param in self.params):
                raise click.UsageError(f"{error.message}; pass an input file as --input FILE", ctx) from None
            raise

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
        # a shell joins the lines
        lines = textwrap.wrap(self.example, formatter.width - 4, break_on_hyphens=False, break_long_words=False)
        formatter.write("\nExample:\n  " + " \\\n    ".join(lines) + "\n")


def _setting(error: click.NoSuchOption, words: list[str]) -> str | None:
    """Return the word KEY=VALUE for an unknown option --KEY=VALUE, or --KEY VALUE, that resembles no option."""
    if difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=0.8):
        return None
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        name, equals, value = word.partition("=")
        if name == error.option_name and (equals or not following.startswith("-")):
            return f"{name.lstrip('-').replace('-', '_')}={value if equals else following}"
    return None


def _write(formatter: click.HelpFormatter, sections: Iterable[tuple[str, str, list[tuple[str, str]]]]) -> None:
    for title, text, rows in sections:
        with formatter.section(title):
            if text:
                formatter.write(textwrap.indent(text, " " * formatter.current_indent) + "\n\n")
            if rows:
                formatter.write_dl(rows)


class CommandGroup(click.Group):
    """Click group of commands whose help ends with an example."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click itself reports an unknown option
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise nearest("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            formatter.write(f"\nExample:\n  {self.example}\n")


class RootGroup(CommandGroup):
    """The top-level Click group `edgernn`, which imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edgernn.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_debug = click.option("--debug", is_flag=True, expose_value=False, help="Show a Python traceback with an error.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document, instead of text.")


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(edgernn.__version__, message="edgernn %(version)s")
@_debug
def group() -> None:
    """Train light recurrent cells, export them as ONNX files, run the files fast and measure their cost.

    `edgernn COMMAND --help` describes a command and ends with an example.
    """


def _json_text(result: Any) -> str:
    """Format a result as JSON, which has no NaN and no infinity: these become null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [finite(entry) for entry in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(result), indent=2, allow_nan=False)


def json_command(
    example: str, text: Callable[[Any], str], sections: Sections | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that turns a function into a Click command with the options --json and --debug.

    The function returns a JSON-compatible result, or None to print nothing. Further options are declared by click
    decorators between this decorator and the function. Only the result is printed to standard output: anything else
    that the function prints goes to standard error.

    Args:
        example: A command line for the end of the help.
        text: Function that converts the result to the text printed without --json.
        sections: Function that returns further sections of the help, each a title, a text and a list of pairs (word,
            meaning). It is called with keyword arguments: the values of the options with is_eager=True that stand
            before --help on the command line. Default: no further sections.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[..., Any]) -> Command:
        @functools.wraps(function)
        def run(as_json: bool, **options: Any) -> None:
            with contextlib.redirect_stdout(sys.stderr):
                result = function(**options)
            if result is not None:
                click.echo(_json_text(result) if as_json else without_controls(text(result)))

        command: Command = click.command(cls=Command)(_json(_debug(run)))
        command.example, command.sections = example, sections
        return command

    return decorate


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line `edgernn ...` and print its result, or its error in one line.

    Args:
        args: The words after `edgernn`. Default: the arguments of this process.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for wrong usage, or 128 plus the number of the signal that
        ended the command, such as 130 after Ctrl-C.
    """
    if instruction := os.environ.get(_COMPLETE):
        return shell_complete(group, {}, "edgernn", _COMPLETE, instruction)
    words = list(sys.argv[1:] if args is None else args)
    _open_closed_streams()
    hook = sys.unraisablehook
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show, warnings.showwarning)
            return _main(words)
    finally:
        sys.unraisablehook = hook


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, whose numbers the next files would get otherwise."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            # child processes print too
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w"))


def _show(default: Callable[..., None], message: Warning | str, category: type[Warning], *location: Any) -> None:
    """Replace `warnings.showwarning`: print an EdgernnWarning in one line, and pass other warnings to `default`."""
    if issubclass(category, EdgernnWarning):
        print(without_controls(f"edgernn: warning: {_one_line(str(message))}"), file=sys.stderr)
    else:
        default(message, category, *location)


def _main(words: list[str]) -> int:
    try:
        # group.main would turn an interrupt into an error without its message
        with raising(), group.make_context("edgernn", list(words)) as context:
            group.invoke(context)
        # a write error of buffered output must be caught here
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        _tell(error.format_message())
        return USAGE
    except BrokenPipeError:
        # keep the interpreter's last flush from failing on the closed pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt as error:
        # the __del__ of an object whose construction was interrupted may fail, as that of zipfile.ZipFile does
        sys.unraisablehook = lambda _: None
        _tell(f"edgernn: {str(error) or 'interrupted'}")
        return SIGNAL + number_of(error)
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        message, status = _explain(error)
        _tell(f"edgernn: error: {message}")
        return status


def following(command: str, path: str) -> str:
    """Return the line that tells the next command, on a file or folder, such as `next: edgernn export runs/my-gru`."""
    # a name that begins with a dash would be an option
    return f"next: {shlex.join(['edgernn', command, f'./{path}' if path.startswith('-') else path])}"


def _tell(text: str) -> None:
    """Print a line to standard error; a full disk or a closed pipe there does not change the exit status."""
    with contextlib.suppress(OSError):
        print(without_controls(text), file=sys.stderr, flush=True)


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message of an exception as one line, and the exit status with which the process should end."""
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
    return f"{type(error).__name__}: {_one_line(str(error))} (--debug shows the traceback)", FAILURE


def _explain_system(error: OSError) -> str:
    """Describe an error of the operating system in one line: the path, the reason and, if known, the remedy."""
    text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    notes = getattr(error, "__notes__", [])
    if not notes and error.errno in FULL:
        notes = ["existing files are unchanged; free some space and run the command again"]
    if isinstance(error, FileExistsError | NotADirectoryError):
        notes = ["expected a folder, got a file of that name; remove the file or choose another path"]
    return "; ".join([text, *notes])


def _one_line(text: str) -> str:
    return " ".join(text.split())
