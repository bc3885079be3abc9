# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the documentation, from the reports in docs/results; docs/generate.py uses them."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Format a Markdown table; the first `words` columns are aligned to the left, the others to the right."""
    lines = ["".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in (head, *rows)]
    lines.insert(1, f"|{'---|' * words}{'---:|' * (len(head) - words)}")
    return "\n".join(lines)
