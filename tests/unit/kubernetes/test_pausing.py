"""Pausing runs, stages and pods, and going on with them: by commands, on an emulated API server with a controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.cluster import ApiError, Cluster
from egs_core.kubernetes.pods import Pod, pod_of, with_pauses
from egs_core.kubernetes.session import ClusterSession
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, task, workflow
from tests.unit.kubernetes.test_controller import OLD
from tests.unit.kubernetes.test_steering import api, asked, note

__all__ = ["api"]  # the fixture

PAUSED, RESUMED = "egs.io/paused", "egs.io/resumed"


def notes(api: EmulatedApi, name: str, plural: str = "pods") -> dict[str, str]:
    return dict(api.all(plural)[name]["metadata"].get("annotations") or {})


def test_a_paused_run_waits_until_it_is_resumed(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """It is first in the order and past its release-by time, and room is there: another run goes before it. A pod that
    comes later waits with it, and the second process leaves it alone. Who asked and why is written beside it."""
    for name in ("a", "b"):
        api.add("pods", pod(name, rank=99, predicted=5, creationTimestamp=OLD))
    api.add("pods", pod("runs", gate=False, spec={"nodeName": "n1"}))
    assert asked(api, "pause", "r", "--reason", "the disk is full") == 0
    said = capsys.readouterr()
    assert "team/a: waits until it is resumed\nteam/b: waits until it is resumed\n" in said.out
    assert "team/runs: goes on" in said.err
    assert notes(api, "a")[PAUSED].startswith("run 20")
    assert notes(api, "a")[PAUSED].endswith(" by ann: the disk is full")
    api.add("pods", pod("later", creationTimestamp=OLD))
    assert asked(api, "open-overdue") == 0
    api.add("nodes", node("n1"))
    with controlled(api):
        api.add("pods", pod("other", run="s"))
        api.until(lambda: api.opened() == ["other"])
        api.until(lambda: note(api, "later").endswith("its run or stage is paused"))
        assert api.gated() == {"a", "b", "later"}
        capsys.readouterr()
        assert asked(api, "ps", "--json") == 0
        rows = {one["pod"]: one for one in json.loads(capsys.readouterr().out)["pods"]}
        assert rows["a"]["state"] == "paused"
        assert "its run is paused since" in rows["a"]["why"]
        assert "by ann: the disk is full" in rows["a"]["why"]
        assert asked(api, "resume", "r") == 0
        api.until(lambda: not api.gated())
    assert PAUSED not in notes(api, "a")
    assert notes(api, "a")[RESUMED]
    assert all(PAUSED not in notes(api, name) for name in api.all("pods"))


def test_a_release_by_time_begins_anew_when_a_pause_is_taken_back(api: EmulatedApi) -> None:
    """Else all that was paused would be opened at once, in no order."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("holds", gpus=1, gate=False, spec={"nodeName": "n1"}))
    api.add("pods", pod("waits", gpus=1, creationTimestamp=OLD, run="w"))
    assert asked(api, "pause", "w") == 0
    assert asked(api, "resume", "w") == 0
    assert asked(api, "open-overdue") == 0
    assert api.gated() == {"waits"}
    with controlled(api):
        api.end("holds")
        api.until(lambda: not api.gated())


