"""A node whose devices are of several flavors: which device a task gets, and when it waits for a better one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, FlavorSpec, QueueSpec
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim.config import SimConfig, SimNode
from egs_core.sim.simulator import Simulation
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

FAST, SLOW = FlavorSpec("fast", 4.0), FlavorSpec("slow", 0.5, speed=0.25)
NAMES = ("fast", "slow")


def host(*kinds: str, gpu_memory_bytes: int | None = None, **config: object) -> EngineBench:
    """One node with these devices."""
    bench = EngineBench(config=EngineConfig(preload=False, packing="best_fit", **config))  # type: ignore[arg-type]  # any
    bench.send(m.FlavorsChanged((FAST, SLOW)))
    bench.send(m.NodeAdded("n", 8.0, len(kinds), gpu_memory_bytes=gpu_memory_bytes, device_flavors=kinds))
    return bench


def job(name: str, fast_s: float, slow_s: float, gpus: float = 1, flavors: Sequence[str] = (), gang: str = "") -> Graph:
    graph = Graph(phase_flavor_s={0: {"fast": fast_s, "slow": slow_s}})
    options = TaskOptions(flavors=tuple(flavors), gang=gang)
    graph.add_task(name, (), ((GPU, Shape(0, round(1000 * gpus)), fast_s),), options=options)
    return graph


def devices_of(bench: EngineBench, name: str) -> tuple[int, ...]:
    return bench.grant_of(name).devices


def holding(bench: EngineBench, flavor: str, seconds: float) -> None:
    bench.submit(job(f"holder of {flavor}", seconds, seconds, flavors=(flavor,)), f"h {flavor}")
    bench.start(f"holder of {flavor}")


def test_a_task_is_placed_on_the_device_on_which_it_ends_first() -> None:
    """Both are free: it takes the fast one, though the slow one has the lower number."""
    bench = host("slow", "fast")
    bench.submit(job("a", 5.0, 20.0), "a")
    assert devices_of(bench, "a") == (1,)


def test_the_slower_one_is_taken_when_waiting_costs_more() -> None:
    """The fast one is held for another 40 s, on the slow one it takes 20: it starts there."""
    bench = host("fast", "slow")
    holding(bench, "fast", 40.0)
    bench.submit(job("a", 5.0, 20.0), "a")
    assert devices_of(bench, "a") == (1,)


def test_it_waits_for_the_faster_one_where_that_ends_sooner() -> None:
    """Free in 10 s and 5 s there, against 20 s at once: it waits, says for what, and starts when that is free."""
    bench = host("fast", "slow")
    holding(bench, "fast", 10.0)
    bench.submit(job("a", 5.0, 20.0), "a")
    reason = bench.reason("a")
    assert (bench.status("a"), reason.kind) == ("ready", "flavor")
    assert "'fast', free at about 10.000 s" in reason.text
    bench.end("holder of fast", 8.0)
    assert devices_of(bench, "a") == (0,)


def test_only_on_the_devices_that_the_user_allows() -> None:
    """The fast one is free and not allowed: it waits for the slow one; the reason names the flavor, counts its GPUs."""
    bench = host("fast", "slow")
    holding(bench, "slow", 40.0)
    bench.submit(job("a", 5.0, 20.0, flavors=("slow",)), "a")
    reason = bench.reason("a")
    assert (bench.status("a"), reason.kind) == ("ready", "capacity")
    assert reason.text.startswith("needs 1 GPU of flavor slow: n has 0 of 1 GPU wholly free")
    bench.end("holder of slow", 40.0)
    assert devices_of(bench, "a") == (1,)


def test_more_than_there_are_of_the_allowed_flavor_never_starts() -> None:
    bench = host("fast", "slow", "slow")
    bench.submit(job("a", 5.0, 20.0, gpus=2, flavors=("fast",)), "a")
    assert bench.reason("a").kind == "infeasible"
    bench.submit(job("b", 5.0, 20.0, gpus=2, flavors=("none such",)), "b")
    assert "no node of flavor none such" in bench.reason("b").text


def test_several_devices_are_of_one_flavor_if_one_has_so_many() -> None:
    """Two of the slow ones, not one of each; what no flavor has so many of gets devices of several, as on any host."""
    bench = host("slow", "fast", "slow")
    bench.submit(job("pair", 5.0, 20.0, gpus=2), "pair")
    assert devices_of(bench, "pair") == (0, 2)
    bench.start("pair")
    bench.end("pair", 1.0)
    bench.submit(job("all", 5.0, 20.0, gpus=3), "all")
    assert devices_of(bench, "all") == (0, 1, 2)


def test_parts_of_a_device_are_of_the_flavor_that_is_allowed() -> None:
    """Both halves share the slow device, as parts fill what is in use; a third waits though the fast one is free."""
    bench = host("fast", "slow")
    for name in ("a", "b", "c"):
        bench.submit(job(name, 5.0, 20.0, gpus=0.5, flavors=("slow",)), name)
    assert [devices_of(bench, name) for name in ("a", "b")] == [(1,), (1,)]
    assert bench.status("c") == "ready"


def test_a_gang_is_on_one_flavor_and_heeds_what_is_allowed() -> None:
    """Two members that are best off on the fast ones get both of them; two that may have slow ones alone get those."""
    bench = host("slow", "fast", "slow", "fast")
    names = ("a", "b")
    graph = Graph(phase_flavor_s={0: {"fast": 5.0, "slow": 20.0}, 1: {"fast": 5.0, "slow": 20.0}})
    for name in names:
        graph.add_task(name, (), ((GPU, Shape(0, 1000), 5.0),), options=TaskOptions(gang="g"))
    bench.submit(graph, "g")
    assert sorted(devices_of(bench, name) for name in names) == [(1,), (3,)]
    graph = Graph()
    for name in ("c", "d"):
        graph.add_task(name, (), ((GPU, Shape(0, 1000), 5.0),), options=TaskOptions(gang="s", flavors=("slow",)))
    bench.submit(graph, "s")
    assert sorted(devices_of(bench, name) for name in ("c", "d")) == [(0,), (2,)]


def test_room_is_made_on_a_device_that_is_allowed() -> None:
    """Of two that run and may restart the one on the slow device is stopped for what may run there alone."""
    bench = host("fast", "slow", preempt=True, grace_s=0.0, min_gain_s=0.0)
    for flavor in NAMES:
        options = TaskOptions(flavors=(flavor,), may_restart=True)
        bench.submit(graph_of({flavor: ()}, {flavor: (gpu(100.0),)}, {flavor: options}), flavor)
        bench.start(flavor)
    urgent = TaskOptions(flavors=("slow",), priority=5)
    bench.submit(graph_of({"urgent": ()}, {"urgent": (gpu(1.0),)}, {"urgent": urgent}), "urgent")
    stops = [one for one in bench.decisions if isinstance(one, m.Stop)]
    assert [bench.state.task_ids[one.task] for one in stops] == ["slow"]


def test_what_is_held_stays_when_the_devices_are_told_anew() -> None:
    """A device is closed, and all are of one flavor from now on: leases stay, and the estimate is of what is held."""
    bench = host("fast", "slow")
    holding(bench, "slow", 40.0)
    bench.send(m.NodeAdded("n", 8.0, 2, device_flavors=NAMES, closed=(0,)))
    bench.submit(job("a", 5.0, 20.0), "a")
    assert bench.status("a") == "ready"
    bench.send(m.NodeAdded("n", 8.0, 2))
    assert devices_of(bench, "a") == (0,)


def test_a_closed_device_whose_number_nobody_knows_is_none_that_is_held() -> None:
    """Two fast ones and a slow one run tasks; a fast one is closed. Whichever fast task ends, its device is the closed
    one; a slow one that comes free is none."""
    kinds = ("fast", "fast", "slow")
    for first, closed in (("a", (0,)), ("b", (1,))):
        bench = host(*kinds)
        for name, flavor in (("a", "fast"), ("b", "fast"), ("c", "slow")):
            bench.submit(job(name, 40.0, 40.0, flavors=(flavor,)), name)
            bench.start(name)
        bench.send(m.NodeAdded("n", 8.0, 3, device_flavors=kinds, closed=(1,), counts_closed=True))
        bench.end("c")
        assert bench.state.nodes[0].closed == (1,)
        bench.end(first)
        assert (bench.state.nodes[0].closed, bench.state.nodes[0].devices) == (closed, [0, 0, 1000])
        bench.submit(job("d", 5.0, 5.0, flavors=("fast",)), "d")
        assert bench.status("d") == "ready"
        bench.send(m.NodeAdded("n", 8.0, 3, device_flavors=kinds))
        assert devices_of(bench, "d") == closed


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(NAMES), min_size=2, max_size=4).filter(lambda kinds: len(set(kinds)) == 2),
    tasks=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from(((), ("fast",), ("slow",)))), max_size=8
    ),
    ends=st.lists(st.integers(0, 7), max_size=8),
)
def test_one_host_decides_as_a_host_of_each_flavor_would(
    kinds: list[str], tasks: list[tuple[int, int, tuple[str, ...]]], ends: list[int]
) -> None:
    """Tasks of one GPU, and no CPUs: the same start at the same moments on the same flavors, whether the devices are of
    one node or each flavor has its own."""
    one = host(*kinds)
    two = EngineBench(config=EngineConfig(preload=False, packing="best_fit"))
    two.send(m.FlavorsChanged((FAST, SLOW)))
    for flavor in dict.fromkeys(kinds):
        two.send(m.NodeAdded(flavor, 8.0, kinds.count(flavor), flavor=flavor))
    moments: list[list[tuple[str, str]]] = []
    for bench in (one, two):
        placed = []
        for number, (fast_s, slow_s, flavors) in enumerate(tasks):
            bench.submit(job(f"t{number}", fast_s, slow_s, flavors=flavors), f"w{number}")
        for at, number in enumerate(ends, 1):
            if number < len(tasks) and bench.status(f"t{number}") == "granted":
                bench.start(f"t{number}")
                bench.end(f"t{number}", float(at))
        for number in range(len(tasks)):
            status = bench.status(f"t{number}")
            placed.append((status, _flavor(bench, f"t{number}") if status in ("granted", "succeeded") else ""))
        moments.append(placed)
    assert moments[0] == moments[1]


def test_what_is_kept_on_one_flavor_keeps_nobody_from_another() -> None:
    """A task that has waited too long has the fast device kept, whose holder runs longer than was believed: the slow
    one, which it may not have, is no room for it, and so is given to who may; who wants the fast one waits behind."""
    bench = host("fast", "slow", "slow")
    holding(bench, "fast", 10.0)
    waits = job("waits", 5.0, 5.0, flavors=("fast",))
    waits.options[0] = TaskOptions(flavors=("fast",), max_wait_s=1.0)
    bench.submit(waits, "waits")
    bench.send(m.Tick(), 2.0)
    assert [(kept.at, len(kept.places)) for kept in bench.state.reservations.values()] == [(10.0, 1)]
    bench.submit(job("other", 50.0, 50.0, flavors=("slow",)), "other", at=12.0)
    bench.submit(job("behind", 1.0, 1.0, flavors=("fast",)), "behind")
    assert devices_of(bench, "other") == (1,)
    bench.end("holder of fast", 20.0)
    assert (devices_of(bench, "waits"), bench.status("behind")) == ((0,), "ready")


def _flavor(bench: EngineBench, name: str) -> str:
    grant = bench.grant_of(name)
    node = next(one for one in bench.state.nodes if one.name == grant.node)
    return node.flavor_of(grant.devices)


def test_flavors_of_unlike_devices_must_be_as_many_as_devices() -> None:
    """Else nobody knows which is which: they count as alike."""
    bench = host("fast", "slow")
    bench.send(m.NodeAdded("n", 8.0, 3, device_flavors=NAMES))
    assert bench.state.nodes[0].flavors == ("",)


GIB = 1 << 30


def with_memory(*sizes: int, kinds: Sequence[str] = NAMES) -> m.NodeAdded:
    """The node with so many GiB on each device."""
    amounts = tuple([size * GIB for size in sizes])
    return m.NodeAdded(
        "n", 8.0, len(sizes), gpu_memory_bytes=max(amounts), device_flavors=tuple(kinds), device_memory_bytes=amounts
    )


def needs(name: str, size: int, gpus: float = 1, flavors: Sequence[str] = ()) -> Graph:
    shape = Shape(0, round(1000 * gpus), 0, size * GIB)
    graph = Graph(phase_flavor_s={0: {"fast": 5.0, "slow": 5.0}})
    graph.add_task(name, (), ((GPU, shape, 5.0),), options=TaskOptions(flavors=tuple(flavors)))
    return graph


def test_each_device_has_its_own_memory() -> None:
    """What needs 40 GiB is on the one that has 80; two such devices there are not, nor one of the flavor that has 16;
    and what needs 10 may have either."""
    bench = host(*NAMES)
    bench.send(with_memory(16, 80))
    bench.submit(needs("large", 40), "large")
    assert devices_of(bench, "large") == (1,)
    for name, more in (("two", {"gpus": 2}), ("fast", {"flavors": ("fast",)})):
        bench.submit(needs(name, 40, **more), name)
        assert bench.reason(name).kind == "infeasible"
    bench.submit(needs("small", 10), "small")
    assert devices_of(bench, "small") == (0,)


def test_parts_fill_the_memory_of_their_own_device() -> None:
    """Halves of 10 GiB: one on the device of 16, two on the one of 80, however much of the first is free."""
    bench = host(*NAMES)
    bench.send(with_memory(16, 80))
    for number in range(4):
        bench.submit(needs(f"t{number}", 10, gpus=0.5), f"w{number}")
    assert sorted(devices_of(bench, f"t{number}") for number in range(3)) == [(0,), (1,), (1,)]
    assert bench.status("t3") == "ready"


def test_what_is_held_stays_when_memory_is_told_anew() -> None:
    """Amounts that are told for the first time, change, and are alike at last: what is free moves by the difference."""
    bench = host(*NAMES, gpu_memory_bytes=16 * GIB)
    bench.submit(needs("held", 12, flavors=("fast",)), "held")
    bench.start("held")
    assert devices_of(bench, "held") == (0,)
    for sizes, free in (((16, 80), [4, 80]), ((24, 80), [12, 80]), ((24, 24), [12, 24])):
        bench.send(with_memory(*sizes))
        assert bench.state.nodes[0].device_memory == [size * GIB for size in free]
    bench.end("held", 5.0)
    assert bench.state.nodes[0].device_memory == [24 * GIB, 24 * GIB]


def burst(quotas: bool, slow_times: float) -> tuple[float, float]:
    """24 tasks of 1 to 4 s come at once to one device of each flavor; `quotas`: half of them in each of two queues that
    may use one device each. Seconds to the end of all, and the share of them in which the fast device works."""
    queues = tuple([QueueSpec(name, nominal=(UNLIMITED, 1000, UNLIMITED)) for name in ("a", "b")]) if quotas else ()
    jobs = []
    for number in range(24):
        graph = job("t", 1.0 + number % 4, slow_times * (1.0 + number % 4))
        jobs.append(LoadedWorkload(str(number), "t", "", "ab"[number % 2] if quotas else "", 0.0, graph))
    nodes = tuple([SimNode(name, 8.0, 1, flavor=name) for name in NAMES])
    done = Simulation(jobs, SimConfig(nodes, flavors=(FAST, SLOW), queues=queues)).run()
    at = {record.workload: record for record in done.records if isinstance(record, r.Started)}
    ends = {record.workload: record.t for record in done.records if isinstance(record, r.Ended)}
    worked = sum(ends[name] - start.t for name, start in at.items() if start.node == "fast")
    return max(ends.values()), worked / max(ends.values())


@pytest.mark.parametrize(("quotas", "at_most_s"), [(False, 32.0), (True, 37.0)])
@pytest.mark.parametrize("slow_times", [1.0, 1.04])
def test_of_flavors_that_are_as_fast_none_idles_while_tasks_wait(
    slow_times: float, quotas: bool, at_most_s: float
) -> None:
    """Nobody leaves a free device to a line in which all do so: 60 s of work on two devices, or of two queues that may
    have one each the 36 s of the longer one."""
    assert burst(quotas, slow_times)[0] <= at_most_s


@pytest.mark.parametrize("slow_times", [1.25, 1.6])
def test_tasks_that_quotas_keep_out_anyway_stand_in_no_line(slow_times: float) -> None:
    """Each queue may have one device: what the first of it takes it takes from none of the others, so it has the better
    one of those that are there, and the fast one works nearly all the time."""
    assert burst(quotas=True, slow_times=slow_times)[1] >= 0.9
