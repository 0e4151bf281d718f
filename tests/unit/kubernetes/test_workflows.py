"""What a Workflow says of its run: which pods come after which, and how long the run goes on from each."""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egs_core.kubernetes.paths import Traces, Way, _NotUnderstood, _ordered, graph_of, ways
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.workflows import Step, Workflow, workflow_of
from egs_core.site import PRIOR_S
from tests.unit.kubernetes.made_workflows import executor, group, node, noted, packed, task, workflow

ITERATIONS = "root.many.iteration-iterations"


def ranks(raw: dict[str, Any], *pods: dict[str, Any]) -> dict[str, float] | None:
    """By name of the pod, how long the run takes from its start; None where the run has no graph."""
    found, values = workflow_of(raw), [pod_of(one) for one in pods]
    graph = graph_of(found)
    if graph is None:
        return None
    told = ways(found, graph, values)
    return {pod.name.removeprefix("r-"): told[pod.uid].rank_s for pod in values if pod.uid in told}


def test_a_pod_counts_what_comes_after_it_though_it_is_not_there_yet() -> None:
    """Three tasks behind each other and one beside them, by the labels that their pods will have."""
    raw = workflow("r", {"a": task(5), "b": task(7, ["a"]), "c": task(20, ["b"]), "d": task(30)})
    assert ranks(raw, executor("r", "a"), executor("r", "d")) == {"a": 32, "d": 30}


def test_a_pod_that_says_how_long_it_takes_is_believed_before_the_template() -> None:
    """Of one that says nothing, nor its template, the usual second."""
    raw = workflow("r", {"a": task(5), "b": task(None, ["a"])})
    assert ranks(raw, executor("r", "a", predicted=9)) == {"a": 9 + PRIOR_S}


def test_branches_that_were_not_taken_are_gone() -> None:
    """Before the condition is decided its longest branch counts; afterwards what was skipped counts no more."""
    branches = {"yes": group({"x": task(50)}, ["a"], when=True), "no": group({"y": task(8)}, ["a"], when=True)}
    raw = workflow("r", {"a": task(5), **branches, "b": task(2, ["yes", "no"])})
    assert ranks(raw, executor("r", "a")) == {"a": 57}
    raw["status"]["nodes"] = noted("r", [node("root.a", type="DAG"), node("root.yes", "Skipped", type="Skipped")])
    assert ranks(raw, executor("r", "no.y")) == {"no-y": 10}
    assert ranks(raw, executor("r", "yes.x")) == {}


def test_a_loop_is_as_long_as_is_known() -> None:
    """One iteration before it has begun, then as many as its driver says, in turns where it runs so many at once."""
    raw = workflow(
        "r", {"a": task(5), "many": group({"x": task(10)}, ["a"], loops=True, at_once=2), "b": task(1, ["many"])}
    )
    assert ranks(raw, executor("r", "a")) == {"a": 16}
    raw["status"]["nodes"] = noted("r", [node("root.many.iteration-driver", outputs={"iteration-count": "6"})])
    first = executor("r", "many.iteration-iterations(0:0).iteration-item.x")
    fifth = executor("r", "many.iteration-iterations(4:4).iteration-item.x")
    assert ranks(raw, executor("r", "a"), first, fifth) == {
        "a": 36,
        "many-iteration-iterations-0-0-iteration-item-x": 31,
        "many-iteration-iterations-4-4-iteration-item-x": 11,
    }
    free = workflow("r", {"many": group({"x": task(10)}, loops=True), "b": task(1, ["many"])})
    free["status"] = raw["status"]
    assert set((ranks(free, first, fifth) or {}).values()) == {11}


