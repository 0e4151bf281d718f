"""What `egs kubernetes ps` and `why` say of time, what has ended and what is not there; on an emulated API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.cli.kubernetes_pods import say_absent
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.standing import standing_of
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

MADE = "2026-01-01T00:00:00Z"
NO_NODE = (
    "0/5 nodes are available: 1 Insufficient nvidia.com/gpu, 4 node(s) didn't match Pod's node affinity/selector."
    " no new claims to deallocate, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedApi]:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's own processes have
    found = EmulatedApi(tmp_path)
    yield found
    found.close()  # once more, where a test has: that does nothing


def asked(api: EmulatedApi, *words: str) -> int:
    return run(["kubernetes", *words, "--kubeconfig", str(api.kubeconfig)])


def placed(at: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]}


def container(code: int, at: str, reason: str) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}}


# --- how long ---


def test_how_long_it_runs_or_waits(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """By the API server's clock, which is ahead: what runs since its start, what waits since it was made."""
    api.ahead_s = 900.0
    now = api.now()
    made = {"creationTimestamp": moment(now - 7200)}
    runs = {"phase": "Running", "startTime": moment(now - 600)}
    api.add("pods", pod("runs", gate=False, spec={"nodeName": "n1"}, status=runs, **made))
    api.add("pods", pod("bound", gate=False, spec={"nodeName": "n1"}, status=placed(moment(now - 1200)), **made))
    api.add("pods", pod("waits", **made))
    assert asked(api, "ps", "-n", "team") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAMESPACE", "RUN", "TASK", "POD", "STATE", "FOR", "NODE", "WHY"]
    at, end = head.index("FOR"), head.index("NODE")
    assert {row.split()[3]: row[at:end].strip() for row in rows} == {
        "runs": "10 min",
        "bound": "20 min",
        "waits": "2.0 h",
    }
    assert asked(api, "ps", "-n", "team", "--json") == 0
    found = {one["pod"]: one for one in json.loads(capsys.readouterr().out)["pods"]}
    assert found["runs"]["since"] == moment(now - 600)
    assert found["waits"]["since"] == found["waits"]["created"] == moment(now - 7200)


def test_a_reason_that_may_hold_no_more_says_so(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """By the API server's clock: no controller has said it again. One that a controller would not have said again yet
    has no age."""
    now = api.now()
    for name, ago in (("old", 210), ("fresh", 130)):
        api.add("pods", pod(name, notes={"egs.io/waits": f"{moment(now - ago)} place 1 of 1: no room"}))
    assert asked(api, "ps", "-n", "team") == 0
    rows = {row.split()[3]: row for row in capsys.readouterr().out.splitlines()[1:]}
    assert re.search(r"\(said 4 min ago\) place 1 of 1: no room", rows["old"])
    assert "said" not in rows["fresh"]


# --- how wide ---


@pytest.mark.parametrize(("columns", "width"), [("130", 130), ("40", 0)])
def test_a_long_reason_is_cut_and_no_name_is(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    """A line a pod on a terminal. Where that is narrower than the names are, these stay whole all the same. `why` and
    --json have all that the scheduler says, a pipe its first sentence."""
    no = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE}]}
    name = "nightly-train-0-with-a-name-that-is-long"
    api.add("pods", pod(name, gate=False, run="nightly", labels={"egs.io/task": "train"}, status=no))
    assert asked(api, "ps", "-n", "team") == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("node affinity/selector …")
    monkeypatch.setenv("COLUMNS", columns)
    assert asked(api, "ps", "-n", "team") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not width or max(map(len, lines)) <= width
    assert name in lines[1]
    assert lines[1].rstrip().endswith("…")
    assert "it is the scheduler's" in lines[1]
    assert asked(api, "why", name, "-n", "team") == 0
    assert NO_NODE in capsys.readouterr().out
    assert asked(api, "ps", "-n", "team", "--json") == 0
    assert NO_NODE in json.loads(capsys.readouterr().out)["pods"][0]["why"]


# --- what has ended ---


