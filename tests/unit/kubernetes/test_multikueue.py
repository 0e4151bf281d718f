"""Controllers of three clusters at one real site server: two that tell of their queues, and one that nominates between
them. The API servers are emulated and there is no Kueue: tests give quota, and say what is admitted where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import clusters, dispatching
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.judged import judge
from tests.unit.kubernetes.made_clusters import cluster_queue, local_queue, multikueue, workload
from tests.unit.server.real_site import RealSite, wait_for


class Sites:
    """Three API servers: `manager`, whose Workloads may go to `blue` or `green`, and these, with one GPU each."""

    def __init__(self, folder: Path) -> None:
        self.apis = {}
        for name in ("manager", "blue", "green"):
            (folder / name).mkdir()
            api = self.apis[name] = EmulatedApi(folder / name)
            api.add("clusterqueues", cluster_queue(9 if name == "manager" else 1))
            api.add("localqueues", local_queue())
        for kind, found in multikueue("blue", "green").items():
            for one in found:
                self.apis["manager"].add(kind, one)
        self.manager, self.blue, self.green = self.apis.values()

    def close(self) -> None:
        for api in self.apis.values():
            api.close()

    def waits(self, name: str, **stated: Any) -> None:
        """A Workload of the manager's that has just got quota there."""
        since = {"since": _moment(self.manager.now())} | stated
        self.manager.add("workloads", workload(name, predicted=100, check="Pending", **since))

    def nominated(self, name: str) -> list[str]:
        found: list[str] = self.manager.all("workloads")[name]["status"].get("nominatedClusterNames", [])
        return found

    def until_nominated(self, name: str, *wanted: str) -> None:
        self.manager.until(lambda: sorted(self.nominated(name)) == sorted(wanted))

    def comes_to(self, cluster: str, name: str) -> None:
        """As Kueue would: it is admitted there."""
        made = workload(name, predicted=100, admitted=True, since=_moment(self.apis[cluster].now()))
        self.apis[cluster].add("workloads", made)

        def settle(raw: dict[str, Any]) -> None:
            raw["status"] |= {"clusterName": cluster, "admissionChecks": [{"name": "elsewhere", "state": "Ready"}]}
            raw["status"]["nominatedClusterNames"] = []
            since = _moment(self.manager.now())
            raw["status"]["conditions"].append({"type": "Admitted", "status": "True", "lastTransitionTime": since})

        self.manager.change("workloads", name, settle)


def _moment(at: float) -> str:
    from egs_core.kubernetes.objects import moment

    return moment(at)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    found = Sites(tmp_path)
    yield found
    found.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSite]:
    for name in ("EGS_TOKEN", "EGS_QUEUE", "EGS_CA"):
        monkeypatch.delenv(name, raising=False)
    found = RealSite(tmp_path / "site", 1)
    try:
        found.start()
        yield found
    finally:
        found.close()


def all_controlled(stack: ExitStack, sites: Sites, server: RealSite, said: list[str], *names: str) -> None:
    """Controllers of these, and of the manager."""
    url = f"unix://{server.ready['socket']}"
    for name in ("manager", *names):
        role = clusters.MANAGER if name == "manager" else clusters.WORKER
        stated: dict[str, Any] = {"url": url, "cluster_name": name, "multikueue": role}
        stack.enter_context(controlled(sites.apis[name], name, says=": ", said=said, **stated))


def test_work_goes_where_it_should_end_first(sites: Sites, server: RealSite) -> None:
    """Blue is busy for 1,000 s and green is free: green is nominated, and for the next one, which waits 100 s there for
    the first, too. When blue's work has ended early the second goes there. Each is a line with what was foretold."""
    said: list[str] = []
    sites.blue.add("workloads", workload("long", predicted=1000, admitted=True, since=_moment(sites.blue.now())))
    with ExitStack() as stack:
        all_controlled(stack, sites, server, said, "blue", "green")
        wait_for(lambda: sum("joined" in line for line in said) == 3, "all have joined")
        sites.waits("first")
        sites.until_nominated("first", "green")
        sites.waits("second")
        sites.until_nominated("second", "green")
        sites.comes_to("green", "first")
        sites.blue.remove("workloads", "long")
        sites.until_nominated("second", "blue")
    lines = [line for line in said if line.startswith("workload team/second: blue: ")]
    assert "foretold is a start on blue in 0 s, green in " in lines[-1]
    assert not any("403" in line or "404" in line for line in said)


