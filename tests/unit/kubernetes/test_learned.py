"""What earlier runs teach: from which pods, as what, for how many, and what it is worth beside labels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.kubernetes import learned
from egs_core.kubernetes.coming import to_come
from egs_core.kubernetes.foreseen import end_of
from egs_core.kubernetes.learned import Learned, Likely, Pipeline, Took, as_learned, step_of, took_of
from egs_core.kubernetes.looked import Looked
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.paths import Traces
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.seen import rest_s
from egs_core.kubernetes.telling import texts
from egs_core.kubernetes.workflows import workflow_of
from egs_core.predict import Predictor, signature_of
from tests.unit.kubernetes.made_pods import pod
from tests.unit.kubernetes.made_workflows import executor, group, node, task, workflow

NOW = 1_800_000_000.0


def ended(name: str, seconds: float, at: float = NOW, phase: str = "Succeeded", **stated: Any) -> dict[str, Any]:
    """A pod that has run so long until then."""
    times = {"exitCode": 0, "startedAt": moment(at - seconds), "finishedAt": moment(at)}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": {"terminated": times}}]}
    spec = {"nodeName": "n1"}
    return pod(name, **{"gate": False, "spec": spec, "status": status, "uid": f"{name}-{at:.0f}"} | stated)


def knowing(*pods: dict[str, Any]) -> Learned:
    found = Learned()
    found.take(map(pod_of, pods))
    found.renew()
    return found


def likely(found: Learned, step: str, pipeline: str = "team/w") -> Likely | None:
    known = found.learnt.get(pipeline)
    return None if known is None else known.likely(step)


# --- from what ---


def leaving(raw: dict[str, Any]) -> dict[str, Any]:
    raw["metadata"]["deletionTimestamp"] = moment(NOW)
    return raw


def unlabelled(raw: dict[str, Any], label: str) -> dict[str, Any]:
    del raw["metadata"]["labels"][label]
    return raw


@pytest.mark.parametrize(
    "raw",
    [
        ended("a", 40, phase="Failed"),
        leaving(ended("a", 40)),
        ended("a", 40, status={"phase": "Succeeded"}),
        unlabelled(ended("a", 40), "egs.io/workload"),
        unlabelled(ended("a", 40), "egs.io/task"),
        ended("a", 40, status={"phase": "Running", "startTime": moment(NOW)}),
    ],
    ids=["failed", "deleted while it ran", "of no containers", "a stranger", "of no task", "it still runs"],
)
def test_what_teaches_nothing(raw: dict[str, Any]) -> None:
    """Aborted and preempted pods are deleted, or have failed: only what has succeeded by itself says how long it takes.
    The name of a pod is another one in each run."""
    assert knowing(raw).learnt == {}
    assert likely(knowing(ended("a", 40)), "a") == Likely(40.0, 1)


def test_pods_of_a_run_that_somebody_has_ended_teach_nothing() -> None:
    """A script may end well when it is told to stop."""

    def succeeded(**spec: Any) -> list[Pod]:
        raw = workflow("r", {"a": task()})
        raw["spec"] |= spec
        looked = Looked(lambda one: bool(one.run), lambda _: False, 1000.0)
        looked.look({"1": pod_of(executor("r", "a", ran=5)), "2": pod_of(ended("b", 5))}, [workflow_of(raw)])
        return looked.succeeded

    assert [one.name for one in succeeded()] == ["r-a", "b"]
    assert [one.name for one in succeeded(shutdown="Terminate")] == ["b"]


@pytest.mark.parametrize(
    ("before", "teaches"), [(["r"], True), ([], False), (["stopped"], False), (["r", "stopped"], False)]
)
def test_of_a_workflow_that_is_over_it_is_known_whether_it_was_stopped(before: list[str], teaches: bool) -> None:
    """What is over is not listed. before: as it was listed earlier. A controller that starts after its end teaches
    nothing by it, and one that has seen it knows it for as long as pods of it are there, and no longer."""
    states = {"r": workflow("r", {"a": task()})}
    states["stopped"] = states["r"] | {"spec": {**states["r"]["spec"], "shutdown": "Stop"}}
    looked = Looked(lambda one: bool(one.run), lambda _: False, 1000.0)
    runs = {"1": pod_of(executor("r", "a"))}
    for state in before:
        looked.look(runs, [workflow_of(states[state])])
    looked.look(runs, [])
    looked.look({"1": pod_of(executor("r", "a", ran=5))}, [])
    assert bool(looked.succeeded) == teaches
    looked.look({}, [])
    assert looked._stopped == {}
    looked.look({}, [workflow_of(states["r"])])
    looked.look({"1": pod_of(executor("r", "a", ran=5))}, [])
    assert looked.succeeded, "its pod and its end may come with the same look"


def test_a_step_has_one_name_in_all_runs() -> None:
    """Its place in Argo's graph, whichever run, iteration and try it is; else its label, else what its maker says.
    Other namespaces and pipelines are others."""
    paths = "many.iteration-iterations(0:0).iteration-item.x", "many.iteration-iterations(3:a).iteration-item.x"
    found = [pod_of(executor(run, path)) for run, path in zip(("r-1", "r-2"), paths, strict=True)]
    assert {step_of(one) for one in found} == {"root.many.iteration-iterations.iteration-item.x.executor"}
    again = executor("r-1", "a")
    again["metadata"]["annotations"]["workflows.argoproj.io/node-name"] += "(1)"
    assert step_of(pod_of(again)) == step_of(pod_of(executor("r-2", "a"))) == "root.a.executor"
    assert step_of(pod_of(pod("train"))) == "train"
    assert step_of(pod_of(unlabelled(pod("train"), "egs.io/task"))) == ""
    jobset = {f"jobset.sigs.k8s.io/{key}": key for key in ("jobset-name", "replicatedjob-name")}
    worker = unlabelled(pod("sft-worker-0-0-x2f9q", labels=jobset), "egs.io/task")
    assert step_of(pod_of(worker)) == "replicatedjob-name"
    taught = knowing(ended("a", 40), ended("a", 70, namespace="other"), ended("a", 90, labels={"egs.io/workload": "v"}))
    assert [likely(taught, "a", one) for one in ("team/w", "other/w", "team/v", "other/v")] == [
        Likely(40.0, 1),
        Likely(70.0, 1),
        Likely(90.0, 1),
        None,
    ]


# --- how much ---


def test_it_is_the_predictor_of_the_core_that_says_it() -> None:
    """Of the newest ten, in the order in which they ended."""
    seconds = [300.0, 20, 300, 41, 39, 44, 38, 52, 40, 43, 45, 42]
    found = knowing(*(ended("a", one, NOW + 60 * at) for at, one in enumerate(seconds)))
    assert likely(found, "a") == Likely(predicted_s(seconds[2:]), 10)


def predicted_s(seconds: list[float]) -> float:
    predictor = Predictor()
    for one in seconds:
        predictor.observe(signature_of("", ""), one)
    return round(predictor.estimate(signature_of("", "")).p50_s, 1)


TOOK = st.builds(Took, st.integers(1, 30).map(float), st.integers(0, 90).map(float), st.sampled_from("abcdefgh"))


@given(st.lists(TOOK, max_size=25, unique_by=lambda one: one.pod + str(one.ended)), st.randoms(use_true_random=False))
def test_whatever_is_told_twice_or_late_counts_once(took: list[Took], random: Any) -> None:
    """A controller that has seen all of it, and one that has read what another has kept and sees some of it again, in
    any order, know the same."""

    def seen(them: list[Took]) -> list[Pod]:
        about: dict[str, Any] = {"namespace": "team", "run": "team/w/r", "task": "a", "has_task": True}
        return [
            Pod(f"{one.pod}{one.ended}", "a", phase="Succeeded", ended=one.ended, ran_s=one.seconds, **about)
            for one in them
        ]

    whole, first, second = Learned(), Learned(), Learned()
    whole.take(seen(took))
    cut = random.randint(0, len(took))
    first.take(seen(took[:cut]))
    again = seen([*took[cut // 2 :], *took])
    random.shuffle(again)
    kept = {key: text for key, text in first.news().items() if text is not None}
    assert second.read(kept) == []
    second.take(again)
    for one in (whole, second):
        one.renew()
        one.news()
    assert second.texts() == whole.texts()
    assert likely(second, "a") == likely(whole, "a")


def test_what_is_hardly_another_answer_stays_the_same() -> None:
    """So that ten thousand pods that wait are not told anew for a tenth of a second."""
    found = knowing(*(ended("a", 100, NOW + at) for at in range(10)), ended("b", 5))
    before, other = likely(found, "a"), likely(found, "b")
    found.take([pod_of(ended("a", 101, NOW + 60))])
    found.renew()
    assert likely(found, "a") is before
    assert likely(found, "b") is other
    kept = found.learnt["team/w"]
    found.renew()
    assert found.learnt["team/w"] is kept
    found.take([pod_of(ended("a", 900, NOW + 100 + at)) for at in range(8)])
    found.renew()
    assert likely(found, "a") == Likely(900.0, 10)


# --- beside labels ---


def test_what_was_seen_goes_before_what_is_stated() -> None:
    """A label was written before the pipeline ran. How long the run goes on behind the pod is for the label of its
    rank, as before; without any it is nothing."""
    learnt = knowing(ended("a", 500)).learnt
    stated = as_learned(pod_of(pod("a", rank=340, predicted=120)), learnt)
    assert (stated.predicted_s, stated.rank_s, rest_s(stated), stated.learned_from) == (500.0, 720.0, 220.0, 1)
    bare = as_learned(pod_of(pod("a")), learnt)
    assert (bare.predicted_s, bare.rank_s, rest_s(bare)) == (500.0, None, 0.0)
    ranked = pod_of(pod("a", rank=340))
    assert rest_s(as_learned(ranked, learnt)) == rest_s(ranked)
    other = pod_of(pod("b", rank=340, predicted=120))
    assert as_learned(other, learnt) is other
    over = pod_of(ended("a", 3))
    assert as_learned(over, learnt) is over


def test_what_runs_ends_when_it_did_before() -> None:
    """Where nothing is known it may end at any moment."""
    status = {"phase": "Running", "startTime": moment(NOW - 10)}
    runs = pod_of(pod("a", gate=False, spec={"nodeName": "n1"}, status=status))
    assert end_of(runs, NOW) == NOW
    assert end_of(as_learned(runs, knowing(ended("a", 3000)).learnt), NOW) == NOW + 2990


RUN = workflow("r", {"a": task(5), "b": task(7, ["a"], gpus=1), "c": task(9, ["b"])})


def of_argo(*pods: dict[str, Any], step: str) -> list[dict[str, Any]]:
    for one in pods:
        labels = {"workflows.argoproj.io/workflow": "r-0"}
        one["metadata"]["labels"] |= labels
        one["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = f"r-0.root.{step}.executor"
    return [*pods]


def test_steps_that_are_not_there_yet_take_what_they_took() -> None:
    """Of a run of Argo: the rank of its first pod has the durations of what comes, whatever labels say, and so has what
    is loaded and asked for ahead."""
    learnt = knowing(*of_argo(ended("x", 100), step="b"), *of_argo(ended("y", 200), step="c")).learnt
    first = as_learned(pod_of(executor("r", "a", gate=False, spec={"nodeName": "n1"})), learnt)
    traces = Traces()
    traces.follow({("team", "r"): {first.uid: first}}, [workflow_of(RUN)], learnt)
    (found,) = traces.ranked.values()
    assert (found.rank_s, found.predicted_s, found.learned_from) == (305.0, 5.0, 0)
    assert [one.takes_s for one in to_come(traces.runs(), NOW)] == [100.0]
    second = as_learned(pod_of(executor("r", "b")), learnt)
    traces.follow({("team", "r"): {second.uid: second}}, [workflow_of(RUN)], learnt)
    (found,) = traces.ranked.values()
    assert (found.rank_s, found.predicted_s, found.learned_from) == (300.0, 100.0, 1)


def test_a_run_in_which_nothing_has_changed_hears_of_what_was_learned() -> None:
    """Of a step whose pod is not there yet."""
    traces, run = Traces(), workflow_of(RUN)
    first = {("team", "r"): {"a": msgspec.structs.replace(pod_of(executor("r", "a")), uid="a")}}
    for seconds in (100, 400):
        traces.follow(first, [run], knowing(*of_argo(ended("x", seconds), step="b")).learnt)
        assert [one.rank_s for one in traces.ranked.values()] == [5.0 + seconds + 9.0]
    (before,) = traces.runs()
    assert before.earlier is not None
    traces.follow(first, [run], {"team/w": before.earlier, "team/v": Pipeline({})})
    assert traces.runs() == [before]
    assert traces.runs()[0] is before


def test_what_this_run_has_seen_goes_before_other_runs() -> None:
    """Its data may be ten times theirs: the second iteration takes what the first one took."""
    loop = workflow(
        "r",
        {"many": group({"x": task()}, loops=True)},
        [node("root.many.iteration-driver", outputs={"iteration-count": "2"})],
    )
    path = "many.iteration-iterations({0}:{0}).iteration-item.x"
    learnt = knowing(*of_argo(ended("x", 4), step=path.format(9))).learnt
    pods = [executor("r", path.format(0), ran=40), executor("r", path.format(1))]
    found = {one.uid: as_learned(one, learnt) for one in map(pod_of, pods)}
    traces = Traces()
    traces.follow({("team", "r"): found}, [workflow_of(loop)], learnt)
    assert [(one.predicted_s, one.learned_from) for one in traces.ranked.values()] == [(40.0, 0)]
    assert [one.predicted_s for one in found.values()] == [None, 4.0]


def test_a_pod_that_waits_says_what_it_should_take_and_from_what() -> None:
    """In what `egs kubernetes why` shows."""
    learnt = knowing(ended("a", 40), ended("a", 44, NOW + 9)).learnt
    waits = as_learned(pod_of(pod("a", uid="a", rank=50, predicted=5)), learnt)
    said = texts([waits], ["a"], {}, lambda _: None, 0.0)["a"]
    assert said == (
        "place 1 of 1: it waits for its turn; its run takes 87 s from its start on; "
        "it should take 42 s, as the last 2 of its task did"
    )


# --- within bounds ---


def test_nobody_makes_others_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much goes where there is most, the pipeline first that has taught nothing for longest."""
    monkeypatch.setattr(learned, "MOST_BYTES", 1000)
    found = knowing(ended("a", 1, NOW - 99))
    for number in range(30):
        found.take([pod_of(ended("a", 1, NOW + number, namespace="other", labels={"egs.io/workload": f"w{number}"}))])
        if number == 2:
            assert len(found.news()) == 4
            found.kept()
    news = found.news()
    assert sum(len(text) for text in found.texts().values()) <= 1000
    assert "team.w" in found.texts()
    kept = [key for key in found.texts() if key.startswith("other.")]
    assert kept == [f"other.w{number}" for number in range(30 - len(kept), 30)]
    assert {key for key, text in news.items() if text is None} == {"other.w0", "other.w1", "other.w2"}
    assert {key for key, text in news.items() if text is not None} == {*kept}
    found.renew()
    assert "other/w0" not in found.learnt
    assert found.has_news
    found.kept()
    assert not found.has_news
    assert found.news() == {}


