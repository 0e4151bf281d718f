"""The journal: whatever prefix is left, it gives the state of that moment; what is no journal is one clear error."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from egs_core.driver.journal import FORMAT, VERSION, Journal, recover
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.state.snapshots import decode_state
from egs_core.engine.state.state import State
from egs_core.errors import InputError
from egs_core.graph.columns import GPU, Shape, TaskOptions
from egs_core.testing.engine_bench import EngineBench, canonical, cpu, gpu, graph_of

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


def write(path: Path, bench: EngineBench, *, compact_every: int = 10**6) -> list[State]:
    """The bench's log as a journal; returns the state after the header and after each entry."""
    engine = Engine(bench.engine.config)
    journal = Journal(path, engine, compact_every=compact_every)
    states = [decode_state(engine.snapshot())]
    for event, now, _ in bench.log:
        engine.handle(event, now)
        journal.append(event, now, engine.take_transitions())
        states.append(decode_state(engine.snapshot()))
    journal.close()
    return states


def test_recovery_gives_the_state_and_the_config(tmp_path: Path) -> None:
    """After a whole run the recovered state is the engine's, and the engine goes on under the same policy."""
    bench = small_run()
    write(tmp_path / "j", bench)
    found = recover(tmp_path / "j")
    assert canonical(found.state) == canonical(bench.state)
    assert (found.entries, found.config) == (len(bench.log), bench.engine.config)
    engine = found.engine()
    engine.validate_state()
    assert engine.handle(m.NodeAdded("n1", 4.0, 2), 9.0) == bench.send(m.NodeAdded("n1", 4.0, 2), 9.0)


def test_every_prefix_in_bytes_gives_the_state_of_that_moment(tmp_path: Path) -> None:
    """Cut anywhere after the header, the journal leads to the state after its last whole entry."""
    states = write(tmp_path / "j", small_run())
    data = (tmp_path / "j").read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    cut = tmp_path / "cut"
    for size in range(ends[0], len(data) + 1, 7):
        cut.write_bytes(data[:size])
        found = recover(cut)
        whole = sum(end <= size for end in ends) - 1
        assert found.entries == whole
        assert canonical(found.state) == canonical(states[whole]), size


@settings(derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(20, 150), st.integers(1, 60))
def test_recovery_after_any_history(tmp_path: Path, seed: int, length: int, compact_every: int) -> None:
    """Random histories, random compaction: recovery gives the same state at every entry."""
    numbers = random.Random(seed).choices(range(2**16), k=length)
    world = World(EngineConfig(), [m.NodeAdded("n", 4.0, 2, None, None, 2, 3)], numbers)
    world.run()
    path = tmp_path / f"{seed}-{length}-{compact_every}"
    path.unlink(missing_ok=True)
    engine = Engine(world.bench.engine.config)
    journal = Journal(path, engine, compact_every=compact_every)
    for number, (event, now, _) in enumerate(world.bench.log):
        engine.handle(event, now)
        journal.append(event, now, engine.take_transitions())
        if number % 10 == 0 or number == len(world.bench.log) - 1:
            assert canonical(recover(path).state) == canonical(engine.state)
    journal.close()
    assert canonical(engine.state) == canonical(world.bench.state)


def test_going_on_after_a_torn_line(tmp_path: Path) -> None:
    """`resume` cuts off what was being written and appends; the whole is one readable journal."""
    bench = small_run()
    states = write(tmp_path / "j", bench)
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-20])
    journal = Journal.resume(tmp_path / "j")
    assert canonical(journal.engine.state) == canonical(states[-2])
    event, now, _ = bench.log[-1]
    journal.engine.handle(event, now)
    journal.append(event, now, journal.engine.take_transitions())
    journal.close()
    assert (tmp_path / "j").read_bytes() == data


