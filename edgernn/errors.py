# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings that a user can cause, and suggestions for misspelled names."""

import difflib
import re
from collections.abc import Collection, Iterable

# largest number of names that a message lists, and number of those that it shows of a longer list
_FEW, _FIRST = 12, 8
# commands that list all names of a kind
_LISTS = {
    "cell": "`edgernn cells`",
    "command": "`edgernn help`",
    "data set": "`edgernn data list`",
    "model": "`edgernn models`",
    "setting": "`edgernn help train`",
    "table": "`edgernn reproduce --list`",
    "task": "`edgernn help train`",
}


class EdgernnError(ValueError):
    """Error that the user can fix, such as bad data, a corrupt file or a wrong shape. The command line exits with 1."""


class UsageError(EdgernnError):
    """Error for an unknown name or a bad value of an argument. The command line exits with 2."""


class CodeError(UsageError):
    """Python code in a file that the user has not allowed to be executed. The command line exits with 2."""


class MissingPackageError(UsageError, ImportError):
    """Missing Python package of the code `user`; `remedy` says how to install it. The command line exits with 2."""

    def __init__(self, user: str, remedy: str) -> None:
        super().__init__(f"{user}: {remedy}")
        self.remedy = remedy


class EdgernnWarning(RuntimeWarning):
    """Warning about a result that may surprise the user. The command line prints it in one line."""


def nearest(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Create the error for an unknown name; its message suggests similar valid names, and lists all if they are few.

    Args:
        kind: What the name stands for, such as "cell", for the message.
        name: The unknown name.
        known: All valid names.

    Returns:
        The error. The caller raises it.
    """
    names = sorted(known)
    few = len(names) <= _FEW
    nearest_one = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    matches = nearest_one if few else difflib.get_close_matches(name, names, n=3, cutoff=0.6) or nearest_one
    hint = f"did you mean {' or '.join(map(repr, matches))}? " if matches else ""
    if few:
        listed = f"known: {', '.join(names)}"
    elif kind in _LISTS:
        listed = f"{_LISTS[kind]} lists all {len(names)}"
    else:
        listed = f"known: {some(names)}"
    return UsageError(f"unknown {kind} {name!r}: {hint}{listed}")


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as "1 step" or "2,000 steps"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def some(names: Iterable[str], beside: Collection[str] = ()) -> str:
    """Join names for a message: all of them if they are few, else some, first those not in `beside`, and a count."""
    names = list(names)
    if len(names) <= _FEW:
        return ", ".join(names)
    shown = sorted(names, key=lambda name: name in beside)[:_FIRST]
    return f"{', '.join(shown)} and {len(names) - _FIRST} more"


def without_controls(text: str) -> str:
    """Replace control characters except tab and line feed, which command a terminal, and what UTF-8 cannot encode."""
    # a byte of a file name that is no UTF-8, also in the form that repr gives it, becomes its number
    text = re.sub(r"\\udc(?=[89a-f][0-9a-f])", r"\\x", text)
    text = re.sub(r"[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:x}", text)
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "?", text)
