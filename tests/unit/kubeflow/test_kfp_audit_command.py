"""`egs audit --kubeflow`: what it prints and keeps, and one line with exit code 2 for everything malformed."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.runlog.timeline import build_timeline
from egs_kubeflow.audit.read import read_export
from egs_kubeflow.audit.records import past_of
from tests.unit.kubeflow.made_exports import Export, two_runs

Out = pytest.CaptureFixture[str]


@pytest.fixture
def export(tmp_path: Path) -> str:
    """A full export of two runs."""
    return str(two_runs().write(tmp_path / "export.json"))


def test_tables(export: str, capsys: Out) -> None:
    """What is printed: GPU time, the wait with its reason, the forecast, and what an export cannot tell."""
    assert run(["audit", "--kubeflow", export, "--gpu-price", "3.6"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "2 jobs, 12 tasks",
        "GPU time by task",
        "no free GPU while train.fit",
        "band",
        "egs kubernetes controller",
    ):
        assert part in shown, part
    assert "cost: 0.16 held, 0.03 of it wasted" in shown


def test_forecast_is_of_what_was_seen(export: str, tmp_path: Path, capsys: Out) -> None:
    """The forecast simulates all tasks, observed figures lie in their bands, and hints promise nothing here."""
    kept = tmp_path / "forecast.json"
    assert run(["audit", "--kubeflow", export, "--forecast-out", str(kept), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["forecast"]
    assert (told["tasks"], told["hinted"]) == (12, None)
    assert told["makespan_s"]["low"] <= told["makespan_s"]["observed"] <= told["makespan_s"]["high"]
    assert json.loads(kept.read_text())["forecast"]["tasks"] == 12


@pytest.mark.parametrize("parts", [(), ("workflows",), ("pods", "nodes")])
def test_a_kept_run_log_says_the_same(tmp_path: Path, parts: tuple[str, ...], capsys: Out) -> None:
    """The history as a run log can be audited again, and says what was said of the export."""
    file, log = str(two_runs().write(tmp_path / "export.json", *parts)), str(tmp_path / "run.jsonl")
    assert run(["audit", "--kubeflow", file, "--runlog", log, "-o", str(tmp_path / "page.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["audit", log, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for part in ("unit", "total", "by_task", "waits", "forecast", "wastage_by_volume"):
        assert again[part] == told[part], part


def test_one_job(export: str, capsys: Out) -> None:
    """--job takes one run; another name is answered with the nearest."""
    assert run(["audit", "--kubeflow", export, "--job", "team/train-x7k2p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["held_s"] == 96.0
    assert run(["audit", "--kubeflow", export, "--job", "team/train-x7k2q"]) == 2
    assert "train-x7k2p" in capsys.readouterr().err


def of(text: str | bytes) -> Callable[[], bytes]:
    return lambda: text if isinstance(text, bytes) else text.encode()


def changed(change: Callable[[Export], object]) -> Callable[[], bytes]:
    def made() -> bytes:
        export = two_runs()
        change(export)
        return json.dumps({"kind": "List", "items": [*export.workflows, *export.pods, *export.nodes]}).encode()

    return made


def nodes_of(export: Export) -> Any:
    return export.workflows[0]["status"]["nodes"]


def with_cycle(export: Export) -> None:
    nodes_of(export)["train-x7k2p.root.fit.executor(0)"]["children"] = ["train-x7k2p.root"]


def compressed(data: bytes) -> Callable[[Export], object]:
    text = base64.b64encode(data).decode()
    return lambda export: export.workflows[0]["status"].update(nodes=None, compressedNodes=text)


def patched(value: Any) -> Callable[[Export], object]:
    node = "train-x7k2p.root.prepare.executor"
    return lambda export: nodes_of(export)[node]["inputs"]["parameters"][0].update(value=value)


MALFORMED = {
    "empty": (of(""), "is empty: kubectl writes nothing where a kind is not there"),
    "cut off": (of('{"kind": "List", "items": ['), "is no export of a cluster"),
    "not UTF-8": (of(b'{"kind": "\xff\xfe"}'), "is no export of a cluster"),
    "a list": (of("[]"), "is no export of a cluster"),
    "no kind": (of("{}"), "missing required field `kind`"),
    "another kind": (of('{"kind": "Event"}'), "Invalid value 'Event' - at `$.kind`"),
    "no metadata": (of('{"kind": "List", "items": [{"kind": "Pod"}]}'), "at `$.items[0]`"),
    "nothing in it": (of('{"kind": "List", "items": []}'), "no task of any job is known there"),
    "deep": (of("[" * 100_000), "is no export of a cluster"),
    "bad time": (changed(lambda e: e.pods[3]["metadata"].update(creationTimestamp="soon")), "creationTimestamp"),
    "local time": (
        changed(lambda e: e.pods[3]["metadata"].update(creationTimestamp="2026-03-01T12:00:00")),
        "timezone",
    ),
    "labels": (changed(lambda e: e.pods[3]["metadata"].update(labels=["a"])), "labels"),
    "quantity": (changed(lambda e: e.nodes[0]["status"]["allocatable"].update(cpu="lots")), "node gpu-1: cpu: 'lots'"),
    "negative": (changed(lambda e: e.nodes[0]["status"]["allocatable"].update(cpu=-1)), "node gpu-1: cpu"),
    "endless": (changed(lambda e: e.nodes[0]["status"]["allocatable"].update(cpu="1e999")), "node gpu-1: cpu"),
    "huge": (changed(lambda e: e.nodes[0]["status"]["allocatable"].update(cpu="1e300")), "more than a node can have"),
    "cycle": (changed(with_cycle), "workflow train-x7k2p: its nodes wait for each other"),
    "patch": (changed(patched("{")), "pod-spec-patch: is no patch of a pod"),
    "patch of a list": (changed(patched([1])), "pod-spec-patch: is no patch of a pod"),
    "no gzip": (changed(compressed(b"abc")), "compressedNodes: cannot be read"),
    "gzip of text": (changed(compressed(zlib.compress(b"abc", wbits=31))), "compressedNodes: cannot be read"),
    "bomb": (changed(compressed(zlib.compress(bytes(3 << 20), wbits=31))), "compressedNodes: is too large"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """Each is one line that names the place, and exit code 2; nothing is written."""
    monkeypatch.setattr("egs_kubeflow.audit.workflows.MOST_NODES_BYTES", 1 << 20)
    made, said = MALFORMED[name]
    file, log = tmp_path / "export.json", tmp_path / "run.jsonl"
    file.write_bytes(made())
    assert run(["audit", "--kubeflow", str(file), "--runlog", str(log)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n"), log.exists()) == ("", 1, False)
    assert said in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kubeflow", "{folder}/none.json"], "no such file"),
        (["--kubeflow", "{folder}"], "has no .json file"),
        (["--kubeflow", "{folder}/none.json", "--ray", "http://127.0.0.1:1"], "needs one source"),
        (["--kubeflow", "{folder}/none.json", "--events", "{folder}"], "needs one source"),
        (["--kubeflow", "{folder}/none.json", "--compare", "{folder}/x"], "--compare"),
    ],
)
def test_bad_options(arguments: list[str], said: str, tmp_path: Path, capsys: Out) -> None:
    """Each kind of bad option is one line and exit code 2."""
    assert run(["audit", *(argument.format(folder=tmp_path) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, one in inside for place in places(one, (*path, key))]


WRONG: tuple[Any, ...] = (
    None,
    7,
    -1,
    1e300,
    "",
    "x",
    [],
    [None],
    {},
    {"": None},
    True,
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_exports(seed: int, tmp_path: Path) -> None:
    """Whatever one value is replaced by, an export is read or is one InputError, and what is read adds up."""
    chooser, file = random.Random(seed), tmp_path / "export.json"
    whole = json.loads(two_runs().write(file).read_text())
    known, read = places(whole), 0
    for _ in range(60):
        one = json.loads(json.dumps(whole))
        place = chooser.choice(known)
        target = one
        for step in place[:-1]:
            target = target[step]
        target[place[-1]] = chooser.choice(WRONG)
        file.write_text(json.dumps(one))
        try:
            line = build_timeline(past_of(read_export(file), "made").records())
        except InputError:
            continue
        read += 1
        assert all(hold.end_s >= hold.start_s >= 0 for hold in line.holds)
    assert read > 0
