"""The controller as a client of a real site server: one quota over commands and pods, and what becomes of pods when the
server dies. The API server is an emulated one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.client import messages as c
from egs_core.kubernetes import joining, telling
from egs_core.kubernetes.controller import Controller
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import UNTIL, content

QUEUES = """queues:
  - {name: team, nominal: {gpus: 1}}
  - {name: rest, nominal: {gpus: 4}}
  - {name: desks, nominal: {gpus: 1}}
"""
LONGEST_S = 1e12
LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSite]:
    """A server of one GPU, two queues; this process is its client, too."""
    (tmp_path / "queues.yaml").write_text(QUEUES)
    found = RealSite(tmp_path / "site", 1)
    for name in ("EGS_TOKEN", "EGS_QUEUE", "EGS_CA"):
        monkeypatch.delenv(name, raising=False)
    try:
        begin(found)
        yield found
    finally:
        found.close()


def begin(site: RealSite) -> None:
    site.start("--queues", str(site.folder.parent / "queues.yaml"))


def joined(
    api: EmulatedApi, site: RealSite, said: list[str] | None = None, cluster: str = "blue"
) -> AbstractContextManager[Controller]:
    """A controller at that server. Its pods may be old, so that they are told at once why they wait."""
    url = f"unix://{site.ready['socket']}"
    at = {"url": url, "cluster_name": cluster, "queue": "rest", "notebook_queue": "desks"}
    return controlled(api, says="server: ", said=said, longest_s=LONGEST_S, **at)


def notes(api: EmulatedApi, name: str) -> dict[str, str]:
    found: dict[str, str] = api.all("pods")[name]["metadata"]["annotations"]
    return found


def driver(site: RealSite) -> c.RunView | None:
    """What the server shows of the controller."""
    return next((one for one in site.client.runs().runs if one.framework == "kubernetes"), None)


def holds(site: RealSite, gpus: float, waiting: int = 0, *, but: str = "") -> bool:
    """So many GPUs are its pods' by the server's books, and so many pods wait. but: it is another one than that."""
    found = driver(site)
    return (
        found is not None
        and found.tasks is not None
        and found.id != but
        and (found.gpus, found.tasks.waiting) == (gpus, waiting)
    )


def test_a_quota_holds_over_commands_and_pods(
    api: EmulatedApi, site: RealSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue `team` has one GPU. While an `egs run` has it, the pod of the namespace `team` waits though a node has
    two free, and one of another namespace goes; the server says which run has it. Given back, it is the pod's; and
    while that runs, the next `egs run` waits."""
    monkeypatch.setattr(telling, "EVERY_S", 0.2)
    monkeypatch.setattr(telling, "AGAIN_S", 0.2)
    api.add("nodes", node("n1", gpus=2))
    go, begun, later = tmp_path / "go", tmp_path / "begun", tmp_path / "later"
    words = ("--gpus", "1", "--queue", "team")
    first = site.run(*words, "--", sys.executable, "-c", UNTIL, str(begun), str(go), "0")
    wait_for(lambda: content(begun), "the command runs")
    with joined(api, site):
        api.add("pods", pod("train", gpus=1, creationTimestamp=LONG_AGO))
        api.add("pods", pod("other", gpus=1, namespace="lab", creationTimestamp=LONG_AGO))
        api.until(lambda: api.opened() == ["other"])
        api.until(lambda: "quota" in notes(api, "train").get("egs.io/waits", ""))
        (waiting,) = site.client.queue().runs
        assert (waiting.framework, waiting.name, waiting.kind) == ("kubernetes", "blue", "quota")
        why = site.egs("why", waiting.id).stdout
        assert ("train." in why, "in other pools it is used by " in why) == (True, True), why
        assert "blue" in site.egs("ps").stdout
        go.touch()
        assert first.wait(240) == 0
        api.until(lambda: api.opened() == ["other", "train"])
        api.bind("train", "n1")
        second = site.run(*words, "--name", "later", "--", sys.executable, "-c", UNTIL, str(later), str(go), "0")
        wait_for(lambda: "later" in site.queued(), "the next one waits")
        assert site.client.view(site.queued()["later"]).kind == "quota"
        assert not later.exists()
        api.end("train")
        assert second.wait(240) == 0
    wait_for(lambda: driver(site) is None, "the controller has left")


