"""What a rewrite changed, and why, in words for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from egs_kubeflow.convert.documents import Documents


class Change(msgspec.Struct, frozen=True):
    """One field of one task. before: None where it was not set."""

    task: str
    field: str
    before: Any
    after: Any
    reason: str


class Rewritten(msgspec.Struct, frozen=True):
    """The new documents, what is different in them, and notes: what could not be written for a task, and why."""

    documents: Documents
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


class Log:
    """Collects the changes and notes of one rewrite."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.notes: list[str] = []

    def change(self, task: str, field: str, before: Any, after: Any, reason: str) -> None:
        """A change, unless nothing is different."""
        if before != after:
            self.changes.append(Change(task, field, before, after, reason))

    def note(self, task: str, text: str) -> None:
        """What was not done for a task."""
        self.notes.append(f"{task}: {text}")


def explain(changes: Sequence[Change]) -> list[str]:
    """A line a change, under a line a task."""
    lines: list[str] = []
    task = None
    for change in changes:
        if change.task != task:
            lines.append(change.task)
            task = change.task
        before = "" if change.before is None else f", was {_shown(change.before)}"
        lines.append(f"  {change.field}: {_shown(change.after)}{before} ({change.reason})")
    return lines


def _shown(value: Any) -> str:
    """Labels of nodes as a person says them: all of a mapping, one of a list."""
    if isinstance(value, dict):
        return " and ".join(f"{key} is {one}" for key, one in sorted(value.items()))
    if isinstance(value, list):
        return ", or ".join(_shown(one) for one in value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
