# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m edgernn` and of the command `edgernn`."""

import gc
import signal
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line `edgernn` on the arguments of this process, and exit with its exit status."""
    try:
        # takes most of the time of a short command, in which a Ctrl-C would print a traceback
        from edgernn.cli.frame import main
        from edgernn.signals import ignore_interrupts
    except KeyboardInterrupt:
        print("edgernn: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    status = main()
    # a Ctrl-C during the interpreter's shutdown would print a traceback
    ignore_interrupts()
    # imported by commands that train only; importing it here would load torch
    if parallel := sys.modules.get("edgernn.training.parallel"):
        parallel.leave(status)
    # the collections of the interpreter's shutdown take most of a second if torch is loaded
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    run()
