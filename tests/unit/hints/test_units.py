"""Sizes and durations as people write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.units import parse_bytes, parse_quantity, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("20GiB", 20 * 1024**3),
        ("512 MB", 512 * 10**6),
        ("1.5 KiB", 1536),
        ("16Gi", 16 * 1024**3),
        ("0", 0),
        ("7", 7),
        (" 3 b ", 3),
        ("1e3 kB", 10**6),
        (12345678901234567, 12345678901234567),
        ("1234567890123456789B", 1234567890123456789),
        (1e9, 10**9),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    """Each way to write a size gives its exact bytes."""
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200.0),
        ("90s", 90.0),
        ("1.5 min", 90.0),
        ("1h30m", 5400.0),
        ("1 h 30 min", 5400.0),
        ("250ms", 0.25),
        ("1d", 86400.0),
        ("42", 42.0),
        (0, 0.0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    """Each way to write a duration gives its seconds."""
    assert parse_seconds(text) == seconds


BAD: list[object] = [
    "",
    " ",
    "much",
    "-5",
    "-5s",
    "nan",
    "inf",
    "1e999",
    "5 5",
    "\u0661s",
    None,
    True,
    [],
    float("nan"),
]
BAD += [float("inf"), -1, "9" * 5000, 10**400]


@pytest.mark.parametrize("value", [*BAD, "512m", "1.5.2GiB", "20GiBs", 1.5, 2**63], ids=lambda v: repr(v)[:20])
def test_no_size(value: object) -> None:
    """Nonsense, negative, not finite, ambiguous or too large: an error that names the place, in one short line."""
    with pytest.raises(InputError, match=r"^pipe\.json: memory: ") as error:
        parse_bytes(value, "pipe.json: memory")
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [*BAD, "5 parsecs", "1h30", "s", timedelta(-1)], ids=lambda v: repr(v)[:20])
def test_no_duration(value: object) -> None:
    """The same for durations."""
    with pytest.raises(InputError, match=r"^--for: ") as error:
        parse_seconds(value, "--for")
    assert len(str(error.value)) < 200


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """No text causes another exception than InputError, and what is parsed is a non-negative number."""
    for parse in (parse_bytes, parse_seconds):
        with contextlib.suppress(InputError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "amount"), [("2", 2.0), ("500m", 0.5), ("1Gi", 2.0**30), ("15G", 15e9), ("1e3", 1000.0), (".5", 0.5)]
)
def test_quantities_are_those_of_kubernetes(text: str, amount: float) -> None:
    """Suffixes and exponents as Kubernetes reads them."""
    assert parse_quantity(text, "") == amount


@pytest.mark.parametrize("text", ["", "1 Gi", "-1", "two", "1e999", "1KI", "nan"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """One error that names the place."""
    with pytest.raises(InputError, match="here: "):
        parse_quantity(text, "here")
