# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings that a user can cause, and suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


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
    """Create the error for an unknown name; its message suggests the most similar valid name and lists all.

    Args:
        kind: What the name stands for, such as "cell", for the message.
        name: The unknown name.
        known: All valid names.

    Returns:
        The error. The caller raises it.
    """
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    return UsageError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
