"""Writes side by side: the order in which they begin, how many at once, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from egs_core.kubernetes.cluster import ApiError
from egs_core.kubernetes.writing import Writers

LIMIT_S = 60.0


@pytest.fixture
def writers() -> Iterator[Writers[int]]:
    found = Writers[int](3)
    yield found
    found.close()


def test_a_few_are_under_way_and_begin_in_order(writers: Writers[int]) -> None:
    """Three meet while each waits for the others: so many are under way at once, and no fourth one is. Answers come in
    the order of what was asked."""
    meets, begun, under_way, most = threading.Barrier(3), list[int](), set[int](), list[int]()
    lock = threading.Lock()

    def write(number: int) -> int:
        with lock:
            begun.append(number)
            under_way.add(number)
            most.append(len(under_way))
        meets.wait(LIMIT_S)
        with lock:
            under_way.discard(number)
        return -number

    assert list(writers.each(range(12), write, lambda: True)) == [(number, -number) for number in range(12)]
    assert max(most) == 3
    assert all(abs(place - number) < 3 for place, number in enumerate(begun))


def test_in_line_none_begins_before_the_last_has_ended(writers: Writers[int]) -> None:
    """Where the order is all there is."""
    begun, ended = list[int](), list[int]()

    def write(number: int) -> None:
        assert begun == ended
        begun.append(number)
        ended.append(number)

    assert [one for one, _ in writers.each(range(20), write, lambda: True, in_line=True)] == list(range(20))
    assert begun == list(range(20))


def test_one_that_fails_keeps_none_of_the_others(writers: Writers[int]) -> None:
    """Its error is its answer; after a lost Lease nothing more is begun, and what was is waited for."""

    def write(number: int) -> int:
        if number == 1:
            raise ApiError(409, "conflict")
        return number

    answers = dict(writers.each(range(4), write, lambda: True))
    assert isinstance(answers.pop(1), ApiError)
    assert answers == {0: 0, 2: 2, 3: 3}
    leads = iter([True, True, False])
    assert [one for one, _ in writers.each([5, 6, 7], write, lambda: next(leads))] == [5, 6]


def test_something_beside_is_waited_for_by_nobody(writers: Writers[int]) -> None:
    """One thing at a time, until it has ended."""
    go = threading.Event()
    assert writers.is_free
    writers.beside(lambda: wait_for(go))
    assert not writers.is_free
    assert list(writers.each([1], lambda number: number, lambda: True)) == [(1, 1)]
    go.set()
    writers.close()
    assert writers.is_free


def wait_for(event: threading.Event) -> None:
    assert event.wait(LIMIT_S)
