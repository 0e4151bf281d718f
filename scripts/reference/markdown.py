"""Tables of Markdown, and the error for what has no description."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class MissingText(Exception):
    """Something that users can set has no description in the code."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold Markdown, and `|` is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    """Text as code; nothing for nothing."""
    return f"`{text}`" if text not in ("", None) else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
