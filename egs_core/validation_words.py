"""Pydantic's errors in the words of a file: what is wrong with a value, without the names of Python's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from egs_core.errors import listed

MOST_LOOKED_AT = 100  # of a file's errors, to name some
MOST_OTHERS = 5  # places that one error names besides its own
PLAIN = {
    "missing": "is missing",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "has characters that it may not have",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
    "none_required": "must be left out",
}
"""Kind of error -> what to say; kinds that are not here or in `_WITH_VALUES` keep pydantic's sentence."""

_WITH_VALUES = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} entries",
}


def _figure(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:g}"


def problem_of(error: Mapping[str, Any]) -> str:
    """What is wrong, to stand after the place: `must be a list`."""
    kind, values = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "too_short":
        return "needs at least one entry" if values.get("min_length") == 1 else f"needs {values['min_length']} entries"
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in _WITH_VALUES:
        shown = {name: _figure(value) if isinstance(value, float) else value for name, value in values.items()}
        return _WITH_VALUES[kind].format(**shown)
    text = str(error["msg"]).removeprefix("Value error, ")
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def first_of(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one to tell of: where a field is missing and another one there is unknown, that is what was written wrong."""
    first = errors[0]
    return next((one for one in errors if _is_meant(first, one)), first)


def _is_meant(missing: Mapping[str, Any], unknown: Mapping[str, Any]) -> bool:
    is_pair = missing["type"] == "missing" and unknown["type"] == "extra_forbidden"
    return is_pair and bool(missing["loc"][:-1] == unknown["loc"][:-1])


def with_others(hint: str, errors: Sequence[Mapping[str, Any]], written: Callable[[tuple[str | int, ...]], str]) -> str:
    """The hint, and which other places are wrong besides the first one that is told of. written: a place in words."""
    told, errors = tuple(first_of(errors)["loc"]), errors[:MOST_LOOKED_AT]
    places = [tuple(one["loc"]) for one in errors if not any(_is_meant(one, other) for other in errors)]
    # what holds a wrong value is not wrong itself: a list counts as too short without it
    alone = [path for path in places if not any(path != other and path == other[: len(path)] for other in places)]
    others = list(dict.fromkeys(written(path) for path in alone if path != told))
    more = f"also wrong: {listed(others, MOST_OTHERS)}" if others else ""
    return "; ".join(part for part in (hint, more) if part)
