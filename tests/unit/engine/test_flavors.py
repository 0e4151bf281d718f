"""Flavors: how long a phase takes on which, which one a task gets, and when it waits for a better one."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.flavors import cost_of, seconds_on
from egs_core.engine.specs import FlavorSpec, mig_profiles
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

FAST, SLOW = FlavorSpec("fast", 4.0, 0.1), FlavorSpec("slow", 0.5, 0.1, speed=0.25)


def cluster(objective: str = "finish", fast: int = 1, slow: int = 1, **config: object) -> EngineBench:
    """One node of each flavor."""
    bench = EngineBench(config=EngineConfig(objective=objective, **config))  # type: ignore[arg-type]  # any field
    bench.send(m.NodeAdded("f", 8.0, fast, flavor="fast"))
    bench.send(m.NodeAdded("s", 8.0, slow, flavor="slow"))
    bench.send(m.FlavorsChanged((FAST, SLOW)))
    return bench


def job(name: str, fast_s: float, slow_s: float, gpus: int = 1, options: TaskOptions | None = None) -> Graph:
    """One GPU task whose seconds on both flavors are known."""
    graph = Graph(phase_flavor_s={0: {"fast": fast_s, "slow": slow_s}})
    graph.add_task(name, (), ((GPU, Shape(0, 1000 * gpus), fast_s),), options=options)
    return graph


def node_of(bench: EngineBench, name: str) -> str:
    return bench.grant_of(name).node


def test_seconds_follow_the_flavor() -> None:
    """A GPU phase takes its estimate over the flavor's speed, what is known of the very flavor goes first, and a CPU
    phase takes the same everywhere."""
    bench = cluster()
    bench.submit(graph_of({"a": ()}, {"a": (cpu(3.0), gpu(10.0))}))
    first = bench.state.first_phase[bench.task("a")]
    assert [seconds_on(bench.state, first + i, "slow")[0] for i in (0, 1)] == [3.0, 40.0]
    bench.send(m.FlavorEstimates(((first + 1, "slow", 15.0, 20.0), (99, "slow", 1.0, 1.0), (first, "slow", -1.0, 1.0))))
    assert seconds_on(bench.state, first + 1, "slow") == (15.0, 20.0)
    assert seconds_on(bench.state, first + 1, "unheard of") == (10.0, 10.0)


def test_cost_counts_devices_and_cpus() -> None:
    """Half an hour of two devices and four CPUs."""
    assert cost_of(FAST, Shape(4000, 2000), 1800.0) == pytest.approx(0.5 * (2 * 4.0 + 4 * 0.1))


def test_a_flavor_without_sense_is_left_out() -> None:
    """Speed zero, a negative price and not-a-number change nothing."""
    bench = cluster()
    wrong = FlavorSpec("w", speed=0.0), FlavorSpec("x", gpu_hour=-1.0), FlavorSpec("y", speed=float("nan"))
    bench.send(m.FlavorsChanged((*wrong, FAST)))
    assert list(bench.state.flavors) == ["fast"]


def two_tasks(*seconds: tuple[str, float, float]) -> Graph:
    """GPU tasks of one workload, in this order: the longer one on the fast flavor goes first."""
    graph = Graph(phase_flavor_s={i: {"fast": fast_s, "slow": slow_s} for i, (_, fast_s, slow_s) in enumerate(seconds)})
    for name, fast_s, _ in seconds:
        graph.add_task(name, (), ((GPU, Shape(0, 1000), fast_s),))
    return graph


@pytest.mark.parametrize(("objective", "place"), [("finish", "s"), ("soonest", "f")])
def test_the_one_with_more_to_gain_gets_the_fast_device(objective: str, place: str) -> None:
    """The task that hardly gains from the fast device leaves it to the one behind it, which is ten times as fast there;
    by its own soonest end alone it would take it."""
    bench = cluster(objective)
    bench.submit(two_tasks(("indifferent", 14.0, 15.0), ("keen", 12.0, 120.0)))
    assert node_of(bench, "indifferent") == place
    assert bench.status("keen") == ("granted" if objective == "finish" else "ready")


def holding(bench: EngineBench, flavor: str, seconds: float) -> None:
    """A task runs on the flavor's device from now on, believed to end after so long."""
    bench.submit(job(f"holder of {flavor}", seconds, seconds, options=TaskOptions(flavors=(flavor,))), f"h {flavor}")
    bench.start(f"holder of {flavor}")


