"""The files of an export, read with bounds: one object or a list, of workflows, pods and nodes in any mixture; or the
cluster of a kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.runlog.past import Past
from egs_kubeflow.audit.asked import ask, is_kubeconfig
from egs_kubeflow.audit.labelled import Labelled
from egs_kubeflow.audit.pods import take_node, take_pod
from egs_kubeflow.audit.records import past_of
from egs_kubeflow.audit.seen import Seen
from egs_kubeflow.audit.shapes import Exported, Node, ObjectList, Pod, Workflow
from egs_kubeflow.audit.workflows import take_workflow

MOST_BYTES = 1 << 30
HOW = "kubectl get workflows,pods,nodes -A -o json > FILE"
RUNS = "runs are Argo's workflows, and pods with the label egs.io/workload"
WITHOUT_ARGO = "without Argo's workflows: kubectl get pods,nodes -A -o json > FILE"


def read_history(request: AuditRequest) -> Past:
    """What the cluster of a kubeconfig, or an export of one, tells of the past. Raises InputError for what cannot be
    read or is none."""
    if request.events is None:
        raise InputError("--kubernetes", "needs a file", HOW)
    if is_kubeconfig(request.events):
        objects, now_s, host, notes = ask(request.events)
        seen = seen_of(objects)
        if notes and not seen.runs:
            raise InputError(host, f"no run is known there; {'; '.join(notes)}", RUNS)
        seen.now_s, seen.notes = max(seen.now_s, now_s), notes
        return past_of(seen, host)
    return past_of(read_export(request.events), str(request.events))


def read_export(path: Path) -> Seen:
    """What a file, or every .json in a folder, tells of a cluster."""
    return seen_of([one for file in _files(path) for one in read_objects(file)])


def seen_of(objects: Sequence[Exported]) -> Seen:
    """What these objects tell of their cluster."""
    seen, labelled = Seen(), Labelled()
    for workflow in objects:  # a pod knows more of an attempt than its workflow, so it comes after
        if isinstance(workflow, Workflow):
            take_workflow(seen, workflow)
    for one in objects:
        if isinstance(one, Pod):
            take_pod(seen, one, labelled)
        elif isinstance(one, Node):
            take_node(seen, one)
    labelled.put_into(seen)
    return seen


def read_objects(file: Path) -> Iterator[Exported]:
    """The objects of one file. Raises InputError that names the place in it of what is wrong."""
    if not (data := _read(file)).strip():
        raise InputError(str(file), "is empty: kubectl writes nothing where a kind is not there", WITHOUT_ARGO)
    try:
        found = msgspec.json.decode(data, type=ObjectList | Exported)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(file), f"is no export of a cluster: {error}", HOW) from None
    yield from (found.items or []) if isinstance(found, ObjectList) else [found]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise InputError(str(path), "has no .json file", HOW)
    return found


def _read(file: Path) -> bytes:
    try:
        if not file.exists():
            raise InputError(str(file), "no such file", HOW)
        if file.stat().st_size > MOST_BYTES:
            raise InputError(str(file), "is too large", f"at most {MOST_BYTES >> 30} GiB: export fewer runs")
        return file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InputError(str(file), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(repr(str(file)), str(error)) from None