def test_what_has_ended_says_how_long_the_rest_takes() -> None:
    """Iterations that have ended count in the place of the label; drivers as those that have ended; failures not."""
    raw = workflow("r", {"many": group({"x": task(10)}, loops=True), "b": task(1, ["many"])})
    driver = node(
        "root.many.iteration-driver", took=4, templateName="system-dag-driver", outputs={"iteration-count": "4"}
    )
    raw["status"]["nodes"] = noted("r", [driver])
    over = [executor("r", f"many.iteration-iterations({n}:{n}).iteration-item.x", ran=s) for n, s in ((0, 30), (1, 50))]
    failed = executor("r", "many.iteration-iterations(3:3).iteration-item.x", ran=2)
    failed["status"]["phase"] = "Failed"
    waits = executor("r", "many.iteration-iterations(2:2).iteration-item.x", name="waits", predicted=10)
    assert ranks(raw, *over, failed, waits) == {"waits": 41}
    before = executor("r", "many.iteration-iterations(2:2).iteration-item.x", name="waits")
    assert ranks(raw, before) == {"waits": 11}


def test_what_has_ended_is_not_before_anything() -> None:
    """A part that is over takes no time any more, and neither do its drivers."""
    raw = workflow("r", {"a": task(5), "many": group({"x": task(10)}, ["a"], loops=True), "b": task(3, ["many"])})
    raw["status"]["nodes"] = noted("r", [node("root.a", type="DAG"), node("root.many", type="DAG")])
    assert ranks(raw, executor("r", "b")) == {"b": 3}


@pytest.mark.parametrize(
    ("stated", "gpus"), [(None, 0), ("2", 2), (1, 1), ("{{$.inputs.parameters['n']}}", 1), ("-1", 1)]
)
def test_what_comes_after_is_known_to_want_gpus(stated: object, gpus: int) -> None:
    """Along the longest path, so many seconds times so many GPUs; where an input says how many, one."""
    raw = workflow("r", {"a": task(5, gpus="4"), "b": task(20, ["a"], gpus=stated), "c": task(3, ["a"], gpus="8")})
    pod, found = pod_of(executor("r", "a")), workflow_of(raw)
    graph = graph_of(found)
    assert graph is not None
    assert ways(found, graph, [pod])[pod.uid] == Way(5, 25, 20 * gpus)


def test_a_second_try_is_the_same_task() -> None:
    """The pod of a retry has a number behind its node's name."""
    raw = workflow("r", {"a": task(5), "b": task(7, ["a"])})
    again = executor("r", "a", name="again")
    again["metadata"]["annotations"]["workflows.argoproj.io/node-name"] += "(1)"
    assert ranks(raw, again) == {"again": 12}


def test_an_exit_handler_comes_after_what_it_belongs_to() -> None:
    """Also before what waits for that; not where that was skipped."""
    raw = workflow("r", {"a": group({"x": task(5)}, on_exit=40.0), "b": task(7, ["a"])})
    assert ranks(raw, executor("r", "a.x")) == {"a-x": 52}
    raw["status"]["nodes"] = noted("r", [node("root.a", type="DAG")])
    assert ranks(raw, executor("r", "a.x")) == {}
    last = executor("r", "a.onExit.last", name="last")
    assert ranks(raw, last) == {"last": 47}


def test_nodes_are_read_as_argo_packs_them() -> None:
    """Of a large run gzip in base64; what is packed otherwise, or kept in a database, leaves the labels in force."""
    raw = workflow("r", {"a": task(5), "b": task(7, ["a"])})
    nodes = noted("r", [node("root.a", type="DAG")])
    raw["status"] = {"phase": "Running", "compressedNodes": packed(nodes)}
    assert ranks(raw, executor("r", "b")) == {"b": 7}
    assert workflow_of(raw).nodes == workflow_of(raw | {"status": {"nodes": nodes}}).nodes
    for status in (
        {"compressedNodes": "KLUv/SAA"},
        {"compressedNodes": packed(nodes)[:-8]},
        {"compressedNodes": "no base64"},
        {"offloadNodeStatusVersion": "fnv:1"},
    ):
        assert ranks(raw | {"status": status}, executor("r", "b")) is None


