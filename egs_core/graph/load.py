"""A workload from a file and into one: `load_workload` knows the format by content, not by name.

Our own JSON and WfFormat 1.5 and 1.6, plain or gzip. What is loaded is validated. Whatever is wrong with a file is one
InputError that names the file and the place inside it.
"""

from __future__ import annotations

import gc
import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from egs_core.errors import InputError
from egs_core.graph import wfformat
from egs_core.graph.columns import Graph, Limits
from egs_core.graph.model import FORMAT, VERSION, GraphBuilder, Task, WorkloadHead, input_error, iterate_tasks
from egs_core.graph.places import join
from egs_core.graph.render import to_dot, to_mermaid
from egs_core.graph.source import json_errors, read_bytes
from egs_core.graph.validate import validate

TARGETS = ("egs", "wfformat", "mermaid", "dot")


class NoWorkloadError(InputError):
    """JSON that is no workload in a format of the core. fields: of its object."""

    def __init__(self, fields: Iterable[str], place: str, problem: str, hint: str = "") -> None:
        super().__init__(place, problem, hint)
        self.fields = frozenset(fields)


class LoadedWorkload(msgspec.Struct):
    """A workload ready for the engine: who submits it where and when, and its validated graph.

    deadline_s after its submission. What `WorkloadHead` has under the same name is read from it and written to it.
    """

    id: str
    name: str
    tenant: str
    queue: str
    arrival_s: float
    graph: Graph
    deadline_s: float | None = None
    max_runtime_s: float | None = None
    max_gpu_s: float | None = None
    max_cost: float | None = None
    submission: str = ""  # workloads with the same one are ordered as one

    @property
    def limits(self) -> Limits | None:
        """The most that all of it may use, None without any."""
        found = Limits(self.max_runtime_s, self.max_gpu_s, self.max_cost)
        return None if found.is_none else found


HEAD = tuple([name for name in WorkloadHead.model_fields if name in LoadedWorkload.__struct_fields__])


def load_workload(path: str | Path) -> LoadedWorkload:
    """Read and validate a workload file. Raises InputError naming the file and the place inside it."""
    path = Path(path)
    return decode_workload(read_bytes(path), str(path), _stem(path))


def decode_workload(data: bytes, place: str, default_id: str = "workload") -> LoadedWorkload:
    """A validated workload from JSON in memory; WfFormat has no id, so it gets `default_id`."""
    with _paused_collector():
        with json_errors(place, data=data):
            document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if "schemaVersion" in document or "workflow" in document:
            loaded = _from_wfformat(document, place, default_id)
        elif "format" in document:
            loaded = _from_own(document, place)
        else:
            hint = f'expected "format": "{FORMAT}", or WfFormat with "schemaVersion"'
            raise NoWorkloadError(document, place, "is neither an EGS workload nor a WfFormat file", hint)
        validate(loaded.graph, place)
    return loaded


def _from_wfformat(document: dict[str, msgspec.Raw], place: str, default_id: str) -> LoadedWorkload:
    version = _plain(document, "schemaVersion", place)
    if version not in wfformat.VERSIONS:
        hint = f"EGS reads WfFormat {' and '.join(map(_shown, wfformat.VERSIONS))}"
        problem = _version_problem(version)
        if "workflow" not in document:
            raise NoWorkloadError(document, join(place, "schemaVersion"), problem, hint)
        raise InputError(join(place, "schemaVersion"), problem, hint)
    if "workflow" not in document:
        raise NoWorkloadError(document, join(place, "workflow"), "is missing")
    name = _plain(document, "name", place)
    graph = wfformat.read_workflow(document["workflow"], place)
    return LoadedWorkload(default_id, name if isinstance(name, str) else default_id, "", "", 0.0, graph)


