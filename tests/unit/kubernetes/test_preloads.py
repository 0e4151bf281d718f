"""Where and when pods will start, and the pods that load their images there, as functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names, preloads
from egs_core.kubernetes.foreseen import NEVER, Owner, Start, Wanted, end_of, starts, waiting
from egs_core.kubernetes.images import full_name, images_of, node_with_images, pod_with_images
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Node, Pod, pod_of
from egs_core.kubernetes.preloads import AT_ONCE, FAILED, LOADED, LOADING, ON_ONE_NODE, Preload, made, preload_of
from egs_core.kubernetes.readings import Mount, Reading, ReadRules
from tests.unit.kubernetes.made_pods import node, pod

NOW = 1_800_000_000.0
BIG = "docker.io/library/big:1"
OWNER = Owner("v1", "Pod", "p", "uid-p")


def node_of(name: str, cpu: int = 8, gpus: int = 0, *images: str, **labels: str) -> Node:
    raw = node(name, cpu, gpus, labels=labels)
    raw["status"]["images"] = [{"names": [image], "sizeBytes": 1} for image in images]
    return node_with_images(raw)


def runs(name: str, on: str, left_s: float | None = None, **stated: Any) -> Pod:
    """A pod that runs there, and has so long left."""
    took = {} if left_s is None else {"predicted": 100 + left_s}
    status = {"phase": "Running", "startTime": moment(NOW - 100)}
    return pod_with_images(pod(name, uid=name, gate=False, spec={"nodeName": on}, status=status, **took, **stated))


def wanted(
    name: str, gpus: int = 0, cpu: int = 1, takes_s: float | None = 10.0, of: str = "nvidia.com/gpu", **stated: Any
) -> Wanted:
    shape, devices = Shape(1000 * cpu, 1000 * gpus, 0), ((of, gpus),) if gpus else ()
    return Wanted(Owner("v1", "Pod", name, name), "team", shape, takes_s=takes_s, devices=devices, **stated)


def seen(found: Iterable[Start]) -> list[tuple[str, str, float]]:
    return [(one.wanted.owner.name, one.node, round(one.at - NOW, 3)) for one in found]


# --- images ---


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11", "docker.io/library/python:3.11"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("ghcr.io/a/b/c:1@sha256:ff", "ghcr.io/a/b/c@sha256:ff"),
    ],
)
def test_an_image_has_one_name(written: str, listed: str) -> None:
    """A node lists it with its registry, however a pod writes it."""
    assert full_name(written) == listed
    assert full_name(listed) == listed


def test_a_pod_is_made_of_all_its_containers() -> None:
    """Those that run first, too, and of volumes that are images, such as models; each image once."""
    spec = {"initContainers": [{"image": "launcher"}], "containers": [{"image": "a"}, {"image": "launcher"}, {}]}
    assert images_of(spec) == ("docker.io/library/launcher:latest", "docker.io/library/a:latest")
    volumes = [{"name": "m", "image": {"reference": "hub.example/model:1"}}, {"name": "tmp", "emptyDir": {}}]
    assert images_of({**spec, "volumes": volumes})[2:] == ("hub.example/model:1",)
    assert images_of({}) == ()


# --- what will start ---


def test_each_starts_where_it_fits_first() -> None:
    """In the order: the first takes what is free first, the next what is free after that. What it leaves is for
    others."""
    nodes = [node_of("n1", 8, 2), node_of("n2", 8, 1)]
    running = [runs("a", "n1", 40, gpus=2), runs("b", "n2", 25, gpus=1)]
    two, one, more = wanted("two", gpus=2, takes_s=30), wanted("one", gpus=1), wanted("more", gpus=1)
    small = wanted("small")
    assert seen(starts([two, one, more, small], running, nodes, NOW, NOW + 100)) == [
        ("two", "n1", 40.0),
        ("one", "n2", 25.0),
        ("more", "n2", 35.0),
        ("small", "n1", 0.0),
    ]
    assert seen(starts([two, one], running, nodes, NOW, NOW + 30)) == [("one", "n2", 25.0)]


def test_where_it_may_run_and_when_it_is_ready() -> None:
    """A selector, a node that takes nothing new, a step that is to come; nothing is said of what nothing can take."""
    nodes = [node_of("n1", pool="a"), node_of("n2", pool="b")]
    there = json.dumps({"select": {"pool": "b"}})
    later = wanted("later", where=there, ready_at=NOW + 7)
    assert seen(starts([later, wanted("never", gpus=1)], [], nodes, NOW, NOW + 9)) == [("later", "n2", 7.0)]
    closed = [node_with_images(node("n2", labels={"pool": "b"}, spec={"unschedulable": True}))]
    assert starts([later], [], closed, NOW, NOW + 9) == []


def test_it_stays_where_it_was_seen_unless_another_place_is_much_sooner() -> None:
    """Two nodes that are free at about the same time: where the image is, or is on its way. Else the first one."""
    nodes = [node_of("n1", 8, 1), node_of("n2", 8, 1, BIG)]
    one = wanted("p", gpus=1, images=(BIG,))

    def at(second_s: float, had: dict[str, set[str]] | None = None) -> str:
        running = [runs("a", "n1", 50, gpus=1), runs("b", "n2", second_s, gpus=1)]
        return starts([one], running, nodes, NOW, NOW + 500, had)[0].node

    assert (at(54), at(56)) == ("n2", "n1")
    assert at(54, {"n1": {BIG}}) == "n1"


@pytest.mark.parametrize(
    ("pod_", "left_s"),
    [
        (runs("a", "n1", 30), 30.0),
        (runs("a", "n1"), 0.0),  # nobody knows: at any moment
        (runs("a", "n1", -50), 41.42),  # it has outlived what was said
        (runs("a", "n1", 30, labels={"egs.io/preload": "x"}), NEVER),  # none of ours
        (pod_of(pod("a", gate=False, predicted=20, spec={"nodeName": "n1"})), 20.0),  # not begun
        (
            pod_of(
                pod(
                    "a",
                    predicted=900,
                    spec={"nodeName": "n1", "activeDeadlineSeconds": 60},
                    status={"phase": "Pending"},
                )
            ),
            60.0,
        ),
    ],
)
def test_when_a_pod_leaves_its_node(pod_: Pod, left_s: float) -> None:
    """By what is said of it, and its deadline."""
    assert end_of(pod_, NOW) - NOW == pytest.approx(left_s, abs=0.01)


def test_what_is_open_already_takes_its_room_first() -> None:
    """It has no node yet, and nothing is loaded for it: it pulls itself. What is not in the order does not count."""
    pods = {one.uid: one for one in (pod_with_images(pod(name, uid=name)) for name in ("first", "second", "else"))}
    pods["open"] = pod_with_images(pod("open", uid="open", gate=False))
    found = waiting(pods, ["second", "first", "gone"])
    assert [(one.owner.name, bool(one.images)) for one in found] == [
        ("open", False),
        ("second", True),
        ("first", True),
    ]


# --- what is made, and what goes ---


def at_work(node: str = "n1", *images: str, **stated: Any) -> Preload:
    told: dict[str, Any] = {"uid": "u", "name": "x", "namespace": "team", "created": NOW} | stated
    return Preload(node=node, loads=images or (BIG,), **told)


def steps(
    found: list[Start],
    there: list[Preload] | None = None,
    had: dict[str, set[str]] | None = None,
    pods: Iterable[Pod] = (),
    lead_s: float = 60.0,
) -> tuple[list[tuple[str, tuple[str, ...]]], list[str], list[str]]:
    """Nodes and images to make, uids that are over, and that are withdrawn."""
    leads = {one.wanted.loads: lead_s for one in found}
    taken = preloads.select_steps(found, there or [], had or {}, pods, NOW, leads)
    return (
        [(one.node, one.wanted.loads) for one in taken.make],
        [one.uid for one in taken.over],
        [one.uid for one in taken.withdraw],
    )


def start(at_s: float, node: str = "n1", *images: str) -> Start:
    return Start(wanted("p", images=images or (BIG,)), node, NOW + at_s)


def test_one_is_made_when_it_is_due() -> None:
    """Not before; not where the image is; not beside one that loads it there; only what is missing."""
    assert steps([start(85)]) == ([("n1", (BIG,))], [], [])
    assert steps([start(87)]) == ([], [], [])
    assert steps([start(10)], had={"n1": {BIG}}) == ([], [], [])
    assert steps([start(10)], [at_work()]) == ([], [], [])
    assert steps([start(10), start(20)]) == ([("n1", (BIG,))], [], [])
    assert steps([start(10, "n1", BIG, "small")], had={"n1": {BIG}}) == ([("n1", ("small",))], [], [])


def test_there_are_never_many() -> None:
    """On one node, and in all, those of what starts first; what is on its way out counts until it is gone."""
    many = [start(1, "n1", f"i{number}") for number in range(9)]
    assert steps(many)[0] == [("n1", ("i0",)), ("n1", ("i1",))]
    leaving = at_work("n1", "other", is_leaving=True)
    assert steps(many, [leaving])[0] == [("n1", ("i0",))]
    everywhere = [start(1, f"n{number}") for number in range(AT_ONCE + 9)]
    assert [where for where, _ in steps(everywhere)[0]] == [f"n{number}" for number in range(AT_ONCE)]


def test_what_is_refused_takes_no_place_of_what_is_not() -> None:
    """A namespace whose preloads the API server refuses has many that start first: another one's are made."""
    refused = [start(1, f"n{number}") for number in range(2 * AT_ONCE)]
    other = msgspec.structs.replace(start(2, "n0"), wanted=wanted("q", images=(BIG,)))
    other = msgspec.structs.replace(other, wanted=msgspec.structs.replace(other.wanted, namespace="lab"))
    leads: dict[tuple[str, ...], float] = {(BIG,): 60.0}
    found = preloads.select_steps([*refused, other], [], {}, (), NOW, leads, {("team", False)})
    assert [one.wanted.namespace for one in found.make] == ["lab"]


