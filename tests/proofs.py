"""Which tests prove that EGS can do what an adapter declares of it: the yes of `egs doctor` and of the table in
`docs/what-works-where.md`, for each way of using EGS (a door, as "ray run": adapter and surface).

    @pytest.mark.proves("ray run", "preempt", "checkpoint")    # capabilities and hints, by their names
    def test_…                                                 # several doors: "airflow mode, executor"

    @scenarios("ray run")                                      # of the conformance suite: what each one needs
    def test_…(scenario, …)

They are read without being run: arguments are literals.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from egs_core.surfaces import HINT_ROWS, Surface
from egs_core.testing.conformance.suite import SCENARIOS, Scenario

ROOT = Path(__file__).resolve().parents[1]
REAL = ("tests/conformance/", "tests/scenarios/", "tests/unit/server/test_serve")
"""Where tests start a framework, or a server and commands as users do."""
UNTRIED = {
    "airflow kubernetes": "no cluster runs its pods",
    "kubeflow cluster": "no cluster runs what is written for it",
}
"""Doors whose proofs need no framework that runs, and why."""
WORDS = ("name", "stage")
"""Hints that only say what a task is called: their proof may be a test of a conversion."""


@dataclass(frozen=True, order=True)
class Proof:
    """One test that proves one capability or hint at one door. is_scenario: as what it needs, so not where it skips."""

    door: str
    name: str
    test: str
    is_scenario: bool = False


def scenarios(
    door: str, *names: str, besides: tuple[str, ...] = (), marks: Callable[[Scenario], Any] = lambda _: ()
) -> Any:
    """Runs a test with the suite's scenarios, or those named. besides: of which it proves nothing, as this door's tests
    skip them; marks: of each."""
    chosen = [one for one in SCENARIOS if not names or one.name in names]
    assert {*names, *besides} <= {one.name for one in SCENARIOS}, door
    return pytest.mark.parametrize("scenario", [pytest.param(one, marks=marks(one), id=one.name) for one in chosen])


def all_proofs(folder: Path = ROOT / "tests") -> list[Proof]:
    """What the tests say that they prove, sorted."""
    files = sorted(folder.rglob("test_*.py"))
    found = [proof for path in files for proof in proofs_in(path.read_text(), str(path.relative_to(folder.parent)))]
    return sorted(found)


def proofs_in(text: str, path: str) -> Iterator[Proof]:
    """Of one file."""
    if "proves(" not in text and "scenarios(" not in text:
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for call in (one for one in node.decorator_list if isinstance(one, ast.Call)):
                yield from _proofs_of(call, f"{path}::{node.name}")


def _proofs_of(call: ast.Call, test: str) -> Iterator[Proof]:
    words = ast.unparse(call.func)
    if words == "pytest.mark.proves":
        doors, *names = (ast.literal_eval(one) for one in call.args)
        adapter, _, surfaces = doors.partition(" ")
        yield from (Proof(f"{adapter} {one}", name, test) for one in surfaces.split(", ") for name in names)
    elif words == "scenarios":
        door, *chosen = (ast.literal_eval(one) for one in call.args)
        besides = next((ast.literal_eval(one.value) for one in call.keywords if one.arg == "besides"), ())
        for one in SCENARIOS:
            if (not chosen or one.name in chosen) and one.name not in besides and not one.breakage:
                yield from (Proof(door, name, f"{test}[{one.name}]", True) for name in (*one.needs, *one.hints))


def proofs_by_place(doors: Mapping[str, Surface], proofs: Iterable[Proof]) -> dict[tuple[str, str], list[str]]:
    """(door, name) -> the tests that prove it; of scenarios those that run there."""
    found: dict[tuple[str, str], list[str]] = {}
    for proof in proofs:
        surface = doors.get(proof.door)
        if not proof.is_scenario or surface is None or surface.answers.get(proof.name, "").startswith("yes"):
            found.setdefault((proof.door, proof.name), []).append(proof.test)
    return found


def problems(doors: Mapping[str, Surface], proofs: Iterable[Proof]) -> list[str]:
    """Where doors and proofs differ, one line each."""
    found, places = [], proofs_by_place(doors, proofs)
    for door, surface in doors.items():
        for name, answer in surface.answers.items():
            tests = places.get((door, name), [])
            if not surface.has(name):
                found += [f"{test} proves {name} at {door}, which says {answer!r}" for test in tests]
            elif not [test for test in tests if test.startswith(REAL) or door in UNTRIED or name in WORDS]:
                found.append(f"{door} says {answer!r} of {name}, and no test on its framework is marked to prove it")
    for door, name in places.keys() - {(door, name) for door, one in doors.items() for name in one.answers}:
        why = "has no hints" if door in doors and name in HINT_ROWS else "is none" if door in doors else "is no door"
        found.append(f"{places[door, name][0]} proves {name} at {door}: {name if door in doors else door} {why}")
    return sorted(found)
