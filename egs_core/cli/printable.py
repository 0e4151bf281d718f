"""Text that others wrote, for a terminal: it shows, and moves or colours nothing."""

from __future__ import annotations


def printable(text: str) -> str:
    """In one line, without what a terminal obeys: escapes, bells, marks that turn the direction of writing.

    >>> printable("two\\nlines")
    'two lines'
    """
    return "".join(one if one.isprintable() else " " if one.isspace() else "\ufffd" for one in text)
