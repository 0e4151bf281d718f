"""The conformance suite itself: what does everything right passes it, and no broken thing passes its scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egs_core.adapter import CAPABILITIES
from egs_core.testing.conformance import bench as b
from egs_core.testing.conformance import control, ordering
from egs_core.testing.conformance.suite import SCENARIOS, Scenario, reason_to_skip
from tests.unit.testing.emulated import Emulated

MUTANTS: dict[str, dict[str, str]] = {
    "convert": {
        "drops an edge": "edges in the run log",
        "loses values": "what the user got",
        "converts everything": "'again' was converted",
        "names nothing": "does not name 'again'",
    },
    "observe-changes-nothing": {
        "adds an actor": r"observed only: \['an actor'\]",
        "loses values": "became Outcome",
        "keeps no log": "ends in the run log",
    },
    "failures-stay-the-users": {"swallows errors": "became Outcome", "goes on": r"\['bad', 'after'\]"},
    "off-is-off": {"speaks when off": "EGS speaks where it is off"},
    "order": {"fifo": "trunk waited for leaf0, leaf1, leaf2, leaf3, leaf4"},
    "inversion": {"fifo": "second waited for leaf0, leaf1", "successors later": "second waited for leaf0;"},
    "split": {"no split": "0 GPUs held in phase 0"},
    "gpu-is-lent-meanwhile": {"no split": "'end' of phase 0 of task other"},
    "preload": {
        "no preload": "'load' of phase 0 of task tail",
        "holds for preload": "1 GPU held for a preload",
        "another process": "another process than the one that was warm",
    },
    "gang-starts-whole": {"gang in parts": "the pipeline does not end"},
    "gang-is-not-starved": {"starves gangs": "12 of 12 small tasks began before the gang"},
    "limits": {
        "no limits": "the pipeline does not end",
        "leaves processes": "the process of endless has ended",
        "goes on": r"\['endless', 'after'\]",
    },
    "abort-all": {
        "aborts nothing": "by the run log",
        "aborts too much": "another pipeline was hit",
        "leaves processes": "the process of running has ended",
    },
    "abort-one": {
        "aborts nothing": "the process of running has ended",
        "aborts too much": "does not wait for the aborted one ended with it",
        "leaves processes": "the process of running has ended",
        "goes on": "'waiting'",
    },
    **{f"fail-open-{how}": {"fails closed": "EGS is broken"} for how in b.BREAKAGES},
    "fail-open-engine": {
        "fails closed": "EGS is broken",
        "chatters": "EGS said 5 lines",
        "is silent": "the user is not warned",
        "keeps GPUs": "the pipeline does not end",
    },
    "audit": {"audits half": "held a GPU for"},
}
"""Scenario -> what is broken -> what the scenario has to say about it."""

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
Make = Callable[[str], Emulated]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes benches, with little patience for those that will not get there, and ends what is left of them."""
    monkeypatch.setattr(ordering, "SETTLE_S", 0.3)
    monkeypatch.setattr(control, "LONGEST_S", 0.5)
    made: list[Emulated] = []

    def make_one(mutant: str) -> Emulated:
        monkeypatch.setattr(b, "LIMIT_S", 3.0 if mutant else 30.0)
        made.append(Emulated(tmp_path, mutant))
        return made[-1]

    yield make_one
    for bench in made:
        bench.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whole_framework_passes(scenario: Scenario, make: Make) -> None:
    """Where nothing is broken, every scenario applies and passes."""
    bench = make("")
    assert reason_to_skip(scenario, bench) == ""
    scenario.check(bench)


@pytest.mark.parametrize(("name", "mutant"), [(name, mutant) for name, all_ in MUTANTS.items() for mutant in all_])
def test_broken_framework_fails(name: str, mutant: str, make: Make) -> None:
    """Where a property is broken, its scenario says which, in an AssertionError."""
    with pytest.raises(AssertionError, match=MUTANTS[name][mutant]):
        BY_NAME[name].check(make(mutant))


def test_every_scenario_has_a_mutant() -> None:
    """None can be added without showing that it can fail; and the suite covers what adapters declare."""
    assert set(MUTANTS) == set(BY_NAME)
    assert {need for scenario in SCENARIOS for need in scenario.needs} >= set(CAPABILITIES) - {"preempt"}


def test_what_an_adapter_lacks_is_skipped_in_its_words(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason to skip is the adapter's own answer; what cannot break is not broken."""
    bench = make("")
    monkeypatch.setattr(bench, "capabilities", lambda: {**dict.fromkeys(CAPABILITIES, "yes"), "gang": "no: not here"})
    monkeypatch.setattr(bench, "breakages", lambda: {**dict.fromkeys(b.BREAKAGES, "yes"), "store": "no: it has none"})
    skipped = {scenario.name: reason for scenario in SCENARIOS if (reason := reason_to_skip(scenario, bench))}
    assert set(skipped) == {"gang-starts-whole", "gang-is-not-starved", "fail-open-store"}
    assert skipped["gang-starts-whole"] == "gang: no: not here"
    assert skipped["fail-open-store"].endswith("no: it has none")
