"""Errors in files are in the words of the file: no Python type, no suggestion of the same name."""

from __future__ import annotations

import json
import re

import pytest

from egs_core.cluster_file import parse_cluster
from egs_core.errors import InputError
from egs_core.graph.load import decode_workload
from egs_core.queues import parse_queues

TYPES = re.compile(r"\b(tuple|dict|dictionary|str|string|instance|Input should|valid)\b")


def problem(text: str) -> InputError:
    with pytest.raises(InputError) as said:
        parse_queues(text)
    assert not TYPES.search(str(said.value)), said.value
    return said.value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queues: 5", "must be a list"),
        ("queues: []", "needs at least one entry"),
        ("queues: [a]", "must be a mapping of names to values"),
        ("queues: [{name: 5}]", "must be text"),
        ('queues: [{name: ""}]', "must not be empty"),
        ("queues: [{name: a, weight: heavy}]", "must be a number"),
        ("queues: [{name: a, weight: 0}]", "must be more than 0"),
        ("queues: [{name: a, weight: .inf}]", "must be a finite number"),
        ("queues: [{name: a, nominal: {gpus: -1}}]", "must be 0 or more"),
        ("queues: [{name: a, limits: {on_limit: stop}}]", "must be one of '', 'fail', 'requeue' or 'end'"),
        ("queues: [{cohort: lab}]", "is missing"),
    ],
)
def test_what_is_wrong_with_a_value(text: str, says: str) -> None:
    """One plain sentence."""
    assert problem(text).problem == says


def test_a_field_in_the_wrong_place_is_not_suggested_as_itself() -> None:
    """`gpus` is a field of a quota and none of a queue; a misspelt one gets the nearest."""
    found = problem("queues: [{name: a, gpus: 2}]")
    assert (found.problem, found.hint) == ("unknown field", "'gpus' belongs to another part of the file")
    assert problem("queues: [{name: a, wieght: 2}]").hint == "did you mean 'weight'?"


@pytest.mark.parametrize(
    "tasks", [[5], [{"id": 5}], [{"id": "a", "phases": {}}], [{"id": "a", "gpus": 1}], [{"id": "a", "priority": "x"}]]
)
def test_a_workload_file_in_the_same_words(tasks: list[object]) -> None:
    """As the YAML files."""
    document = {"format": "egs-workload", "version": 1, "id": "w", "tasks": tasks}
    with pytest.raises(InputError) as said:
        decode_workload(json.dumps(document).encode(), "w.json")
    assert not TYPES.search(str(said.value)), said.value
    assert "(did you mean 'gpus'?)" not in str(said.value)


def test_a_cluster_file_in_the_same_words() -> None:
    """As the others."""
    with pytest.raises(InputError, match=r"nodes\[0\]\.gpus: must be a whole number$"):
        parse_cluster("nodes: [{name: a, cpus: 1, gpus: 1.5}]")


def test_all_places_that_are_wrong_are_named_once() -> None:
    """The first with what is wrong, the others by line and place; a list that is too short only for a wrong entry, and
    a field that is missing beside one that is not known, are no places of their own."""
    text = "queues:\n- {name: a, wieght: 2}\n- {nam: b}\n- {name: c, weight: -1}\ntems: []"
    assert problem(text).hint == (
        "did you mean 'weight'?; also wrong: line 3 queues[1].nam, line 4 queues[2].weight, line 5 tems"
    )