def test_each_kind_of_gpus_counts_at_a_site_server(api: EmulatedApi, site: RealSite) -> None:
    """Slices and GPUs of two vendors, each of one quota: the first of each kind is opened, and another one of that kind
    when it has ended."""
    kinds = {"n": "nvidia.com/gpu", "s": "nvidia.com/mig-1g.5gb", "a": "amd.com/gpu"}
    api.add("nodes", node("n1", offers={kinds["n"]: 1, kinds["s"]: 1}))
    api.add("nodes", node("n2", offers={kinds["a"]: 1}))
    for kind, of in kinds.items():
        for rank in (5, 9):
            api.add("pods", pod(f"{kind}{rank}", namespace="lab", rank=10 * rank, predicted=1, asks={of: 1}))
    with joined(api, site):
        api.until(lambda: {*api.opened()} == {"n9", "s9", "a9"})
        assert driver(site) is not None
        for name, on in (("n9", "n1"), ("s9", "n1"), ("a9", "n2")):
            api.bind(name, on)
        wait_for(lambda: holds(site, 3.0, 3), "the server counts each of them as one GPU")
        api.end("s9")
        api.until(lambda: "s5" in api.opened())
        assert api.gated() == {"n5", "a5"}


def test_a_quota_holds_over_two_clusters(api: EmulatedApi, site: RealSite, tmp_path: Path) -> None:
    """A controller each, one server: the queue `team` has one GPU, which is a pod's in the one cluster; that of the
    other one waits though its node is free, until the first has ended. What is of another queue goes meanwhile, as
    does a notebook of that namespace, which is in the queue of notebooks; a second one waits for its quota."""
    (tmp_path / "green").mkdir()
    green = EmulatedApi(tmp_path / "green")
    try:
        for one in (api, green):
            one.add("nodes", node("n1", gpus=4))
        with joined(api, site), joined(green, site, cluster="green"):
            api.add("pods", pod("train", gpus=1))
            api.until(lambda: api.opened() == ["train"])
            api.bind("train", "n1")
            wait_for(lambda: {one.name: one.gpus for one in site.client.runs().runs}.get("blue") == 1.0, "it is known")
            green.add("pods", pod("train", gpus=1))
            green.add("pods", pod("other", gpus=1, namespace="lab"))
            for name in ("ann", "ben"):
                green.add("pods", pod(name, run=name, gpus=1, labels={"notebook-name": name}))
            green.until(lambda: set(green.opened()) == {"other", "ann"})
            assert green.gated() == {"train", "ben"}
            assert {one.name for one in site.client.runs().runs} == {"blue", "green"}
            api.end("train")
            green.until(lambda: set(green.opened()) == {"other", "ann", "train"})
            assert green.gated() == {"ben"}
    finally:
        green.close()


def test_pods_with_new_demands_keep_what_they_hold(api: EmulatedApi, site: RealSite, tmp_path: Path) -> None:
    """A pod that names a node label that tells nodes apart, and of which the server was not told, makes a session anew;
    what runs meanwhile counts at every moment, so a command that waits for the quota does not get it."""
    api.add("nodes", node("n1", gpus=2, labels={"zone": "a"}))
    api.add("nodes", node("n2", labels={"zone": "b"}))
    go, later = tmp_path / "go", tmp_path / "later"
    with joined(api, site):
        api.add("pods", pod("runs", gpus=1, gate=False, spec={"nodeName": "n1"}))
        wait_for(lambda: holds(site, 1), "it counts")
        before = driver(site)
        assert before is not None
        go.touch()
        words = ("--gpus", "1", "--queue", "team", "--name", "later")
        command = site.run(*words, "--", sys.executable, "-c", UNTIL, str(later), str(go), "0")
        wait_for(lambda: "later" in site.queued(), "it waits")
        api.add("pods", pod("choosy", namespace="lab", spec={"nodeSelector": {"zone": "a"}}))
        api.until(lambda: "choosy" in api.opened())
        wait_for(lambda: holds(site, 1, but=before.id), "another session")
        assert "later" in site.queued()
        assert not later.exists()
        api.end("runs")
        assert command.wait(240) == 0


