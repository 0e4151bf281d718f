"""The table of what works where, with the test that proves each yes: `docs/what-works-where.md`.

python -m scripts.reference.capabilities    writes it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from egs_core.adapter import CAPABILITIES, adapter_names, load_adapter
from egs_core.surfaces import HINT_ROWS, OF_EGS, OWN, Surface
from scripts.reference.markdown import code, table
from tests.proofs import UNTRIED, all_proofs, proofs_by_place

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-works-where.md"

INTRO = """# What works where

What EGS can do, and which hints it keeps, for each way of using it: what `egs doctor --all` prints. A number is that of
a test below, which proves the yes on the framework itself; each *no* says why. What is not here, nothing promises.

`egs run` needs no framework: its tests start a real server, with emulated GPUs.

This page is written by `python -m scripts.reference.capabilities`, from what adapters declare and tests are marked with
(`pytest.mark.proves`, and the scenarios of the conformance suite); a test compares the three.
"""


def capabilities_page() -> str:
    """One section an adapter, and one of what needs none."""
    places = proofs_by_place(doors(), all_proofs())
    return "\n".join([INTRO, *(_section(name, doors_of(name), places) for name in (*adapter_names(), OF_EGS))])


def doors() -> dict[str, Surface]:
    """The surfaces of all adapters, by adapter and name, and those that need none."""
    return {door: surface for name in (*adapter_names(), OF_EGS) for door, surface in doors_of(name).items()}


def doors_of(adapter: str) -> dict[str, Surface]:
    """Those of one adapter, or of OF_EGS."""
    return {f"{adapter} {one.name}": one for one in (OWN if adapter == OF_EGS else load_adapter(adapter).surfaces())}


def _section(adapter: str, own: Mapping[str, Surface], places: Mapping[tuple[str, str], Sequence[str]]) -> str:
    tests = sorted({test for (door, _), found in places.items() if door in own for test in found})
    numbers = {test: number for number, test in enumerate(tests, 1)}
    uses = "".join(f"- **{one.name}**: {one.use}{_untried(door)}\n" for door, one in own.items())
    hinted = {door: one for door, one in own.items() if one.hints}
    parts = [f"## {adapter}\n", uses, _table("capability", CAPABILITIES, own, places, numbers)]
    if hinted:
        parts.append(_table("hint", HINT_ROWS, hinted, places, numbers))
    return "\n".join([*parts, "".join(f"{number}. {_link(test)}\n" for test, number in numbers.items())])


def _table(
    head: str,
    names: Sequence[str],
    own: Mapping[str, Surface],
    places: Mapping[tuple[str, str], Sequence[str]],
    numbers: Mapping[str, int],
) -> str:
    rows = []
    for name in names:
        cells = [
            _cell(one.answers[name], [numbers[test] for test in places.get((door, name), ())])
            for door, one in own.items()
        ]
        rows.append([code(name), *cells])
    return table([head, *(one.name for one in own.values())], rows)


def _cell(answer: str, proofs: Sequence[int]) -> str:
    return f"{answer} ({', '.join(map(str, sorted(proofs)))})" if proofs else answer


def _untried(door: str) -> str:
    return f" (proven without it: {UNTRIED[door]})" if door in UNTRIED else ""


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{Path(path).name}](../{path}): `{name}`"


if __name__ == "__main__":
    PAGE.write_text(capabilities_page(), encoding="utf-8")
