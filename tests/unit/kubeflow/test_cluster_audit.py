"""Auditing pods that are a run by EGS's labels, from an export, and by asking a cluster: an emulated API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from egs_core.audit.build import Audit
from egs_core.audit.build import audit as build_audit
from egs_core.audit.observed import AuditRequest, Observed, observed_of
from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.runlog.records import Capacity, WorkloadEnded
from egs_core.runlog.timeline import build_timeline
from egs_kubeflow.audit.asked import is_kubeconfig
from egs_kubeflow.audit.read import read_history
from tests.unit.kubeflow.made_exports import Export, Try, at, two_runs
from tests.unit.kubernetes.emulated_api import EmulatedApi

NIGHT = {"workload": "nightly", "run": "night-1"}
KINDS = {"workflows": "workflows", "pods": "pods", "nodes": "nodes"}


def seen(path: Path) -> Observed:
    return observed_of(read_history(AuditRequest(events=path)))


def told(path: Path) -> Audit:
    return build_audit(seen(path), simulated=False)


def night() -> Export:
    """`train` has the only GPU from 10 to 70, `report` waits behind its gate from 0 to 70."""
    export = Export()
    export.node("gpu-1", gpus=1)
    export.own_pod("train-1", {**NIGHT, "task": "train"}, Try(0, 10, 11, 70), opened=f"{at(10)} order")
    export.own_pod("report-1", {**NIGHT, "task": "report"}, Try(0, 70, 71, 80), opened=f"{at(70)} order")
    return export


def test_pods_with_the_labels_are_a_run(tmp_path: Path) -> None:
    """Of its own Jobs: the run, its tasks and their GPU time, by the names that the labels give."""
    observed = seen(night().write(tmp_path / "export.json"))
    found = build_audit(observed, simulated=False)
    assert (observed.header.driver, observed.header.mode) == ("kubernetes", "on")
    assert [(row.name, row.held_s) for row in found.by_job] == [("team/nightly/night-1", 70.0)]
    assert {row.name: row.held_s for row in found.by_task} == {"nightly.train": 60.0, "nightly.report": 10.0}
    assert not any("pods of no run" in note for note in observed.notes)


@pytest.mark.parametrize(("fails", "outcome"), [(False, "succeeded"), (True, "failed")])
def test_it_is_over_where_all_of_its_pods_are(tmp_path: Path, fails: bool, outcome: str) -> None:
    """Its log ends there, whenever the cluster was asked; while a pod goes on the run does."""
    export = night()
    export.own_pod("last", {**NIGHT, "task": "last"}, Try(80, 80, 81, 90, failed=fails), gpus=0)
    records = seen(export.write(tmp_path / "export.json")).records
    assert max(record.t for record in records if isinstance(record, Capacity)) == 90.0
    assert [record.outcome for record in records if isinstance(record, WorkloadEnded)] == [outcome]
    export.own_pod("more", {**NIGHT, "task": "more"}, Try(80, 80, 81), gpus=0)
    records = seen(export.write(tmp_path / "export.json")).records
    assert max(record.t for record in records if isinstance(record, Capacity)) == 300.0
    assert not any(isinstance(record, WorkloadEnded) for record in records)


def test_why_an_opened_pod_had_waited(tmp_path: Path) -> None:
    """From who held what meanwhile, as of any other."""
    wait = told(night().write(tmp_path / "export.json")).waits[0]
    assert (wait.name, wait.wait_s, wait.started) == ("nightly.report", 70.0, True)
    assert wait.reason.startswith("no free GPU while nightly.train")


def test_why_a_pod_waits_behind_its_gate(tmp_path: Path) -> None:
    """In the words of the controller; where it has said nothing, that there is a gate."""
    export = night()
    said = "2 of 3 members of its gang are there"
    export.own_pod("one", {**NIGHT, "task": "one"}, Try(81), waits=f"{at(90)} {said}")
    export.own_pod("two", {**NIGHT, "task": "two"}, Try(82))
    found = {wait.name: wait.reason for wait in told(export.write(tmp_path / "export.json")).waits}
    assert found["nightly.one"] == f"held back by EGS: {said}"
    assert found["nightly.two"] == "held back by EGS: gate"


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [(0, "the scheduler has no node for it: 0/1 nodes match its selector"), (2, "no node offers 2 GPUs and")],
)
def test_why_a_pod_without_a_gate_has_no_node(tmp_path: Path, gpus: int, reason: str) -> None:
    """The scheduler's words, where there was room as far as can be reckoned; with EGS's controller and without."""
    for notes in ({}, {"opened": f"{at(1)} nowhere"}):
        export = Export()
        export.node("gpu-1", gpus=1)
        pod = export.own_pod("one", {**NIGHT, "task": "one"}, Try(0), gpus=gpus, **notes)
        pod["spec"].pop("schedulingGates", None)
        pod["status"]["conditions"][0]["message"] = "0/1 nodes match its selector"
        (wait,) = told(export.write(tmp_path / "export.json")).waits
        assert wait.reason.startswith(reason)


def test_a_jobs_next_pod_is_its_next_attempt(tmp_path: Path) -> None:
    """After one has failed; pods of a task that ran beside each other are tasks of their own."""
    export = Export()
    export.node("gpu-1", gpus=4)
    fit, part = {**NIGHT, "task": "fit"}, {**NIGHT, "task": "part"}
    export.own_pod("fit-a", fit, Try(0, 0, 1, 20, failed=True), owner="job-fit")
    export.own_pod("fit-b", fit, Try(25, 25, 26, 40), owner="job-fit")
    export.own_pod("part-a", part, Try(0, 0, 1, 20), owner="job-part")
    export.own_pod("part-b", part, Try(0, 0, 1, 30), owner="job-part")
    holds = build_timeline(seen(export.write(tmp_path / "export.json")).records).holds
    found = sorted((hold.task, hold.attempt, hold.end_s, hold.outcome) for hold in holds)
    assert found == [
        ("fit", 1, 20.0, "failed"),
        ("fit", 2, 40.0, "succeeded"),
        ("part.part-a", 1, 20.0, "succeeded"),
        ("part.part-b", 1, 30.0, "succeeded"),
    ]


def test_the_run_is_the_controllers(tmp_path: Path) -> None:
    """Without a label of the run: what made the pod. A pod with no label of EGS's is of none, as is one that loads."""
    export = Export()
    export.node("gpu-1", gpus=4)
    for owner in ("a", "b"):
        export.own_pod(f"{owner}-1", {"workload": "nightly"}, Try(0, 0, 1, 20), owner=owner)
    export.own_pod("load", {"workload": "nightly", "preload": "image"}, Try(0, 0, 1, 20))
    export.other_pod("notebook", gpus=1, scheduled=0, ended=20)
    observed = seen(export.write(tmp_path / "export.json"))
    rows = build_audit(observed, simulated=False).by_job
    assert {row.name for row in rows} == {"team/nightly/a", "team/nightly/b"}
    assert any(note.startswith("2 pods of no run") for note in observed.notes)