def test_a_stage_or_a_pod_is_paused_alone(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Others of its run go on, also those that come later; a resumed run takes both back."""
    api.add("nodes", node("n1"))
    fit = {"stage": "fit"}
    api.add("pods", pod("fit-1", hints=fit))
    for name in ("one", "free"):
        api.add("pods", pod(name))
    assert asked(api, "pause", "r", "--stage", "fit") == 0
    assert asked(api, "pause", "one") == 0
    with controlled(api):
        api.until(lambda: "free" in api.opened())
        api.add("pods", pod("fit-2", hints=fit))
        api.add("pods", pod("more"))
        api.until(lambda: "more" in api.opened())
        assert api.gated() == {"fit-1", "fit-2", "one"}
        assert asked(api, "resume", "fit-1") == 2
        assert "it is paused with its stage" in capsys.readouterr().err
        assert asked(api, "resume", "r", "--stage", "fit") == 0
        api.until(lambda: api.gated() == {"one"})
        assert asked(api, "resume", "one") == 0
        api.until(lambda: not api.gated())


def test_a_paused_gang_starts_whole_or_not_at_all(api: EmulatedApi) -> None:
    """One member is paused: none starts, and its room is another's meanwhile."""
    api.add("nodes", node("n1", gpus=2))
    api.add("pods", pod("holds", gpus=2, gate=False, spec={"nodeName": "n1"}))
    with controlled(api):
        for name in ("a", "b"):
            api.add("pods", pod(name, gpus=1, gang="g", size=2))
        api.add("pods", pod("after", gpus=2, run="other"))
        assert asked(api, "pause", "a") == 0
        api.end("holds")
        api.until(lambda: api.opened() == ["after"])
        assert api.gated() == {"a", "b"}
        api.bind("after", "n1")
        assert asked(api, "resume", "a") == 0
        api.end("after")
        api.until(lambda: not api.gated())


def test_a_grant_that_was_not_followed_goes_to_another() -> None:
    """A pod is paused between its grant and its turn: the engine has its room for others, and it for itself later."""
    session = ClusterSession()
    try:
        from egs_core.kubernetes.pods import node_of

        nodes = [node_of(node("n1", gpus=1))]
        pods: dict[str, Pod] = {
            name: pod_of(pod(name, uid=name, gpus=1, rank=rank, predicted=1)) for name, rank in (("a", 9), ("b", 1))
        }
        session.tell(pods, nodes)
        assert session.granted() == ["a"]
        paused = with_pauses(pods | {"a": pod_of(pod("a", uid="a", gpus=1, notes={PAUSED: "pod x"}))})
        session.tell(paused, nodes)
        assert session.granted() == ["b"]
        over = paused | {"b": pod_of(pod("b", uid="b", gpus=1, gate=False, status={"phase": "Succeeded"}))}
        session.tell(over, nodes)
        assert session.granted() == []
        session.tell(pods | {"b": over["b"]}, nodes)
        assert session.granted() == ["a"]
    finally:
        session.close()


def test_a_run_of_argo_makes_no_more_pods(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Its Workflow is suspended and goes on again; another one is not touched."""
    for name in ("r", "s"):
        api.add("workflows", workflow(name, {"a": task(5)}))
        api.add("pods", executor(name, "a"))
    assert asked(api, "pause", "r", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {"namespace": "team", "workflow": "r", "held": ["r-a"], "runs": [], "queued": []}
    assert api.all("workflows")["r"]["spec"]["suspend"] is True
    assert notes(api, "r", "workflows")[PAUSED].endswith("by ann")
    assert "suspend" not in api.all("workflows")["s"]["spec"]
    assert PAUSED not in notes(api, "s-a")
    assert asked(api, "resume", "r") == 0
    assert "team/r: its Workflow makes pods again" in capsys.readouterr().out
    assert "suspend" not in api.all("workflows")["r"]["spec"]
    assert PAUSED not in notes(api, "r", "workflows")
    assert PAUSED not in notes(api, "r-a")


def test_a_pause_is_taken_back_of_pods_that_have_ended_too(api: EmulatedApi) -> None:
    """One that ended meanwhile would else hold back what its run makes later."""
    api.add("pods", pod("ended", gate=False, spec={"nodeName": "n1"}))
    api.add("pods", pod("waits"))
    assert asked(api, "pause", "r") == 0
    api.end("ended")
    assert asked(api, "resume", "r") == 0
    assert PAUSED not in notes(api, "ended")
    assert not any(one.is_paused for one in with_pauses({n: pod_of(p) for n, p in api.all("pods").items()}).values())


@pytest.mark.parametrize("verb", ["abort", "pause", "resume"])
def test_a_dry_run_changes_nothing(api: EmulatedApi, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """And says what would be done; the API server is asked whether it may be."""
    api.add("workflows", workflow("r", {"a": task(5)}))
    api.add("pods", executor("r", "a"))
    before = api.all("pods"), api.all("workflows")
    assert asked(api, verb, "r", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "team/r-a: " in said
    assert "would be deleted" in said or "(tried only)" in said
    assert (api.all("pods"), api.all("workflows")) == before
    assert api.all("events") == {}


def test_an_abort_leaves_an_event_that_says_who_asked(api: EmulatedApi) -> None:
    """Of a stage its pods alone; the event outlives the pod, and names it by its uid."""
    made = api.add("pods", pod("fit", hints={"stage": "fit"}))
    api.add("pods", pod("other"))
    assert asked(api, "abort", "r", "--stage", "fit", "--reason", "wrong data") == 0
    assert set(api.all("pods")) == {"other"}
    (event,) = api.all("events").values()
    assert (event["reason"], event["message"]) == ("Aborted", "by ann: wrong data")
    assert event["involvedObject"]["uid"] == made["metadata"]["uid"]


def test_what_may_not_be_paused_is_one_line(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, nothing is changed; what is not there too."""
    api.add("pods", pod("a"))
    assert asked(api, "pause", "none") == 2
    assert asked(api, "pause", "r", "--stage", "none") == 2
    assert "no stage none of EGS's goes on there" in capsys.readouterr().err

    def refuses(*_: Any, **__: Any) -> None:
        raise ApiError(403, "pods is forbidden")

    monkeypatch.setattr(Cluster, "patch", refuses)
    assert asked(api, "pause", "a") == 2
    assert "egs kubernetes pause: 403: pods is forbidden" in capsys.readouterr().err
    assert not api.patches


def test_leaving_ends_pauses_too(api: EmulatedApi) -> None:
    """Everything goes on running."""
    api.add("pods", pod("a"))
    assert asked(api, "pause", "a") == 0
    assert asked(api, "leave") == 0
    assert not api.gated()
