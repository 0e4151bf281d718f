"""A workload's graph as a picture, SVG: tasks from left to right by how many others come before them, each with its
state as a word, the critical path in bold. Beyond some hundred tasks those of a name are one box. Pure.

Nothing in it is a script or a style of its own: the page's style sheet gives colours by class, so it is allowed under
the strictest policy, and follows the page's light or dark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from egs_core.report import units
from egs_core.report.html import Markup, tag

MOST = 300  # boxes
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 168, 42, 46, 12, 8
LETTERS = 22


class Box(msgspec.Struct, frozen=True):
    """A task, or those of a name. parents: keys of boxes; others are left out. seconds: how long it has run, or is
    believed to; is_known: that is more than a guess, by which the critical path is chosen and which nobody is shown;
    details: below its name; when: of parents that need not succeed, how they have to end."""

    key: str
    name: str
    state: str
    parents: tuple[str, ...] = ()
    seconds: float = 0.0
    details: str = ""
    is_known: bool = True
    when: Mapping[str, str] = {}


def critical(boxes: Sequence[Box]) -> list[str]:
    """Keys of the chain of boxes that takes the longest, its first one first."""
    by_key = {box.key: box for box in boxes}
    length: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for key in _ordered(by_key):
        parents = [p for p in by_key[key].parents if p in length]
        last = max(parents, key=lambda p: length[p], default=None)
        before[key] = last
        length[key] = max(0.0, by_key[key].seconds) + (length[last] if last is not None else 0.0)
    chain: list[str] = []
    at = max(length, key=lambda key: length[key], default=None)
    while at is not None:
        chain.append(at)
        at = before[at]
    return chain[::-1]


def grouped(boxes: Sequence[Box]) -> list[Box]:
    """One box for all of a name: with how many there are in which state, and the longest time of one."""
    members: dict[str, list[Box]] = defaultdict(list)
    name_of = {box.key: box.name for box in boxes}
    for box in boxes:
        members[box.name].append(box)
    found = []
    for name, those in members.items():
        parents = dict.fromkeys(name_of[p] for box in those for p in box.parents if p in name_of)
        parents.pop(name, None)
        counts = Counter(box.state for box in those)
        states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        state = next((s for s in ("failed", "running", "waiting", "pending") if counts[s]), counts.most_common(1)[0][0])
        longest = max(those, key=lambda box: box.seconds)
        seconds, is_known = longest.seconds, longest.is_known
        found.append(Box(name, f"{name} ({len(those)})", state, tuple(parents), seconds, states, is_known))
    return found


def picture(boxes: Sequence[Box], label: str) -> Markup:
    """SVG of at most `MOST` boxes, the first ones. label: what a screen reader says of it."""
    shown = {box.key: box for box in boxes[:MOST]}
    chain = critical(list(shown.values()))
    bold, pairs = set(chain), set(pairwise(chain))
    place = _places(shown)
    width = max((x for x, _ in place.values()), default=0) + WIDTH + MARGIN
    height = max((y for _, y in place.values()), default=0) + HEIGHT + MARGIN
    edges = [
        _edge(place[p], place[k], (p, k) in pairs, p in box.when)
        for k, box in shown.items()
        for p in box.parents
        if p in shown
    ]
    drawn = [_drawn(box, *place[key], key in bold) for key, box in shown.items()]
    return tag(
        "svg",
        tag("title", label),
        *sorted(edges, key=lambda edge: "critical" in edge),
        *drawn,
        *(label for key, box in shown.items() for label in _conditions(box, shown, *place[key])),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_="graph",
    )


def _drawn(box: Box, x: int, y: int, is_critical: bool) -> Markup:
    takes = f" · {units.seconds(box.seconds)}" if box.seconds and box.is_known else ""
    below = box.details or box.state + takes
    words = f"{box.name}: {box.state}{', on the critical path' if is_critical else ''}; {below}"
    return tag(
        "g",
        tag("title", words),
        tag("rect", x=x, y=y, width=WIDTH, height=HEIGHT, rx=6),
        tag("text", units.short(box.name, LETTERS), x=x + 9, y=y + 17, class_="name"),
        tag("text", units.short(below, LETTERS + 4), x=x + 9, y=y + 33),
        class_=f"{box.state} critical" if is_critical else box.state,
    )


def _conditions(box: Box, shown: Mapping[str, Box], x: int, y: int) -> list[Markup]:
    """In the gap before a box, once each: how those before it have to end that need not succeed."""
    found = dict.fromkeys(box.when[p] for p in box.parents if p in box.when and p in shown)
    at_x, at_y = x - ACROSS // 2, y + HEIGHT // 2 - 5
    return [tag("text", one, x=at_x, y=at_y - 12 * number, class_="when") for number, one in enumerate(found)]


def _edge(start: tuple[int, int], end: tuple[int, int], is_critical: bool, is_conditional: bool) -> Markup:
    (x, y), (to_x, to_y) = (start[0] + WIDTH, start[1] + HEIGHT // 2), (end[0], end[1] + HEIGHT // 2)
    half = (x + to_x) // 2
    curve = f"M{x},{y} C{half},{y} {half},{to_y} {to_x},{to_y}"
    classes = ["edge", *(["critical"] if is_critical else []), *(["conditional"] if is_conditional else [])]
    return tag("path", d=curve, class_=" ".join(classes))


def _places(boxes: Mapping[str, Box]) -> dict[str, tuple[int, int]]:
    """Left upper corners. In a column, who has its parents higher stands higher."""
    depth: dict[str, int] = {}
    columns: dict[int, list[str]] = defaultdict(list)
    for key in _ordered(boxes):
        depth[key] = max((depth[p] + 1 for p in boxes[key].parents if p in depth), default=0)
        columns[depth[key]].append(key)
    row: dict[str, float] = {}
    for column in range(len(columns)):
        keys = columns[column]
        middle = {key: _middle([row[p] for p in boxes[key].parents if p in row]) for key in keys}
        keys.sort(key=lambda key: middle[key])
        row.update({key: number for number, key in enumerate(keys)})
    longest = max(map(len, columns.values()), default=1)
    return {
        key: (
            MARGIN + column * (WIDTH + ACROSS),
            MARGIN + int((row[key] + (longest - len(keys)) / 2) * (HEIGHT + DOWN)),
        )
        for column, keys in columns.items()
        for key in keys
    }


def _middle(rows: Sequence[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def _ordered(boxes: Mapping[str, Box]) -> list[str]:
    """Parents first; in a circle, which groups of a name may make, some box is first."""
    children: dict[str, list[str]] = defaultdict(list)
    left: dict[str, int] = {}
    for key, box in boxes.items():
        parents = {p for p in box.parents if p in boxes and p != key}
        left[key] = len(parents)
        for parent in parents:
            children[parent].append(key)
    ready = [key for key in boxes if not left[key]]
    waiting = dict.fromkeys(key for key in boxes if left[key])
    order: list[str] = []
    at = 0
    while at < len(ready) or waiting:
        if at == len(ready):
            first = min(waiting, key=lambda key: left[key])
            del waiting[first]
            ready.append(first)
        key = ready[at]
        at += 1
        order.append(key)
        for child in children[key]:
            left[child] -= 1
            if child in waiting and not left[child]:
                del waiting[child]
                ready.append(child)
    return order
