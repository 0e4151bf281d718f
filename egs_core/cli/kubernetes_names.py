"""What `egs kubernetes` is told to write into a cluster, or to look for there: refused here where no cluster takes it,
so that it is not found out by an apply that has done half."""

from __future__ import annotations

import re
from collections.abc import Iterable

from egs_core.errors import InputError

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PART = r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
_HOST = rf"({_WORD}(\.{_WORD})*|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
_IMAGE = re.compile(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@[A-Za-z0-9+._-]+:[0-9A-Fa-f]{{32,}})?"
)
"""As a kubelet reads an image: github.com/distribution/reference, regexp.go."""


def check_namespaces(option: str, stated: Iterable[str]) -> None:
    """Raises InputError where one can be no namespace's name (RFC 1123, a label)."""
    for one in stated:
        _check(option, one, _LABEL, "can be no namespace", "lower-case letters, digits and hyphens, 63 at most")


def check_names(stated: Iterable[tuple[str, str]]) -> None:
    """Options and the names of objects that they state; "": none is stated. Raises InputError where one can be no
    object's name (RFC 1123, a subdomain)."""
    for option, one in stated:
        if one:
            _check(option, one, _NAME, "can be no object's name", "lower-case letters, digits, hyphens and dots")


def check_image(option: str, stated: str) -> None:
    """Raises InputError where no kubelet can pull it."""
    _check(option, stated, _IMAGE, "can be no image", "NAME:TAG, such as registry.example/team/egs:1")


def check_texts(stated: Iterable[tuple[str, str]]) -> None:
    """Options and words that others read; "": none is stated. Raises InputError for blanks and what does not print."""
    for option, one in stated:
        if one != one.strip() or not one.isprintable():
            raise InputError(option, f"{one!r} has blanks at its ends, or what does not print", "leave these out")


def check_words(option: str, stated: Iterable[str], remedy: str) -> None:
    """Raises InputError where one is empty."""
    if any(not one.strip() for one in stated):
        raise InputError(option, "is empty", remedy)


def _check(option: str, stated: str, form: re.Pattern[str], problem: str, remedy: str) -> None:
    if not stated.strip():
        raise InputError(option, "is empty", remedy)
    if form.fullmatch(stated) is None:
        raise InputError(option, f"{stated!r} {problem}", remedy)
