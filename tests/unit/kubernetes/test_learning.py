"""Durations that outlive their run and their controller, on an emulated API server."""

from __future__ import annotations

import json
import time

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import CONFIG_MAPS, Cluster
from egs_core.kubernetes.learning import Learning
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import pod_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, task, workflow
from tests.unit.kubernetes.test_learned import ended
from tests.unit.kubernetes.test_preloading import loaders
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture

MAP = names.DURATIONS


SECONDS = {"short": 5, "middle": 60, "long": 300}
KEPT = {name: [float(one)] for name, one in SECONDS.items()}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done each few seconds or minutes is done in each step."""
    monkeypatch.setattr("egs_core.kubernetes.learning.RENEW_S", 0.0)
    monkeypatch.setattr("egs_core.kubernetes.learning.WRITE_S", 0.0)
    monkeypatch.setattr("egs_core.kubernetes.preloading.LOOK_S", 0.0)


def add_run(api: EmulatedApi, number: int) -> None:
    """A run of three tasks, each of which wants a GPU, without a label of time."""
    for at, name in enumerate(SECONDS):
        labels, made = {"egs.io/task": name}, f"2026-01-0{number}T00:00:0{at}Z"
        api.add("pods", pod(f"{name}-{number}", run=f"{number}", labels=labels, gpus=1, creationTimestamp=made))


def ends(api: EmulatedApi, name: str, seconds: float) -> None:
    """As its kubelet says of one that has run so long."""
    api.change("pods", name, lambda one: one.update(status=ended("x", seconds, time.time())["status"]))


def goes(api: EmulatedApi, name: str, number: int) -> None:
    """It is opened next, runs on the one node, and ends."""
    opened = len(api.opened())
    api.until(lambda: len(api.opened()) > opened)
    assert api.opened()[opened:] == [f"{name}-{number}"]
    api.bind(f"{name}-{number}", "n1")
    ends(api, f"{name}-{number}", SECONDS[name])


def kept(api: EmulatedApi, key: str = "team.w") -> dict[str, list[float]]:
    """By step of a pipeline, the durations in the ConfigMap."""
    found = api.all("configmaps").get(MAP, {}).get("data", {})
    steps = json.loads(found[key])["steps"] if len(found.get(key, "")) > 1 else {}
    return {step: [one[1] for one in took] for step, took in steps.items()}


def test_the_next_run_goes_by_what_the_last_one_took(api: EmulatedApi) -> None:
    """Two runs of a pipeline on one GPU, no label of time on any pod, another controller in between, and nothing left
    of the first run but what it kept: its pods go as they were made, those of the second run the longest first. What
    has failed has taught nothing."""
    api.add("nodes", node("n1", gpus=1))
    add_run(api, 1)
    api.add("pods", ended("failed", 9999, phase="Failed", labels={"egs.io/task": "short"}))
    with controlled(api, longest_s=1e12):
        for name in SECONDS:
            goes(api, name, 1)
        api.until(lambda: kept(api) == KEPT)
    for name in api.all("pods"):
        api.remove("pods", name)
    add_run(api, 2)
    with controlled(api, "two", longest_s=1e12):
        for name in reversed(SECONDS):
            goes(api, name, 2)
    assert all("egs.io/predicted-s" not in one["metadata"]["labels"] for one in api.all("pods").values())


def test_a_step_is_loaded_for_by_what_it_took_last_night(api: EmulatedApi) -> None:
    """A run of Argo whose templates say nothing of time: in another run the pod that has the GPU took four seconds, so
    the image of the step behind it is loaded now."""
    api.add("nodes", node("n1", gpus=1))
    api.add("workflows", workflow("first", {"a": task()}))
    api.add("pods", executor("first", "a", name="first-a", gate=False, ran=4))
    with controlled(api, preloads=True):
        api.until(lambda: kept(api) == {"root.a.executor": [4.0]})
    api.remove("pods", "first-a")
    api.remove("workflows", "first")
    api.add("workflows", workflow("second", {"a": task(), "b": task(None, ["a"], gpus=1)}))
    container = {"name": "main", "image": "old:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": "n1", "containers": [container]}
    status = {"phase": "Running", "startTime": moment(time.time())}
    api.add("pods", executor("second", "a", gate=False, spec=spec, status=status))
    with controlled(api, "two", preloads=True, pull_s=1.0) as found:
        api.until(lambda: loaders(api))
        (run_of_it,) = found._looked.traced()
        (running,) = run_of_it.ranked.values()
    assert (running.predicted_s, running.learned_from) == (4.0, 1)


def test_a_node_is_asked_for_where_what_runs_took_long_before(api: EmulatedApi) -> None:
    """A pod without a label of time has the one GPU: another run's took most of an hour, so what waits needs a node.
    Without that it may end at any moment (`test_learned`)."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", ended("a", 3000))
    status = {"phase": "Running", "startTime": moment(time.time())}
    labels = {"egs.io/task": "a"}
    api.add("pods", pod("a-2", run="2", labels=labels, gpus=1, gate=False, spec={"nodeName": "n1"}, status=status))
    with controlled(api, longest_s=1e12) as found:
        api.until(lambda: found._learning._learned.learnt)
    api.add("pods", pod("waits", run="2", gpus=1))
    with controlled(api, "two", placeholders=PlaceholderSettings(most=1, node_s=60.0)):
        api.until(lambda: any(names.PLACEHOLDER in one["metadata"]["labels"] for one in api.all("pods").values()))


