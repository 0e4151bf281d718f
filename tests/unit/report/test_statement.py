"""The page of a statement: its sums, names that look like something else, and how it looks in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from egs_core.report.statement import MOST_ROWS, POLICY, Line, Statement, statement_page
from tests.unit.report.axe import grave
from tests.unit.report.chromium import Page, find_chromium
from tests.unit.report.test_in_browser import OVERFLOW, TEXT_CUT
from tests.unit.report.test_page import EVIL, Elements

TEAMS = (Line("vision", 300.0, 240.0, 60.0, 960.0, 192.0), Line(EVIL, 100.0, 90.0, 10.0, 274.5, 27.45))
TOTAL = Line("", 400.0, 330.0, 70.0, 1234.5, 219.45)


def statement(**more: object) -> Statement:
    tables = (("team", TEAMS), ("pipeline", (Line("train", 400.0, 330.0, 70.0, 1234.5, 219.45),)), ("user", TEAMS))
    sources, notes = (f"{EVIL}.jsonl", "the site server's runs"), (f"{EVIL} was cut off",)
    return msgspec.structs.replace(Statement("2026-11", "EUR", TOTAL, tables, sources, notes), **more)


def test_it_has_the_sums_and_each_name_with_its_share() -> None:
    """In the title, in the cards, and a line a name; without prices there is no money anywhere."""
    found = Elements(statement_page(statement()))
    for text in ("2026-11: 1,234.50 EUR", "Cost, EUR", "400.00 h", "960.00", "77.8%", "was cut off"):
        assert text in found.text
    assert found.count("table") == 3
    total, team = Line("", 4.0, 3.0, 1.0), Line("vision", 4.0, 3.0, 1.0)
    plain = statement_page(Statement("", "EUR", total, (("team", (team,)),)))
    assert ("All there is: 4.00 GPU hours" in plain, "EUR" in plain, ">Cost<" in plain) == (True, False, False)
    empty = statement_page(Statement("2026-11", "", Line("", 0.0, 0.0, 0.0, 0.0, 0.0), (("team", ()),)))
    assert "2026-11: 0.00" in empty


def test_what_cost_most_stands_first() -> None:
    """Rows go by what the bar shows: by cost, and by hours where nothing has a price."""
    cheap, dear = Line("cheap", 9.0, 9.0, 0.0, 9.0, 0.0), Line("dear", 2.0, 2.0, 0.0, 40.0, 0.0)
    page = statement_page(Statement("2026-11", "EUR", Line("", 11.0, 11.0, 0.0, 49.0, 0.0), (("team", (cheap, dear)),)))
    assert page.index("dear") < page.index("cheap")
    cheap, dear = (msgspec.structs.replace(one, cost=None, cost_wasted=None) for one in (cheap, dear))
    page = statement_page(Statement("2026-11", "", Line("", 11.0, 11.0, 0.0), (("team", (cheap, dear)),)))
    assert page.index("cheap") < page.index("dear")


def test_nothing_in_a_name_breaks_out() -> None:
    """Names of teams, files and notes are text, and no script may run anyway."""
    page = statement_page(statement())
    found = Elements(page)
    assert found.count("script") == 0
    assert page.count("</style>") == 1
    assert "<script>alert" not in page
    assert "script-src" not in page
    assert [attributes for _, attributes in found.tags if attributes.get("content") == POLICY] != []
    assert POLICY.startswith("default-src 'none';")


def test_of_very_many_names_the_rest_is_one_line() -> None:
    many = tuple([Line(f"user {n}", 1.0, 1.0, 0.0, 2.0, 0.0) for n in range(MOST_ROWS + 50)])
    found = Elements(statement_page(statement(tables=(("user", many),))))
    assert "(50 more)50.0050.000.00100.00" in found.text
    assert f"user {MOST_ROWS}" not in found.text


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine to look at the page with")
def test_in_a_browser(tmp_path: Path) -> None:
    """On a phone and a desktop, light and dark: no message, no request but the page, nothing cut, nothing beside it,
    and nothing grave that axe would find."""
    path = tmp_path / "statement.html"
    path.write_text(statement_page(statement()))
    program = find_chromium()
    assert program is not None
    with Page(program, tmp_path / "profile") as page:
        for width, dark in ((360, False), (1280, False), (1280, True)):
            page.open(path.as_uri(), width, dark=dark)
            assert (page.problems, page.requests) == ([], [path.as_uri()])
            assert page.evaluate(OVERFLOW) <= 0
            assert page.evaluate(TEXT_CUT) == []
            assert grave(page) == []
