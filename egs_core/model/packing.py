"""Whether the operators fit into the devices' memories at all, and one way in which they do.

Largest first, each onto the device that it leaves the least room on; where that fails, a search with a bounded number
of steps (depth first, devices with equal room are one, what has failed once is not tried again).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.units import format_bytes

STEPS = 3_000_000
"""Devices looked at in a search."""


class Packed(msgspec.Struct, frozen=True):
    """assignment: a device for each operator, None where none was found. reason: why not."""

    assignment: list[int] | None
    reason: str = ""


def pack(sizes: Sequence[int], rooms: Sequence[int], steps: int = STEPS) -> Packed:
    """Some assignment that fits. sizes: of the operators; rooms: the memory of the devices, in bytes."""
    if sum(sizes) > sum(rooms):
        need, have = _apart(sum(sizes), sum(rooms))
        return Packed(None, f"the operators need {need}, the devices have {have} together")
    if max(sizes) > max(rooms):
        need, have = _apart(max(sizes), max(rooms))
        return Packed(None, f"one operator needs {need}, the largest device has {have}")
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    left, found = list(rooms), [0] * len(sizes)
    for i in order:
        fitting = [d for d, room in enumerate(left) if room >= sizes[i]]
        if not fitting:
            return _searched(sizes, rooms, order, steps)
        found[i] = min(fitting, key=lambda d: left[d])
        left[found[i]] -= sizes[i]
    return Packed(found)


def _apart(need: int, have: int) -> tuple[str, str]:
    """Both sizes in words, in bytes where larger units do not tell them apart."""
    words = format_bytes(need), format_bytes(have)
    return words if words[0] != words[1] else (f"{need:,} bytes", f"{have:,} bytes")


def _searched(sizes: Sequence[int], rooms: Sequence[int], order: list[int], steps: int) -> Packed:
    """The same by trying, without recursion. What weighs nothing fits anywhere and is left out."""
    heavy = [i for i in order if sizes[i]]
    left, steps = list(rooms), steps // len(rooms)
    failed: set[tuple[int, tuple[int, ...]]] = set()
    choices: list[list[int]] = [_choices(sizes[heavy[0]], left)]
    placed: list[int] = []
    while choices:
        depth = len(choices) - 1
        if len(placed) > depth:
            left[placed.pop()] += sizes[heavy[depth]]
        if not choices[-1]:
            failed.add((depth, tuple(sorted(left))))
            choices.pop()
            continue
        d = choices[-1].pop()
        left[d] -= sizes[heavy[depth]]
        placed.append(d)
        if depth + 1 == len(heavy):
            found = [0] * len(sizes)
            for i, at in zip(heavy, placed, strict=True):
                found[i] = at
            return Packed(found)
        steps -= 1
        if steps < 0:
            return Packed(
                None, "no assignment was found that fits each device's memory; that there is none is not shown"
            )
        is_dead = (depth + 1, tuple(sorted(left))) in failed
        choices.append([] if is_dead else _choices(sizes[heavy[depth + 1]], left))
    return Packed(None, "no assignment fits each device's memory")


def _choices(size: int, left: Sequence[int]) -> list[int]:
    """Devices with room, one of those with equal room; the tightest is tried first, so it stands last."""
    by_room = {room: d for d, room in enumerate(left) if room >= size}
    return [by_room[room] for room in sorted(by_room, reverse=True)]
