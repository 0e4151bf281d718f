"""Every way in which a workload file can be bad ends in one InputError that names the file and the place inside it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload, decode_workload, load_workload, save_workload
from egs_core.graph.source import read_bytes


def own(*tasks: object, **fields: object) -> str:
    """A workload in our own format; fields replace or add members."""
    document: dict[str, Any] = {"format": "egs-workload", "version": 1, "id": "w", "tasks": list(tasks)}
    return json.dumps(document | fields)


def phase(**fields: object) -> str:
    """A workload whose second task has one such phase."""
    return own({"id": "a"}, {"id": "b", "phases": [fields]})


def wf(*tasks: object, runs: object = (), version: object = "1.5", files: object = ()) -> str:
    """A WfFormat document."""
    workflow = {"specification": {"tasks": list(tasks), "files": files}, "execution": {"tasks": runs}}
    return json.dumps({"name": "n", "schemaVersion": version, "workflow": workflow})


DEEP = "[" * 100_000 + "]" * 100_000
A: dict[str, Any] = {"id": "a"}

BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "only spaces": (b" \n", "the file is empty"),
    "binary": (bytes(range(256)) * 4, "binary"),
    "not UTF-8": (b'{"format": "\xff\xfe"}', "UTF-8"),
    "truncated": (wf(A)[:50], "truncated"),
    "text behind it": (own(A) + "x", "line 1, column .*trailing"),
    "second line": ('{\n  "format": oops}', "line 2, column 13"),
    "a list": ("[1]", "expected object, got list"),
    "a number": ("3", "expected object"),
    "deep list": ("[" * 1_000_000, "expected object|nested too deeply"),
    "deep member": ('{"x": ' + DEEP + "}", "nested too deeply"),
    "deep in a task": (
        own({"id": "a", "x": 1}).replace("1}", "[" * 500 + "]" * 500 + "}"),
        r"tasks\[0\]: .*nested too",
    ),
    "deep in WfFormat": (wf({"id": "a", "x": 12345}).replace("12345", DEEP), "nested too deeply"),
    "no known format": ('{"a": 1}', "neither"),
    "another format": ('{"format": []}', r"format: unknown format \[\]"),
    "no version": ('{"format": "egs-workload"}', "version: is missing"),
    "unknown version": (own(A, version=2), "version: unknown version 2"),
    "version as text": (own(A, version="1"), 'unknown version "1"'),
    "unknown WfFormat": (wf(A, version="1.3"), 'schemaVersion: unknown version "1.3"'),
    "WfFormat version missing": ('{"workflow": {}}', "schemaVersion: is missing"),
    "no workflow": ('{"schemaVersion": "1.5"}', "workflow: is missing"),
    "workflow a list": ('{"schemaVersion": "1.5", "workflow": []}', "workflow: expected object, got list"),
    "no specification": ('{"schemaVersion": "1.5", "workflow": {}}', "missing required field specification"),
    "no tasks member": ('{"format": "egs-workload", "version": 1, "id": "w"}', "tasks: is missing"),
    "no tasks": (own(), "the workload is empty"),
    "no tasks in WfFormat": (wf(), "the workload is empty"),
    "tasks an object": (own(A, tasks={}), "tasks: expected list, got object"),
    "task a list": (own(A, []), r"tasks\[1\]: must be a mapping of names to values"),
    "WfFormat task a number": (wf(A, 3), r"workflow.specification.tasks\[1\]: expected object, got int"),
    "unknown field": (own({"id": "a", "priorty": 1}), r"tasks\[0\].priorty: unknown field .*'priority'"),
    "field missing": (own({"name": "a"}), r"tasks\[0\].id: is missing"),
    "wrong type": (own(A, id=None), "id: must be text"),
    "text for a number": (phase(cpus="4"), r"tasks\[1\].phases\[0\].cpus"),
    "huge integer": (own({"id": "a", "priority": 10**400}), r"tasks\[0\].priority"),
    "negative arrival": (own(A, arrival_s=-1), "arrival_s"),
    "cycle": (own({"id": "a", "parents": ["b"]}, {"id": "b", "parents": ["a"]}), "cycle: a → b → a"),
    "cycle in WfFormat": (wf(A | {"children": ["b"]}, {"id": "b", "children": ["a"]}), "cycle: a → b → a"),
    "own parent": (own({"id": "a", "parents": ["a"]}), "'a' .*depends on itself"),
    "duplicate id": (own(A, A), r"tasks\[1\].id: duplicate id 'a'"),
    "duplicate in WfFormat": (wf(A, A), r"workflow.specification.tasks\[1\].id: duplicate id 'a'"),
    "duplicate run": (wf(A, runs=[A, A]), r"workflow.execution.tasks\[1\].id: duplicate id 'a'"),
    "unknown run": (wf(A, runs=[{"id": "z"}]), r"workflow.execution.tasks\[0\].id: unknown task 'z'"),
    "unknown parent": (
        own({"id": "load"}, {"id": "b", "parents": ["load", "loda"]}),
        r"tasks\[1\].parents\[1\]: unknown task 'loda' \(did you mean 'load'\?\)",
    ),
    "unknown WfFormat parent": (wf(A, A | {"id": "b", "parents": ["x"]}), r"tasks\[1\].parents\[0\]: unknown task 'x'"),
    "unknown WfFormat child": (wf(A | {"children": ["x"]}), r"tasks\[0\].children\[0\]: unknown task 'x'"),
    "unknown file": (own({"id": "a", "inputs": ["f"]}), r"tasks\[0\].inputs\[0\]: unknown file 'f'"),
    "duplicate file": (own(A, files=[{"id": "f"}, {"id": "f"}]), r"files\[1\].id: duplicate file 'f'"),
    "negative duration": (phase(duration_s=-1), r"tasks\[1\].phases\[0\].duration_s"),
    "NaN duration": (phase(duration_s=float("nan")), "line 1, column .*NaN"),
    "infinite duration": (phase(duration_s=float("inf")), "Infinity"),
    "overflowing duration": (phase(duration_s=12345).replace("12345", "1e999"), r"tasks\[1\].phases\[0\].duration_s"),
    "negative runtime": (wf(A, runs=[A | {"runtimeInSeconds": -1}]), r"workflow.execution.tasks\[0\].runtimeInSeconds"),
    "NaN runtime": (wf(A, runs=[A | {"runtimeInSeconds": float("nan")}]), "NaN"),
    "absurd runtime": (wf(A, runs=[A | {"runtimeInSeconds": 1e300}]), "'a' .*absurdly long"),
    "no phase": (own({"id": "a", "phases": []}), r"tasks\[0\].phases: needs at least one"),
    "phase of nothing": (phase(cpus=0), "'b' .*phase 0: a phase that holds nothing"),
    "gpu phase without gpus": (phase(kind="gpu"), "'b' .*a gpu phase without gpus"),
    "one and a half gpus": (phase(kind="gpu", gpus=1.5), "1.5 gpus"),
    "unknown kind": (phase(kind="tpu"), r"tasks\[1\].phases\[0\].kind"),
    "absurd cpus": (phase(cpus=1e7), "absurd resources"),
    "absurd memory": (phase(memory="5 PiB"), "absurd memory"),
    "no size": (phase(memory="lots"), r"tasks\[1\].phases\[0\].memory: 'lots' is not a size"),
    "no cores": (wf(A, runs=[A | {"coreCount": 0}]), r"workflow.execution.tasks\[0\].coreCount"),
    "absurd cores": (wf(A, runs=[A | {"coreCount": 1e9}]), r"workflow.execution.tasks\[0\].coreCount"),
    "negative file": (wf(A, files=[{"id": "f", "sizeInBytes": -1}]), r"workflow.specification.files\[0\].sizeInBytes"),
    "truncated gzip": (gzip.compress(own(A).encode())[:-12], "gzip content is truncated"),
    "gzip header only": (b"\x1f\x8b", "gzip content is truncated"),
    "damaged gzip": (b"\x1f\x8b" + b"abc" * 20, "gzip content is damaged"),
    "empty gzip": (gzip.compress(b""), "the file is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_bad_file_is_one_error_that_names_the_place(name: str, tmp_path: Path) -> None:
    """The error's place begins with the file; its text names the path inside and the problem, in one short line."""
    content, problem = BAD[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=problem) as caught:
        load_workload(path)
    assert caught.value.place.startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_a_gzip_bomb_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    """Content that grows a thousand times past the free allowance is not unpacked to its end."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b" " * (80 * 1024**2)))
    with pytest.raises(InputError, match=r"grows beyond .*bomb"):
        load_workload(path)


def test_a_file_beyond_the_size_limit_is_refused(tmp_path: Path) -> None:
    """The limit holds for plain files and for what gzip unpacks to."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * 1001)
    with pytest.raises(InputError, match="larger than 1000 bytes"):
        read_bytes(path, max_bytes=1000)
    path.write_bytes(gzip.compress(b"x" * 1001))
    with pytest.raises(InputError, match="grows beyond 1000 bytes"):
        read_bytes(path, max_bytes=1000)