def test_one_goes_when_it_is_over_or_not_wanted() -> None:
    """Loaded, failed, or never placed: over. Withdrawn where nothing is to start there with its image any more, but not
    when its pod has come to the node: it waits for that very pull."""
    kept = [start(900)]  # not due any more, but still to come
    assert steps(kept, [at_work()]) == ([], [], [])
    assert steps(kept, [at_work(state=LOADED)])[1:] == (["u"], [])
    assert steps(kept, [at_work(state=FAILED)])[1:] == (["u"], [])
    assert steps([start(10)], [at_work(state=LOADED)]) == ([], ["u"], [])  # it is there: not made again
    assert steps(kept, [at_work(created=NOW - 1201)])[1:] == (["u"], [])
    assert steps(kept, [at_work(state=LOADED, is_leaving=True)])[1:] == ([], [])
    assert steps([start(900, "n2")], [at_work()]) == ([], [], ["u"])
    assert steps([], [at_work()]) == ([], [], ["u"])
    came = pod_with_images(pod("p", spec={"nodeName": "n1", "containers": [{"image": "big:1"}]}))
    assert steps([], [at_work()], pods=[came]) == ([], [], [])
    assert steps([], [at_work("n2")], pods=[came]) == ([], [], ["u"])
    opened = pod_with_images(pod("p", gate=False, spec={"containers": [{"image": "big:1"}]}))
    assert steps([], [at_work()], pods=[opened]) == ([], [], [])
    assert steps([], [at_work("n1", "other")], pods=[opened]) == ([], [], ["u"])


