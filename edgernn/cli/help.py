# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn help`: show the help of a command."""

import click

from edgernn.cli.frame import Command, main


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def command(words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `edgernn COMMAND --help` does, or without COMMAND the list of commands."""
    raise click.exceptions.Exit(main([*words, "--help"]))


command.example = "edgernn help train"