def test_a_pipeline_has_no_more_than_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were seen last; and none with a name that is too long."""
    monkeypatch.setattr(learned, "MOST_STEPS", 3)
    steps = [*map(str, range(5)), "x" * 501]
    found = knowing(*(ended("a", 1, NOW + at, labels={"egs.io/task": one}) for at, one in enumerate(steps)))
    assert [one for one in steps if likely(found, one)] == ["2", "3", "4"]


def test_a_full_store_fits_into_a_config_map() -> None:
    """Many namespaces with large pipelines: below Kubernetes' 1 MiB, keys included."""
    found = Learned()
    for number in range(40):
        about = {"namespace": f"n{number}", "run": f"n{number}/w/r", "has_task": True, "phase": "Succeeded"}
        for at in range(20 * learned.MOST_TOOK):
            step = f"root.a-rather-long-name.{at % 200}.executor"
            found.take([Pod(uid=f"{at}", name="a", task=step, ended=NOW + at, ran_s=123.4, **about)])  # type: ignore[arg-type]  # of this test
    found.news()
    data = found.texts()
    assert 0 < sum(len(key) + len(text.encode()) for key, text in data.items()) < 1 << 20
    again = Learned()
    assert again.read(data) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "steps": {}}',
        '{"version": 1, "steps": {"a": [["now", 1, "x"]]}}',
        '{"version": 1, "steps": {"a": [1]}}',
        "[" * 5000,
    ],
)
def test_what_cannot_be_read_is_not_known(text: str) -> None:
    """The rest is; keys that are of something else are left alone."""
    good = '{"version":1,"steps":{"a":[[1800000000.0,40.0,"abc"],[-1.0,4.0,"d"],[5.0,-1.0,"e"]]}}'
    found = Learned()
    assert found.read({"team.v": text, "team.w": good, "other": text}) == ["team.v"]
    found.renew()
    assert list(found.learnt) == ["team/w"]
    assert likely(found, "a") == Likely(40.0, 1)
    assert found.news() == {}


