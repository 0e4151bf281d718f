"""EGS taken out of a cluster while a controller leads from outside of it; and what a controller says of its course."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import ApiError, Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.leader import LEASE_S
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import Installation
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_preload_policy import preload

LEASE = {"name": names.CONTROLLER, "namespace": names.SYSTEM}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def left(api: EmulatedApi, wait: Callable[[float], None] | None = None) -> tuple[int, list[str]]:
    """What `leave` answers and says."""
    said: list[str] = []
    cluster = Cluster(api.kubeconfig)
    return leave(cluster, Installation(), said.append, *([wait] if wait else [])), said


def held(api: EmulatedApi, holder: str, renewed_s: float) -> None:
    """A Lease that somebody has."""
    spec = {"holderIdentity": holder, "renewTime": moment(api.now() - renewed_s)}
    api.add("leases", {"metadata": dict(LEASE), "spec": spec})


def ended(name: str) -> dict[str, object]:
    """The status of a pod that teaches how long its task takes."""
    end = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z", "exitCode": 0}
    return {"phase": "Succeeded", "containerStatuses": [{"name": name, "state": {"terminated": end}}]}


def test_what_is_paused_is_opened_too_and_named(api: EmulatedApi) -> None:
    """Nobody could let it go on afterwards. A pod that came later to a paused run is paused too; no other is named."""
    api.add("pods", pod("paused", notes={names.PAUSED: "run 2026-11-28T05:00:00Z by ann"}))
    api.add("pods", pod("later"))
    api.add("pods", pod("waits", run="another"))
    code, lines = left(api, lambda _: None)
    assert (code, api.gated()) == (0, set())
    said = {line.partition(":")[0].partition("/")[2] for line in lines if line.endswith(": was paused, and is no more")}
    assert said == {"paused", "later"}


def tried(api: EmulatedApi, *words: str) -> int:
    return run(["kubernetes", "leave", "--dry-run", "--kubeconfig", str(api.kubeconfig), *words])


def test_a_dry_run_says_what_would_go_and_changes_nothing(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects, in which namespace; gates, and which of them are paused; who leads, and that it runs elsewhere. What was
    said is what is done then."""
    api.add("mutatingwebhookconfigurations", {"metadata": {"name": names.CONTROLLER}})
    api.add("deployments", {"metadata": {"name": names.CONTROLLER, "namespace": names.SYSTEM}})
    api.add("pods", preload())
    api.add("pods", pod("waits"))
    api.add("pods", pod("paused", run="other", notes={names.PAUSED: "pod 2026-11-28T05:00:00Z by ann"}))
    api.add("pods", pod("runs", gate=False))
    held(api, "laptop-7", 2.0)
    before = {plural: api.all(plural) for plural in api.objects}
    assert tried(api) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"mutatingwebhookconfigurations/{names.CONTROLLER}: would be deleted"
    assert f"deployments/{names.CONTROLLER} in {names.SYSTEM}: would be deleted" in lines
    assert {line for line in lines if "opened" in line} == {
        "team/waits: would be opened",
        "team/paused: would be opened (it is paused, and would be no more)",
    }
    assert lines[-2].startswith("controller laptop-7: has the lease (renewed ")
    assert lines[-2].endswith(" s ago), from outside of the cluster, and would be told to end")
    assert lines[-1] == f"namespace {names.SYSTEM} would be left"
    assert tried(api, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in ("namespace", "opened", "paused", "is_told", "refused")} == {
        "namespace": names.SYSTEM,
        "opened": ["team/paused", "team/waits"],
        "paused": ["team/paused"],
        "is_told": True,
        "refused": [],
    }
    assert (found["leads"]["holder"], found["leads"]["is_outside"]) == ("laptop-7", True)
    assert {plural: api.all(plural) for plural in api.objects} == before
    assert (api.patches, api.deleted) == ([], [])
    left(api, lambda _: None)
    assert api.deleted == [f"{one['kind']}/{one['name']}" for one in found["deleted"]]
    assert sorted(api.opened()) == ["paused", "waits"]


