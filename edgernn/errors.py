# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings that a user can cause, and suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


class EdgernnError(ValueError):
    """Error that the user can fix, such as bad data, a corrupt file or a wrong shape. Exit code 1."""


class UsageError(EdgernnError):
    """Unknown name or bad value of an argument, in Python or on the command line. Exit code 2."""


class MissingPackageError(UsageError, ImportError):
    """Missing Python package, which an extra such as edgernn[train] installs. Exit code 2."""


class EdgernnWarning(RuntimeWarning):
    """Warning about a result that may surprise the user. The command line prints it in one line."""


def nearest(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Create the error for an unknown name, with a suggestion.

    Args:
        kind: Kind of the name, such as "cell".
        name: The unknown name.
        known: All valid names.

    Returns:
        The error, which the caller raises.
    """
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    return UsageError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