def test_pulls_of_images_are_learned_as_pods_are() -> None:
    """And kept beside them."""
    found = knowing(ended("a", 40))
    for number, seconds in enumerate((90.0, 30.0, 31.0)):
        found.take_pull("docker.io/library/big:1", NOW + number, seconds, f"p{number}")
    found.take_pull("docker.io/library/big:1", NOW, 90.0, "p0")
    news = {key: text for key, text in found.news().items() if text is not None}
    assert list(news) == ["_pulls", "team.w"]
    again = Learned()
    assert again.read(news) == []
    again.renew()
    assert likely(again, "docker.io/library/big:1", learned.PULLS) == Likely(predicted_s([90.0, 30.0, 31.0]), 3)


def test_a_namespace_may_be_called_as_pulls_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has counts as its own: it does not make pulls forgotten. Pulls that were kept under the old key are read,
    and kept under the new one."""
    monkeypatch.setattr(learned, "MOST_BYTES", 400)
    old = Learned()
    old.take_pull("docker.io/library/big:1", NOW, 90.0, "p")
    (text,) = [text for text in old.news().values() if text is not None]
    found = Learned()
    assert found.read({"pulls": text}) == []
    assert found.has_news
    assert found.news() == {"_pulls": text, "pulls": None}
    found.kept()
    assert not found.has_news
    labels = [{"egs.io/workload": f"w{number}"} for number in range(9)]
    found.take([pod_of(ended("a", 1, NOW + 9, namespace="pulls", labels=one)) for one in labels])
    news = found.news()
    assert "_pulls" in found.texts()
    assert any(key.startswith("pulls.") for key in news)


def test_nothing_grows_with_names_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may make pods may make up names of pipelines without end."""
    monkeypatch.setattr(learned, "MOST_BYTES", 2000)
    found = Learned()
    for number in range(500):
        found.take([pod_of(ended("a", 1, NOW + number, labels={"egs.io/workload": f"w{number}"}))])
        if number % 10 == 9:
            found.news()
            found.renew()
    sizes = [len(one) for one in (found._took, found._texts, found._changed, found._kept, found._stale, found.learnt)]
    assert max(sizes) < 40
    assert "team/w499" in found.learnt


def test_what_a_pod_teaches_is_known_again() -> None:
    """By its uid, not by its name; times are to a tenth of a second."""
    one, same, other = (took_of(pod_of(ended("a", 40, uid=uid))) for uid in ("u", "u", "v"))
    assert one == same != other
    assert msgspec.json.decode(msgspec.json.encode(one), type=Took) == one
