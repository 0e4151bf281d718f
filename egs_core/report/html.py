"""HTML that cannot be broken by what it shows: every text is escaped unless it is already `Markup`.

>>> tag("p", "a < b ", tag("b", "bold"), class_="note")
'<p class="note">a &lt; b <b>bold</b></p>'
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

VOID = frozenset({"br", "hr", "input", "meta", "link"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element. `class_` and `for_` lose their underscore, other underscores become dashes; None and False are left
    out, True has no value."""
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Children one after the other; None is left out."""
    parts = (child if isinstance(child, Markup) else escape(str(child)) for child in children if child is not None)
    return Markup("".join(parts))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def json_script(element_id: str, data: Any) -> Markup:
    """Data for the page's script. `<`, `>` and `&` are written as escapes, so no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(f'<script type="application/json" id="{escape(element_id)}">{text}</script>')


def asset(name: str) -> str:
    """The text of a file of this package."""
    return (resources.files(__package__ or "egs_core.report") / name).read_text(encoding="utf-8")


def linked_head(title: str, css: str, *scripts: str) -> Markup:
    """The head of a page of a server: addresses of its style and of its scripts, which run in this order."""
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=css),
        tag("title", "EGS: ", title),
        *(tag("script", src=script, defer=True) for script in scripts),
    )


def page_head(title: str, policy: str, more_css: str = "") -> Markup:
    """The head of a page that fetches nothing. policy: its Content-Security-Policy."""
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{asset('page.css')}{more_css}</style>"),
    )
