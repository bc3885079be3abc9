# SPDX-License-Identifier: Apache-2.0
"""What to install where a package of an extra is missing."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from edgernn.errors import MissingPackageError


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Say what to install where an import inside fails for want of a package of one of edgernn's extras.

    Args:
        user: What cannot work without the package.

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
    """The packages that each extra adds, by the names they are imported by, as the installed metadata has them."""
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
    """The extra with the ONNX Runtime that is installed; that of the CPU where none is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("onnxruntime-gpu")
    except PackageNotFoundError:
        return "cpu"
    return "gpu"