def test_what_is_due_is_well_within_what_is_looked_at() -> None:
    """So a prediction that moves by half as much again takes nothing away."""
    lead_s = preloads.lead_of((BIG,), {}, 120.0)
    due_s = lead_s / preloads.SOONER
    assert steps([start(due_s - 1)], lead_s=lead_s)[0]
    assert preloads.horizon([lead_s, 1.0], NOW) > NOW + 1.5 * due_s


def test_a_pull_that_was_seen_is_believed() -> None:
    """Of an image that was not, with what else its pod needs: the time that an administrator says."""
    assert preloads.lead_of((BIG, "b"), {BIG: 10.0, "b": 20.0}, 120.0) == pytest.approx(5 + 1.2 * 30)
    assert preloads.lead_of((BIG, "b"), {BIG: 10.0}, 120.0) == pytest.approx(5 + 1.2 * 130)
    assert preloads.lead_of((BIG,), {BIG: 10.0}, 120.0, 30.0) == pytest.approx(5 + 1.2 * 40)
    assert preloads.lead_of((), {}, 120.0) == 5.0


READ = Reading("team", BIG, ("/models/a",), ("torch",), (Mount("models", "/models"),))


def test_what_a_task_reads_comes_after_its_images() -> None:
    """One that reads is made where the images are, and none while they are pulled; once on a node, whatever else would
    read the same."""
    one = Start(wanted("p", images=(BIG,), reading=READ), "n1", NOW + 30)
    other = Start(wanted("q", images=(BIG,), reading=READ), "n1", NOW + 40)
    assert steps([one, other]) == ([("n1", (BIG,))], [], [])
    assert steps([one, other], [at_work()]) == ([], [], [])
    there = {"n1": {BIG}}
    assert steps([one, other], had=there) == ([("n1", (READ.key,))], [], [])
    reads = at_work("n1", READ.key)
    assert steps([one, other], [reads], there) == ([], [], [])
    assert steps([one, other], had={"n1": {BIG, READ.key}}) == ([], [], [])
    assert steps([start(30)], [reads], there) == ([], [], ["u"])  # nothing that reads is to start there any more
    begun = msgspec.structs.replace(runs("p", "n1"), images=(BIG,), reading=READ)
    assert steps([], [reads], there, [begun]) == ([], [], [])  # its task reads the same now


