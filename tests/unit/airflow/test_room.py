"""How many processes may stand ready: places that a process has until it gives them back, or is gone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator

import pytest

from egs_airflow.executors.room import Room

FORK = multiprocessing.get_context("fork")
# Python 3.12 and later warn of any fork beside threads, which the process of the tests may have
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
DEADLINE_S = 60.0


@pytest.fixture
def room() -> Iterator[Room]:
    """One with two places."""
    made = Room(2)
    yield made
    made.close()


def test_places_are_taken_and_given_back(room: Room) -> None:
    """As many as there are, by whoever asks; each with what it is used for; asking takes none."""
    first, second = room.take(b"a long one"), room.take()
    assert first is not None
    assert second is not None
    assert (room.take(), room.uses()) == (None, [b"a long one", b""])
    room.give_back(first)
    assert room.uses() == [b""]
    third = room.take(b"one")
    assert third is not None
    assert room.uses() == [b"one", b""]
    assert Room(0).take() is None
    for place in (second, third):
        room.give_back(place)
    assert room.uses() == []


def test_a_place_is_free_when_its_holder_is_killed(room: Room) -> None:
    """Nobody has to be told, and nothing stays taken."""
    has_it, never = FORK.Event(), FORK.Event()

    def hold() -> None:
        if room.take(b"held") is not None:
            has_it.set()
        never.wait()

    holder = FORK.Process(target=hold)
    holder.start()
    try:
        assert has_it.wait(DEADLINE_S)
        assert room.uses() == [b"held"]
    finally:
        holder.kill()
        holder.join()
    assert room.uses() == []


def test_a_fork_of_the_holder_keeps_no_place_that_was_given_back(room: Room) -> None:
    """The process of a task is such a fork, and may run for hours."""
    place = room.take()
    assert place is not None
    begun, over = FORK.Event(), FORK.Event()

    def run() -> None:
        begun.set()
        over.wait()

    fork = FORK.Process(target=run)
    fork.start()
    try:
        assert begun.wait(DEADLINE_S)
        room.give_back(place)
        assert fork.is_alive()
        assert room.uses() == []
    finally:
        over.set()
        fork.join()


def test_where_nobody_can_say_there_is_no_place(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no /proc: no process stands ready, and nothing fails."""

    def refuse(*_: object) -> int:
        raise OSError("no /proc")

    monkeypatch.setattr(os, "open", refuse)
    assert room.take() is None
