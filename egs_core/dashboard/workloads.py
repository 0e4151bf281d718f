"""A workload as pages show it: its graph with states and its critical path; of a run log or of a site's runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from egs_core.report import units
from egs_core.report.graph_picture import MOST, Box, critical, grouped, picture
from egs_core.report.html import Markup, tag
from egs_core.runlog.standing import Standing

LONG_ID = 30  # letters
OPEN = ("pending", "waiting", "paused", "running")


class Workload(msgspec.Struct, frozen=True):
    """key: as the log has it; critical: ids of its critical path, first first; critical_s: how long that takes, without
    those of it of which nobody knows how long they take, which are so many: unknown."""

    key: str
    name: str
    queue: str
    tasks: dict[str, Standing]
    critical: list[str]
    critical_s: float
    unknown: int = 0

    @property
    def state(self) -> str:
        """One word for all of its tasks."""
        states = {task.state for task in self.tasks.values()}
        for state in ("failed", "running", "waiting", "paused"):
            if state in states:
                return state
        return "pending" if states == {"pending"} else "waiting" if "pending" in states else "done"

    @property
    def takes(self) -> str:
        """How long its critical path takes, as far as that is known."""
        if not self.unknown:
            return units.seconds(self.critical_s)
        return f"at least {units.seconds(self.critical_s)}" if self.critical_s else "unknown"


def workload_of(key: str, name: str, queue: str, tasks: dict[str, Standing], now_s: float) -> Workload:
    """With its critical path as it is believed to be now."""
    boxes = boxes_of(tasks, now_s)
    chain = critical(boxes)
    on_it = [box for box in boxes if box.key in set(chain)]
    length = sum(box.seconds if box.is_known else tasks[box.key].duration_s(now_s) for box in on_it)
    return Workload(key, name, queue, tasks, chain, length, sum(not box.is_known for box in on_it))


def boxes_of(tasks: dict[str, Standing], now_s: float) -> list[Box]:
    """What has not run is believed to take as long as it is said to; else as the middle one of its name did. Else
    nobody knows: that it takes as long as the middle one of all is guessed for the choice of the critical path alone.
    What comes only where another fails is not expected to come, nor what follows that."""
    ran: dict[str, list[float]] = {}
    for task in tasks.values():
        if task.state == "succeeded":
            ran.setdefault(task.name, []).append(task.ran_s)
    every = sorted(s for found in ran.values() for s in found)
    usual = every[len(every) // 2] if every else 1.0
    found, unexpected = [], _unexpected(tasks)
    for task in tasks.values():
        known = sorted(ran.get(task.name, ()))
        believed = task.expected_s or (known[len(known) // 2] if known else None)
        seconds, is_known = task.duration_s(now_s), task.ended_s is not None or believed is not None
        if task.task in unexpected:
            seconds, is_known = 0.0, True
        elif task.ended_s is None:
            seconds = max(usual if believed is None else believed, seconds)
        found.append(Box(task.task, task.name, task.state, task.parents, seconds, is_known=is_known, when=task.when))
    return found


def _unexpected(tasks: Mapping[str, Standing]) -> set[str]:
    """Those that have not begun and come only where one fails that has not, and those that follow them. Conditions
    are of runs of a site alone, where what comes before stands before."""
    found: set[str] = set()
    for key, task in tasks.items():
        if task.state == "pending" and any(
            one in found or (task.when.get(one) == "failed" and one in tasks and tasks[one].state != "failed")
            for one in task.parents
        ):
            found.add(key)
    return found


def graph_parts(
    workload: Workload,
    now_s: float,
    called: Mapping[str, str] | None = None,
    *,
    is_live: bool = False,
    noun: str = "tasks",
) -> tuple[Markup, ...]:
    """The picture and the critical path. called: what a reader calls each task; is_live: the page is kept up to date,
    so that what goes on has no time."""
    boxes = boxes_of(workload.tasks, now_s)
    if is_live:
        boxes = [msgspec.structs.replace(box, details=box.state) if box.state in OPEN else box for box in boxes]
    is_grouped, called = len(boxes) > MOST, called or _called(workload)
    drawn = grouped(boxes) if is_grouped else [msgspec.structs.replace(box, name=called[box.key]) for box in boxes]
    which = "those of a name in one box, " if is_grouped else ""
    words = f"{len(boxes)} {noun}, {which}from left to right"
    if len(drawn) > MOST:
        words += f"; the first {MOST} of {len(drawn)} boxes"
    label = f"Graph of {workload.name}: {words}. The table below has the same."
    chain = " → ".join(units.short(called[key]) for key in workload.critical[:40])
    more = " …" if len(workload.critical) > 40 else None
    unknown = f"; how long {workload.unknown} of them take{'s' if workload.unknown == 1 else ''} is not known"
    if any(task.when for task in workload.tasks.values()):
        words += "; dashed: after one that has to fail, or may (any)"
    return (
        tag("h2", "Graph", id="h-graph"),
        tag("p", f"{words}; in bold the critical path, the chain that takes the longest.", class_="note"),
        tag("div", picture(drawn, label), class_="scroll", tabindex=0, role="region", aria_labelledby="h-graph"),
        tag("h2", "Critical path"),
        tag("p", f"{workload.takes}: {chain}", more, unknown if workload.unknown else None),
    )


def _called(workload: Workload) -> dict[str, str]:
    """What a reader calls each task: its name; where several have that, its id, unless that is a long number."""
    count = Counter(task.name for task in workload.tasks.values())
    return {
        key: task.name if count[task.name] < 2 or len(key) > LONG_ID else key for key, task in workload.tasks.items()
    }