def test_how_a_pod_has_ended_and_what_it_had_waited_for(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """A success: when, after how long, and how long it waited behind its gate and for its node."""
    notes = {"egs.io/opened": "2026-01-01T00:05:00Z order"}
    status = {
        "phase": "Succeeded",
        "startTime": "2026-01-01T00:05:20Z",
        "containerStatuses": [container(0, "2026-01-01T00:15:20Z", "Completed")],
        **placed("2026-01-01T00:05:12Z"),
    }
    spec = {"nodeName": "n1"}
    api.add("pods", pod("a", gate=False, notes=notes, spec=spec, status=status, creationTimestamp=MADE))
    assert asked(api, "why", "a", "-n", "team") == 0
    assert capsys.readouterr().out.splitlines() == [
        "team/a: task a of run r ended on n1",
        "  it has ended: Succeeded at 2026-01-01T00:15:20Z, 10 min after its start",
        "  it waited 5 min behind its gate and 12 s for its node",
        "  its gate was opened at 2026-01-01T00:05:00Z: it was its turn",
    ]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            {"containerStatuses": [container(137, "2026-01-01T00:01:00Z", "OOMKilled")]},
            ["it has ended: Failed at 2026-01-01T00:01:00Z", "container main: exit code 137 (OOMKilled)"],
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            ["it has ended: Failed, Evicted", "The node was low on resource: memory."],
        ),
        ({}, ["it has ended: Failed", "it waited for a node, and got none"]),
    ],
)
def test_why_a_pod_has_failed(status: dict[str, Any], says: list[str]) -> None:
    """The container's exit code and reason, or what the kubelet says of the pod; and that it had no node."""
    found = standing_of(pod("a", gate=False, status={"phase": "Failed", **status}, creationTimestamp=MADE))
    assert [one for one in says if one not in (found.why, *found.facts)] == []


# --- what is not there ---


def test_a_namespace_that_is_not_there_is_an_error(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line; who may not ask whether it is there hears that no pod is. With pods in it nothing is
    asked."""
    api.add("pods", pod("a"))
    assert asked(api, "ps", "-n", "team") == 0
    capsys.readouterr()
    assert asked(api, "ps", "-n", "nosuchns") == 2
    assert capsys.readouterr().err.startswith("error: namespace nosuchns: is not there (")
    api.forbidden.add("namespaces")
    assert asked(api, "ps", "-n", "nosuchns") == 0
    assert "no pod with the label egs.io/workload runs or waits in nosuchns" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["controller", "ps", "leave"])
def test_a_file_that_is_not_there_is_named(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and what to do; also where the file is there and has no such context."""
    missing = tmp_path / "nope"
    assert run(["kubernetes", command, "--kubeconfig", str(missing)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {missing}: there is no such file, which would name the cluster (name with --kube")
    assert said.count("\n") == 1


def test_a_context_that_is_not_there_is_named(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """And how the contexts of the file are listed."""
    assert yaml.safe_load(api.kubeconfig.read_text())["current-context"] == "emulated"
    api.add("nodes", node("n1"))
    assert run(["kubernetes", "ps", "--kubeconfig", str(api.kubeconfig), "--context", "prod"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {api.kubeconfig}: names no cluster: ")
    assert "prod" in said
    assert f"kubectl config get-contexts --kubeconfig {api.kubeconfig}" in said


@pytest.mark.parametrize("command", ["ps", "open-overdue", "leave"])
def test_an_api_server_that_does_not_answer_is_one_line(
    command: str, api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its address and why, without the names of sockets and pools; exit code 2."""
    address = Cluster(api.kubeconfig).host
    api.close()
    assert asked(api, command) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: egs kubernetes {command}: no answer: {address}: Failed to establish a new connection: "
    )
    assert said.count("\n") == 1
    assert "Pool" not in said


def test_a_namespace_to_serve_that_is_not_there_is_said_and_no_more(api: EmulatedApi) -> None:
    """A line for each; none for one that is there, nor where namespaces may not be read."""
    api.add("namespaces", {"metadata": {"name": "team"}})
    told: list[str] = []
    say_absent(Cluster(api.kubeconfig), ("nosuchns", "team", "other"), told.append)
    assert [line.partition(",")[0] for line in told] == ["namespace nosuchns", "namespace other"]
    api.forbidden.add("namespaces")
    say_absent(Cluster(api.kubeconfig), ("nosuchns",), told.append)
    assert len(told) == 2
