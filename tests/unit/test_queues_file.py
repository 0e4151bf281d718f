"""The file of queues: what it may say, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from egs_core.calendar import Reservation, is_over, windows
from egs_core.engine.specs import NO_LIMIT, UNLIMITED, Limits, QueueSpec
from egs_core.errors import InputError
from egs_core.notices import MAX_COST_UNUSED
from egs_core.queues import load_queues, load_reservations, parse_queues

WHOLE = """
queues:
  - name: research
    cohort: lab
    nominal: {gpus: 4, cpus: 1.5, memory: 2GiB}
    borrowing_limit: {gpus: 2}
    lending_limit: {gpus: 3}
    weight: 2
    half_life: 30m
    max_wait: 90
    order: dependents
  - name: rest
"""
CLASS = "queues: [{name: class}]\n"
WHEN = "days: [mon], begin: '9:00', end: 11:00, zone: UTC"
DAILY = "gpus: 1\n    days: [mon]\n    zone: UTC\n    "
SMALL = """queues:
  - {name: images, cohort: lab, nominal: {gpus: 2}, borrowing_limit: {gpus: 2}}
  - {name: rest, cohort: lab, nominal: {gpus: 4}, lending_limit: {gpus: 3}}
  - {name: alone, nominal: {gpus: 1}}
  - {name: free}
