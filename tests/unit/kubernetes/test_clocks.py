"""Moments are the API server's, whatever this machine's clock says: on an emulated one whose clock is another."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import gates, names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.clock import ServerClock
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.objects import moment, seconds_of
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.webhook import Webhook
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

HOUR_S, SKEWED_S, NEAR_S = 3600.0, 900.0, 15.0
NOW = 1_800_000_000.0


@pytest.fixture(params=[SKEWED_S, -SKEWED_S], ids=["ahead", "behind"])
def api(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmulatedApi]:
    """A full cluster, a quarter of an hour away from this machine's time."""
    found = EmulatedApi(tmp_path)
    found.ahead_s = request.param
    found.add("nodes", node("n1", gpus=1))
    found.add("pods", pod("holds", gpus=1, gate=False, spec={"nodeName": "n1"}))
    yield found
    found.close()


def waits(api: EmulatedApi, name: str, in_s: float, **stated: object) -> None:
    """A pod without room, to be opened so many seconds from now on by the API server's clock."""
    api.add("pods", pod(name, gpus=1, notes={names.RELEASE_BY: moment(api.now() + in_s)}, **stated))


def opened_at(api: EmulatedApi, name: str) -> float:
    return pod_of(api.all("pods")[name]).opened_at


def test_a_gate_is_opened_at_its_moment_whatever_the_controllers_clock_says(api: EmulatedApi) -> None:
    """Neither minutes late by a clock that is behind, nor minutes early, out of its turn, by one that is ahead; also
    of a pod that states none, by its age. What is written says when it was so."""
    waits(api, "soon", 3.0)
    waits(api, "later", SKEWED_S / 2)
    made = {"creationTimestamp": moment(api.now() - HOUR_S + 3.0)}
    api.add("pods", pod("old", gpus=1, **made))
    api.add("pods", pod("new", gpus=1))
    due = seconds_of(api.all("pods")["soon"]["metadata"]["annotations"][names.RELEASE_BY])
    with controlled(api):
        api.until(lambda: not {"soon", "old"} & api.gated())
        assert api.now() < due + NEAR_S
        for name in ("soon", "old"):
            assert -1.0 <= opened_at(api, name) - due < NEAR_S
            assert pod_of(api.all("pods")[name]).opened_for == gates.OVERDUE
        assert api.gated() == {"later", "new"}


def test_the_second_process_goes_by_the_same_clock(api: EmulatedApi) -> None:
    """`egs kubernetes open-overdue` on a machine whose time is another."""
    waits(api, "late", -2.0)
    waits(api, "later", SKEWED_S / 2)
    api.add("pods", pod("new", gpus=1))
    assert run(["kubernetes", "open-overdue", "--kubeconfig", str(api.kubeconfig), "--release-by", "1h"]) == 0
    assert api.gated() == {"later", "new"}


def test_the_webhook_stamps_and_a_pause_is_taken_back_by_the_same_clock(api: EmulatedApi) -> None:
    """Each is a moment that other processes compare with."""
    cluster = Cluster(api.kubeconfig)
    with pytest.raises(ApiError):
        cluster.get(PODS, "none", "team")  # a refusal says what time it is, too
    hook = Webhook(cluster, Rules(HOUR_S), ["127.0.0.1"], lambda: True, lambda _: None, ("127.0.0.1", 0))
    hook.start()
    try:
        request = {"uid": "u", "operation": "CREATE", "object": pod("p", gate=False)}
        stamped = seconds_of(_stamp(hook, request))
    finally:
        hook.stop()
    assert abs(stamped - api.now() - HOUR_S) < NEAR_S
    waits(api, "w", HOUR_S, run="w")
    where = ["--kubeconfig", str(api.kubeconfig), "--namespace", "team"]
    assert run(["kubernetes", "pause", "w", *where]) == 0
    assert run(["kubernetes", "resume", "w", *where]) == 0
    assert abs(pod_of(api.all("pods")["w"]).resumed_at - api.now()) < NEAR_S


def _stamp(hook: Webhook, request: Mapping[str, object]) -> str:
    patch = json.loads(base64.b64decode(hook.answer({"request": request})["response"]["patch"]))
    return str(next(one["value"][names.RELEASE_BY] for one in patch if isinstance(one["value"], dict)))


def test_a_moment_to_come_of_what_has_happened_is_no_moment() -> None:
    """Who has taken a pause back, or opened a gate, by a clock that is ahead: no gate waits for that."""
    made = NOW - HOUR_S
    resumed = Pod("u", "p", "team", "r", is_gated=True, created=made, resumed_at=NOW + 1e7)
    assert [one.why for one in gates.overdue([resumed], NOW, HOUR_S)] == [gates.OVERDUE]
    just_now = Pod("u", "p", "team", "r", is_gated=True, created=made, resumed_at=NOW + 1.0)
    assert gates.overdue([just_now], NOW, HOUR_S) == []
    opened = Pod("o", "o", "team", "r", opened_for=gates.ORDER, opened_at=NOW + 600.0)
    waiting = Pod("w", "w", "team", "r", is_gated=True)
    found = gates.releases(["w"], [], {"o": opened, "w": waiting}, NOW, window=1)
    assert [one.pod.uid for one in found] == ["w"]


def test_clocks_that_agree_stay_as_they_are() -> None:
    """However long an answer was under way, and whatever part of a second its date leaves out; of one that is wrong
    the time is known to a second and what the quickest answer took."""
    local = [NOW]
    clock = ServerClock(lambda: local[0])
    for took_s, at in ((0.01, 0.0), (15.0, 14.9), (15.0, 0.1), (0.7, 0.6), (0.0, 0.0)):
        asked = local[0]
        local[0] += took_s
        clock.heard(formatdate(int(asked + at), usegmt=True), asked)
        assert clock.now() == local[0]
    clock.heard("tomorrow", local[0])
    clock.heard("None", local[0])
    assert clock.now() == local[0]
    for took_s in (9.0, 0.2, 9.0):
        asked = local[0]
        local[0] += took_s
        clock.heard(formatdate(int(asked + took_s / 2 - 600.0), usegmt=True), asked)
    assert -600.0 - 1.2 <= clock.now() - local[0] <= -600.0 + 1.2


def test_a_pod_that_kueue_has_queued_after_it_was_gated_is_opened(tmp_path: Path) -> None:
    """Kueue's webhook puts a pod without a queue into the namespace's default one, and comes after ours: its quota
    would be held by a pod behind our gate, until that is overdue. Kueue's own gate is Kueue's."""
    api = EmulatedApi(tmp_path)
    api.add("nodes", node("n1"))
    both = [{"name": names.GATE}, {"name": "kueue.x-k8s.io/admission"}]
    api.add("pods", pod("queued", labels={names.QUEUE: "default"}, spec={"schedulingGates": both}))
    with controlled(api):
        api.until(lambda: not api.gated())
    found = pod_of(api.all("pods")["queued"])
    assert (found.opened_for, found.has_other_gates) == (gates.QUEUED, True)
    api.close()
