"""Auditing a cluster from what kubectl exported of it. The exports are made by `made_exports`, in upstream's shapes."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from egs_core.adapter import HistoryReader
from egs_core.audit.build import Audit
from egs_core.audit.build import audit as build_audit
from egs_core.audit.observed import AuditRequest, Observed, observed_of
from egs_core.errors import InputError
from egs_core.history import history_from_runlog
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.records import Capacity, Ended, Started, TaskAdded
from egs_core.runlog.timeline import build_timeline
from egs_kubeflow.adapter import ADAPTER
from tests.unit.kubeflow.made_exports import Export, Step, Try, at, two_runs

FIRST, SECOND = "team/train-x7k2p", "team/train-b9d4z"


def seen(file: Path) -> Observed:
    assert isinstance(ADAPTER, HistoryReader)
    return observed_of(ADAPTER.read_history(AuditRequest(events=file)))


def told(observed: Observed) -> Audit:
    return build_audit(observed, simulated=False)


def line_of(observed: Observed) -> Timeline:
    return build_timeline(observed.records)


def parents_of(observed: Observed) -> dict[str, tuple[str, ...]]:
    return {r.task: r.parents for r in observed.records if isinstance(r, TaskAdded) and r.workload == FIRST}


@pytest.mark.proves("kubeflow cluster", "audit")
def test_gpu_time_of_a_full_export(tmp_path: Path) -> None:
    """With workflows, pods and nodes: a GPU is held from scheduled to ended, cold until the main container runs."""
    observed = seen(two_runs().write(tmp_path / "export.json"))
    found = told(observed)
    assert observed.edges_known
    assert (found.jobs, found.tasks, found.unfinished, found.window_s) == (2, 12, 0, 182.0)
    assert (found.total.held_s, found.total.cold_s, found.total.used_s) == (156.0, 26.0, 130.0)
    assert [row.name for row in found.by_task] == ["train.fit"]
    assert found.capacity_gpu_s == 182.0
    # idle from 50 to 60, and cold for 6 + 10 + 10 s with the task's own work behind it
    assert found.wastage_by_volume == pytest.approx((10 + 26) / 182)


def test_longest_wait_names_who_held_the_gpu(tmp_path: Path) -> None:
    """The second run's task waited from 20 to 120, 90 s of it for the first run's, which held the GPU cold for 10."""
    wait = told(seen(two_runs().write(tmp_path / "export.json"))).waits[0]
    assert (wait.workload, wait.wait_s, wait.no_gpu_s, wait.free_s) == (SECOND, 100.0, 90.0, 10.0)
    assert wait.blockers == (("train.fit", 90.0, 10.0),)


def test_edges_pass_through_nodes_without_a_pod(tmp_path: Path) -> None:
    """A task waited for its driver, that for the executor before, also where the DAG and the retry have no pod."""
    parents = parents_of(seen(two_runs().write(tmp_path / "export.json")))
    assert parents == {
        "root-driver": (),
        "prepare-driver": ("root-driver",),
        "prepare": ("prepare-driver",),
        "fit-driver": ("prepare",),
        "fit": ("fit-driver",),
        "report-driver": ("fit",),
        "report": ("report-driver",),
    }


@pytest.mark.parametrize("parts", [(), ("workflows",), ("pods", "nodes")])
def test_retries_are_attempts(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """A retried task is one task with two attempts, whoever tells of it; only its pod says that it was preempted."""
    line = line_of(seen(two_runs().write(tmp_path / "export.json", *parts)))
    tries = [
        (hold.attempt, hold.end_s, hold.outcome) for hold in line.holds if (hold.workload, hold.task) == (FIRST, "fit")
    ]
    first = "failed" if parts == ("workflows",) else "preempted"
    assert tries == [(1, 50.0, first), (2, 120.0, "succeeded")]


def test_workflows_alone(tmp_path: Path) -> None:
    """Argo's GPU seconds give a GPU task's start; capacity is not known, and nothing is made up in its place."""
    observed = seen(two_runs().write(tmp_path / "export.json", "workflows"))
    found = build_audit(observed)
    assert (found.total.held_s, found.total.cold_s) == (130.0, 0.0)
    assert (found.wastage_by_volume, found.capacity_gpu_s, found.forecast) == (None, 0.0, None)
    assert not any(isinstance(record, Capacity) for record in observed.records)
    said = " ".join(found.unknown)
    for part in ("no node is in the export", "10 tasks without GPUs", "3 GPU tasks are known from their workflow only"):
        assert part in said, part


def test_pods_alone(tmp_path: Path) -> None:
    """Pods give the same GPU time; what a task waited for is not known then."""
    export = two_runs()
    observed = seen(export.write(tmp_path / "export.json", "pods", "nodes"))
    assert not observed.edges_known
    assert set(parents_of(observed).values()) == {()}
    assert told(observed).total == told(seen(export.write(tmp_path / "all.json"))).total


def test_pods_that_know_only_their_run(tmp_path: Path) -> None:
    """Pods with the label pipeline/runid and nothing of Argo's are the tasks of that run, under their own names."""
    export = two_runs()
    for pod in export.pods:
        pod["metadata"]["labels"] = {"pipeline/runid": "4f1d"}
        pod["metadata"]["annotations"] = None
    found = told(seen(export.write(tmp_path / "export.json", "pods")))
    assert (found.jobs, found.tasks, found.total.held_s) == (1, len(export.pods), 156.0)


