# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings that a user can cause, and the one way to suggest a nearby name."""

import difflib
from collections.abc import Iterable


class EdgernnError(ValueError):
    """Something the user can mend: bad data, a corrupt file, a shape that does not fit. Exit code 1."""


class UsageError(EdgernnError):
    """A wrong word on the command line or a wrong argument's name or value. Exit code 2."""


class MissingPackageError(UsageError, ImportError):
    """A package of an extra that is not installed. Exit code 2."""


class EdgernnWarning(RuntimeWarning):
    """Something that works, but not as the user may think. The command line prints it in one line."""


def nearest(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown `name`, with the nearest known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
