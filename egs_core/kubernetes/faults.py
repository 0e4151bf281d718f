"""What a pod states of itself for EGS that cannot be read as it is, in words for who wrote it.

Such a value counts as not stated and the pod is ordered without it. So that this is no silence, the webhook answers
with it as warnings, which `kubectl` shows, and `egs kubernetes why` says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from egs_core.kubernetes import names
from egs_core.kubernetes.objects import Object, length_s, number, object_of, part, seconds_of, text
from egs_core.kubernetes.pods import MOST_PRIORITY, hints_of
from egs_core.kubernetes.stated import stated_of

_LABELS = (names.WORKLOAD, names.RUN, names.TASK, names.RANK, names.PREDICTED_S, names.GANG)
_NOTES = (names.GANG_SIZE, names.HINTS, names.RELEASE_BY, names.RUN_LIMITS, names.STAGE_LIMITS)
_SHOWN = 60


def faults_of(raw: Object) -> list[str]:
    """Of a pod as the API server has it, or is about to: a sentence each."""
    meta = part(raw, "metadata")
    labels, notes = part(meta, "labels"), part(meta, "annotations")
    found = [*_misplaced(labels, notes), *_lengths(labels), *_gang(labels, notes), *_hints(notes)]
    if names.RELEASE_BY in notes and not seconds_of(notes[names.RELEASE_BY]):
        found.append(f"{_quoted(notes, names.RELEASE_BY)} is no moment, such as 2026-01-31T12:00:00Z")
    if fault := stated_of(notes, hints_of(notes)).fault:
        found.append(fault)
    return [one_line(f"{one}; it counts as not stated") for one in found]


def one_line(said: str) -> str:
    """With what cannot be seen, such as a newline, written as in a string of Python: nobody begins a line of their own
    in a log."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in said)


def _misplaced(labels: Object, notes: Object) -> Iterator[str]:
    for keys, there, other, what, right in (
        (_LABELS, labels, notes, "an annotation", "a label"),
        (_NOTES, notes, labels, "a label", "an annotation"),
    ):
        for key in keys:
            if key in other and key not in there:
                yield f"{key} is {what} here, and has to be {right}"


def _lengths(labels: Object) -> Iterator[str]:
    for key in (names.RANK, names.PREDICTED_S):
        if key in labels and length_s(labels[key]) is None:
            yield f"{_quoted(labels, key)} is no number of seconds, such as 340"


def _gang(labels: Object, notes: Object) -> Iterator[str]:
    size = number(notes.get(names.GANG_SIZE))
    if names.GANG_SIZE in notes and (size is None or size < 1 or size != int(size)):
        yield f"{_quoted(notes, names.GANG_SIZE)} is no number of pods"
    elif names.GANG in labels and names.GANG_SIZE not in {*notes, *labels}:
        yield f"{names.GANG} is without the annotation {names.GANG_SIZE}: its pods start one by one"


def _hints(notes: Object) -> Iterator[str]:
    if names.HINTS in notes and object_of(text(notes, names.HINTS)) is None:
        yield f"{_quoted(notes, names.HINTS)} is no object of JSON"
    if (stated := hints_of(notes).get("priority")) is not None:
        found = number(stated)
        if found is None or abs(found) > MOST_PRIORITY:
            yield f"priority in {names.HINTS} is no number from -{MOST_PRIORITY} to {MOST_PRIORITY}"


def _quoted(there: Object, key: str) -> str:
    stated = text(there, key)
    return f'{key}: "{stated if len(stated) <= _SHOWN else stated[:_SHOWN] + "…"}"'