def test_compressed_nodes(tmp_path: Path) -> None:
    """Argo gzips the nodes of a large workflow: they say the same."""
    export = two_runs()
    plain = seen(export.write(tmp_path / "plain.json", "workflows")).records
    for workflow in export.workflows:
        data = gzip.compress(json.dumps(workflow["status"].pop("nodes")).encode())
        workflow["status"]["compressedNodes"] = base64.b64encode(data).decode()
    assert seen(export.write(tmp_path / "small.json", "workflows")).records == plain


def test_offloaded_nodes(tmp_path: Path) -> None:
    """Of a workflow whose nodes are in Argo's database the pods are known, and the reader is told so."""
    export = two_runs()
    for workflow in export.workflows:
        workflow["status"].update(nodes=None, offloadNodeStatusVersion="fnv:1")
    observed = seen(export.write(tmp_path / "export.json"))
    assert not observed.edges_known
    assert told(observed).total.held_s == 156.0
    assert any(note.startswith("2 workflows keep their nodes in Argo's database") for note in observed.notes)


def test_one_object_and_a_folder(tmp_path: Path) -> None:
    """A single workflow is an export too, and so is a folder with a file for each kind."""
    export = two_runs()
    (tmp_path / "one.json").write_text(json.dumps(export.workflows[0]))
    assert told(seen(tmp_path / "one.json")).jobs == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in ("workflows", "pods", "nodes"):
        export.write(folder / f"{part}.json", part)
    assert seen(folder).records == seen(export.write(tmp_path / "all.json")).records


def unfinished(export: Export, *tries: Try) -> None:
    export.run("train-x7k2p", [Step("fit", tries, gpus=1)], None)


def test_what_has_not_ended(tmp_path: Path) -> None:
    """Running work counts up to the latest time in the export, here the node's heartbeat; without a pod too."""
    export = Export()
    export.node("gpu-1", gpus=2)
    unfinished(export, Try(10, 20, 40))
    found = told(seen(export.write(tmp_path / "export.json")))
    assert (found.unfinished, found.window_s) == (1, 300.0)
    assert (found.total.held_s, found.total.cold_s) == (280.0, 20.0)


@pytest.mark.parametrize(("gate", "kind"), [("kueue.x-k8s.io/admission", "quota"), ("site/order", "order")])
def test_a_gated_pod_is_held(tmp_path: Path, gate: str, kind: str) -> None:
    """A pod behind Kueue's gate waits for quota, behind another for that; it holds nothing."""
    export = Export()
    export.node("gpu-1", gpus=1)
    unfinished(export, Try(10))
    export.pods[-1]["spec"]["schedulingGates"] = [{"name": gate}]
    found = told(seen(export.write(tmp_path / "export.json")))
    assert found.total.held_s == 0.0
    assert (found.waits[0].reason, found.waits[0].started) == (f"held back: {kind}", False)


