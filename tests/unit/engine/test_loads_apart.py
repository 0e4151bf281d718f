"""Where processes load apart from CPUs, a task that comes to its GPU from CPUs takes these once its process is warm."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of

KEY = TaskOptions(warm_key="k", warmup_s=2.0)
TRAIN: tuple[PhaseSpec, ...] = (cpu(1.0), gpu(1.5), cpu(0.3))


def bench_with(*tasks: str, cpus: float = 4.0, gpus: int = 2, slots: int = 2, loads_apart: bool = True) -> EngineBench:
    """Trainings that are all ready on one node, where so many may load at once."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", cpus, gpus, preload_slots=slots, process_slots=8, loads_apart=loads_apart))
    bench.submit(graph_of(dict.fromkeys(tasks, ()), dict.fromkeys(tasks, TRAIN), dict.fromkeys(tasks, KEY)))
    return bench


def warm(bench: EngineBench, name: str, at: float) -> list[m.Decision]:
    return bench.send(m.PreloadReady(bench.task(name)), at)


def test_one_alone_loads_with_its_cpus() -> None:
    """It is in nobody's way, and need not wait for another process to hold its CPUs."""
    bench = bench_with("a")
    assert bench.grant_of("a").warm is False
    assert bench.preloaded() == []


def test_those_beside_it_load_first_and_hold_nothing() -> None:
    """As many more as the node has slots for; CPUs stay free for others until they are warm."""
    bench = bench_with("a", "b", "c", "d")
    assert (bench.granted(), bench.preloaded()) == (["a"], ["b", "c"])
    assert bench.state.nodes[0].free_cpu == 3000
    assert bench.reason("b").kind == bench.reason("d").kind == "warming"
    bench.submit(graph_of({"other": ()}, {"other": (cpu(5.0),)}), "w2")
    assert bench.granted() == ["a", "other"]
    warm(bench, "b", 2.0)
    assert (bench.granted()[-1], bench.grant_of("b").warm) == ("b", True)
    assert bench.preloaded() == ["b", "c", "d"]


def test_a_warm_process_goes_on_although_others_load() -> None:
    """On one CPU: the last phase of the first training does not wait for the CPU with which the second one loads."""
    for loads_apart, last_phase in ((True, "granted"), (False, "ready")):
        bench = bench_with("a", "b", cpus=1.0, gpus=1, loads_apart=loads_apart)
        bench.end("a", 3.0)
        bench.end("a", 4.5)
        assert (bench.state.attempt[bench.task("a")], bench.status("a")) == (1, last_phase)


def test_what_a_task_leaves_over_serves_the_next_one_at_once() -> None:
    """Nothing is loaded anew, and it starts as soon as CPUs are free, whatever its GPU does."""
    bench = bench_with("a", "b", cpus=2.0, gpus=1, slots=0)
    assert bench.granted() == ["a", "b"], "nodes that load nothing keep nobody waiting"
    bench = bench_with("a", "b", "c", "d", gpus=1, slots=1)
    warm(bench, "b", 1.0)
    for name, at in (("a", 1.0), ("a", 2.5), ("a", 2.8)):
        bench.end(name, at)
    assert bench.preload_of("c").reuse or bench.preload_of("d").reuse
    assert any(bench.grant_of(name).warm for name in "cd" if name in bench.granted())


def test_one_for_which_nothing_can_be_loaded_starts_as_it_is() -> None:
    """A driver that cannot make a process says so: the task loads inside its phase."""
    bench = bench_with("a", "b")
    bench.send(m.PreloadFailed(bench.task("b")))
    assert bench.grant_of("b").warm is False


def test_tasks_without_a_gpu_are_as_ever() -> None:
    """Where no GPU waits for it a load with CPUs costs nobody anything."""
    bench = bench_with("a")
    bench.submit(graph_of({"b": (), "c": ()}, dict.fromkeys("bc", (cpu(1.0),)), dict.fromkeys("bc", KEY)), "w2")
    assert bench.granted() == ["a", "b", "c"]


def test_while_gpus_are_busy_it_loads_if_cpus_are_free() -> None:
    """Its CPU part can be done meanwhile. With no CPU free either, in time for the GPU."""
    for cpus, loads in ((3.0, True), (1.0, False)):
        bench = EngineBench()
        bench.send(m.NodeAdded("n", cpus, 1, preload_slots=2, process_slots=8, loads_apart=True))
        bench.submit(graph_of({"holder": ()}, {"holder": (gpu(60.0),)}), "h")
        bench.submit(graph_of({"first": ()}, {"first": (cpu(30.0), gpu())}, {"first": KEY}), "f")
        bench.submit(graph_of({"b": ()}, {"b": TRAIN}, {"b": KEY}))
        assert (bench.preloaded() == ["b"]) is loads


def test_a_description_without_it_takes_it_back() -> None:
    """A node that is described anew: what waited for its process may start without."""
    bench = bench_with("a", "b")
    assert bench.granted() == ["a"]
    bench.send(m.NodeAdded("n", 4.0, 2, preload_slots=2, process_slots=8))
    assert bench.granted() == ["a", "b"]
