"""Limits of tasks, stages and runs as deadlines of their pods: what is stated, what is left, what is written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.limits import KEPT_S, Deadline, Limiting, Rules, by_run
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod, pod_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_controller import OLD

NOW = 1_800_000_000.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def limits(**stated: object) -> dict[str, str]:
    """Annotations: of the run, and with stage_ before them of the stage."""
    run = {name: value for name, value in stated.items() if not name.startswith("stage_")}
    stage = {name.removeprefix("stage_"): value for name, value in stated.items() if name.startswith("stage_")}
    return {f"egs.io/{what}-limits": json.dumps(one) for what, one in (("run", run), ("stage", stage)) if one}


def ran(name: str, since_s: float | None = None, till_s: float | None = None, **stated: Any) -> Pod:
    """A pod that started so long ago, and has failed if it ended; one that has not begun where it did not start."""
    if since_s is None:
        return pod_of(pod(name, uid=name, **stated))
    state = {} if till_s is None else {"terminated": {"finishedAt": moment(NOW - till_s)}}
    status: dict[str, Any] = {"phase": "Running" if till_s is None else "Failed", "startTime": moment(NOW - since_s)}
    status |= {"containerStatuses": [{"name": "main", "state": state}]}
    spec = {"nodeName": "n1"} | stated.pop("spec", {})
    return pod_of(pod(name, uid=name, gate=False, spec=spec, status=status, **stated))


def asked(*pods: Pod, of: Pod, rules: Rules | None = None) -> Deadline | None:
    limiting = Limiting() if rules is None else Limiting(rules)
    limiting.look(*by_run([*pods, of]), NOW)
    return limiting.deadline(of, NOW)


# --- what is stated ---


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        (limits(max_runtime="2h", max_gpu_time=60), ""),
        ({"egs.io/run-limits": "2h"}, 'egs.io/run-limits: is no object of JSON: for example {"max_runtime": "2h"}'),
        ({"egs.io/run-limits": "[" * 100_000}, "egs.io/run-limits: is no object of JSON"),
        (limits(max_runtime="soon"), "egs.io/run-limits: max_runtime: 'soon' is not"),
        (limits(stage_max_runtime=0), "egs.io/stage-limits: max_runtime: must be more than 0 seconds"),
        (limits(max_cost=5), "egs.io/run-limits: max_cost is no limit that is kept in a cluster"),
        ({"egs.io/hints": json.dumps({"max_runtime_s": "x"})}, "egs.io/hints: max_runtime: 'x' is not"),
    ],
)
def test_what_is_stated_is_read_or_said(notes: dict[str, str], says: str) -> None:
    """In the words of hints and queue files. What cannot be read counts as not stated, and never raises."""
    found = pod_of(pod("p", notes=notes)).limits
    assert (found.fault.startswith(says)) if says else not found.fault
    if not says:
        assert (found.run.max_runtime_s, found.run.max_gpu_s) == (7200.0, 60.0)
    else:
        assert found.own.is_none
        assert found.run.is_none
        assert found.stage.is_none


# --- what is left ---


def test_a_task_has_so_long_in_each_attempt() -> None:
    """From the pod's start, whenever that will be; what failed before takes nothing of it."""
    hints = {"max_runtime_s": 60.5}
    failed = ran("a", 500, 400, hints=hints)
    for one in (ran("b", hints=hints), ran("b", 30, hints=hints)):
        assert asked(failed, of=one) == Deadline(61, "max_runtime of its task")


def test_gpu_time_of_a_task_is_that_of_all_its_attempts() -> None:
    """Of the same node of Argo, or the same index of a Job; GPUs count each. One that has none is not limited."""
    hints = {"max_gpu_s": 100.0}

    def attempt(name: str, index: int, *times: float, **stated: Any) -> Pod:
        notes = {"batch.kubernetes.io/job-completion-index": str(index)}
        return ran(name, *times, hints=hints, notes=notes, labels={"egs.io/task": "train"}, **stated)

    first = attempt("a", 0, 50, 30, gpus=2)  # 40 s of GPU time
    other = attempt("x", 1, 50, 30, gpus=2)
    assert asked(first, other, of=attempt("b", 0, gpus=2)) == Deadline(30, "max_gpu_time of its task, in all attempts")
    second = attempt("b", 0, 45, 5, gpus=2)
    assert asked(first, other, second, of=attempt("c", 0, gpus=2)) == Deadline(
        1, "max_gpu_time of its task, in all attempts"
    )
    assert asked(first, of=attempt("b", 0)) is None

    def argo(name: str, tries: int, *times: float) -> Pod:
        notes = {"workflows.argoproj.io/node-name": f"wf.root.loop(3:x).train.executor({tries})"}
        return ran(name, *times, hints=hints, notes=notes, labels={"egs.io/task": "train"}, gpus=1)

    assert asked(argo("a", 0, 90, 50), of=argo("b", 1)) == Deadline(60, "max_gpu_time of its task, in all attempts")


