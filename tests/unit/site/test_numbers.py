"""A holder's own numbers, ids and clock, whichever site orders its work: they are the same before and after a move."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.runlog import records as r
from egs_core.site import Grant, Started
from egs_core.site.numbers import Numbers


def told(numbers: Numbers, number: int, task: int, phase: int) -> Grant:
    here = numbers.told_here(Grant(number, phase, task, 1, "n"))
    assert isinstance(here, Grant)
    return here


def test_ids_of_decisions_go_on_where_they_were() -> None:
    """The second site counts from 1 again, the holder does not; an answer to the first site's reaches no other."""
    numbers = Numbers()
    numbers.begin(0.0)
    numbers.add(0, range(1), 0, 0)
    assert [told(numbers, number, 0, 0).id for number in (1, 2)] == [1, 2]
    numbers.begin(0.0)
    numbers.add(0, range(1), 5, 7)
    grant = told(numbers, 1, 5, 7)
    assert (grant.id, grant.task, grant.phase) == (3, 0, 0)
    assert numbers.event_there(m.DecisionApplied(3)) == m.DecisionApplied(1)
    assert numbers.event_there(m.DecisionApplied(2)) is None
    gang = numbers.told_here(Grant(2, 7, 5, 1, "n", gang=(1, 2)))
    assert isinstance(gang, Grant)
    assert (gang.id, gang.gang) == (4, (3, 4))


def test_times_are_the_holders() -> None:
    """Of a site that began 100 s after the holder: what it tells is later here, what it is told is earlier there."""
    numbers = Numbers()
    numbers.begin(100.0)
    numbers.add(0, range(1), 5, 7)
    grant = told(numbers, 1, 5, 7)
    assert numbers.time_here(3.0) == 103.0
    assert numbers.record_here(r.Ended(3.0, "w", "a")) == r.Ended(103.0, "w", "a")
    note = numbers.note_there(Started(grant, 103.0))
    assert isinstance(note, Started)
    assert (note.at, note.grant.id, note.grant.task, note.grant.phase) == (3.0, 1, 5, 7)


def test_what_a_site_does_not_know_reaches_it_not() -> None:
    """An event about a task that had ended before the move, and one about a phase of it, are dropped."""
    numbers = Numbers()
    numbers.begin(0.0)
    numbers.add(0, range(2), 0, 0)
    numbers.begin(0.0)
    assert numbers.event_there(m.PhaseEnded(1, 1)) is None
    numbers.add(0, range(2), 3, 9)
    assert numbers.event_there(m.PhaseEnded(1, 1)) == m.PhaseEnded(10, 1)
