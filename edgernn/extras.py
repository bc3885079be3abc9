# SPDX-License-Identifier: Apache-2.0
"""Installation hints for missing packages, which extras such as edgernn[train] install."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from edgernn.errors import MissingPackageError


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Context manager that replaces a failed import by an error with the extra to install, such as edgernn[train].

    Args:
        user: Name of the feature that needs the package, such as "edgernn.training", for the error message.

    Raises:
        MissingPackageError: A package of an extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        for extra, packages in _extras().items():
            missing = [package for package in packages if _is_missing(package)]
            if name in missing:
                words = ",".join(dict.fromkeys((_runtime(), extra)))
                message = f"{user}: needs {missing[0]}; pip install 'edgernn[{words}]'"
                raise MissingPackageError(message) from error
        raise


def _extras() -> dict[str, list[str]]:
    """Read the extras of edgernn from the installed metadata: a dict from extra to the import names of its packages."""
    from importlib.metadata import requires

    extras: dict[str, list[str]] = {}
    for line in requires("edgernn") or []:
        if match := re.match(r"""([\w.-]+)[^;]*;.*\bextra == ["'](\w+)["']""", line):
            extras.setdefault(match[2], []).append(match[1].replace("-", "_"))
    return extras


def _is_missing(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is None


def _runtime() -> str:
    """Return the extra that installs ONNX Runtime: "gpu" if onnxruntime-gpu is installed already, else "cpu"."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("onnxruntime-gpu")
    except PackageNotFoundError:
        return "cpu"
    return "gpu"
