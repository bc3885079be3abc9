# SPDX-License-Identifier: Apache-2.0
"""`python -m edgernn`, and the command `edgernn`."""

import sys
from typing import NoReturn

from edgernn.cli.frame import main


def run() -> NoReturn:
    """Run the words of the command line, and end the process."""
    status = main()
    # only trainings have imported it, and torch with it
    if parallel := sys.modules.get("edgernn.training.parallel"):
        parallel.leave(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
