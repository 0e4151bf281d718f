"""A journal's entries: whatever prefix was kept gives the state of that moment; what is damaged is one clear error."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from egs_core.driver.journal import encode_entry, folded
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.state.snapshots import decode_state
from egs_core.engine.state.state import State
from egs_core.errors import InputError
from egs_core.graph.columns import GPU, Shape, TaskOptions
from egs_core.testing.engine_bench import EngineBench, canonical, cpu, gpu, graph_of
from egs_core.testing.fault_sim.store import snapshot_and_entries

FIXTURES = Path(__file__).parents[2] / "fixtures" / "journal"


def small_run() -> EngineBench:
    """Every kind of event and of transition argument: devices, warm processes, rejections, growth."""
    bench = EngineBench(2, 2)
    options = {"b": TaskOptions(warm_key="k", warmup_s=1.0, max_wait_s=9.0, stage="x"), "c": TaskOptions(retries=1)}
    phases = {"b": (gpu(2.0, gpus=2),), "c": (cpu(), (GPU, Shape(500, 250), 0.125))}
    bench.submit(graph_of({"a": (), "b": ("a",), "c": ()}, phases, options), at=0.5)
    bench.start("a", 1.0)
    bench.send(m.DecisionRejected(bench.grant_of("c").id, "no"), 1.25)
    bench.send(m.Estimates(((0, 0.1, 0.2),)), 1.5)
    bench.send(m.Tick(), 3.0)
    bench.end("a", 3.1)
    preload = bench.preload_of("b")
    bench.send(m.PreloadReady(preload.task, preload.id), 4.2)
    bench.submit(graph_of({"d": ("a",), "e": ("b",)}, known=["a", "b", "c"]), at=5.0)
    bench.end("c", 6.0)
    bench.end("b", 6.5)
    bench.end("c", 7.0, "failed")
    bench.abort("task", "e", "ann", "enough")
    bench.send(m.NodeLost("n0"), 8.0)
    return bench


def entries_of(bench: EngineBench) -> tuple[list[bytes], list[State]]:
    """The bench's log as entries, and the state before the first and after each."""
    engine = Engine(bench.engine.config)
    entries, states = [], [decode_state(engine.snapshot())]
    for event, now, _ in bench.log:
        engine.handle(event, now)
        entries.append(encode_entry(event, now, engine.take_transitions()))
        states.append(decode_state(engine.snapshot()))
    return entries, states


def test_an_engine_goes_on_from_its_entries() -> None:
    """After a whole run the folded state is the engine's, and what comes next is decided alike."""
    bench = small_run()
    state = folded(b"", entries_of(bench)[0], "here")
    assert canonical(state) == canonical(bench.state)
    engine = Engine(bench.engine.config, state)
    engine.validate_state()
    assert engine.handle(m.NodeAdded("n1", 4.0, 2), 9.0) == bench.send(m.NodeAdded("n1", 4.0, 2), 9.0)


def test_every_prefix_gives_the_state_of_that_moment() -> None:
    """Whichever entry was the last to be kept; and from whichever moment a snapshot has what came before."""
    entries, states = entries_of(small_run())
    for number, state in enumerate(states):
        assert canonical(folded(b"", entries[:number], "here")) == canonical(state)
        snapshot = msgspec.json.encode(state)
        assert canonical(folded(snapshot, entries[number:], "here")) == canonical(states[-1])


@settings(derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(20, 150), st.integers(1, 60))
def test_recovery_after_any_history(seed: int, length: int, compact_every: int) -> None:
    """Random histories, random compaction: recovery gives the same state at every tenth entry."""
    numbers = random.Random(seed).choices(range(2**16), k=length)
    world = World(EngineConfig(), [m.NodeAdded("n", 4.0, 2, None, None, 2, 3)], numbers)
    world.run()
    engine = Engine(world.bench.engine.config)
    snapshot, entries = b"", list[bytes]()
    for number, (event, now, _) in enumerate(world.bench.log):
        engine.handle(event, now)
        entries.append(encode_entry(event, now, engine.take_transitions()))
        if len(entries) >= compact_every:
            snapshot, entries = engine.snapshot(), []
        if number % 10 == 0 or number == len(world.bench.log) - 1:
            assert canonical(folded(snapshot, entries, "here")) == canonical(engine.state)
    assert canonical(engine.state) == canonical(world.bench.state)


