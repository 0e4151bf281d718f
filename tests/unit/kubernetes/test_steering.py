"""What a user sees of the pods that EGS orders, why they wait, and how they are ended; on an emulated API server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.cli.kubernetes_pods import OLD_S
from egs_core.engine.messages import Reason
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.telling import AFRESH_S, AFTER_S, AGAIN_S, EVERY_S, MOST, Teller, texts
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, task, workflow
from tests.unit.kubernetes.test_controller import OLD

WAITS = "egs.io/waits"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedApi]:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's own processes have: rows would be folded
    found = EmulatedApi(tmp_path)
    config = yaml.safe_load(found.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    found.kubeconfig.write_text(yaml.safe_dump(config))
    yield found
    found.close()


def asked(api: EmulatedApi, *words: str) -> int:
    return run(["kubernetes", *words, "--kubeconfig", str(api.kubeconfig)])


def note(api: EmulatedApi, name: str) -> str:
    return str((api.all("pods")[name]["metadata"].get("annotations") or {}).get(WAITS, ""))


# --- what is told ---


def test_a_pod_that_waits_is_told_why(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """The controller writes place, reason and what is left of the run into it, and names nobody; `why` shows it. When
    its gate is opened that goes away."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("runs", gpus=1, gate=False, spec={"nodeName": "n1"}))
    for name, rank in (("next", 90), ("later", 40)):
        api.add("pods", pod(name, gpus=1, rank=rank, predicted=5, creationTimestamp=OLD))
    api.add("pods", pod("member", gang="g", size=3, creationTimestamp=OLD))
    with controlled(api, longest_s=1e12):
        api.until(lambda: note(api, "next") and note(api, "later") and note(api, "member"))
        texts = {name: note(api, name).partition(" ")[2] for name in ("next", "later", "member")}
        assert texts == {
            "next": "place 1 of 2: no node has room for it now; its run takes 90 s from its start on",
            "later": "place 2 of 2: no node has room for it now; its run takes 40 s from its start on",
            "member": "1 of 3 members of its gang are there",
        }
        assert asked(api, "why", "later") == 0
        assert texts["later"] in capsys.readouterr().out
        api.end("runs")
        api.until(lambda: "next" not in api.gated())
    assert note(api, "next") == ""
    assert asked(api, "why", "next") == 0
    assert "opened at" in (said := capsys.readouterr().out)
    assert "it was its turn" in said