def test_a_dry_run_of_a_cluster_without_egs_says_so(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where somebody led once, which the Lease tells; one that is a pod there is not outside."""
    assert tried(api) == 0
    assert capsys.readouterr().out == f"nothing would be deleted or opened\nnamespace {names.SYSTEM} would be left\n"
    held(api, "", 3600.0)
    assert tried(api) == 0
    assert "nobody leads: the Lease would get the annotation egs.io/left\n" in capsys.readouterr().out
    api.change("leases", names.CONTROLLER, lambda one: one["spec"].update(holderIdentity="egs-controller-x7-1"))
    api.add("pods", pod("egs-controller-x7", gate=False, namespace=names.SYSTEM))
    assert tried(api) == 0
    said = capsys.readouterr().out
    assert "controller egs-controller-x7-1: has the lease (renewed 60 min ago) and would be told to end\n" in said


def test_a_dry_run_names_the_gates_that_may_not_be_opened(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody's webhook refuses any change of theirs: exit code 1."""
    api.add("pods", pod("waits"))

    def refuses(*_: object, **__: object) -> None:
        raise ApiError(403, "admission webhook denied the request")

    monkeypatch.setattr("egs_core.kubernetes.leaving_tried.open_gate", refuses)
    assert tried(api) == 1
    out, said = capsys.readouterr()
    assert "nothing would be deleted" not in out
    assert said == "egs kubernetes: team/waits: cannot be opened: 403: admission webhook denied the request\n"


def test_a_controller_outside_ends_and_writes_nothing_anew(api: EmulatedApi) -> None:
    """It has something to keep, which at its end it would write into the ConfigMap. `leave` names it and how long ago
    it renewed, and waits for it; all gates are open, and one that starts later leads again."""
    api.add("nodes", node("n1", gpus=1))
    said: list[str] = []
    with controlled(api, "laptop-1", says="EGS was taken out of the cluster at ", said=said) as found:
        api.until(lambda: found.is_healthy)
        api.add("pods", pod("taught", gate=False, spec={"nodeName": "n1"}, status=ended("main")))
        api.add("pods", pod("runs", gpus=1))
        api.until(lambda: "runs" not in api.gated())
        api.add("pods", pod("waits", gpus=1))
        code, lines = left(api)
        assert code == 0
        assert api.gated() == set()
        (named,) = [line for line in lines if "is told to end" in line]
        assert named.startswith("controller laptop-1: has the lease (renewed ")
        assert named.endswith(" s ago) and is told to end")
        assert "controller laptop-1: has ended" in lines
        assert not found.is_healthy
    assert len(said) == 1
    assert api.all("configmaps") == {}
    with controlled(api, "laptop-2") as found:
        api.until(lambda: found.is_healthy)
    assert list(api.all("configmaps")) == [names.DURATIONS]


def test_one_that_waits_to_lead_ends_too(api: EmulatedApi) -> None:
    """Else it would lead a moment later."""
    said: list[str] = []
    held(api, "other", 0.0)
    with controlled(api, "second", says="EGS was taken out", said=said) as found:
        api.until(lambda: found.leader.holder == "other")
        code, _ = left(api, lambda _: None)
        assert code == 0
        api.until(lambda: said)
    assert api.all("leases")[names.CONTROLLER]["spec"]["holderIdentity"] == "other"


def test_one_that_does_not_heed_it_is_named(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier version goes on renewing: exit code 1, and what to do with whom; the rest is deleted all the same."""
    held(api, "old-7", 2.0)
    over = threading.Event()

    def renews() -> None:
        for number in range(1000):
            if over.wait(0.2):
                return
            renewed = f"2026-01-01T00:00:00.{number:06}Z"
            api.change("leases", names.CONTROLLER, lambda one, at=renewed: one["spec"].update(renewTime=at))  # type: ignore[misc]  # one each

    api.add("configmaps", {"metadata": {"name": names.DURATIONS, "namespace": names.SYSTEM}})
    thread = threading.Thread(target=renews, daemon=True)
    thread.start()
    try:
        assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig)]) == 1
    finally:
        over.set()
        thread.join(LIMIT_S)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("egs kubernetes: controller old-7: leads all the same (renewed ")
    assert "end it where it runs (Ctrl-C), and repeat `egs kubernetes leave`" in last
    assert api.all("configmaps") == {}


def test_one_that_is_gone_is_not_waited_for_for_ever(api: EmulatedApi) -> None:
    """Its machine was switched off: after the Lease's own time nobody leads."""
    held(api, "gone-1", 3600.0)
    waited: list[float] = []
    code, lines = left(api, waited.append)
    assert code == 0
    assert "controller gone-1: has the lease (renewed 60 min ago) and is told to end" in lines
    assert "controller gone-1: has not renewed its lease for 15 s: it leads no more" in lines
    assert sum(waited) == pytest.approx(LEASE_S, abs=3.0)


def test_a_controller_says_whom_it_waits_for_that_it_leads_and_its_end(api: EmulatedApi) -> None:
    """One line each, and none in between."""
    api.add("nodes", node("n1", gpus=1))
    for name in ("a", "b"):
        api.add("pods", pod(name, gpus=1))
    held(api, "first", 0.0)
    told: list[str] = []
    settings = Settings(("team",), identity="second")
    found = Controller(Cluster(api.kubeconfig), settings, told.append, tell=told.append, watch_s=5)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    where = f"cluster {Cluster(api.kubeconfig).host}, namespaces team: "
    try:
        api.until(lambda: told == [f"{where}waits for first, which leads"])
        api.change("leases", names.CONTROLLER, lambda one: one["spec"].update(holderIdentity=""))
        api.until(lambda: len(api.opened()) == 1)
        api.until(lambda: found.is_healthy)
    finally:
        found.stop()
        thread.join(LIMIT_S)
    assert told[:-1] == [f"{where}waits for first, which leads", f"{where}leads"]
    rest = "1 pod behind theirs: until a controller leads, or their release-by times"
    assert told[-1] == f"has ended; gates that it has opened: 1; {rest}"


def test_a_namespace_that_is_not_there_is_said_with_what_to_do(
    api: EmulatedApi,
) -> None:
    """No Lease can be made in it."""
    api.absent.add("leases")
    said: list[str] = []
    with controlled(api, says="lease: 404", said=said):
        api.until(lambda: said)
    assert "kubectl create namespace egs-system, or name another one with --lease-namespace" in said[0]