def test_a_run_ends_so_long_after_its_first_pod_began() -> None:
    """All its pods at one moment, those too that say nothing of it; the same of a stage. The earliest counts."""
    first = ran("a", 100, 90, notes=limits(max_runtime=300))
    assert asked(first, of=ran("b", 40)) == Deadline(240, "max_runtime of its run")
    assert asked(first, of=ran("c")) == Deadline(200, "max_runtime of its run")
    assert asked(first, of=ran("d", run="another")) is None
    prepared = ran("e", 50, notes=limits(stage_max_runtime=120, max_runtime=300), hints={"stage": "fit"})
    assert asked(first, prepared, of=ran("f", hints={"stage": "fit"})) == Deadline(70, "max_runtime of its stage")
    assert asked(first, prepared, of=ran("g", hints={"stage": "eval"})) == Deadline(200, "max_runtime of its run")
    late = ran("h", notes=limits(max_runtime=50))
    assert asked(first, late, of=ran("i")) == Deadline(1, "max_runtime of its run")


def test_gpu_time_of_a_run_ends_all_that_runs_when_it_is_used_up() -> None:
    """Not before, though each has what is left as its bound; pods without a GPU end with the others."""
    notes = limits(max_gpu_time=100)
    limiting, a, b = Limiting(), ran("a", 40, gpus=1, notes=notes), ran("b", 20, gpus=2)
    limiting.look(*by_run([a, b, c := ran("c", 10)]), NOW)
    assert limiting.deadline(a, NOW) == Deadline(60, "max_gpu_time of its run")
    assert limiting.deadline(b, NOW) == Deadline(30, "max_gpu_time of its run")
    assert limiting.deadline(c, NOW) is None
    bounded = [ran("a", 40, gpus=1, notes=notes, spec={"activeDeadlineSeconds": 60}),
               ran("b", 20, gpus=2, spec={"activeDeadlineSeconds": 30})]  # fmt: skip
    limiting.look(*by_run([*bounded, c]), NOW + 1)
    assert list(limiting.due(NOW + 1)) == []  # a bound that is hardly earlier is not written again
    limiting.look(*by_run([*bounded, c]), NOW + 7)
    assert {pod.name: one.seconds for pod, one in limiting.due(NOW + 7)} == {"a": 47, "b": 27, "c": 17}


def test_what_is_gone_counts() -> None:
    """A pod that is no longer listed keeps what it has used, while its run goes on and an hour longer."""
    limiting, notes = Limiting(), limits(max_gpu_time=100)
    limiting.look(*by_run([ran("a", 60, gpus=1, notes=notes)]), NOW)
    limiting.look(*by_run([]), NOW + 10)
    after = ran("b", gpus=1, notes=notes)
    for later_s in (20.0, KEPT_S - 1):
        limiting.look(*by_run([after]), NOW + later_s)
        assert limiting.deadline(after, NOW + later_s) == Deadline(30, "max_gpu_time of its run")
    limiting.look(*by_run([]), NOW + 2 * KEPT_S)
    limiting.look(*by_run([after]), NOW + 2 * KEPT_S)
    assert limiting.deadline(after, NOW + 2 * KEPT_S) == Deadline(100, "max_gpu_time of its run")


def test_a_sites_limit_is_for_what_states_none() -> None:
    """With a GPU or without; a hint or a deadline of its author goes before it, though it be longer."""
    rules = Rules(cpu_s=60, gpu_s=600)
    assert asked(of=ran("a"), rules=rules) == Deadline(60, "the site's limit of time")
    assert asked(of=ran("a", gpus=1), rules=rules) == Deadline(600, "the site's limit of time")
    assert asked(of=ran("a", hints={"max_runtime_s": 90}), rules=rules) == Deadline(90, "max_runtime of its task")
    assert asked(of=ran("a", spec={"activeDeadlineSeconds": 900}), rules=rules) is None


# --- what is written ---


def notes_of(api: EmulatedApi, name: str) -> dict[str, str]:
    return dict(api.all("pods")[name]["metadata"].get("annotations") or {})


def deadline_of(api: EmulatedApi, name: str) -> Any:
    return api.all("pods")[name]["spec"].get("activeDeadlineSeconds")