def test_without_a_word_of_a_cluster_it_is_not_left_out(sites: Sites, server: RealSite) -> None:
    """Green's controller tells nothing, and blue is busy: both are nominated, so who is first has it. One that is not
    connected any more is not."""
    said: list[str] = []
    sites.blue.add("workloads", workload("long", predicted=1000, admitted=True, since=_moment(sites.blue.now())))
    with ExitStack() as stack:
        all_controlled(stack, sites, server, said, "blue")
        sites.waits("first")
        sites.until_nominated("first", "blue", "green")
        gone = {"conditions": [{"type": "Active", "status": "False"}]}
        sites.manager.change("multikueueclusters", "green", lambda raw: raw.update(status=gone))
        sites.waits("second")
        sites.until_nominated("second", "blue")


def test_without_a_server_all_are_nominated(sites: Sites, tmp_path: Path) -> None:
    """At once where none is named, and soon where one is named that is not there, which is said once."""
    with controlled(sites.manager, says="workload ", multikueue=clusters.MANAGER):
        sites.waits("first")
        sites.until_nominated("first", "blue", "green")
    said: list[str] = []
    url = f"unix://{tmp_path / 'none'}"
    with controlled(sites.manager, "two", says=": ", said=said, url=url, multikueue=clusters.MANAGER):
        sites.waits("second")
        sites.until_nominated("second", "blue", "green")
        sites.manager.until(lambda: any(line.startswith("clusters: ") for line in said))
    assert sum(line.startswith("clusters: ") for line in said) == 1


