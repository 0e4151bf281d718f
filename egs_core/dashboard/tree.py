"""Markup as a tree of plain values, from which the page's script makes elements: its policy forbids all that would read
text as HTML. Pure.

>>> tree(tag("p", "a < b ", tag("b", "bold"), class_="note"))
[['p', {'class': 'note'}, ['a < b ', ['b', {}, ['bold']]]]]
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from egs_core.report.html import VOID, Markup

CASED = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}  # the parser knows small letters only


def tree(markup: Markup) -> list[Any]:
    """Its elements, each a name, attributes and children, and texts."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Any] = []
        self._open = [self.found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element: list[Any] = [tag, {CASED.get(name, name): value or "" for name, value in attrs}, []]
        self._open[-1].append(element)
        if tag not in VOID:
            self._open.append(element[2])

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  (as the parser calls it)
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)