def test_what_was_not_written_yet_is_written_at_its_end(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each two minutes. What is still listed teaches the next leader again, and counts once."""
    monkeypatch.setattr("egs_core.kubernetes.learning.WRITE_S", 120.0)
    api.add("pods", ended("a", 40, time.time()))
    for number in range(2):
        with controlled(api, str(number)) as found:
            api.until(lambda found=found: found._learning._learned._took)  # type: ignore[misc]  # one each
            assert bool(kept(api)) == bool(number)
        assert kept(api) == {"a": [40.0]}
        assert len(api.patches) == 0


def test_what_another_has_written_meanwhile_stays(api: EmulatedApi) -> None:
    """Two leaders, one of which does not know that it is none any more: what both have learned is there."""
    notes: list[str] = []
    one, other = (Learning(Cluster(api.kubeconfig), "egs-system", lambda *said: notes.extend(said)) for _ in range(2))
    now = time.time()
    for learning in (one, other):
        learning.learnt(now)
    for number, learning in enumerate((one, other, one)):
        learning.hear([pod_of(ended("a", 40 + number, now + number))], now)
        learning.hear([], now)
    assert kept(api) == {"a": [40.0, 41.0, 42.0]}
    api.remove("configmaps", MAP)
    other.hear([pod_of(ended("b", 7, now))], now)
    other.hear([], now)
    assert kept(api) == {"a": [40.0, 41.0], "b": [7.0]}
    assert "".join(notes[1::2]) == ""


def test_without_the_right_nothing_is_known_and_pods_go_on(api: EmulatedApi) -> None:
    """One line; what this controller sees it uses."""
    api.forbidden.add("configmaps")
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", ended("x", 300, labels={"egs.io/task": "long"}))
    api.add("pods", pod("busy", gpus=1, gate=False, spec={"nodeName": "n1"}))
    said: list[str] = []
    with controlled(api, says="durations: 403", said=said, longest_s=1e12) as found:
        add_run(api, 1)
        api.until(lambda: len(found._looked.ordered) == 5 and found._learning._learned.learnt)
        api.end("busy")
        goes(api, "long", 1)
    assert len(said) == 1
    assert "what earlier runs took is not known" in said[0]


def test_without_the_right_no_names_are_kept_without_end(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pipelines that somebody makes up, each of one pod: as many as would fit into the ConfigMap."""
    monkeypatch.setattr("egs_core.kubernetes.learned.MOST_BYTES", 2000)
    api.forbidden.add("configmaps")
    learning, now = Learning(Cluster(api.kubeconfig), "egs-system", lambda *_: None), time.time()
    for number in range(300):
        made = ended("a", 40, now + number, labels={"egs.io/workload": f"w{number}"})
        learning.hear([pod_of(made)], now)
        assert len(learning.learnt(now)) <= 40
    known = learning._learned
    assert max(len(one) for one in (known._took, known._texts, known._changed)) <= 40
    assert "team/w299" in learning.learnt(now)


def test_a_server_that_is_away_is_asked_again(api: EmulatedApi) -> None:
    """Ten seconds later, without a word; what was learned meanwhile is kept then."""
    notes: list[str] = []
    learning, now = Learning(Cluster(api.kubeconfig), "egs-system", lambda *said: notes.extend(said)), time.time()
    data = {"team.w": json.dumps({"version": 1, "steps": {"a": [[1.0, 5.0, "x"]]}})}
    api.add("configmaps", {"metadata": {"name": MAP, "namespace": "egs-system"}, "data": data})
    api.down = True
    assert learning.learnt(now) == {}
    learning.hear([pod_of(ended("b", 40, now))], now)
    learning.hear([], now + 1)
    api.down = False
    assert list(learning.learnt(now + 5)) == ["team/w"]
    assert kept(api) == {"a": [5.0]}
    learning.learnt(now + 20)
    learning.hear([], now + 20)
    assert kept(api) == {"a": [5.0], "b": [40.0]}
    assert "".join(notes[1::2]) == ""


def test_a_config_map_that_cannot_be_read_is_none(api: EmulatedApi) -> None:
    """One line, and what is learned takes its place; the rest of it is read."""
    good = {"version": 1, "steps": {"a": [[1.0, 5.0, "x"]]}}
    data = {"team.w": "{", "team.v": json.dumps(good), "readme": "of somebody"}
    api.add("configmaps", {"metadata": {"name": MAP, "namespace": "egs-system"}, "data": data})
    api.add("pods", ended("b", 40))
    said: list[str] = []
    with controlled(api, says="durations: team.w of ConfigMap", said=said):
        api.until(lambda: kept(api) == {"b": [40.0]})
    assert len(said) == 1
    assert kept(api, "team.v") == {"a": [5.0]}
    assert api.all("configmaps")[MAP]["data"]["readme"] == "of somebody"


def test_the_right_is_to_that_one_config_map(capsys: pytest.CaptureFixture[str]) -> None:
    """To read it and to change it; the manifests make it, without data, so that applying them again takes none away."""
    assert run(["kubernetes", "manifests", "--image", "egs:1"]) == 0
    found = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one]
    rules = [(one["kind"], rule) for one in found for rule in one.get("rules", ()) if "configmaps" in rule["resources"]]
    assert rules == [
        ("Role", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"], "resourceNames": [MAP]})
    ]
    (made,) = (one for one in found if one["kind"] == "ConfigMap")
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (MAP, names.SYSTEM)
    assert not made.keys() & {"data", "binaryData"}
    assert CONFIG_MAPS.path(names.SYSTEM, MAP) == f"/api/v1/namespaces/{names.SYSTEM}/configmaps/{MAP}"