def test_compaction_keeps_the_state_and_drops_the_entries(tmp_path: Path) -> None:
    """With a snapshot instead of entries the same state comes back, from a shorter recovery."""
    bench = small_run()
    write(tmp_path / "j", bench, compact_every=5)
    found = recover(tmp_path / "j")
    assert canonical(found.state) == canonical(bench.state)
    assert found.entries == len(bench.log) % 5
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_a_crash_in_a_compaction_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename is the moment of change: before it the old file is whole."""
    bench = small_run()
    write(tmp_path / "j", bench)
    journal = Journal.resume(tmp_path / "j")

    def crash(*_: object) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="power cut"):
            journal.compact()
    journal.close()
    assert canonical(recover(tmp_path / "j").state) == canonical(bench.state)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """An entry that does not fit raises, and leaves no half line before the next one."""
    bench = small_run()
    engine = Engine(bench.engine.config)
    journal = Journal(tmp_path / "j", engine)
    real = journal._file

    class Full:
        """Takes half of what is written, then has no room."""

        def __init__(self) -> None:
            self.calls = 0

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def write(self, data: bytes) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return int(real.write(data[: len(data) // 2]))

    journal._file = Full()  # type: ignore[assignment]  # a disk that is full
    engine.handle(m.NodeAdded("n0", 1.0), 0.0)
    transitions = engine.take_transitions()
    with pytest.raises(OSError, match="No space left"):
        journal.append(m.NodeAdded("n0", 1.0), 0.0, transitions)
    journal._file = real
    journal.append(m.NodeAdded("n0", 1.0), 0.0, transitions)
    journal.close()
    assert recover(tmp_path / "j").entries == 1


def test_an_engine_with_a_past_starts_with_a_snapshot(tmp_path: Path) -> None:
    """A journal that is begun late holds what was before."""
    bench = small_run()
    Journal(tmp_path / "j", bench.engine, sync=True).close()
    found = recover(tmp_path / "j")
    assert (canonical(found.state), found.entries) == (canonical(bench.state), 0)


def test_an_engine_that_records_nothing_is_refused(tmp_path: Path) -> None:
    """Without transitions there is nothing to recover from."""
    with pytest.raises(ValueError, match="records"):
        Journal(tmp_path / "j", Engine())
    assert not (tmp_path / "j").exists()


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    """A new journal on an old one's path is refused, and so is a folder."""
    engine = Engine(EngineConfig(record=True))
    Journal(tmp_path / "j", engine).close()
    before = (tmp_path / "j").read_bytes()
    for path in (tmp_path / "j", tmp_path):
        with pytest.raises(InputError, match="already exists"):
            Journal(path, engine)
    assert (tmp_path / "j").read_bytes() == before