def test_paths_that_are_no_readable_file(tmp_path: Path) -> None:
    """A folder, a missing path, a path through a file, a device and a NUL character."""
    file = tmp_path / "file"
    file.touch()
    for path, problem in (
        (tmp_path, "is a folder"),
        (tmp_path / "missing.json", "No such file"),
        (file / "below", "Not a directory"),
        (Path("/dev/zero"), "not a regular file"),
        (Path("/proc/self/mem"), "cannot be read"),
        (tmp_path / "a\0b", "not a usable path"),
    ):
        with pytest.raises(InputError, match=problem):
            load_workload(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """Missing permission is told as such."""
    path = tmp_path / "secret.json"
    path.write_text(own(A))
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        load_workload(path)


def sample() -> LoadedWorkload:
    """Two tasks that every format can hold."""
    graph = Graph()
    graph.add_task("a", (), ((CPU, Shape(), 1.0),), "p")
    graph.add_task("b", (0,), ((CPU, Shape(2000), 2.5),), "p")
    return LoadedWorkload("flow", "flow", "", "", 0.0, graph)


@pytest.mark.parametrize("to", ["egs", "wfformat"])
@pytest.mark.parametrize("name", ["flow.json", "flow.json.gz", "flow"])
def test_what_is_saved_is_loaded_equal_whatever_the_name(to: str, name: str, tmp_path: Path) -> None:
    """The format and gzip are recognised by content; WfFormat takes its id from the file's name."""
    save_workload(sample(), tmp_path / name, to)
    (tmp_path / name).rename(tmp_path / "flow.gz")
    loaded, wanted = load_workload(tmp_path / "flow.gz"), sample()
    assert (loaded.id, loaded.name, loaded.graph.ids, loaded.graph.names) == ("flow", "flow", ["a", "b"], ["p", "p"])
    assert loaded.graph.parents == wanted.graph.parents
    assert loaded.graph.phase_duration_s == wanted.graph.phase_duration_s
    assert [loaded.graph.shapes[s] for s in loaded.graph.phase_shape] == [Shape(), Shape(2000)]


def test_saving_is_repeatable_and_fails_with_one_error(tmp_path: Path) -> None:
    """Gzip carries no time, so the bytes are equal; a folder that is missing is named."""
    save_workload(sample(), tmp_path / "a.gz")
    save_workload(sample(), tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    with pytest.raises(InputError, match="cannot be written"):
        save_workload(sample(), tmp_path / "none" / "x.json")


def test_a_gzip_of_several_members_is_read_whole(tmp_path: Path) -> None:
    """Concatenated gzip files are one file, as gzip itself sees it."""
    text = own(A, {"id": "b"}).encode()
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(text[:40]) + gzip.compress(text[40:]))
    assert load_workload(path).graph.ids == ["a", "b"]


GOOD = own(A, {"id": "b", "parents": ["a"], "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 2.0}]}).encode()
GOOD_WF = wf(A, {"id": "b", "parents": ["a"]}, runs=[A | {"runtimeInSeconds": 1.5, "coreCount": 2}]).encode()


@given(st.sampled_from([GOOD, GOOD_WF]), st.integers(0, 400), st.binary(max_size=3), st.integers(0, 5))
def test_damaged_files_load_or_give_an_input_error_and_nothing_else(good: bytes, at: int, put: bytes, cut: int) -> None:
    """Bytes replaced anywhere never cause another kind of exception."""
    place = "damaged.json"
    try:
        decode_workload(good[:at] + put + good[at + cut :], place)
    except InputError as error:
        place = error.place
    assert place.startswith("damaged.json")
