"""Where phases start: nodes, devices, fractions, memory, and what must follow on the same node."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Shape, TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

GIB = 1 << 30


def cluster(*nodes: m.NodeAdded) -> EngineBench:
    bench = EngineBench()
    for node in nodes:
        bench.send(node)
    return bench


def test_cpu_work_keeps_away_from_gpu_nodes() -> None:
    """A CPU task prefers a node without GPUs; the GPU node takes it only when there is no other room."""
    bench = cluster(m.NodeAdded("gpu", 2.0, 2), m.NodeAdded("cpu", 1.0))
    bench.submit(graph_of({"a": (), "b": (), "c": ()}))
    assert [bench.grant_of(n).node for n in "abc"] == ["cpu", "gpu", "gpu"]


def test_best_fit_fills_the_fullest_node() -> None:
    """A small task goes where the least is left over, so that room for a large one stays."""
    bench = cluster(m.NodeAdded("big", 8.0), m.NodeAdded("small", 2.0))
    bench.submit(graph_of({"a": (), "b": (), "large": ()}, {"large": (cpu(1.0, cpus=8.0),)}))
    assert [bench.grant_of(n).node for n in ("large", "a", "b")] == ["big", "small", "small"]


def test_later_phases_stay_where_the_task_started() -> None:
    """A mixed task starts on a node that offers all its phases, and goes on there though another is idle."""
    bench = cluster(m.NodeAdded("cpu", 4.0), m.NodeAdded("g0", 1.0, 1), m.NodeAdded("g1", 1.0, 1))
    bench.submit(graph_of({"a": (), "b": (), "c": ()}, default=(cpu(), gpu())))
    assert sorted(bench.grant_of(n).node for n in "ab") == ["g0", "g1"]
    assert bench.status("c") == "ready"  # a CPU is free on `cpu`, but its GPU phase could not follow there
    bench.end("a")
    bench.end("c")
    assert bench.grant_of("c").node == bench.grant_of("a").node
    assert bench.reason("c").kind == "capacity"
    assert "0 of 1 GPU wholly free" in bench.reason("c").text
    bench.end("b")
    bench.end("b")
    assert bench.status("c") == "ready"  # the other node's GPU is idle; this task's process is not there
    bench.end("a")
    assert bench.status("c") == "granted"


def test_a_task_that_fits_only_elsewhere_is_not_blocked_by_one_that_waits() -> None:
    """Behind a mixed task that needs the full GPU node, a plain CPU task starts on the CPU node."""
    bench = cluster(m.NodeAdded("cpu", 1.0), m.NodeAdded("gpu", 1.0, 1))
    bench.submit(graph_of({"holder": ()}, {"holder": (gpu(9.0, cpus=1.0),)}), "h")
    bench.submit(graph_of({"mixed": (), "plain": ()}, {"mixed": (cpu(5.0), gpu(5.0))}))
    assert (bench.status("mixed"), bench.status("plain")) == ("ready", "granted")


def test_whole_devices_lowest_first() -> None:
    """Phases with whole devices get distinct ones, lowest index first, and give them back."""
    bench = EngineBench(4, 4)
    bench.submit(graph_of({"a": (), "b": (), "c": ()}, {"a": (gpu(gpus=1),), "b": (gpu(gpus=2),), "c": (gpu(gpus=2),)}))
    assert (bench.grant_of("a").devices, bench.grant_of("b").devices) == ((0,), (1, 2))
    bench.end("b")
    assert bench.grant_of("c").devices == (1, 2)


def test_shares_are_packed_onto_one_device() -> None:
    """Fractions go to the fullest device that still fits, so that whole devices stay whole."""
    bench = EngineBench(4, 2)
    tasks = {"a": 0.5, "b": 0.25, "c": 0.5, "d": 0.25, "whole": 1.0}
    bench.submit(graph_of(dict.fromkeys(tasks, ()), {n: (gpu(1.0, gpus=g),) for n, g in tasks.items()}))
    assert [bench.grant_of(n).devices for n in "abcd"] == [(0,), (0,), (1,), (0,)]
    assert bench.state.nodes[0].devices == [0, 500]
    assert bench.status("whole") == "ready"
    bench.end("c")
    assert bench.grant_of("whole").devices == (1,)


def test_memory_of_the_node_and_of_the_device_count() -> None:
    """A phase waits for memory as for CPUs; GPU memory is counted a device."""
    bench = cluster(m.NodeAdded("n", 8.0, 2, 8 * GIB, 16 * GIB))
    shape = Shape(1000, 500, 0, 10 * GIB)
    phases = {
        "a": ((CPU, Shape(1000, 0, 6 * GIB), 1.0),),
        "b": ((CPU, Shape(1000, 0, 3 * GIB), 1.0),),
        "g0": ((GPU, shape, 1.0),),
        "g1": ((GPU, shape, 1.0),),
        "g2": ((GPU, shape, 1.0),),
    }
    bench.submit(graph_of(dict.fromkeys(phases, ()), phases))
    assert [bench.status(n) for n in phases] == ["granted", "ready", "granted", "granted", "ready"]
    assert bench.grant_of("g0").devices != bench.grant_of("g1").devices  # half a device, but too much memory
    assert "2 of 8 GiB free" in bench.reason("b").text
    bench.end("a")
    bench.end("g1")
    assert [bench.status(n) for n in ("b", "g2")] == ["granted", "granted"]


def test_what_no_node_offers_says_so() -> None:
    """Infeasible phases wait with a reason of their own, and start when such a node appears."""
    bench = cluster(m.NodeAdded("a", 4.0), m.NodeAdded("b", 2.0, 1))
    bench.submit(graph_of({"two": (), "mixed": ()}, {"two": (gpu(1.0, gpus=2),), "mixed": (cpu(1.0, cpus=4.0), gpu())}))
    assert bench.reason("two").kind == "infeasible"
    assert "2 GPUs; no node has more than 1 GPU: it fits nowhere" in bench.reason("two").text
    assert bench.reason("mixed").text == "no one node offers what all its phases need"
    bench.send(m.NodeAdded("c", 8.0, 4))
    assert (bench.status("two"), bench.status("mixed")) == ("granted", "granted")


def test_a_shrunk_node_starts_nothing_until_it_is_paid_back() -> None:
    """Less CPU and fewer devices than are held: what runs goes on, nothing new takes them."""
    bench = EngineBench(2, 2)
    bench.submit(graph_of({"a": (), "b": (), "g": (), "h": ()}, {"g": (gpu(),), "h": (gpu(),)}))
    bench.send(m.NodeAdded("n0", 1.0, 1))
    node = bench.state.nodes[0]
    assert (node.free_cpu, node.devices) == (-1000, [0, 0])
    bench.submit(graph_of({"c": (), "i": ()}, {"i": (gpu(),)}), "more")
    bench.end("a")
    bench.end("h")
    assert node.devices == [0]
    assert (bench.status("c"), bench.status("i")) == ("ready", "ready")
    bench.end("b")
    bench.end("g")
    assert (bench.status("c"), bench.grant_of("i").devices) == ("granted", (0,))


def test_a_grown_node_starts_more_at_once() -> None:
    """More CPUs, memory that is tracked from now on, and devices: waiting phases start."""
    bench = EngineBench(1)
    phases = {
        "a": (cpu(memory_bytes=GIB),),
        "b": (cpu(memory_bytes=GIB),),
        "c": (cpu(memory_bytes=GIB),),
        "g": (gpu(),),
    }
    bench.submit(graph_of(dict.fromkeys(phases, ()), phases))
    assert bench.granted() == ["a"]
    bench.send(m.NodeAdded("n0", 4.0, 1, 2 * GIB))
    assert [bench.status(n) for n in "abcg"] == ["granted", "granted", "ready", "granted"]
    assert bench.state.nodes[0].free_memory == 0
    bench.send(m.NodeAdded("n0", 4.0, 1))
    assert bench.status("c") == "granted"


def test_a_lost_node_gives_its_tasks_to_others() -> None:
    """Phases that ran there start again elsewhere as new attempts; what was between phases starts over."""
    bench = cluster(m.NodeAdded("x", 2.0, 1), m.NodeAdded("y", 0.0))
    bench.submit(graph_of({"a": (), "b": (), "g": ()}, {"b": (cpu(), gpu()), "g": (gpu(),)}))
    bench.end("b")  # its GPU phase waits for g's device
    assert bench.status("b") == "ready"
    bench.send(m.NodeLost("x"))
    assert [bench.status(n) for n in "abg"] == ["ready", "ready", "ready"]
    assert bench.state.cursor[bench.task("b")] == bench.state.first_phase[bench.task("b")]
    bench.send(m.PhaseEnded(0, 1))  # late news from the lost node
    assert bench.status("a") == "ready"
    bench.send(m.NodeLost("x"))
    bench.send(m.NodeAdded("y", 4.0, 1))
    assert [bench.grant_of(n).attempt for n in "abg"] == [2, 2, 2]
    assert {bench.grant_of(n).node for n in "abg"} == {"y"}


def test_a_node_that_comes_back_is_used_again() -> None:
    """A lost node that is added again offers all it has."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}, options={"a": TaskOptions(warm_key="k")}))
    bench.send(m.NodeLost("n0"))
    assert bench.status("a") == "ready"
    bench.send(m.NodeAdded("n0", 1.0))
    assert (bench.status("a"), bench.grant_of("a").attempt) == ("granted", 2)