def test_what_reads_is_taken_to_where_it_was_read() -> None:
    """Of two nodes with its image that are free at the same time; the image says more."""
    nodes = [node_of("n1", 8, 1, BIG), node_of("n2", 8, 1, BIG), node_of("n3", 8, 1)]
    one = wanted("p", gpus=1, images=(BIG,), reading=READ)
    assert starts([one], [], nodes, NOW, NOW + 9)[0].node == "n1"
    assert starts([one], [], nodes, NOW, NOW + 9, {"n2": {READ.key}})[0].node == "n2"
    assert starts([one], [], nodes, NOW, NOW + 9, {"n3": {READ.key}})[0].node == "n1"


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 300), st.sampled_from(["n1", "n2", "n3"]), st.sampled_from("abcd")), max_size=40),
    st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.sampled_from("abcd")), max_size=10),
)
def test_the_bounds_hold_whatever_is_seen(to_come: list[tuple[float, str, str]], there: list[tuple[str, str]]) -> None:
    """Looked at again after it is done, nothing more is made and nothing is made twice."""
    found = [start(at_s, where, image) for at_s, where, image in to_come]
    works = [at_work(where, image, uid=f"{n}") for n, (where, image) in enumerate(there)]
    made_now, _, gone = steps(found, works)
    left = [one for one in works if one.uid not in gone]
    after = left + [at_work(where, *images, uid=f"new-{n}") for n, (where, images) in enumerate(made_now)]
    for where in ("n1", "n2", "n3"):
        before = sum(one.node == where for one in works)
        assert sum(one[0] == where for one in made_now) <= max(0, ON_ONE_NODE - before)
    assert len({*made_now}) == len(made_now)
    assert not {*made_now} & {(one.node, one.loads) for one in left}
    assert steps(found, [*works, *after[len(left) :]])[0] == []


# --- the pod ---


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "preload-0", "state": state}]}


def raw_preload(status: dict[str, Any] | None = None, images: tuple[str, ...] = (BIG,)) -> dict[str, Any]:
    found = made(Start(Wanted(OWNER, "team", Shape(0), images=images), "n1", NOW))
    found["metadata"] |= {"uid": "u", "creationTimestamp": moment(NOW)}
    return found | {"status": status or {}}


ENDED = {"startedAt": moment(NOW + 30), "finishedAt": moment(NOW + 30)}


@pytest.mark.parametrize(
    ("status", "state", "took_s"),
    [
        ({}, LOADING, None),
        ({"phase": "Pending"} | container(waiting={"reason": "ContainerCreating"}), LOADING, None),
        ({"phase": "Succeeded"} | container(terminated=ENDED | {"exitCode": 0}), LOADED, 30.0),
        ({"phase": "Failed"} | container(terminated=ENDED | {"reason": "StartError", "exitCode": 128}), LOADED, 30.0),
        (container(terminated={"startedAt": "1970-01-01T00:00:00Z", "finishedAt": moment(NOW + 30)}), LOADED, 30.0),
        (container(waiting={"reason": "CreateContainerError"}), LOADED, None),
        (container(waiting={"reason": "CreateContainerConfigError"}), LOADED, None),
        (container(waiting={"reason": "ErrImagePull"}), FAILED, None),
        (container(waiting={"reason": "ImagePullBackOff"}), FAILED, None),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, FAILED, None),
        ({"phase": "Failed"} | container(waiting={"reason": "ContainerCreating"}), FAILED, None),
    ],
)
def test_an_image_is_there_when_its_container_has_begun_or_could_not(
    status: dict[str, Any], state: str, took_s: float | None
) -> None:
    """A kubelet pulls before it creates: what goes wrong after that is not the image's, and needs no `true` in it."""
    found = preload_of(raw_preload({"startTime": moment(NOW)} | status))
    assert found is not None
    assert (found.state, found.took_s, found.node, found.loads) == (state, took_s, "n1", (BIG,))