def test_a_server_that_dies(sites: Sites, server: RealSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was named stays for a while, then all are nominated; when it is back, what waits has one cluster again."""
    monkeypatch.setattr(clusters, "AWAY_S", 4.0)
    monkeypatch.setattr(dispatching, "FRESH_S", 2.0)
    monkeypatch.setattr(dispatching, "ASK_S", 1.0)
    monkeypatch.setattr(dispatching, "TELL_S", 1.0)
    said: list[str] = []
    sites.blue.add("workloads", workload("long", predicted=1000, admitted=True, since=_moment(sites.blue.now())))
    with ExitStack() as stack:
        all_controlled(stack, sites, server, said, "blue", "green")
        sites.waits("first")
        sites.until_nominated("first", "green")
        server.kill()
        sites.until_nominated("first", "blue", "green")
        server.start()
        sites.until_nominated("first", "green")


def test_a_second_process_nominates_what_is_overdue(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """No controller is there. What has waited for long gets all clusters that are connected, what has one keeps it."""
    sites.waits("old", since="2026-01-01T00:00:00Z")
    sites.waits("new")
    named = {"nominatedClusterNames": ["green"]}
    sites.manager.add("workloads", workload("named", check="Pending", status=named))
    words = ["kubernetes", "open-overdue", "--kubeconfig", str(sites.manager.kubeconfig)]
    assert run(words) == 0
    assert sites.nominated("old") == []
    assert run([*words, "--multikueue"]) == 0
    assert {name: sites.nominated(name) for name in ("old", "new", "named")} == {
        "old": ["blue", "green"],
        "new": [],
        "named": ["green"],
    }
    assert "workload team/old: blue, green: all of them: overdue" in capsys.readouterr().err


def test_a_cluster_without_multikueue(sites: Sites) -> None:
    """Its kinds are not there: nothing is nominated, and gates are opened as ever."""
    sites.manager.absent = {"admissionchecks", "multikueueconfigs", "multikueueclusters"}
    sites.waits("first")
    with controlled(sites.manager, multikueue=clusters.MANAGER) as controller:
        sites.manager.until(lambda: controller.is_healthy)
    assert sites.nominated("first") == []


def test_the_rights_of_a_manager(capsys: pytest.CaptureFixture[str]) -> None:
    """Both accounts may patch the status of Workloads in all namespaces, also where pods of some alone are served, as
    nobody else nominates; a policy holds them to that one field. Others have neither."""
    words = ["kubernetes", "manifests", "--image", "egs:1", "--serve", "a"]
    assert run(words) == 0
    plain = capsys.readouterr().out
    assert not any(word in plain for word in ("multikueue", "workloads/status", "admissionchecks"))
    assert run([*words, "--multikueue", "manager"]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    for one in found:
        kubernetes_validate.validate(one, "1.36", strict=True)
    roles = [one for one in found if "workloads/status" in str(one.get("rules"))]
    assert [(one["kind"], one["metadata"]["name"]) for one in roles] == [
        ("ClusterRole", "egs-controller-nominates"),
        ("ClusterRole", "egs-overdue-nominates"),
    ]
    texts = {one["kind"]: str(one) for one in found if one["kind"] in ("Deployment", "CronJob")}
    assert "'--multikueue=manager'" in texts["Deployment"]
    assert "'--multikueue'" in texts["CronJob"]
    (policy,) = [
        one
        for one in found
        if one["metadata"]["name"] == "egs-controller-nominates" and one["kind"] == "ValidatingAdmissionPolicy"
    ]
    assert policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["workloads/status"]


@pytest.mark.parametrize(
    ("change", "is_held"),
    [
        ({"nominatedClusterNames": ["blue"]}, False),
        ({"clusterName": "blue"}, True),
        ({"admission": {"clusterQueue": "another"}}, True),
        ({"conditions": []}, True),
        ({"admissionChecks": [{"name": "elsewhere", "state": "Ready"}]}, True),
        ({"requeueState": {"count": 1}}, True),
        ({"schedulingStats": {"evictions": []}}, True),
        ({"accumulatedPastExexcutionTimeSeconds": 9}, True),
        ({"accumulatedPastExecutionTimeSeconds": 9}, True),
        ({"preemptionGates": []}, True),
        ({"reclaimablePods": []}, True),
        ({"resourceRequests": []}, True),
        ({"unhealthyNodes": []}, True),
    ],
)
def test_the_policy_of_a_manager(change: dict[str, Any], is_held: bool) -> None:
    """Nothing of a Workload's status but the nominated clusters: each other field that Kueue 0.19 has in one of its
    versions."""
    from egs_core.kubernetes.guard import STATUS_RULES

    old = workload("w", check="Pending")
    new = {**old, "status": old["status"] | change}
    assert bool(judge(STATUS_RULES)(new, old)) is is_held


def test_a_workers_manifests_and_chart_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By an argument, which in a chart is a value: clusters have different ones. It gets no right more."""
    words = ["kubernetes", "manifests", "--image", "egs:1", "--egs-url", "https://gpus.example:8470"]
    words += ["--cluster-name", "blue", "--multikueue", "worker"]
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("--cluster-name=blue", "--multikueue=worker"))
    assert "workloads/status" not in printed
    assert run([*words, "--helm", str(tmp_path / "chart")]) == 0
    assert yaml.safe_load((tmp_path / "chart" / "values.yaml").read_text())["clusterName"] == "blue"
    (deployment,) = (tmp_path / "chart" / "templates").glob("*deployment*")
    assert "--cluster-name={{ .Values.clusterName }}" in deployment.read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["manifests", "--image", "egs:1", "--multikueue", "both"], "manager, worker"),
        (["manifests", "--image", "egs:1", "--multikueue", "worker"], "--cluster-name"),
        (["manifests", "--image", "egs:1", "--cluster-name", "blue"], "--egs-url"),
        (["controller", "--multikueue", "worker"], "--cluster-name"),
        (["controller", "--multikueue", "manager", "--no-kueue"], "--no-kueue"),
    ],
)
def test_what_would_do_nothing_is_one_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and what to do."""
    monkeypatch.delenv("EGS_URL", raising=False)
    assert run(["kubernetes", *words]) == 2
    assert named in capsys.readouterr().err
