"""Whether two run logs are of the same tasks: only then is a difference between them one of scheduling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from egs_core.errors import listed
from egs_core.runlog.records import Record, Started, TaskAdded

SHOWN = 4


def task_names(records: Iterable[Record]) -> Counter[str]:
    """How many tasks of each name a log has; of one without `TaskAdded`, those that started."""
    added: dict[tuple[str, str], str] = {}
    started: dict[tuple[str, str], str] = {}
    for record in records:
        if isinstance(record, TaskAdded):
            added[record.workload, record.task] = record.name or record.task
        elif isinstance(record, Started):
            started[record.workload, record.task] = record.task
    return Counter((added or started).values())


def task_difference(first: Mapping[str, int], second: Mapping[str, int], names: tuple[str, str]) -> str:
    """What tasks differ, in words with the names of the two; "" where none do. The parts of a task that was split, as
    `train.load` and `train.fit` of `train`, count as that task."""
    one, other = _joined(first, second), _joined(second, first)
    said = []
    for name, more in ((names[0], one - other), (names[1], other - one)):
        if more:
            shown = listed([f"{count} x {task}" for task, count in sorted(more.items())], SHOWN)
            said.append(f"only in {name}: {shown}")
    sizes = f"{sum(first.values())} tasks in {names[0]}, {sum(second.values())} in {names[1]}"
    return f"{sizes}; {'; '.join(said)}" if said else ""


def _joined(tasks: Mapping[str, int], others: Mapping[str, int]) -> Counter[str]:
    """The tasks, with parts under the name of their whole where the other side has the whole and not the parts."""
    out: Counter[str] = Counter()
    for name, count in tasks.items():
        whole = name.rpartition(".")[0]
        if name not in others and whole in others and whole not in tasks:
            out[whole] = max(out[whole], count)
        else:
            out[name] += count
    return out
