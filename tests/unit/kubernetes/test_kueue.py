"""What waits in Kueue, by a controller on an emulated API server: no Kueue is there, tests give quota and take it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.kueue import EVERY_S, Queues
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.priorities import workload_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import kueue_workload, pod


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    """With a queue."""
    found = EmulatedApi(tmp_path)
    never = {"preemption": {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}}
    found.add("clusterqueues", {"metadata": {"name": "cq"}, "spec": never})
    found.add("localqueues", {"metadata": {"name": "lq", "namespace": "team"}, "spec": {"clusterQueue": "cq"}})
    yield found
    found.close()


def add(api: EmulatedApi, name: str, gpus: int, rank: int) -> None:
    """A pod that Kueue holds back, and its Workload."""
    stated = {"gate": False, "rank": rank, "predicted": 1, "labels": {"kueue.x-k8s.io/queue-name": "lq"}}
    made = api.add("pods", pod(name, gpus=gpus, **stated))
    workload = kueue_workload(name, made["metadata"]["uid"])
    workload["spec"]["podSets"] = [{"name": "main", "count": 1, "template": {"spec": made["spec"]}}]
    api.add("workloads", workload)


def tell(api: EmulatedApi, name: str, *conditions: str) -> None:
    status = {"conditions": [{"type": one, "status": "True"} for one in conditions]}
    api.change("workloads", name, lambda raw: raw.update(status=status))


def priority(api: EmulatedApi, name: str) -> int:
    return int(api.all("workloads")[name]["spec"]["priority"])


def writes(api: EmulatedApi) -> list[tuple[str, int]]:
    with api.changed:
        return [(name, body["spec"]["priority"]) for name, body in api.patches if "priority" in body.get("spec", {})]


def test_a_workload_asks_for_what_its_pods_do() -> None:
    """All of its pod sets, each as often as it says."""
    raw = kueue_workload("w", "uid")
    one, other = ({"spec": pod("p", cpu=cpu, gpus=gpus)["spec"]} for cpu, gpus in ((1, 0), (2, 1)))
    raw["spec"]["podSets"] = [{"count": 1, "template": one}, {"count": 3, "template": other}]
    asks = workload_of(raw).asks
    assert (asks.cpu_milli, asks.gpu_milli) == (7000, 3000)


def test_who_has_room_in_freed_quota_is_written_at_once(api: EmulatedApi) -> None:
    """One GPU is given back. The first that asks for no more gets another priority, and keeps its place: Kueue looks at
    what was written at once, and at all else a second later."""
    for name, gpus, rank in (("holds", 1, 9), ("big", 4, 99), ("next", 1, 50), ("last", 1, 10)):
        add(api, name, gpus, rank)
    tell(api, "holds", "QuotaReserved", "Admitted")
    with controlled(api):
        api.until(lambda: priority(api, "big") > priority(api, "next") > 0)
        before, written = priority(api, "next"), len(writes(api))
        tell(api, "holds", "QuotaReserved", "Admitted", "Finished")
        api.until(lambda: len(writes(api)) > written)
        assert writes(api)[written] == ("next", before + 1)
        assert priority(api, "big") > before + 1
        tell(api, "next", "QuotaReserved")
        written = len(writes(api))
        api.remove("workloads", "next")  # with its pod: that gives quota back as well
        api.until(lambda: any(name == "last" for name, _ in writes(api)[written:]))
        assert priority(api, "big") > priority(api, "last")


def test_who_is_first_for_less_than_a_second_is_not_written(api: EmulatedApi) -> None:
    """Thirty come one after another, each before all others. The order is written once in so long, so most of them
    never are; what gives quota back meanwhile is heeded all the same."""
    now = [0.0]
    cluster = Cluster(api.kubeconfig)
    queues = Queues(cluster, lambda: None, lambda *_: None, 5, lambda: now[0])
    for mirror in queues.mirrors:
        mirror.start()
    seen = queues.mirrors[0].items

    def order() -> list[tuple[str, int]]:
        before = len(writes(api))
        pods = {raw["metadata"]["uid"]: pod_of(raw) for raw in api.all("pods").values()}
        queues.order(pods, lambda: True)
        return writes(api)[before:]

    try:
        add(api, "w0", 1, 100)
        add(api, "holds", 1, 99)
        tell(api, "holds", "QuotaReserved")
        api.until(lambda: any(one.holds for one in seen().values()))
        assert [name for name, _ in order()] == ["w0"]
        for number in range(1, 31):
            add(api, f"w{number}", 1, 100 + number)
            api.until(lambda n=number: len(seen()) == n + 2)  # type: ignore[misc]  # one each
            now[0] += 0.9 * EVERY_S / 30
            assert order() == []
        tell(api, "holds", "Finished")
        api.until(lambda: not any(one.holds for one in seen().values()))
        assert [name for name, _ in order()] == ["w30"]
        now[0] += EVERY_S
        written = dict[str, int]()
        while found := order():  # it writes for a bounded time
            written |= found
        assert {name for name, value in written.items() if value} == {f"w{number}" for number in range(19, 30)}
        assert {name for name, value in written.items() if not value} == {"w0"}
    finally:
        queues.forget()
        for mirror in queues.mirrors:
            mirror.stop()
