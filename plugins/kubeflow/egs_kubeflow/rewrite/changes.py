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


def default_of(parameters: Sequence[str]) -> str:
    """The end of a note that something was decided by the defaults of parameters, which a run may be given others for.

    >>> default_of(["mem"])
    "default of parameter 'mem': for a run with another value compile with --arg mem=VALUE, or submit it with \
egs_kubeflow.Client"
    """
    names = " and ".join(repr(name) for name in parameters)
    what = "default of parameter" if len(parameters) == 1 else "defaults of parameters"
    arguments = " ".join(f"--arg {name}=VALUE" for name in parameters)
    return (
        f"{what} {names}: for a run with another value compile with {arguments}, or submit it with egs_kubeflow.Client"
    )


class Log:
    """Collects the changes and notes of one rewrite. is_final: no run of it has other arguments."""

    def __init__(self, is_final: bool = False) -> None:
        self.is_final = is_final
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
