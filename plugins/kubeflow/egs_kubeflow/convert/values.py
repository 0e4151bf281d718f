"""What a task's input is, as far as the compiled pipeline says: every value that it may have.

    ("2",)        one value: a constant, or an argument of the pipeline
    (1, 2, 3)     a loop's item: another one in each iteration
    None          unknown until the pipeline runs: a task produces it, or nobody has given the argument yet

Values are looked up when one is asked for, because most never are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Candidates = tuple[Any, ...] | None

_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\[(?:'([^']*)'|\"([^\"]*)\")\]\}\}")
_SELECTOR = re.compile(r"""parseJson\(string_value\)((?:\[(?:"[^"]*"|'[^']*'|\d+)\])*)""")
_STEP = re.compile(r"""\[(?:"([^"]*)"|'([^']*)'|(\d+))\]""")
_MOST_ITEMS = 1000  # of a loop whose single items are looked at
_MOST_LENGTH = 100_000  # of a text with placeholders
_MOST_CHAINED = 4  # inputs of one task that are each a text with a placeholder of the next


class Scope:
    """The inputs of one task, seen from the DAG around it; for a task that runs a DAG, the inputs of that DAG.

    component: what the task runs. The root has neither a task nor a scope around it; arguments are its inputs.
    """

    def __init__(
        self, component: Any, task: Any = None, outer: Scope | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._component, self._task, self._outer = component, task, outer
        self._arguments = arguments or {}
        self._known: dict[str, Candidates] = {}
        self._asking = 0

    def value(self, name: str) -> Candidates:
        """What an input may be."""
        if name not in self._known:
            self._known[name] = None  # what refers to itself has no value
            self._asking += 1
            if self._asking <= _MOST_CHAINED:
                self._known[name] = self._found(name)
            self._asking -= 1
        return self._known[name]

    def fill(self, text: Any) -> Candidates:
        """A text with each placeholder of an input replaced by its value; unknown where one of them is."""
        if not isinstance(text, str) or "{{" not in text:
            return (text,)
        out, end = "", 0
        for match in _PLACEHOLDER.finditer(text):
            found = self.value(match[1] if match[1] is not None else match[2])
            if found is None or match[0] == text:
                return found
            out += text[end : match.start()] + as_text(found[0])
            end = match.end()
            if len(found) > 1 or len(out) > _MOST_LENGTH:
                return None
        out += text[end:]
        return None if "{{" in out else (out,)

    def defaults_in(self, text: Any) -> frozenset[str]:
        """The pipeline's parameters whose defaults stand for a placeholder of a text: whoever starts a run may give
        others."""
        if not isinstance(text, str) or "{{" not in text:
            return frozenset()
        names = [match[1] if match[1] is not None else match[2] for match in _PLACEHOLDER.finditer(text)]
        return frozenset[str]().union(*(self.defaults_of(name) for name in names))

    def defaults_of(self, name: str) -> frozenset[str]:
        """The same of one input."""
        if self._task is None or self._outer is None:
            return frozenset() if name in self._arguments or self._default(name) is None else frozenset([name])
        if self._asking > _MOST_CHAINED:
            return frozenset()
        if name and self._task.parameter_iterator.item_input == name:
            return self.defaults_of_items()
        if name not in self._task.inputs.parameters:
            return frozenset()  # a default inside the pipeline: no run can change it
        stated = self._task.inputs.parameters[name]
        kind = stated.WhichOneof("kind")
        if kind == "component_input_parameter":
            return self._outer.defaults_of(stated.component_input_parameter)
        self._asking += 1
        try:
            return self.defaults_in(plain(stated.runtime_value.constant)) if kind == "runtime_value" else frozenset()
        finally:
            self._asking -= 1

    def defaults_of_items(self) -> frozenset[str]:
        """The same of a loop's items."""
        items = self._task.parameter_iterator.items
        by_input = items.WhichOneof("kind") == "input_parameter"
        return self.defaults_of(items.input_parameter) if by_input else self.defaults_in(items.raw)

    def width(self) -> int | None:
        """How many times a loop runs its DAG; None where that is known at run time only."""
        lengths = {len(items) for items in self._lists() or ()}
        return lengths.pop() if len(lengths) == 1 else None

    def _found(self, name: str) -> Candidates:
        if self._task is None or self._outer is None:
            return (self._arguments[name],) if name in self._arguments else self._default(name)
        if name and self._task.parameter_iterator.item_input == name:
            return self._items()
        if name not in self._task.inputs.parameters:
            return self._default(name)
        stated = self._task.inputs.parameters[name]
        kind = stated.WhichOneof("kind")
        found: Candidates = None
        if kind == "runtime_value":
            found = _constant(stated.runtime_value, self._outer)
        elif kind == "component_input_parameter":
            found = self._outer.value(stated.component_input_parameter)
        if found is not None and stated.parameter_expression_selector:
            found = _selected(found, stated.parameter_expression_selector)
        return None if found is None else _agreed([self.fill(value) for value in found])

    def _default(self, name: str) -> Candidates:
        """What an input is that nobody gave; unknown where it has no default."""
        if name not in self._component.input_definitions.parameters:
            return None
        definition = self._component.input_definitions.parameters[name]
        if definition.HasField("default_value"):
            return (plain(definition.default_value),)
        return (None,) if definition.is_optional else None

    def _items(self) -> Candidates:
        """What a loop's item may be."""
        lists = self._lists()
        if lists is None or sum(map(len, lists)) > _MOST_ITEMS:
            return None
        return _agreed([(item,) for items in lists for item in items])

    def _lists(self) -> list[list[Any]] | None:
        """The lists that a loop may run over."""
        items = self._task.parameter_iterator.items
        by_input = items.WhichOneof("kind") == "input_parameter"
        found = self.value(items.input_parameter) if by_input else (items.raw,)
        lists = [_decoded(value) if isinstance(value, str) else value for value in found or ()]
        return lists if lists and all(isinstance(value, list) for value in lists) else None


def plain(value: Any) -> Any:
    """A protobuf Value as Python has it; whole numbers, which it keeps as floats, as int."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: plain(inner) for key, inner in value.struct_value.fields.items()}
    if kind == "list_value":
        return [plain(inner) for inner in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def as_text(value: Any) -> str:
    """A value as kfp's backend puts it in the place of a placeholder."""
    return value if isinstance(value, str) else json.dumps(value)


def _constant(value: Any, scope: Scope) -> Candidates:
    kind = value.WhichOneof("value")
    if kind == "constant":
        return (plain(value.constant),)
    if kind == "constant_value":
        inner = value.constant_value
        return (getattr(inner, inner.WhichOneof("value") or "string_value"),)
    return scope.value(value.runtime_parameter) if kind == "runtime_parameter" else None


def _selected(found: tuple[Any, ...], selector: str) -> Candidates:
    match = _SELECTOR.fullmatch(selector.strip())
    if match is None:
        return None
    out: list[Candidates] = []
    for value in found:
        value = _decoded(value) if isinstance(value, str) else value
        for double, single, index in _STEP.findall(match[1]):
            key: Any = int(index) if index else double or single
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        out.append((value,))
    return _agreed(out)


def _agreed(found: list[Candidates]) -> Candidates:
    """All of them together, equal ones once; unknown as soon as one is."""
    out: dict[str, Any] = {}
    for candidates in found:
        if candidates is None:
            return None
        for value in candidates:
            out.setdefault(json.dumps(value, sort_keys=True), value)
    return tuple(out.values()) or None


@lru_cache(maxsize=256)
def _decoded(text: str) -> Any:
    """The value of JSON text; None for text that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