def _from_own(document: dict[str, msgspec.Raw], place: str) -> LoadedWorkload:
    if (kind := _plain(document, "format", place)) != FORMAT:
        raise InputError(join(place, "format"), f"unknown format {_shown(kind)}", f'expected "{FORMAT}"')
    version = _plain(document, "version", place)
    if version != VERSION or isinstance(version, bool):
        raise InputError(join(place, "version"), _version_problem(version), f"this EGS reads version {VERSION}")
    tasks = document.pop("tasks", None)
    if tasks is None:
        raise InputError(join(place, "tasks"), "is missing", "a workload is a list of tasks")
    with json_errors(place, "tasks"):
        entries = msgspec.json.decode(tasks, type=list[msgspec.Raw])
    try:
        head = WorkloadHead.model_validate_json(msgspec.json.encode(document), strict=True)
    except ValidationError as error:
        raise input_error(error, place) from None
    graph = _build(head, entries, place)
    stated: dict[str, Any] = {name: getattr(head, name) for name in HEAD}
    return LoadedWorkload(**stated | {"name": head.name or head.id, "graph": graph})


def _build(head: WorkloadHead, entries: list[msgspec.Raw], place: str) -> Graph:
    builder = GraphBuilder(head.files, place)
    for number, entry in enumerate(entries):
        try:
            builder.add(Task.model_validate_json(bytes(entry), strict=True))
        except ValidationError as error:
            raise input_error(error, place, f"tasks[{number}]") from None
    return builder.finish()


def _version_problem(version: object) -> str:
    return "is missing" if version is None else f"unknown version {_shown(version)}"


def _shown(value: object) -> str:
    """A value as JSON writes it, so that 1.5 and "1.5" can be told apart; cut to a readable length."""
    text = msgspec.json.encode(value)[:200].decode(errors="replace")
    return text if len(text) <= 40 else text[:40] + "…"


def _plain(document: dict[str, msgspec.Raw], field: str, place: str) -> object:
    """The decoded value of a field, None when there is none."""
    if field not in document:
        return None
    with json_errors(place, field):
        return msgspec.json.decode(document[field])


def encode_workload(loaded: LoadedWorkload, to: str = "egs", place: str = "") -> bytes:
    """The workload as `egs`, `wfformat`, `mermaid` or `dot`; InputError for what that format cannot hold."""
    if to == "egs":
        return b"".join(_own_json(loaded))
    if to == "wfformat":
        return wfformat.write_document(loaded.graph, loaded.name, place)
    if to == "mermaid":
        return to_mermaid(loaded.graph).encode()
    if to == "dot":
        return to_dot(loaded.graph, loaded.name).encode()
    raise InputError("--to", f"unknown format {to!r}", f"one of {', '.join(TARGETS)}")


def _own_json(loaded: LoadedWorkload) -> Iterator[bytes]:
    """Our own JSON in pieces, one line a task, defaults left out."""
    head: dict[str, object] = {"format": FORMAT, "version": VERSION}
    fields = {name: getattr(loaded, name) for name in HEAD}
    head |= {name: value for name, value in fields.items() if value != WorkloadHead.model_fields[name].default}
    graph = loaded.graph
    if graph.file_ids:
        sizes = zip(graph.file_ids, graph.file_sizes, strict=True)
        head["files"] = [{"id": file_id, "size_bytes": size} for file_id, size in sizes]
    yield msgspec.json.encode(head)[:-1] + b',"tasks":[\n'
    for number, task in enumerate(iterate_tasks(graph)):
        yield (b",\n" if number else b"") + task.model_dump_json(exclude_defaults=True).encode()
    yield b"\n]}\n"


def save_workload(loaded: LoadedWorkload, path: str | Path, to: str = "egs", place: str = "") -> None:
    """Write the workload to a file, gzip when its name ends in .gz; InputError when that cannot be."""
    path = Path(path)
    data = encode_workload(loaded, to, place or loaded.id)
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror or error}") from None


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return name or "workload"


@contextmanager
def _paused_collector() -> Iterator[None]:
    """No cyclic garbage collection inside: loading makes millions of objects, no cycles, and would be walked often."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