def test_a_run_by_a_template_of_the_cluster_is_what_argo_has_made_of_it() -> None:
    """Its own spec names the template alone; the whole is in its status, once Argo has seen it."""
    raw = workflow("r", {"a": task(5), "b": task(7, ["a"])})
    whole, raw["spec"] = raw["spec"], {"workflowTemplateRef": {"name": "nightly"}}
    assert ranks(raw, executor("r", "a")) is None
    raw["status"]["storedWorkflowTemplateSpec"] = whole
    assert ranks(raw, executor("r", "a")) == {"a": 12}


def test_a_long_chain_costs_what_its_steps_do() -> None:
    """Written the last step first, so that each waits for the one after it; a cycle of it is not understood."""
    steps = [Step(f"s{n}", "x", (f"s{n - 1}",) if n else ()) for n in reversed(range(4000))]
    began = time.process_time()
    assert [one.name for one in _ordered(steps)] == [f"s{n}" for n in range(4000)]
    assert time.process_time() - began < 1.0
    with pytest.raises(_NotUnderstood):
        _ordered([*steps[:-1], Step("s0", "x", ("s3999",))])


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["status"].update(phase="Succeeded"),
        lambda raw: raw["spec"].update(shutdown="Terminate"),
        lambda raw: raw["spec"].update(workflowTemplateRef={"name": "other"}),
        lambda raw: raw["spec"].update(entrypoint="nowhere"),
        lambda raw: raw["spec"]["templates"][-1]["dag"]["tasks"][0].update(depends="root"),
        lambda raw: raw["spec"]["templates"][-1]["dag"]["tasks"][0].update(templateRef={"name": "x"}),
        lambda raw: raw["spec"]["templates"].append({"name": "old", "steps": [[{"name": "x", "template": "y"}]]}),
        lambda raw: raw["spec"]["templates"][-2]["dag"]["tasks"][0].update(template="entrypoint"),
        lambda raw: raw["spec"]["templates"][-1]["dag"]["tasks"][0].update(withSequence={"count": "1000000000"}),
    ],
    ids=["over", "shut-down", "elsewhere", "no-entry", "cycle", "reference", "steps", "within-itself", "endless"],
)
def test_a_run_that_is_not_understood_keeps_its_labels(change: Any) -> None:
    """Nothing is made up of it: there is no graph."""
    raw = workflow("r", {"a": task(5), "b": task(7, ["a"])})
    assert ranks(raw, executor("r", "a")) is not None
    change(raw)
    assert ranks(raw, executor("r", "a")) is None


def test_a_template_that_unfolds_without_end_is_given_up() -> None:
    """Sixty templates, each twice the next one: a few lines, and more tasks than there are atoms."""
    raw = workflow("r", {"a": task(5)})
    names = ["entrypoint", *(f"t{number}" for number in range(50)), "empty"]
    made = [
        {"name": name, "dag": {"tasks": [{"name": side, "template": below} for side in ("l", "r")]}}
        for name, below in itertools.pairwise(names)
    ]
    raw["spec"]["templates"] = [*made, {"name": "empty", "dag": {"tasks": []}}]
    assert graph_of(workflow_of(raw)) is None


# --- many runs at once ---


def test_pods_get_the_ranks_of_their_own_runs() -> None:
    """By namespace and name of the Workflow; whoever has no graph keeps what its labels say. Only what has changed is
    looked at again."""
    runs = [workflow_of(workflow(name, {"a": task(s), "b": task(1, ["a"])})) for name, s in (("r", 5), ("s", 9))]
    raws = [executor("r", "a", rank=99), executor("s", "a", rank=99), executor("t", "a", rank=99)]
    elsewhere = executor("r", "a", name="elsewhere", rank=99, namespace="other")
    pods = {pod.uid: pod for pod in map(pod_of, [*raws, elsewhere])}
    traces = Traces()
    found = traces.applied(pods, runs)
    assert [(pod.rank_s, pod.is_traced) for pod in found.values()] == [(6, True), (10, True), (99, False), (99, False)]
    assert traces.applied(pods, runs) == found
    assert [pod.rank_s for pod in traces.applied(pods, runs[1:]).values()] == [99, 10, 99, 99]


