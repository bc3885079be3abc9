# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m edgernn` and of the command `edgernn`."""

import sys
from typing import NoReturn

from edgernn.cli.frame import main


def run() -> NoReturn:
    """Run the command line `edgernn` on the arguments of this process, and exit with its exit status."""
    status = main()
    # imported by commands that train only; importing it here would load torch
    if parallel := sys.modules.get("edgernn.training.parallel"):
        parallel.leave(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