def test_a_pod_that_never_ran_its_container(tmp_path: Path) -> None:
    """An image that cannot be pulled holds the GPU from scheduled to the end, and none of it was use."""
    export = Export()
    export.run("train-x7k2p", [Step("fit", [Try(10, 20, None, 80, failed=True)], gpus=1)], 81, "Failed")
    export.pods[-1]["status"]["conditions"].append({"type": "Ready", "status": "False", "lastTransitionTime": at(80)})
    total = told(seen(export.write(tmp_path / "export.json", "pods"))).total
    assert (total.held_s, total.cold_s, total.used_s) == (60.0, 60.0, 0.0)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"spec": {"shutdown": "Terminate"}}, "aborted"),
        ({}, "failed"),
    ],
)
def test_why_an_attempt_ended(tmp_path: Path, change: dict[str, Any], outcome: str) -> None:
    """A failure in a workflow that was shut down was an abort."""
    export = Export()
    workflow = export.run("train-x7k2p", [Step("fit", [Try(10, 20, 21, 80, failed=True)], gpus=1)], 81, "Failed")
    workflow.update(change)
    holds = line_of(seen(export.write(tmp_path / "export.json", "workflows"))).holds
    assert {hold.task: hold.outcome for hold in holds}["fit"] == outcome


def test_a_deleted_pod_was_preempted(tmp_path: Path) -> None:
    """Argo calls it an error with the message 'pod deleted'."""
    export = Export()
    workflow = export.run("train-x7k2p", [Step("fit", [Try(10, 20, 21, 80, failed=True)], gpus=1)], 81, "Error")
    workflow["status"]["nodes"]["train-x7k2p.root.fit.executor"].update(phase="Error", message="pod deleted")
    holds = line_of(seen(export.write(tmp_path / "export.json", "workflows"))).holds
    assert {hold.task: hold.outcome for hold in holds}["fit"] == "preempted"


def test_attempts_that_clocks_let_overlap(tmp_path: Path) -> None:
    """A retry that Argo made before the attempt before it had ended, or whose end is not known, waits from that end."""
    export = Export()
    tries = [Try(10, 20, 21, 50, failed=True), Try(40, 45, 50, None), Try(60, 70, 71, 80)]
    export.run("train-x7k2p", [Step("fit", tries, gpus=1)], 81)
    line = line_of(seen(export.write(tmp_path / "export.json")))
    held = [(hold.attempt, hold.start_s, hold.end_s) for hold in line.holds if hold.task == "fit"]
    assert held == [(1, 20.0, 50.0), (2, 50.0, 60.0), (3, 70.0, 80.0)]


def test_other_pods_are_not_on_offer(tmp_path: Path) -> None:
    """What a pod outside of pipelines held of a node was not offered to pipelines, for as long as it did."""
    export = two_runs()
    export.nodes.clear()
    export.node("gpu-1", gpus=2)
    export.other_pod("notebook", gpus=1, scheduled=-500, ended=82)
    observed = seen(export.write(tmp_path / "export.json"))
    assert told(observed).capacity_gpu_s == 2 * 182.0 - 82.0
    assert (told(observed).jobs, told(observed).total.held_s) == (2, 156.0)
    assert any(note.startswith("1 pods of no run") for note in observed.notes)


@pytest.mark.parametrize(("opened", "mode"), [(0, "off"), (4, "off"), (13, "on")])
def test_what_a_controller_of_egs_has_opened_is_said(tmp_path: Path, opened: int, mode: str) -> None:
    """So many of the pods that got a node; where it is most of them EGS was on, and there is no saving to come."""
    export = two_runs()
    for pod in export.pods[:opened]:
        pod["metadata"]["annotations"]["egs.io/opened"] = f"{at(1)} order"
    observed = seen(export.write(tmp_path / "export.json"))
    said = [note for note in observed.notes if "EGS's controller" in note]
    assert said == ([f"{opened} of 13 pods that got a node had been let go by EGS's controller"] if opened else [])
    assert observed.header.mode == mode
    assert (build_audit(observed, seeds=1).forecast is None) == (mode == "on")
    assert any("in EGS's order" in note for note in observed.notes) == (mode == "off")


def test_an_empty_file_says_why(tmp_path: Path) -> None:
    """kubectl leaves one where the cluster has no Argo."""
    (tmp_path / "cluster.json").write_text("")
    with pytest.raises(InputError, match=r"is empty.*kubectl get pods,nodes"):
        seen(tmp_path / "cluster.json")


