"""Each yes of `egs doctor` has a test on its framework that proves it, and the documentation's table says the same."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from egs_core.adapter import CAPABILITIES
from egs_core.cli import app
from egs_core.surfaces import HINT_ROWS, Surface, hint_answers
from scripts.reference import capabilities
from tests.proofs import Proof, all_proofs, problems, proofs_in

REAL = "tests/conformance/ray/test_x.py::test_x"
NO = "no: not here"
ALL_NO = dict.fromkeys(CAPABILITIES, NO)
MADE = """
@pytest.mark.proves("ray run, script", "gang", "priority")
def test_both(): ...

@scenarios("ray run", "limits", "abort-all", "fail-open-disk", besides=("abort-all",))
def test_suite(scenario): ...

def test_nothing(): ...
"""


def test_every_yes_is_proven_and_nothing_else_is() -> None:
    """Of the adapters of this repository, by the marks of their tests."""
    assert problems(capabilities.doors(), all_proofs()) == []


def test_the_page_is_what_adapters_and_tests_say() -> None:
    """`docs/what-works-where.md` is as `python -m scripts.reference.capabilities` writes it."""
    assert capabilities.PAGE.read_text() == capabilities.capabilities_page()


def test_doctor_prints_what_the_page_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of `egs doctor --json` is in its cell of the page, and the hints kept are in its text."""
    monkeypatch.setenv("COLUMNS", "400")
    app.run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    adapters = [*told["adapters"], {"name": "egs", "surfaces": told["own"]}]
    app.run(["doctor", "--all"])
    text = " ".join(capsys.readouterr().out.split())
    for adapter in adapters:
        rows = _rows(capabilities.PAGE.read_text(), adapter["name"])
        for surface in adapter["surfaces"]:
            answers = {**surface["can"], **surface["hints"]}
            shown = {
                name: rows[name][surface["name"]].rpartition(" (")[0] or rows[name][surface["name"]] for name in answers
            }
            assert {name: one for name, one in shown.items() if not answers[name].startswith(one)} == {}
            kept = [name for name in HINT_ROWS if surface["hints"].get(name, NO).startswith("yes")]
            assert not surface["hints"] or f"{adapter['name']}: hints, {surface['name']} {', '.join(kept)}" in text


def test_doctor_says_what_egs_run_can(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where no framework is installed."""
    app.run(["doctor", "--all"])
    assert "egs run: can split" in capsys.readouterr().out


def _rows(page: str, adapter: str) -> dict[str, dict[str, str]]:
    """Of an adapter's section: name -> surface -> cell."""
    (section,) = (one for one in page.split("\n## ") if one.startswith(f"{adapter}\n"))
    found: dict[str, dict[str, str]] = {}
    head: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith(("| capability", "| hint")):
            head = cells
        elif line.startswith("| `"):
            found[cells[0].strip("`")] = dict(zip(head[1:], cells[1:], strict=True))
    return found


def surface(can: Iterable[str] = (), hints: Iterable[str] = ()) -> dict[str, Surface]:
    """A door that can this much."""
    kept = hint_answers(dict.fromkeys(hints, ""), {}, "not here") if hints else {}
    return {"ray run": Surface("run", "", ALL_NO | dict.fromkeys(can, "yes"), kept)}


@pytest.mark.parametrize(
    ("doors", "proof", "says"),
    [
        (surface(["gang"]), None, "ray run says 'yes' of gang, and no test on its framework"),
        (surface(["gang"]), Proof("ray run", "gang", "tests/unit/test_x.py::test_x"), "no test on its framework"),
        (surface(["gang"]), Proof("ray run", "order", REAL), f"{REAL} proves order at ray run, which says '{NO}'"),
        (surface((), ["priority"]), None, "ray run says 'yes' of priority, and no test"),
        (surface(), Proof("ray run", "priority", REAL), "ray run: priority has no hints"),
        (surface(), Proof("ray run", "flying", REAL), "ray run: flying is none"),
        (surface(), Proof("ray ran", "gang", REAL), "ray ran is no door"),
    ],
)
def test_what_differs_is_one_line(doors: dict[str, Surface], proof: Proof | None, says: str) -> None:
    """A yes without a proof, or with one that starts no framework; a proof of a no, and of what is not there."""
    found = problems(doors, [proof] if proof else [])
    assert any(says in line for line in found), found


def test_a_proven_yes_and_a_scenario_that_skips_are_no_problem() -> None:
    """A scenario that this door skips proves nothing there, and claims nothing."""
    proofs = [Proof("ray run", "gang", REAL), Proof("ray run", "limits", f"{REAL}[limits]", True)]
    assert problems(surface(["gang"]), proofs) == []


def test_marks_are_read_from_the_source() -> None:
    """Several doors in one mark; of scenarios what each needs and proves besides, but for faults and those left out."""
    assert sorted(proofs_in(MADE, "f.py")) == [
        Proof("ray run", "gang", "f.py::test_both"),
        Proof("ray run", "limits", "f.py::test_suite[limits]", True),
        Proof("ray run", "max_runtime", "f.py::test_suite[limits]", True),
        Proof("ray run", "priority", "f.py::test_both"),
        Proof("ray script", "gang", "f.py::test_both"),
        Proof("ray script", "priority", "f.py::test_both"),
    ]
