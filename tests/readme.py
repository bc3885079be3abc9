# SPDX-License-Identifier: Apache-2.0
"""Write the generated part of the README: python -m tests.readme"""

import re
from pathlib import Path

from edgernn.listing import listing, table

README = Path(__file__).resolve().parent.parent / "README.md"
PART = re.compile(r"(<!-- cells -->\n).*?(<!-- /cells -->)", re.DOTALL)


def generated() -> str:
    return table(listing(2, 128)) + "\n"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(PART.sub(lambda m: m[1] + generated() + m[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