def test_nodes_that_are_gone_and_cordoned(tmp_path: Path) -> None:
    """Pods on a node that is not in the export, and nodes that take no more pods, are said."""
    export = two_runs()
    export.nodes.clear()
    export.node("gpu-2", gpus=1)
    export.nodes[0]["spec"]["unschedulable"] = True
    notes = " ".join(seen(export.write(tmp_path / "export.json")).notes)
    assert "13 pods ran on nodes that are not in the export" in notes
    assert "1 nodes are cordoned" in notes


def test_a_pod_that_was_killed_for_its_memory_says_so(tmp_path: Path) -> None:
    """Where its main container ended so; others that failed give no reason."""
    export = two_runs()
    ended = [pod for pod in export.pods if pod["status"]["phase"] == "Succeeded"]
    killed, other = [pod for pod in ended if "terminated" in pod["status"]["containerStatuses"][1]["state"]][:2]
    for pod, reason in ((killed, "OOMKilled"), (other, "Error")):
        pod["status"]["phase"] = "Failed"
        for status in pod["status"]["containerStatuses"]:
            status["state"].setdefault("terminated", {})["reason"] = reason
    records = seen(export.write(tmp_path / "export.json", "pods", "nodes")).records
    reasons = [r.reason for r in records if isinstance(r, Ended) and r.outcome == "failed"]
    assert sorted(reasons) == ["", "out of main memory: OOMKilled"]


@pytest.mark.parametrize(
    ("labels", "flavor"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "A100-SXM4-80GB"),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "t4"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, "Instinct-MI300X"),
        ({"kubernetes.io/arch": "amd64"}, ""),
    ],
)
def test_flavors_are_those_of_the_nodes_labels(tmp_path: Path, labels: dict[str, str], flavor: str) -> None:
    """Each start of a GPU task says of which flavor its node is, and so do durations that come of it; not CPU tasks."""
    export = two_runs()
    export.nodes[0]["metadata"]["labels"] = labels
    records = seen(export.write(tmp_path / "export.json")).records
    assert {(r.flavor, r.gpus > 0) for r in records if isinstance(r, Started)} == {(flavor, True), ("", False)}
    assert {row.flavor for row in history_from_runlog(records) if row.shape.gpu_milli} == {flavor}


@pytest.mark.parametrize(
    ("resource", "gpus"),
    [("amd.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 1), ("gpu.intel.com/i915", 1), ("rdma/hca", 0), ("memory", 0)],
)
def test_what_a_gpu_is(tmp_path: Path, resource: str, gpus: int) -> None:
    """Accelerators are known by the names that their vendors' device plugins give; other devices are none."""
    export = two_runs()
    for pod in export.pods:
        limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
        if limits.pop("nvidia.com/gpu", None):
            limits[resource] = "1"
    found = told(seen(export.write(tmp_path / "export.json", "pods")))
    assert found.unit == ("GPU" if gpus else "CPU")
    if gpus:
        assert found.total.held_s == 156.0


def test_init_containers_count_as_kubernetes_counts_them(tmp_path: Path) -> None:
    """A pod holds the most of its init containers and the sum of the others, with what stays beside them."""
    export = Export()
    export.run("train-x7k2p", [Step("fit", [Try(10, 20, 21, 80)], gpus=1)], 81)
    big, beside = {"resources": {"requests": {"cpu": "4"}}}, {"resources": {"limits": {"cpu": "1"}}}
    export.pods[-1]["spec"]["initContainers"] = [{"name": "a", **big}]
    holds = line_of(seen(export.write(tmp_path / "export.json", "pods"))).holds
    assert max(hold.demand.cpus for hold in holds) == 4.0
    export.pods[-1]["spec"]["initContainers"] = [{"name": "b", "restartPolicy": "Always", **beside}]
    holds = line_of(seen(export.write(tmp_path / "export.json", "pods"))).holds
    assert max(hold.demand.cpus for hold in holds) == 2.5


def test_reading_needs_no_kfp(tmp_path: Path) -> None:
    """An audit works where kfp does not: nothing of it is imported."""
    file = two_runs().write(tmp_path / "export.json")
    code = (
        "import sys; from pathlib import Path; from egs_kubeflow.audit.read import read_export; "
        f"assert len(read_export(Path({str(file)!r})).runs) == 2; assert not {{'kfp', 'kubernetes'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
