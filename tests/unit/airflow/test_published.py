"""What the hosting agent publishes, what readers take from it, and when they stop believing it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from egs_airflow.order.published import MOST_WAITING, READ_S, Order, Reader, Turn, order_of
from egs_airflow.order.record import Seen

FIRST = Order(
    (Turn("a", True, why="would start now, by remaining_work"), Turn("b", keeps=True)), loads=(("d", "r", "t"),)
)
SECOND = Order((Turn("b"),))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def seen(epoch: int, beat: int, order: Order) -> Seen:
    return Seen(epoch, "h", f"beat {beat}", 30.0, order.text())


def test_an_order_is_read_as_it_was_written() -> None:
    """A text that is none, or of another version, is nobody's order; a long one is cut, so that it fits."""
    assert order_of(FIRST.text()) == FIRST
    assert [order_of(text) for text in ("", "{}", '{"v": 1, "turns": []}', '{"v": 3, "turns": [[1]]}')] == [None] * 4
    long = order_of(Order(tuple(Turn(f"{n}") for n in range(MOST_WAITING + 5))).text())
    assert long is not None
    assert len(long.turns) == MOST_WAITING


def test_a_reader_believes_only_what_is_renewed() -> None:
    """A holder that is silent for its time to live hosts nothing any more: as if nobody had published anything. What a
    new one says counts from the first look on; asking in between asks nobody."""
    clock, records, asked = Clock(), [seen(1, 1, FIRST)], [0]

    def read() -> Seen | None:
        asked[0] += 1
        return records[0] if records else None

    reader = Reader(read, clock)
    assert not reader.current()
    for _ in range(10):
        reader.tick()
    assert (asked[0], list(reader.current())) == (1, ["a", "b"])
    clock.now_s += 29.0
    reader.tick()
    assert reader.current()["b"].keeps
    clock.now_s += READ_S
    reader.tick()
    assert not reader.current()
    records[0] = seen(1, 2, FIRST)
    clock.now_s += READ_S
    reader.tick()
    assert list(reader.current()) == ["a", "b"]
    records[0] = seen(2, 1, SECOND)
    clock.now_s += READ_S
    reader.tick()
    assert reader.current() == {"b": Turn("b")}
    records[0] = replace(records[0], published="scribble")
    clock.now_s += READ_S
    reader.tick()
    assert not reader.current()
    records.clear()
    clock.now_s += READ_S
    reader.tick()
    assert (reader.current(), reader.seen) == ({}, None)