def test_what_a_pod_says_of_itself_does_nothing_to_a_terminal(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may annotate a pod, or the scheduler, wrote it: one line, without markup and what a terminal obeys."""
    rude = "[/red] :boom: \x1b[2J\x1b]0;title\x07 two\nlines\x9b1m\u202e"
    shown = "[/red] :boom: \ufffd[2J\ufffd]0;title\ufffd two lines\ufffd1m\ufffd"
    api.add("pods", pod("waits", notes={WAITS: f"2026-01-01T00:00:00Z {rude}"}))
    opened = pod("opened", gate=False, notes={"egs.io/opened": f"2026-01-01T00:00:00Z {rude}"})
    opened["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": rude}]}
    api.add("pods", opened)
    for words, lines in ((("ps",), 3), (("why", "waits"), 3), (("why", "opened"), 3)):
        assert asked(api, *words) == 0
        said = capsys.readouterr().out
        assert shown in said
        assert said.count("\n") == len(said.splitlines()) == lines
        assert all(one.isprintable() for one in said.splitlines())


def test_a_word_that_may_not_be_written_keeps_no_gate_closed(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of an earlier version refuses it: one line, and pods are ordered as before."""
    patch = Cluster.patch

    def refuses(cluster: Cluster, kind: Kind, name: str, body: Any, *more: Any, **stated: Any) -> Any:
        if "spec" not in body:
            raise ApiError(403, "annotations of the pod are changed")
        return patch(cluster, kind, name, body, *more, **stated)

    monkeypatch.setattr(Cluster, "patch", refuses)
    api.add("nodes", node("n1", gpus=1))
    for name in ("first", "second"):
        api.add("pods", pod(name, gpus=1, creationTimestamp=OLD))
    said: list[str] = []
    with controlled(api, longest_s=1e12, says="why: team/", said=said):
        api.until(lambda: said)
        api.until(lambda: len(api.opened()) == 1)
        api.end(api.opened()[0])
        api.until(lambda: not api.gated())
    assert len(said) == 1


def test_a_few_are_looked_at_at_a_time() -> None:
    """None that waits only just, none twice in a minute, each in its turn; so many each few seconds at most."""
    pods = {f"p{n}": pod_of(pod(f"p{n}", uid=f"p{n}", creationTimestamp="2026-01-01T00:00:00Z")) for n in range(60)}
    new = pod_of(pod("new", uid="new", creationTimestamp="2026-01-01T01:00:00Z"))
    start = new.created
    found, seen = Teller(), dict[str, list[float]]()
    for tenth in range(int(10 * 3 * AGAIN_S)):
        now = start + tenth / 10
        due = found.due([*pods.values(), new], now)
        assert len(due) <= MOST
        for one in due:
            seen.setdefault(one.uid, []).append(now - start)
    assert seen.keys() == {*pods, "new"}
    assert seen["new"][0] >= AFTER_S
    for moments in seen.values():
        assert len(moments) in (2, 3)
        assert all(b - a >= AGAIN_S for a, b in itertools.pairwise(moments))
    calls = sorted(moment for moments in seen.values() for moment in moments)
    assert all(sum(at <= one < at + EVERY_S for one in calls) <= MOST for at in calls)


def test_the_same_is_not_written_again() -> None:
    """A text that is there already costs nothing for two minutes, and is then said anew; no reason and no name of
    another task is in it."""
    reason = Reason("p", "ready", "capacity", "needs 1 GPU: secret-node has 0; 1 ahead of it, first secret-uid")
    one = pod_of(pod("p", uid="p", rank=9))
    found = texts([one], ["x", "p"], {}, lambda _: reason, 0.0)
    assert found == {"p": "place 2 of 2: no node has room for it now; its run takes 9 s from its start on"}
    told = pod_of(pod("p", uid="p", rank=9, notes={WAITS: f"2026-01-01T00:00:00Z {found['p']}"}))
    assert told.waits_at > 0
    assert texts([told], ["x", "p"], {}, lambda _: reason, told.waits_at + AFRESH_S - 1) == {}
    assert texts([told], ["x", "p"], {}, lambda _: reason, told.waits_at + AFRESH_S) == found
    assert texts([one], ["x"], {}, lambda _: reason, 0.0) == {}


def test_a_reason_that_holds_is_never_shown_as_old() -> None:
    """Of as many pods as are looked at once a minute: what is written of each is never so old that `egs kubernetes ps`
    says its age, as long as the controller goes on."""
    made, reason = "2026-01-01T00:00:00Z", Reason("p", "ready", "capacity", "")
    pods = {uid: pod_of(pod(uid, uid=uid, creationTimestamp=made)) for uid in (f"p{n}" for n in range(270))}
    order, teller, oldest_s, writes = list(pods), Teller(), 0.0, 0
    start = pods["p0"].created
    for turn in range(1200):
        now = start + 1.1 * turn
        due = [pods[one.uid] for one in teller.due(pods.values(), now)]
        for uid, text in texts(due, order, {}, lambda _: reason, now).items():
            notes = {WAITS: f"{moment(now)} {text}"}
            pods[uid] = pod_of(pod(uid, uid=uid, creationTimestamp=made, notes=notes))
            writes += 1
        oldest_s = max([oldest_s, *(now - one.waits_at for one in pods.values() if one.waits)])
    assert AGAIN_S < oldest_s < OLD_S
    assert writes <= len(pods) * 1.1 * 1200 / AFRESH_S


# --- what is seen ---


def test_ps_lists_what_egs_orders(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """In one namespace or all of them: what runs, what is opened, what is queued, what waits, in their order."""
    kueue = {"kueue.x-k8s.io/queue-name": "lq"}
    shown: dict[str, dict[str, Any]] = {
        "waits-2": {"notes": {WAITS: "2026-01-01T00:00:00Z place 2 of 2: no room"}},
        "waits-1": {"notes": {WAITS: "2026-01-01T00:00:00Z place 1 of 2: no room"}},
        "held": {"spec": {"schedulingGates": [{"name": "theirs.io/gate"}]}},
        "queued": {"labels": kueue, "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}},
        "opened": {"gate": False},
        "runs": {"gate": False, "spec": {"nodeName": "n1"}},
        "over": {"gate": False, "spec": {"nodeName": "n1"}},
        "elsewhere": {"namespace": "other"},
    }
    for name, stated in shown.items():
        api.add("pods", pod(name, **stated))
    api.end("over")
    stranger = pod("stranger")
    del stranger["metadata"]["labels"]
    api.add("pods", stranger)
    assert asked(api, "ps", "--json") == 0
    found = json.loads(capsys.readouterr().out)["pods"]
    assert [one["pod"] for one in found] == ["runs", "opened", "queued", "waits-1", "waits-2", "held"]
    assert [one["state"] for one in found] == ["runs", "opened", "queued", "waits", "waits", "held"]
    assert "theirs.io/gate" in found[-1]["why"]
    assert asked(api, "ps", "-A") == 0
    said = capsys.readouterr().out
    assert "elsewhere" in said
    assert "place 1 of 2: no room" in said
    api.add("namespaces", {"metadata": {"name": "nobody"}})
    assert asked(api, "ps", "-n", "nobody") == 0
    said = "no pod with the label egs.io/workload runs or waits in nobody; -A lists those of all namespaces\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("name", "says"), [("none", "team/none: no such pod"), ("stranger", "EGS does not order it")])
def test_a_pod_that_is_none_of_ours_is_one_line(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    """Exit code 2, and what to do."""
    stranger = pod("stranger")
    del stranger["metadata"]["labels"]
    api.add("pods", stranger)
    assert asked(api, "why", name) == 2
    assert says in capsys.readouterr().err


# --- what is ended ---


def test_a_run_of_argo_is_told_to_end_and_its_pods_go(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """First the Workflow, or Argo would try them again; then its pods, drivers too. Another run goes on."""
    for name in ("r", "s"):
        api.add("workflows", workflow(name, {"a": task(5)}))
        api.add("pods", executor(name, "a"))
        driver = executor(name, "a", name=f"{name}-driver", gate=False)
        driver["metadata"]["labels"] = {"workflows.argoproj.io/workflow": name}
        api.add("pods", driver)
    assert asked(api, "abort", "r") == 0
    assert api.all("workflows")["r"]["spec"]["shutdown"] == "Terminate"
    assert "shutdown" not in api.all("workflows")["s"]["spec"]
    assert api.deleted == ["pods/r-a", "pods/r-driver"]
    assert "team/r: its Workflow ends" in capsys.readouterr().out


def test_another_run_is_its_pods_and_who_makes_them_is_named(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods of a Job: they are deleted, and it is said that the Job goes on. What has ended stays. Of a JobSet's pods,
    by its name, the JobSet is named and not its Jobs."""
    for name in ("a", "b", "over"):
        made = pod(name, run="nightly")
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "1"}]
        api.add("pods", made)
    api.end("over")
    api.add("pods", pod("c", run="another"))
    assert asked(api, "abort", "nightly", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {"namespace": "team", "workflow": "", "pods": ["a", "b"], "makers": ["Job j"]}
    assert set(api.all("pods")) == {"over", "c"}
    made = pod("d", labels={"jobset.sigs.k8s.io/jobset-name": "train"})
    del made["metadata"]["labels"]["egs.io/run"]
    made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train-worker-0", "uid": "2"}]
    api.add("pods", made)
    assert asked(api, "abort", "train", "--json") == 0
    assert json.loads(capsys.readouterr().out)["makers"] == ["JobSet train"]


def test_what_makes_the_jobs_of_a_jobset_again_is_named(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """As JobSet's controller makes them, of two Jobs, for a TrainJob; not what makes another one at its time. Who may
    read no JobSets is told of that."""
    for kind, name, above in (
        ("TrainJob", "train", ("trainer.kubeflow.org/v1alpha1", "CronTrainJob", "weekly")),
        ("JobSet", "train", ("trainer.kubeflow.org/v1alpha1", "TrainJob", "train")),
        *(("Job", f"train-{one}-0", ("jobset.x-k8s.io/v1alpha2", "JobSet", "train")) for one in "ab"),
    ):
        api.add(f"{kind.lower()}s", owned({"metadata": {"name": name, "namespace": "team"}}, *above))
    for one in "ab":
        made = pod(one, labels={"jobset.sigs.k8s.io/jobset-name": "train"})
        del made["metadata"]["labels"]["egs.io/run"]
        api.add("pods", owned(made, "batch/v1", "Job", f"train-{one}-0"))
    assert asked(api, "abort", "train", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["makers"] == ["TrainJob train"]
    api.forbidden.add("jobsets")
    assert asked(api, "abort", "train", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["pods"], done["makers"]) == (["a", "b"], ["JobSet train"])


def owned(raw: dict[str, Any], version: str, kind: str, name: str) -> dict[str, Any]:
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": f"{kind}-{name}", "controller": True}
    raw["metadata"]["ownerReferences"] = [owner]
    return raw


def test_one_pod_is_ended(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name; where a run is called the same, only if it is said that the pod is meant."""
    api.add("pods", pod("a", run="a"))
    api.add("pods", pod("b", run="a"))
    assert asked(api, "abort", "a") == 2
    assert "is a run and a pod (--pod means the pod)" in capsys.readouterr().err
    assert asked(api, "abort", "a", "--pod") == 0
    assert api.deleted == ["pods/a"]
    assert asked(api, "abort", "b") == 0
    assert api.deleted == ["pods/a", "pods/b"]


def test_what_is_not_there_or_not_allowed_is_one_line(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, nothing is changed."""
    api.add("pods", pod("a"))
    assert asked(api, "abort", "none") == 2
    assert "no run or pod of EGS's goes on there" in capsys.readouterr().err

    def refuses(*_: object, **__: object) -> None:
        raise ApiError(403, "pods is forbidden")

    monkeypatch.setattr(Cluster, "delete", refuses)
    monkeypatch.setattr(Cluster, "get", refuses)
    assert asked(api, "abort", "a") == 2
    assert asked(api, "why", "a") == 2
    assert capsys.readouterr().err.count("pods is forbidden") == 2
    assert not api.patches
    assert isinstance(pod_of(api.all("pods")["a"]), Pod)