def test_beside_runs_of_argo(tmp_path: Path) -> None:
    """Both are in one audit, and what labelled pods hold is offered."""
    export = two_runs()
    export.own_pod("train-1", {**NIGHT, "task": "train"}, Try(0, 0, 1, 10))
    observed = seen(export.write(tmp_path / "export.json"))
    found = build_audit(observed, simulated=False)
    assert (observed.header.driver, found.jobs, found.total.held_s) == ("kubeflow", 3, 156.0 + 10.0)
    assert found.capacity_gpu_s == 182.0


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("apiVersion: v1\nclusters:\n- name: a\nkind: Config\n", True),
        ('{"apiVersion": "v1", "kind": "Config", "clusters": []}', True),
        ('{"apiVersion": "v1", "kind": "List", "items": []}', False),
        ("apiVersion: v1\nkind: ConfigMap\n", False),
        ("", False),
        ("{", False),
    ],
)
def test_what_a_kubeconfig_is(tmp_path: Path, text: str, is_one: bool) -> None:
    (tmp_path / "file").write_text(text)
    assert is_kubeconfig(tmp_path / "file") is is_one


# --- asked ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def put(api: EmulatedApi, export: Export) -> None:
    """As the API server lists objects of one kind: without that kind in each."""
    for plural in KINDS:
        for raw in getattr(export, plural):
            api.add(plural, {key: value for key, value in raw.items() if key not in ("kind", "apiVersion")})


def test_a_cluster_that_is_asked_tells_what_its_export_does(
    api: EmulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workflows, pods and nodes, page by page; and nothing but reads."""
    monkeypatch.setattr("egs_core.kubernetes.cluster.PAGE", 2)
    export = two_runs()
    export.own_pod("train-1", {**NIGHT, "task": "train"}, Try(0, 0, 1, 10))
    put(api, export)
    asked = seen(api.kubeconfig)
    exported = seen(export.write(tmp_path / "export.json"))
    assert sorted(asked.records, key=repr) == sorted(exported.records, key=repr)
    assert asked.header.label.startswith("http://127.0.0.1:")
    assert api.asked == {"GET"}


def test_a_cluster_without_argo(api: EmulatedApi) -> None:
    """Its own runs are known, and a note says so once."""
    api.absent.add("workflows")
    put(api, night())
    observed = seen(api.kubeconfig)
    assert build_audit(observed, simulated=False).jobs == 1
    assert sum("no workflows of Argo" in note for note in observed.notes) == 1


def test_kinds_that_may_not_be_read(api: EmulatedApi) -> None:
    """Each is one note, and the others are read."""
    api.forbidden.update({"workflows", "nodes"})
    put(api, night())
    observed = seen(api.kubeconfig)
    assert build_audit(observed, simulated=False).total.held_s == 70.0
    said = [note.partition(":")[0] for note in observed.notes if "may not be read" in note]
    assert said == ["workflows may not be read", "nodes may not be read"]


def test_who_may_read_one_namespace_only(api: EmulatedApi) -> None:
    """That of the kubeconfig is read."""
    api.apart.update({"workflows", "pods"})
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    api.kubeconfig.write_text(json.dumps(config))
    put(api, night())
    observed = seen(api.kubeconfig)
    assert build_audit(observed, simulated=False).jobs == 1
    assert any(note.startswith("pods are those of namespace team alone") for note in observed.notes)


def test_a_cluster_that_does_not_answer(api: EmulatedApi) -> None:
    """One line with its address."""
    api.close()
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:\d+: does not answer"):
        seen(api.kubeconfig)


def test_the_command(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """By both names of the option; a cluster in which nothing is a run is one line."""
    assert run(["audit", "--kubernetes", str(api.kubeconfig)]) == 2
    assert "no task of any job is known" in capsys.readouterr().err
    api.forbidden.add("pods")
    assert run(["audit", "--kubernetes", str(api.kubeconfig)]) == 2
    assert "no run is known there; pods may not be read: 403" in capsys.readouterr().err
    api.forbidden.clear()
    put(api, night())
    for option in ("--kubernetes", "--kubeflow"):
        assert run(["audit", option, str(api.kubeconfig), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["jobs"] == 1