# --- whatever is written ---

NAMES = ["a", "b", "c", "loop"]


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run of any shape, some of it begun, and pods of it, some of which are none of its own."""

    def tasks(depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in NAMES[: draw(st.integers(1, 4))]:
            after = draw(st.lists(st.sampled_from([*found, "ghost"]), max_size=2, unique=True))
            if depth and draw(st.booleans()):
                found[key] = group(tasks(depth - 1), after, loops=draw(st.booleans()), at_once=draw(st.integers(0, 2)))
            else:
                found[key] = task(draw(st.none() | st.integers(0, 50)), after)
        return found

    raw = workflow("r", tasks(2))
    names = [one.name.removeprefix("r.") for one in graph_of(workflow_of(raw)) or () if one.template]
    phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Skipped", "Omitted"])
    begun = draw(st.lists(st.tuples(st.sampled_from(names), phases), max_size=6))
    counted = [
        node(path, phase, outputs={"iteration-count": draw(st.sampled_from(["0", "3", "x"]))}) for path, phase in begun
    ]
    raw["status"]["nodes"] = noted("r", counted)
    pods = []
    for number, path in enumerate(draw(st.lists(st.sampled_from([*names, "root.ghost", ""]), max_size=6))):
        one = executor("r", "x", name=f"p{number}", predicted=draw(st.integers(0, 9)))
        one["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = f"r.{path}"
        pods.append(one)
    return raw, pods


def told(raw: dict[str, Any], pods: list[dict[str, Any]]) -> tuple[Workflow, dict[str, Way]]:
    found = workflow_of(raw)
    graph = graph_of(found)
    assert graph is not None
    for number, one in enumerate(graph):
        assert all(0 <= parent < number for parent in one.parents)
    names = [one.name for one in graph if one.template]
    assert len(names) == len(set(names))
    return found, ways(found, graph, map(pod_of, pods))


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(runs())
def test_whatever_a_run_looks_like(run: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """Nothing stands before itself, each task and each pod is there once, no run ends before its pod, and nodes that
    nobody knows change nothing."""
    raw, pods = run
    _, found = told(raw, pods)
    assert all(one.rank_s >= one.own_s >= 0 for one in found.values())
    names = {pod["metadata"]["uid"]: pod["metadata"]["annotations"]["workflows.argoproj.io/node-name"] for pod in pods}
    assert not [uid for uid in found if names[uid] in ("r.", "r.root.ghost")]
    more = copy.deepcopy(raw)
    more["status"]["nodes"] |= {"odd": {"name": "r.root.ghost.x(0:0)", "phase": "Running"}, "none": None, "empty": {}}
    assert told(more, pods)[1] == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["name", "dag", "tasks", "depends", "template", "arguments", "parameters", "value", "withSequence", "count"]
FIELDS += ["withItems", "withParam", "hooks", "exit", "parallelism", "metadata", "labels", "annotations", "outputs"]


@settings(deadline=None, suppress_health_check=list(HealthCheck))  # machines do other things besides
@given(st.data())
def test_no_object_breaks_it(data: st.DataObject) -> None:
    """Whatever stands in whichever field: it is read, or it is not."""

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            found = {key: spoilt(one) for key, one in value.items()}
            if data.draw(st.integers(0, 7)) == 0:
                found[data.draw(st.sampled_from(FIELDS))] = data.draw(JSON)
            return found
        return [spoilt(one) for one in value] if isinstance(value, list) else value

    raw = workflow("r", {"many": group({"x": task(3)}, loops=True)}, [node("root.many", "Running")])
    raw = {"metadata": raw["metadata"], "spec": spoilt(raw["spec"]), "status": spoilt(raw["status"])}
    graph_of(workflow_of(raw))
    workflow_of({"spec": data.draw(JSON), "status": data.draw(JSON)})
    assert isinstance(pod_of({"metadata": {"annotations": data.draw(JSON)}, "status": data.draw(JSON)}), Pod)