@pytest.mark.slow
def test_a_server_that_dies(api: EmulatedApi, site: RealSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed: what waits for the quota still waits, and what is overdue is opened; after a while the controller decides
    alone, so the pod goes. The server is back: what runs counts there again, and a command waits for it."""
    monkeypatch.setattr(joining, "AWAY_S", 15.0)
    monkeypatch.setattr(joining, "MOST_AGAIN_S", 1.0)
    api.add("nodes", node("n1", gpus=2))
    said: list[str] = []
    with joined(api, site, said):
        api.add("pods", pod("runs", gpus=1, gate=False, spec={"nodeName": "n1"}))
        api.add("pods", pod("waits", gpus=1))
        wait_for(lambda: holds(site, 1, 1), "it waits")
        site.kill()
        api.until(lambda: any("waits for it" in line for line in said))
        api.add("pods", pod("late", notes={"egs.io/release-by": LONG_AGO}))
        api.until(lambda: "late" in api.opened())
        assert api.opened() == ["late"]
        api.until(lambda: api.opened() == ["late", "waits"])
        api.until(lambda: any("decides alone" in line for line in said))  # said in the step after, at the latest
        api.bind("waits", "n1")
        begin(site)
        wait_for(lambda: holds(site, 2), "both count")
        command = site.run("--gpus", "1", "--queue", "team", "--name", "later", "--", sys.executable, "-c", "print(1)")
        wait_for(lambda: "later" in site.queued(), "it waits")
        api.end("runs")
        api.end("waits")
        assert command.wait(240) == 0


def test_no_server_at_all(api: EmulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start: a controller that is to join one that is not there decides alone after a while."""
    monkeypatch.setattr(joining, "AWAY_S", 2.0)
    api.add("nodes", node("n1"))
    api.add("pods", pod("a"))
    said: list[str] = []
    with controlled(api, says="server: ", said=said, url=f"unix://{tmp_path / 'none'}"):
        api.until(lambda: not api.gated())
    assert "for 2 s at most" in said[0]


def test_manifests_name_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The controller's environment, the token by a Secret that the kubelet reads; the second process needs none."""
    words = ["--egs-url", "https://gpus.example:8470", "--token-secret", "egs-token", "--egs-queue", "rest"]
    words += ["--ca-config-map", "site-ca"]
    assert run(["kubernetes", "manifests", "--image", "egs:1", *words]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    for one in found:
        kubernetes_validate.validate(one, "1.36", strict=True)
    (deployment,) = [one for one in found if one["kind"] == "Deployment"]
    environment = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["EGS_URL"]["value"] == "https://gpus.example:8470"
    assert environment["EGS_QUEUE"]["value"] == "rest"
    assert environment["EGS_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "egs-token", "key": "token"}}
    assert str(found).count("EGS_TOKEN") == 1
    spec = deployment["spec"]["template"]["spec"]
    (volume,) = [one for one in spec["volumes"] if one.get("configMap") == {"name": "site-ca"}]
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    assert environment["EGS_CA"]["value"] == f"{mount['mountPath']}/ca.crt"
    assert mount["readOnly"]
    assert not any("secrets" in rule["resources"] for one in found for rule in one.get("rules") or ())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["manifests", "--image", "egs:1", "--token-secret", "x"], "--token-secret"),
        (["manifests", "--image", "egs:1", "--ca-config-map", "x"], "--ca-config-map"),
        (["manifests", "--image", "egs:1", "--egs-url", "gpus.example"], "gpus.example"),
        (["controller", "--cluster-name", "blue"], "--cluster-name"),
    ],
)
def test_what_names_no_server_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what to do."""
    assert run(["kubernetes", *words]) == 2
    assert named in capsys.readouterr().err
