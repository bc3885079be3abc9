# SPDX-License-Identifier: Apache-2.0
"""`python -m edgernn`, and the command `edgernn`."""

import sys

from edgernn.cli.frame import main

if __name__ == "__main__":
    sys.exit(main())