def test_a_pod_gets_its_deadline_with_its_turn(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """In the one request that opens its gate; an earlier one of its author stays. `why` says which limit it is, and an
    ended pod that it was that."""
    api.add("nodes", node("n1"))
    api.add("pods", pod("a", hints={"max_runtime_s": 60}))
    api.add("pods", pod("b", hints={"max_runtime_s": 60}, spec={"activeDeadlineSeconds": 50}))
    with controlled(api):
        api.until(lambda: not api.gated())
    assert (deadline_of(api, "a"), deadline_of(api, "b")) == (60, 50)
    assert len(api.patches) == 2
    assert notes_of(api, "a")["egs.io/limit"].endswith(" at most 60 s: max_runtime of its task")
    assert "egs.io/limit" not in notes_of(api, "b")
    api.change("pods", "a", lambda one: one.update(status={"phase": "Failed", "reason": "DeadlineExceeded"}))
    assert run(["kubernetes", "why", "a", "-n", "team", "--kubeconfig", str(api.kubeconfig)]) == 0
    said = capsys.readouterr().out
    assert "it has ended: Failed, DeadlineExceeded" in said
    assert ": at most 60 s: max_runtime of its task" in said


def test_what_runs_past_the_limit_of_its_run_is_ended(api: EmulatedApi) -> None:
    """Its deadline is written once, though each step finds it; what waits of the run comes to its turn for a second. A
    pod of another run goes on."""
    api.add("nodes", node("n1", gpus=1))
    began = {"phase": "Running", "startTime": moment(time.time() - 100)}
    runs: dict[str, Any] = {"gate": False, "status": began, "spec": {"nodeName": "n1"}}
    api.add("pods", pod("over", gpus=1, notes=limits(max_gpu_time="30s"), **runs))
    api.add("pods", pod("another", run="another", **runs))
    api.add("pods", pod("next", gpus=1))
    with controlled(api):
        api.until(lambda: deadline_of(api, "over"))
        assert 100 <= deadline_of(api, "over") <= 100 + LIMIT_S
        api.end("over", "Failed")
        api.until(lambda: not api.gated())
    assert api.opened() == ["next"]
    assert deadline_of(api, "next") == 1
    assert deadline_of(api, "another") is None
    written = [name for name, body in api.patches if "activeDeadlineSeconds" in body.get("spec", {})]
    assert written == ["over", "next"]


def test_the_second_process_keeps_limits_too(api: EmulatedApi) -> None:
    """It opens what is overdue with the deadline that the pod states."""
    api.add("pods", pod("late", hints={"max_runtime_s": 60}, creationTimestamp=OLD))
    assert run(["kubernetes", "open-overdue", "--kubeconfig", str(api.kubeconfig)]) == 0
    assert not api.gated()
    assert deadline_of(api, "late") == 60


def test_a_deadline_that_may_not_be_written_keeps_no_gate_closed(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of an earlier version refuses it: one line, and pods are opened without."""
    patch = Cluster.patch

    def refuses(cluster: Cluster, kind: Kind, name: str, body: Any, *more: Any, **stated: Any) -> Any:
        if "activeDeadlineSeconds" in body.get("spec", {}):
            raise ApiError(403, "more than a gate of the pod is changed")
        return patch(cluster, kind, name, body, *more, **stated)

    monkeypatch.setattr(Cluster, "patch", refuses)
    api.add("nodes", node("n1"))
    for name in ("first", "second"):
        api.add("pods", pod(name, hints={"max_runtime_s": 60}))
    said: list[str] = []
    with controlled(api, says="limits are not kept", said=said):
        api.until(lambda: not api.gated())
    assert said


def test_a_limit_that_cannot_be_read_is_said(api: EmulatedApi) -> None:
    """One line names pod, annotation and what is wrong; the pod is ordered all the same."""
    api.add("nodes", node("n1"))
    api.add("pods", pod("a", notes=limits(max_runtime="soon")))
    said: list[str] = []
    with controlled(api, says="limits: team/a: egs.io/run-limits: max_runtime: 'soon' is not", said=said):
        api.until(lambda: not api.gated())
    assert len(said) == 1


def test_a_site_says_how_long(api: EmulatedApi) -> None:
    """Settings of the controller, as a profile's `time_limits` give them, reach pods that state nothing."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("a"))
    api.add("pods", pod("b", gpus=1))
    with controlled(api, limits=Rules(60, 600)):
        api.until(lambda: not api.gated())
    assert (deadline_of(api, "a"), deadline_of(api, "b")) == (60, 600)