def test_waits_for_the_faster_device_if_that_ends_sooner() -> None:
    """Free at 10 s and 5 s of work there against 20 s at once: it waits, the reason says for what and for how much, and
    it starts when the device comes free."""
    bench = cluster()
    holding(bench, "fast", 10.0)
    bench.submit(job("a", 5.0, 20.0), "a")
    reason = bench.reason("a")
    assert (bench.status("a"), reason.kind) == ("ready", "flavor")
    assert "'fast', free at about 10.000 s: it would end at 15.000 s" in reason.text
    assert "'slow', which is free now, at 20.000 s" in reason.text
    bench.end("holder of fast", 8.0)
    assert node_of(bench, "a") == "f"


def test_does_not_wait_when_that_takes_longer() -> None:
    """Free at 40 s: 20 s on the slow device at once is better."""
    bench = cluster()
    holding(bench, "fast", 40.0)
    bench.submit(job("a", 5.0, 20.0), "a")
    assert node_of(bench, "a") == "s"


def test_what_is_waited_for_is_looked_at_again_when_it_is_late() -> None:
    """The holder outlives its estimate: at the moment it should have ended the engine looks again, and each time takes
    it to run as long again, until starting on the slow device is better."""
    bench = cluster()
    holding(bench, "fast", 10.0)
    bench.submit(job("a", 5.0, 20.0), "a")
    assert bench.engine.next_wakeup() == 10.0
    bench.send(m.Tick(), 10.0)
    assert (bench.status("a"), bench.engine.next_wakeup()) == ("ready", 20.0)
    bench.send(m.Tick(), 20.0)
    assert node_of(bench, "a") == "s"
    assert bench.engine.next_wakeup() is None


def test_a_long_line_at_the_fast_devices_makes_the_slow_ones_attractive() -> None:
    """Of five equal tasks that are twice as fast on the one fast device, those that would wait too long for it start on
    the slow one."""
    bench = cluster()
    bench.submit(two_tasks(*[(f"t{i}", 10.0, 20.0) for i in range(5)]))
    granted = {bench.grant_of(name).node for name in bench.granted()}
    assert granted == {"f", "s"}


def test_what_waits_too_long_takes_what_is_free() -> None:
    """A task past its `max_wait` does not wait for a better flavor any more."""
    bench = cluster()
    holding(bench, "fast", 10.0)
    bench.submit(job("a", 5.0, 20.0, options=TaskOptions(max_wait_s=3.0)), "a")
    assert bench.status("a") == "ready"
    bench.send(m.Tick(), 3.0)
    assert node_of(bench, "a") == "s"


def test_the_cheapest_that_meets_the_deadline() -> None:
    """20 s on the slow device cost less than 5 s on the fast one: with time until the deadline it gets the slow one,
    without time the fast one, and what follows it counts."""
    for deadline_s, place in ((30.0, "s"), (10.0, "f")):
        bench = cluster("cost")
        bench.submit(job("a", 5.0, 20.0, options=TaskOptions(deadline_s=deadline_s)), "a")
        assert node_of(bench, "a") == place
    bench = cluster("cost")
    bench.send(m.WorkloadSubmitted("w", deadline_s=30.0))
    bench.submit(graph_of({"a": (), "b": ("a",)}, {"a": (gpu(5.0),), "b": (cpu(15.0),)}))
    assert node_of(bench, "a") == "f"


def test_a_deadline_goes_before_what_others_gain() -> None:
    """The task that hardly gains leaves the fast device to the other, but not if only there it meets its deadline."""
    for deadline_s, place in ((20.0, "s"), (14.5, "f")):
        bench = cluster()
        graph = two_tasks(("indifferent", 14.0, 15.0), ("keen", 12.0, 120.0))
        graph.options[0] = TaskOptions(deadline_s=deadline_s)
        bench.submit(graph)
        assert node_of(bench, "indifferent") == place