HEADER = b'{"format":"egs-journal","version":1,"config":{}}\n'
ENTRY = b'{"j":"entry","now":0.0,"event":{"e":"tick"},"transitions":[]}\n'
CASES = {
    "empty": (b"", ":1: is not a journal"),
    "half a header": (HEADER[:20], ":1: is not a journal"),
    "binary": (bytes(range(256)) + b"\n", ":1: is not a journal"),
    "another format": (b'{"format":"egs-runlog","version":1}\n', ":1: is not a journal"),
    "a future version": (HEADER.replace(b"1", b"2"), ":1: journal version 2 is unknown"),
    "a bad config": (HEADER.replace(b"{}", b'{"seed":"x"}'), ":1: is not a journal header"),
    "garbage": (HEADER + ENTRY + b"garbage\n" + ENTRY, ":3: is not a journal entry"),
    "a list": (HEADER + b"[1]\n", ":2: is not a journal entry"),
    "an unknown event": (HEADER + ENTRY.replace(b"tick", b"tock"), ":2: is not a journal entry"),
    "deep nesting": (HEADER + b'{"j":' + b"[" * 100_000 + b"\n", ":2: "),
    "an unknown transition": (HEADER + ENTRY.replace(b"[]", b'[["_move",[0,1]]]'), ":2: does not follow"),
    "no transition": (HEADER + ENTRY.replace(b"[]", b'[["__init__",[]]]'), ":2: does not follow"),
    "an impossible transition": (HEADER + ENTRY.replace(b"[]", b'[["start",[5,1.0]]]'), ":2: does not follow"),
    "a late snapshot": (HEADER + ENTRY + b'{"j":"snapshot","state":{}}\n', ":3: a snapshot among the entries"),
    "a bad snapshot": (HEADER + b'{"j":"snapshot","state":{"version":1,"now":"x"}}\n', ":2: snapshot:"),
    "a future snapshot": (HEADER + b'{"j":"snapshot","state":{"version":9}}\n', ":2: snapshot: format version 9"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_journal_is_one_error_with_its_place(name: str, tmp_path: Path) -> None:
    """File and line, and no traceback of another kind."""
    data, expected = CASES[name]
    (tmp_path / "j").write_bytes(data)
    with pytest.raises(InputError) as error:
        recover(tmp_path / "j")
    assert f"{tmp_path / 'j'}{expected}" in str(error.value)


@pytest.mark.parametrize("make", [Path.mkdir, lambda _: None], ids=["folder", "missing"])
def test_a_folder_or_nothing_is_an_error(make: Callable[[Path], None], tmp_path: Path) -> None:
    """No file, no journal."""
    make(tmp_path / "j")
    with pytest.raises(InputError, match="cannot be opened"):
        recover(tmp_path / "j")


@pytest.mark.parametrize("hole", [b'"entry"', b"transitions"])
def test_a_last_line_with_a_hole_is_dropped_and_only_there(hole: bytes, tmp_path: Path) -> None:
    """A power cut may leave a file its length and not its last content; in the middle that is damage."""
    torn = ENTRY.replace(hole, bytes(len(hole)))
    (tmp_path / "j").write_bytes(HEADER + ENTRY + torn)
    found = recover(tmp_path / "j")
    assert (found.entries, found.size_bytes) == (1, len(HEADER + ENTRY))
    (tmp_path / "j").write_bytes(HEADER + torn + ENTRY)
    with pytest.raises(InputError, match=":2: is not a journal entry"):
        recover(tmp_path / "j")


# --- version 1 stays readable -----------------------------------------------------------------------------------------


def test_the_committed_journal_of_version_1_is_readable() -> None:
    """Written by the first version; its end is known: what ended, what was lost with its node, what waits."""
    found = recover(FIXTURES / "v1.jsonl")
    state = found.state
    assert found.config.policy == "egs"
    assert state.task_ids == ["a", "b", "c", "d", "e"]
    by_name = dict(zip(state.task_ids, (state.status[state.cursor[t]] for t in range(5)), strict=True))
    assert by_name == {"a": 5, "b": 5, "c": 1, "d": 1, "e": 8}
    assert state.now == 8.0
    assert not state.nodes[0].alive
    found.engine().validate_state()


def test_the_committed_snapshot_of_version_1_is_readable() -> None:
    """The same state as the journal's, as a snapshot of the first version."""
    engine = Engine.restore((FIXTURES / "snapshot-v1.json").read_bytes())
    engine.validate_state()
    folded = recover(FIXTURES / "v1.jsonl").state
    assert [s.open_tasks for s in folded.submissions] == [s.open_tasks for s in engine.state.submissions]
    for state in (folded, engine.state):  # which lengths were unknown, and what they came to, the snapshot never said
        state.submissions, state.histories, state.unknown, state.left_ms = [], {}, set(), []
        for node in state.nodes:  # nor what a node has for which no holder named a number, which is another one now
            node.process_slots = 0
    assert canonical(engine.state) == canonical(folded)
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
    assert (FORMAT, VERSION) == ("egs-journal", 1)
    lines = (FIXTURES / "v1.jsonl").read_bytes().splitlines()
    events = {msgspec.json.decode(line)["event"]["e"] for line in lines[1:]}
    assert len(events) >= 10


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"version":2}', b'{"version":1,"now":[]}', b"null"])
def test_a_damaged_snapshot_is_a_value_error(data: bytes) -> None:
    """`restore` says so in one way, whatever is wrong."""
    with pytest.raises(ValueError, match="snapshot: "):
        Engine.restore(data)
