"""The workload of a file that a command names, and how long its tasks are believed to take.

an ending that an adapter keeps (.yaml), no JSON object ► the adapter's `convert`
anything else ─► `load_workload` ─► JSON, but no workload ─► the adapter whose fields it has
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.adapter import load_adapter, source_of_fields, source_of_suffix
from egs_core.cli.beliefs import own_predictor, predictor_of
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload, NoWorkloadError, load_workload
from egs_core.predict import Predictor, signature_of
from egs_core.runlog.records import FORMAT

OWN = ("", ".json", ".gz")
"""Endings of files in the core's own formats."""
Histories = Annotated[
    list[str] | None,
    typer.Option(
        "--history",
        help="How long tasks took, instead of what the file says: database URL, SQLite file, run log or workload file; "
        "repeatable. Default for a compiled pipeline, which says nothing: the user's own history.",
    ),
]


class Read(msgspec.Struct):
    """A workload from a file. source: the adapter that has read it, "" for the core. predictor: what is known of its
    tasks; known: of so many phases the history has a duration, which is the graph's."""

    workload: LoadedWorkload
    source: str
    predictor: Predictor
    known: int = 0


def read_workload(file: Path, source: str = "", select: str = "") -> tuple[LoadedWorkload, str]:
    """The workload of a file, and the adapter that has read it, "" for the core. source: the adapter to use; select:
    which of the file's pipelines. Raises InputError."""
    if not source and is_runlog(file):
        hint = "`egs dashboard FILE` shows its graph, `egs report FILE` its figures, `egs why FILE TASK` a wait"
        raise InputError(str(file), "is a run log, not a workload", hint.replace("FILE", str(file)))
    source = source or ("" if file.suffix in OWN or _is_object(file) else source_of_suffix(file.suffix))
    if source:
        return load_adapter(source).convert(file, select), source
    try:
        return load_workload(file), ""
    except NoWorkloadError as error:
        if source := source_of_fields(error.fields):
            return load_adapter(source).convert(file, select), source
        raise


class _Format(msgspec.Struct):
    """What a file says that it is; other JSON says nothing."""

    format: str = ""


def is_runlog(path: Path) -> bool:
    """Whether the file's first line is a run log's header; what can be read but once is none."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            found = msgspec.json.decode(file.readline(1 << 16), type=_Format)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return found.format == FORMAT


def _is_object(file: Path) -> bool:
    """Whether a JSON object is in it, whatever its ending: that is YAML, too."""
    try:
        return file.is_file() and isinstance(msgspec.json.decode(file.read_bytes()), dict)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False  # who reads it tells of errors


def read_believed(file: Path, histories: Sequence[str] | None, source: str = "", select: str = "") -> Read:
    """The same with durations as the histories have them. Raises InputError."""
    workload, source = read_workload(file, source, select)
    if histories:
        predictor = predictor_of(histories, [workload.name])
    else:
        predictor = own_predictor(workload.name) if source else Predictor()
    graph, known = workload.graph, set(predictor.signatures())
    if not known:
        return Read(workload, source, predictor)
    signatures = [
        signature_of(workload.name, graph.names[task], number, graph.shapes[graph.phase_shape[phase]])
        for task in range(graph.n_tasks)
        for number, phase in enumerate(graph.phases_of(task))
    ]
    believed_s = predictor.believed_s(graph, workload.name, graph.names)
    workload = msgspec.structs.replace(workload, graph=msgspec.structs.replace(graph, phase_duration_s=believed_s))
    return Read(workload, source, predictor, sum(signature in known for signature in signatures))
