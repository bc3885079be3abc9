# SPDX-License-Identifier: Apache-2.0
"""Installation hints for missing packages, those of the extras of edgernn such as train."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from edgernn.errors import MissingPackageError


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Context manager that replaces a failed import by a MissingPackageError with the packages to install.

    `user` is the feature that needs them, such as "edgernn.training"; of nested ones, the error names the outermost. It
    lists all missing packages of the extra, but not edgernn, which no package index has: another package of that name
    there would not be ours.
    """
    try:
        yield
    except MissingPackageError as error:
        raise MissingPackageError(user, error.remedy) from error
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        extras = _extras()
        for packages in extras.values():
            if name in packages and _is_missing(name):
                wanted = {**extras[_runtime()], **packages}
                missing = [package for package in wanted if _is_missing(package)]
                first = next(package for package in packages if package in missing)
                words = " ".join(shlex.quote(wanted[package]) for package in missing)
                raise MissingPackageError(user, f"needs {first}; pip install {words}") from error
        raise


def _extras() -> dict[str, dict[str, str]]:
    """Read the extras of edgernn from the installed metadata: a dict from extra to its packages."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("edgernn") or []
    except PackageNotFoundError:
        return {}
    extras: dict[str, dict[str, str]] = {}
    for line in lines:
        if match := re.match(r"""(([\w.-]+)[^;]*);.*\bextra == ["'](\w+)["']""", line):
            extras.setdefault(match[3], {})[match[2].replace("-", "_").removesuffix("_gpu")] = match[1].strip()
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