def test_without_a_deadline_a_lower_price_may_double_the_time() -> None:
    """Nine instead of five seconds for less money are taken, twenty are not."""
    for slow_s, place in ((9.0, "s"), (20.0, "f")):
        bench = cluster("cost")
        bench.submit(job("a", 5.0, slow_s), "a")
        assert node_of(bench, "a") == place


def test_equal_ends_leave_less_device_memory_idle() -> None:
    """Two flavors of one speed: a small task goes to the devices with less memory."""
    bench = EngineBench()
    bench.send(m.NodeAdded("big", 8.0, 1, None, 80 << 30, flavor="a100-80"))
    bench.send(m.NodeAdded("small", 8.0, 1, None, 40 << 30, flavor="a100-40"))
    bench.send(m.FlavorsChanged((FlavorSpec("a100-80"), FlavorSpec("a100-40"))))
    bench.submit(graph_of({"a": ()}, {"a": (gpu(5.0, gpu_memory_bytes=10 << 30),)}))
    assert node_of(bench, "a") == "small"


def test_only_on_the_flavors_that_the_user_allows() -> None:
    """A free device of another flavor is not taken, others behind the task may have it, and its reason names what is
    missing."""
    bench = EngineBench()
    bench.send(m.NodeAdded("s", 8.0, 1, flavor="slow"))
    only = TaskOptions(flavors=("fast", "faster"))
    bench.submit(graph_of({"picky": (), "plain": ()}, {"picky": (gpu(9.0),), "plain": (gpu(1.0),)}, {"picky": only}))
    assert (bench.status("picky"), bench.status("plain")) == ("ready", "granted")
    assert bench.reason("picky").kind == "infeasible"
    assert bench.reason("picky").text == "there is no node of flavor fast or faster"
    bench.send(m.NodeAdded("f", 8.0, 1, flavor="fast"))
    assert node_of(bench, "picky") == "f"


def test_a_split_task_starts_its_cpu_phase_where_its_gpu_will_be_free() -> None:
    """Loading takes 10 s on a CPU, by when the fast device is free again: it starts there at once."""
    bench = cluster()
    holding(bench, "fast", 10.0)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(10.0), gpu(5.0))}))
    assert node_of(bench, "a") == "f"


def test_a_split_task_may_start_while_every_device_is_taken() -> None:
    """Its CPU phase of 10 s starts where its GPU phase will end soonest, though no device is free."""
    bench = cluster()
    holding(bench, "fast", 12.0)
    holding(bench, "slow", 1.0)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(10.0), gpu(5.0))}))
    assert node_of(bench, "a") == "f"  # 12 + 5 s against 10 + 20 s


def test_a_gang_stays_on_one_flavor() -> None:
    """Its slowest member holds up the others: it starts on the best flavor that has room for all."""
    bench = cluster(fast=2, slow=2)
    both = TaskOptions(gang="g")
    bench.submit(graph_of({"a": (), "b": ()}, options={"a": both, "b": both}, default=(gpu(5.0),)))
    assert (node_of(bench, "a"), node_of(bench, "b")) == ("f", "f")


def test_several_devices_come_free_together_on_one_node() -> None:
    """A task of two devices waits for the later of the two; a task of one device in front of it does not."""
    bench = cluster(fast=2, slow=2)
    for i, seconds in enumerate((10.0, 30.0)):
        graph = job(f"h{i}", seconds, seconds, options=TaskOptions(flavors=("fast",)))
        bench.submit(graph, f"h{i}")
        bench.start(f"h{i}")
    bench.submit(job("pair", 10.0, 35.0, gpus=2), "pair")
    assert node_of(bench, "pair") == "s"  # 30 + 10 s would be later


def test_shares_on_one_device_leave_the_other_whole() -> None:
    """Two halves run on one of two fast devices: a task of a whole one starts on the other at once."""
    bench = cluster(fast=2)
    halves = TaskOptions(flavors=("fast",))
    bench.submit(graph_of({"h1": (), "h2": ()}, options={"h1": halves, "h2": halves}, default=(gpu(50.0, 0.5),)), "h")
    assert bench.grant_of("h1").devices == bench.grant_of("h2").devices
    bench.submit(job("whole", 10.0, 11.0), "whole")
    assert node_of(bench, "whole") == "f"


