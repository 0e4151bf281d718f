"""Fields of a message that this version of its definition does not know: kept as they are, and put back.

{nodeSelector: …, initContainer: …}  ─ split ─►  {nodeSelector: …}  ─► a message, which the rewrite changes
                                          └────►  {initContainer: …}  ── merged ──► back into its document
"""

from __future__ import annotations

from typing import Any

Unknown = dict[str | int, Any]
"""Fields and their values as in the document; below a field that is known, by its name, a list's by their places."""


def split_unknown(value: dict[str, Any], message: Any) -> tuple[dict[str, Any], Unknown]:
    """The part of a value that a message of this type takes, and the rest."""
    return _split(value, message.DESCRIPTOR)


def merged(value: Any, unknown: Unknown) -> Any:
    """A value with the rest put back where it was; lists may have grown at their ends meanwhile."""
    for name, inner in unknown.items():
        if isinstance(value, list):
            value[int(name)] = merged(value[int(name)], inner)
        elif name in value:
            value[name] = merged(value[name], inner)
        else:
            value[name] = inner
    return value


def names_of(unknown: Unknown) -> list[str]:
    """The names of the fields, for a note."""
    found = []
    for name, inner in unknown.items():
        nested = names_of(inner) if isinstance(inner, _Nested) else []
        found += [f"{name}.{each}" for each in nested] or [str(name)]
    return found


class _Nested(dict[str | int, Any]):
    """Unknown fields below a known one: told from an unknown field's own value."""


def _split(value: Any, descriptor: Any) -> tuple[Any, Unknown]:
    known: dict[str, Any] = {}
    unknown: Unknown = _Nested()
    by_name = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    for name, inner in value.items():
        field = by_name.get(name)
        if field is None:
            unknown[name] = inner
            continue
        known[name], left = _split_field(inner, field)
        if left:
            unknown[field.json_name] = left
    return known, unknown


def _split_field(value: Any, field: Any) -> tuple[Any, Unknown]:
    """The same for the value of a field: a message, a list or a mapping of them."""
    inside = field.message_type
    if inside is None or inside.full_name.startswith("google.protobuf."):
        return value, _Nested()
    if inside.GetOptions().map_entry:
        return value, _Nested()  # of plain values: labels, annotations
    if isinstance(value, list):
        parts = [_split(each, inside) if isinstance(each, dict) else (each, _Nested()) for each in value]
        return [known for known, _ in parts], _Nested({at: left for at, (_, left) in enumerate(parts) if left})
    return _split(value, inside) if isinstance(value, dict) else (value, _Nested())