"""
ROWS = "gpus: 1\n    begin: 9:00\n    end: 11:00\n    zone: UTC\n"


def test_reservations(tmp_path: Path) -> None:
    """Times with and without quotes, by the week and once; the queues themselves are as without them."""
    text = f"{CLASS}reservations:\n  - {{queue: class, gpus: 4, {WHEN}}}\n"
    text += (
        "  - {queue: class, gpus: 1, date: 2026-12-07, begin: '22:30', end: 01:00, zone: Europe/Berlin, lead: 30m}\n"
    )
    path = tmp_path / "queues.yaml"
    path.write_text(text)
    weekly, once = load_reservations(path)
    assert weekly == Reservation("class", 4, 540, 660, "UTC", days=(0,), lead_s=4 * 3600.0)
    assert once == Reservation("class", 1, 22 * 60 + 30, 60, "Europe/Berlin", date="2026-12-07", lead_s=1800.0)
    assert load_queues(path, has_prices=False) == (QueueSpec("class"),)


@pytest.mark.parametrize(("queue", "gpus"), [("images", 4), ("rest", 6), ("alone", 1), ("free", 99)])
def test_what_a_queue_may_have_at_most_can_be_kept_for_it(queue: str, gpus: int) -> None:
    """With what it may borrow: out of what others of its cohort lend, up to its limit."""
    parse_queues(f"{SMALL}reservations:\n  - {{queue: {queue}, gpus: {gpus}, {WHEN}}}\n")


def test_a_whole_day(tmp_path: Path) -> None:
    """From 0:00 to 24:00: until the next day begins, with and without quotes."""
    path = tmp_path / "queues.yaml"
    for end in ("'24:00'", "24:00"):
        when = f"date: 2026-12-07, begin: 0:00, end: {end}, zone: UTC"
        path.write_text(f"{CLASS}reservations:\n  - {{queue: class, gpus: 1, {when}}}\n")
        (window,) = windows(load_reservations(path), 0.0, 1e10)
        assert window.text == "2026-12-07 00:00 to 2026-12-08 00:00 (UTC)"
        assert window.end - window.begin == 86400.0
        assert [is_over(window.of, at) for at in (window.begin, window.end - 1, window.end)] == [False, False, True]


def test_all_fields() -> None:
    """Amounts in thousandths and bytes, times in seconds; what is left out is not limited."""
    research, rest = parse_queues(WHOLE)
    assert research == QueueSpec(
        "research",
        "lab",
        (1500, 4000, 2 << 30),
        (UNLIMITED, 2000, UNLIMITED),
        (UNLIMITED, 3000, UNLIMITED),
        2.0,
        1800.0,
        90.0,
        order="dependents",
    )
    assert rest == QueueSpec("rest", nominal=NO_LIMIT)


def test_an_order_may_be_learned() -> None:
    assert parse_queues("queues: [{name: a, order: learned}]") == (QueueSpec("a", order="learned"),)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("queues:\n  - name: a\n    nominal: {gpus: -1}\n", 3, "nominal.gpus"),
        ("queues:\n  - name: a\n    nominal:\n      gpu: 1\n", 4, "did you mean 'gpus'"),
        ("queues:\n  - cohort: lab\n", 2, "is missing"),
        ("queues:\n  - name: a\n  - name: b\n  - name: a\n", 4, "a second queue 'a'"),
        ("queues:\n  - name: a\n    name: b\n", 3, "'name' is there twice"),
        ("queues:\n  - name: a\n    half_life: soon\n", 3, "half_life"),
        ("queues:\n  - name: a\n    order: random\n", 3, "order"),
        ("queues:\n  - name: a\n    weight: .nan\n", 3, "weight"),
        ("queues:\n  - name: [a\n", 3, "is no YAML"),
        ("queues: []\n", 1, "at least"),
        (f"{CLASS}reservations:\n  - {{queue: clas, gpus: 1, {WHEN}}}\n", 3, "there is no queue 'clas'"),
        (f"{CLASS}reservations:\n  - queue: class\n    {ROWS}", 3, "either days of the week or one date"),
        (f"{CLASS}reservations:\n  - queue: class\n    date: 2026-13-01\n    {ROWS}", 4, "month must be in 1..12"),
        (f"{CLASS}reservations:\n  - queue: class\n    date: monday\n    {ROWS}", 4, "'monday' is no day"),
        (f"{CLASS}reservations:\n  - {{queue: class, gpus: 1, days: [mon], begin: '9'}}\n", 3, "is no time of the day"),
        (f"{CLASS}reservations:\n  - {{queue: class, gpus: 1, days: [mon], begin: '24:00'}}\n", 3, "is no time of the"),
        (f"{CLASS}reservations:\n  - {{queue: class, gpus: 0, {WHEN}}}\n", 3, "gpus"),
        (f"{CLASS}reservations:\n  - queue: class\n    {DAILY}begin: 9:00\n    end: 9:00\n", 8, "ends when it begins"),
        (f"{SMALL}reservations:\n  - {{queue: images, gpus: 5, {WHEN}}}\n", 7, "'images', which may have 4 at most"),
        (
            f"{SMALL}reservations:\n  - {{queue: alone, gpus: 2, {WHEN}}}\n",
            7,
            "may have 1 at most (keep fewer",
        ),
        (
            f"{CLASS}reservations:\n  - {{queue: class, gpus: 1, {WHEN.replace('UTC', 'Mars/Base')}}}\n",
            3,
            "'Mars/Base' is no time zone",
        ),
        (f"{CLASS}reservations:\n  - {{queue: class, gpus: 1, lead: 8d, {WHEN}}}\n", 3, "lead"),
        ("queues:\n  - &x\n    name: *x\n", 0, ""),
    ],
)
def test_errors_name_the_line(text: str, line: int, problem: str) -> None:
    """One clear error with file and line."""
    with pytest.raises(InputError) as found:
        parse_queues(text, "queues.yaml")
    assert str(found.value).startswith(f"queues.yaml line {line}" if line else "queues.yaml")
    assert problem in str(found.value)


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b\n", "12", "\x00"])
def test_no_queues(text: str) -> None:
    """Empty, or something else than queues."""
    with pytest.raises(InputError):
        parse_queues(text, "queues.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
    """A missing file, a folder and binary data."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path / "missing.yaml", tmp_path, binary):
        with pytest.raises(InputError) as found:
            load_queues(path, has_prices=True)
        assert str(path) in str(found.value)


def test_a_cost_is_left_out_where_nothing_has_a_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning for all queues; what else limits them stands. Where hardware has prices it is applied."""
    monkeypatch.setattr("egs_core.notices._said", set())
    path = tmp_path / "queues.yaml"
    path.write_text("queues: [{name: a, limits: {max_cost: 2, max_runtime: 1h}}, {name: b, limits: {max_cost: 1}}]\n")
    priced = [queue.limits for queue in load_queues(path, has_prices=True)]
    assert priced == [Limits(3600.0, max_cost=2.0), Limits(max_cost=1.0)]
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert [queue.limits for queue in load_queues(path, has_prices=False)] == [Limits(3600.0), Limits()]
    assert capsys.readouterr().err == f"egs: {MAX_COST_UNUSED}\n"
