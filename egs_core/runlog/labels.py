"""What readers call tasks whose ids are only numbers of a framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from egs_core.errors import labelled
from egs_core.runlog.records import Record, TaskAdded

ALONE = "only_candidate"  # as the engine's order says it
OPAQUE = re.compile(r"\b[0-9a-f]{32,}\b")  # an id that says nothing to a reader


def labels_of(records: Iterable[Record]) -> dict[str, str]:
    """What a reader calls each task: its id; where that is only a number of the framework's, its name and how that
    begins."""
    return {added.task: label_of(added) for added in records if isinstance(added, TaskAdded)}


def label_of(added: TaskAdded) -> str:
    """What a reader calls one task, as of `labels_of`."""
    return task_called(added.label or added.name, added.task)


def task_called(name: str, task_id: str) -> str:
    """The same by its name, if any, and its id.

    >>> task_called("fit", "prepare"), task_called("fit", "92a781a6c0ffee00" * 2)
    ('prepare', 'fit-92a781a6')
    """
    return labelled(name, task_id) if name and OPAQUE.fullmatch(task_id) else task_id


def relabelled(text: str, labels: Mapping[str, str]) -> str:
    """The text with labels in place of ids that say nothing."""
    return OPAQUE.sub(lambda found: labels.get(found[0], found[0]), text) if labels else text


def term_words(term: str) -> str:
    """Of the term of the order that let a phase start, as the log has it.

    >>> term_words("remaining_path"), term_words("only_candidate")
    ('remaining path', 'nothing else could have started')
    """
    return "nothing else could have started" if term == ALONE else term.replace("_", " ")