@pytest.mark.parametrize(
    ("status", "state", "took_s", "said"),
    [
        ({}, LOADING, None, ""),
        ({"phase": "Pending"} | container(waiting={"reason": "ContainerCreating"}), LOADING, None, ""),
        ({"phase": "Running"} | container(running={"startedAt": moment(NOW + 1)}), LOADING, None, ""),
        ({"phase": "Succeeded"} | container(terminated=ENDED | {"exitCode": 0}), LOADED, 30.0, ""),
        (
            container(terminated=ENDED | {"exitCode": 1, "message": "no\n  file", "reason": "Error"}),
            FAILED,
            None,
            "no file",
        ),
        (container(terminated=ENDED | {"exitCode": 137, "reason": "OOMKilled"}), FAILED, None, "OOMKilled"),
        (container(waiting={"reason": "CreateContainerError", "message": "no sh"}), FAILED, None, "no sh"),
        (container(waiting={"reason": "ImagePullBackOff"}), FAILED, None, "ImagePullBackOff"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, FAILED, None, "DeadlineExceeded"),
    ],
)
def test_it_has_read_when_it_has_ended_well(
    status: dict[str, Any], state: str, took_s: float | None, said: str
) -> None:
    """Unlike an image, which is there before its container is; else it says why."""
    raw = made(Start(Wanted(OWNER, "team", Shape(0), reading=READ), "n1", NOW), 8 << 30)
    raw["metadata"] |= {"uid": "u", "creationTimestamp": moment(NOW)}
    found = preload_of(raw | {"status": {"startTime": moment(NOW)} | status})
    assert found is not None
    assert (found.state, found.took_s, found.said, found.is_reader) == (state, took_s, said, True)
    assert found.loads == (READ.key,)


def test_one_image_that_is_not_there_yet_keeps_it_at_work() -> None:
    """Of two containers one has ended."""
    status = container(terminated=ENDED)
    found = preload_of(raw_preload(status, (BIG, "docker.io/library/b:1")))
    assert found is not None
    assert found.state == LOADING


def test_another_pod_is_no_preload_of_ours() -> None:
    """Neither a user's with that label, nor one that a pipeline's manifests describe."""
    for labels, named in (({names.PRELOAD: "controller"}, ""), ({names.PRELOAD: "k3y"}, names.PRELOAD_CLASS), ({}, "")):
        raw = raw_preload()
        raw["metadata"]["labels"], raw["spec"]["priorityClassName"] = labels, named
        assert preload_of(raw) is None


def test_the_pod_goes_where_its_task_may_go() -> None:
    """Selector, each term of its affinity and tolerations are the task's; the node is one more condition."""
    where = {
        "select": {"pool": "a"},
        "terms": [
            {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]},
        ],
        "tolerate": [{"key": "gpu", "operator": "Exists"}],
    }
    one = Wanted(OWNER, "team", Shape(0), json.dumps(where), images=(BIG, "b"), pull_secrets=("hub",))
    found = made(Start(one, "n1", NOW))
    spec = found["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert terms[0] == {"matchExpressions": where["terms"][0]["matchExpressions"], "matchFields": [here]}  # type: ignore[index]  # JSON
    assert terms[1]["matchFields"][1] == here
    assert (spec["nodeSelector"], spec["tolerations"]) == (where["select"], where["tolerate"])
    assert spec["imagePullSecrets"] == [{"name": "hub"}]
    assert [one["image"] for one in spec["containers"]] == [BIG, "b"]
    again = preload_of(found | {"status": {}})
    assert again is not None
    assert again.node == "n1"
    assert found["metadata"]["name"] == made(Start(one, "n1", NOW + 9))["metadata"]["name"]
    assert found["metadata"]["name"] != made(Start(one, "n2", NOW))["metadata"]["name"]


def test_what_is_made_is_an_object_of_kubernetes() -> None:
    """By the official schema of 1.36; so are the manifests that allow it."""
    validate = pytest.importorskip("kubernetes_validate").validate
    raw = raw_preload()
    del raw["status"]
    reads = made(Start(Wanted(OWNER, "team", Shape(0), reading=READ), "n1", NOW), 8 << 30)
    rules = ReadRules(8 << 30, ("a/models",))
    for one in (raw, reads, *objects(Installation("egs:1", serve=("a",), preloads=True, reads=rules))):
        validate(one, "1.36", strict=True)
