"""The engine's decisions on a spread of workloads are those that are stated, bit for bit.

A difference that is wanted: `python -m benchmarks.decision_digests --write`, in a commit that names its cause.
"""

from __future__ import annotations

import pytest

from benchmarks.decision_digests import cases, digest_of, stated

CASES = cases()
STATED = stated()
GROUPS = sorted({name.partition("/")[0] for name in CASES})


LARGE = {"world": pytest.mark.slow}


@pytest.mark.parametrize("group", [pytest.param(name, marks=LARGE.get(name, ())) for name in GROUPS])
def test_the_decisions_are_those_that_are_stated(group: str) -> None:
    """Every decision with its time and all of its fields."""
    names = [name for name in CASES if name.startswith(f"{group}/")]
    assert {name: digest_of(CASES[name]) for name in names} == {name: STATED[name] for name in names}


def test_every_stated_digest_has_its_case() -> None:
    assert set(STATED) == set(CASES)