def test_a_free_device_is_not_kept_for_one_that_waits_for_two() -> None:
    """A task of two devices waits for the second; one of a single device behind it takes the first."""
    bench = cluster(fast=2, slow=2)
    holding(bench, "fast", 30.0)
    bench.submit(job("pair", 10.0, 500.0, gpus=2), "pair")
    bench.submit(job("single", 20.0, 400.0), "single")
    assert (bench.status("pair"), node_of(bench, "single")) == ("ready", "f")


def test_one_flavor_is_no_choice() -> None:
    """Speeds and prices of a cluster whose nodes are all alike change no decision."""
    plain, known = EngineBench(), EngineBench()
    for bench in (plain, known):
        bench.send(m.NodeAdded("a", 8.0, 1, flavor="slow"))
        bench.send(m.NodeAdded("b", 8.0, 1, flavor="slow"))
    known.send(m.FlavorsChanged((FAST, SLOW)))
    for bench in (plain, known):
        bench.submit(graph_of({"a": (), "b": (), "c": ()}, default=(cpu(), gpu())))
        bench.end("a", 3.0)
        bench.end("b", 4.0)
    assert plain.decisions == known.decisions


def unpriced() -> EngineBench:
    """One node of each flavor, of which nobody has told a price or a speed: as in a pool of several drivers."""
    bench = EngineBench()
    bench.send(m.NodeAdded("f", 8.0, 1, flavor="fast"))
    bench.send(m.NodeAdded("s", 8.0, 1, flavor="slow"))
    return bench


def test_a_task_that_starts_again_gets_a_flavor_that_it_may_still_have() -> None:
    """It waits for that one, though its first one is free, and says so; others have that. An unknown task, and none of
    the flavors, change nothing."""
    bench = unpriced()
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(),)))
    bench.start("a")
    bench.start("b")
    kinds = {"f": "fast", "s": "slow"}
    had, other = node_of(bench, "a"), node_of(bench, "b")
    bench.send(m.FlavorsAllowed(99, ("slow",)))
    bench.send(m.FlavorsAllowed(bench.task("a"), ()))
    assert not bench.state.options
    bench.send(m.FlavorsAllowed(bench.task("a"), (kinds[other],)))
    bench.end("a", 5.0, "preempted")
    assert (bench.status("a"), bench.reason("a").kind) == ("ready", "capacity")
    assert other in bench.reason("a").text
    bench.submit(graph_of({"c": ()}, default=(gpu(),)), "another")
    assert node_of(bench, "c") == had
    bench.end("b", 9.0)
    assert node_of(bench, "a") == other
    bench.end("a", 12.0)
    assert bench.status("a") == "succeeded"


def test_a_process_that_waits_on_a_flavor_no_longer_allowed_is_given_up() -> None:
    """Another one is started where the task may run, and the task runs there."""
    bench = unpriced()
    bench.submit(graph_of({"a": ()}, {"a": (gpu(),)}, {"a": TaskOptions(warm_key="k", warmup_s=5.0)}))
    node = bench.preload_of("a").node
    bench.send(m.FlavorsAllowed(bench.task("a"), ("slow" if node == "f" else "fast",)))
    assert sum(isinstance(decision, m.DropPreload) for decision in bench.decisions) == 1
    assert bench.preload_of("a").node != node
    bench.send(m.PreloadReady(bench.task("a")))
    assert node_of(bench, "a") == bench.preload_of("a").node


def test_the_events_survive_the_journal() -> None:
    """What a journal stores of flavors, profiles and topology is read back as it was."""
    events: list[m.Event] = [
        m.NodeAdded("n", 8.0, 2, flavor="fast", topology=(("rack", "r1"),)),
        m.FlavorsChanged((FlavorSpec("fast", 4.0, profiles=mig_profiles(80 << 30)), SLOW)),
        m.FlavorEstimates(((1, "fast", 2.0, 3.0),)),
        m.FlavorsAllowed(1, ("fast",)),
        m.TasksAdded("w", job("a", 5.0, 20.0, options=TaskOptions(flavors=("fast",), gang_same="rack"))),
    ]
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=m.AnyEvent) == event