ENTRY = b'{"j":"entry","now":0.0,"event":{"e":"tick"},"transitions":[]}'
CASES = {
    "binary": (b"", [bytes(range(256))], " entry 1: is not a journal entry"),
    "garbage": (b"", [ENTRY, b"garbage", ENTRY], " entry 2: is not a journal entry"),
    "a list": (b"", [b"[1]"], " entry 1: is not a journal entry"),
    "half an entry": (b"", [ENTRY[:-5]], " entry 1: is not a journal entry"),
    "a hole": (b"", [ENTRY.replace(b"transitions", bytes(11))], " entry 1: is not a journal entry"),
    "an unknown event": (b"", [ENTRY.replace(b"tick", b"tock")], " entry 1: is not a journal entry"),
    "deep nesting": (b"", [b'{"j":' + b"[" * 100_000], " entry 1: "),
    "an unknown transition": (b"", [ENTRY.replace(b"[]", b'[["_move",[0,1]]]')], " entry 1: does not follow"),
    "no transition": (b"", [ENTRY.replace(b"[]", b'[["__init__",[]]]')], " entry 1: does not follow"),
    "an impossible transition": (b"", [ENTRY.replace(b"[]", b'[["start",[5,1.0]]]')], " entry 1: does not follow"),
    "a snapshot": (b"", [ENTRY, b'{"j":"snapshot","state":{}}'], " entry 2: is not a journal entry"),
    "a bad snapshot": (b'{"version":1,"now":"x"}', [], ": snapshot:"),
    "a future snapshot": (b'{"version":9}', [], ": snapshot: format version 9"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_damaged_is_one_error_with_its_place(name: str) -> None:
    """Which entry, and no traceback of another kind."""
    snapshot, entries, expected = CASES[name]
    with pytest.raises(InputError) as error:
        folded(snapshot, entries, "the store")
    assert f"the store{expected}" in str(error.value)


# --- version 1 stays readable -----------------------------------------------------------------------------------------


def committed(name: str) -> State:
    """Where a file leads to, by the reader of entries that the server has."""
    return folded(*snapshot_and_entries((FIXTURES / name).read_bytes()), name)


def test_the_committed_journal_of_version_1_is_readable() -> None:
    """Written by the first version; its end is known: what ended, what was lost with its node, what waits."""
    state = committed("v1.jsonl")
    assert state.task_ids == ["a", "b", "c", "d", "e"]
    by_name = dict(zip(state.task_ids, (state.status[state.cursor[t]] for t in range(5)), strict=True))
    assert by_name == {"a": 5, "b": 5, "c": 1, "d": 1, "e": 8}
    assert state.now == 8.0
    assert not state.nodes[0].alive
    Engine(state=state).validate_state()


@pytest.mark.parametrize("name", ["v1-midway.jsonl", "v1-compacted.jsonl"])
def test_an_engine_goes_on_from_each_committed_journal(name: str) -> None:
    """Also from one that begins with a snapshot, and from one that was left while work went on."""
    engine = Engine(state=committed(name))
    engine.handle(m.Tick(), engine.state.now + 1.0)
    engine.validate_state()


def test_the_committed_snapshot_of_version_1_is_readable() -> None:
    """The same state as the journal's, as a snapshot of the first version."""
    engine = Engine.restore((FIXTURES / "snapshot-v1.json").read_bytes())
    engine.validate_state()
    led_to = committed("v1.jsonl")
    assert [s.open_tasks for s in led_to.submissions] == [s.open_tasks for s in engine.state.submissions]
    for state in (led_to, engine.state):  # which lengths were unknown, and what they came to, the snapshot never said
        state.submissions, state.histories, state.unknown, state.left_ms = [], {}, set(), []
        for node in state.nodes:  # nor what a node has for which no holder named a number, which is another one now
            node.process_slots = 0
    assert canonical(engine.state) == canonical(led_to)
    engine = Engine.restore((FIXTURES / "snapshot-v1.json").read_bytes())
    assert engine.handle(m.NodeAdded("n1", 4.0, 2), 9.0)


def test_a_snapshot_that_says_nothing_of_leases_by_node_is_readable() -> None:
    """Written by a version without that index: it is made from the leases, and the engine goes on from there."""
    bench = EngineBench(2, 2)
    bench.submit(graph_of({"a": (), "b": (), "c": ()}, {"b": (gpu(2.0, gpus=2),)}))
    before = msgspec.json.decode(bench.engine.snapshot())
    assert before.pop("leased_on") == {"0": [0, 1, 2]}
    engine = Engine.restore(msgspec.json.encode(before))
    engine.validate_state()
    assert canonical(engine.state) == canonical(bench.state)


def test_the_committed_fixtures_are_of_this_format() -> None:
    """If this fails the format has changed: give it a new version, and keep these files and their reader."""
    assert encode_entry(m.Tick(), 0.0, []) == ENTRY
    lines = (FIXTURES / "v1.jsonl").read_bytes().splitlines()
    events = {msgspec.json.decode(line)["event"]["e"] for line in lines[1:]}
    assert len(events) >= 10


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"version":2}', b'{"version":1,"now":[]}', b"null"])
def test_a_damaged_snapshot_is_a_value_error(data: bytes) -> None:
    """`restore` says so in one way, whatever is wrong."""
    with pytest.raises(ValueError, match="snapshot: "):
        Engine.restore(data)
