"""The harness can fail: a known bug in the shipped code, put in on purpose, breaks a claim within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.driver import journal
from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.journal import Journal
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.state import State
from egs_core.testing.fault_sim import Result, run_seeds, shell
from egs_core.testing.fault_sim.__main__ import main
from egs_core.testing.fault_sim.disk import SimulatedDisk
from egs_core.testing.fault_sim.runner import old_journals_in

OLD = Path(__file__).parents[1] / "fixtures" / "journal"
MOST_SEEDS = 200
Mutate = Callable[[pytest.MonkeyPatch], None]


def first_failure() -> Result | None:
    return next((result for result in run_seeds(range(MOST_SEEDS), old_journals_in(OLD)) if not result.is_good), None)


def no_sync(patch: pytest.MonkeyPatch) -> None:
    """The journal trusts the system's cache."""
    patch.setattr(SimulatedDisk, "sync", lambda *_: None)


def no_attempts(patch: pytest.MonkeyPatch) -> None:
    """The engine takes news of an old attempt for news of the current one."""
    patch.setattr(Engine, "_is_current", lambda self, phase, _: 0 <= phase < len(self.state.status))


def perform_first(patch: pytest.MonkeyPatch) -> None:
    """The driver carries decisions out before the journal has them."""

    def handle(self: EmbeddedDriver, event: m.Event) -> None:
        now = self.now()
        assert self._before is not None
        assert self._journal is not None
        assert self._after is not None
        self._before(event, now)
        for decision in self.engine.handle(event, now):
            self._perform(decision, now)
        self._journal.append(event, now, self.engine.take_transitions())
        self._after(event, now)

    patch.setattr(EmbeddedDriver, "handle", handle)


def no_reconciliation(patch: pytest.MonkeyPatch) -> None:
    """A recovered driver believes its journal."""
    patch.setattr(shell, "events_of", lambda *_: [])


def torn_tail_kept(patch: pytest.MonkeyPatch) -> None:
    """A resumed journal writes on behind half a line."""
    recover = journal.recover

    def whole(path: Path, storage: SimulatedDisk) -> journal.Recovered:
        found = recover(path, storage)
        with closing(storage.open(path, "rb")) as file:
            return msgspec.structs.replace(found, size_bytes=sum(len(line) for line in file))

    patch.setattr(journal, "recover", whole)


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """A new driver does not tell the nodes which decisions of the old one are void."""
    begin = shell.Shell.begin

    def careless(self: shell.Shell) -> None:
        self._below = 0
        begin(self)

    patch.setattr(shell.Shell, "begin", careless)


def time_stands_still(patch: pytest.MonkeyPatch) -> None:
    """A recovered driver's clock starts at zero, and the engine's timers are a day ahead."""
    make = EmbeddedDriver.__init__

    def restart(self: EmbeddedDriver, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._origin = self._clock()

    patch.setattr(EmbeddedDriver, "__init__", restart)


def lost_means_rejected(patch: pytest.MonkeyPatch) -> None:
    """A decision whose fate is unknown is given out again under the same attempt."""
    patch.setattr(shell, "PATIENCE", 0)
    patch.setattr(State, "requeue", _requeue_without_fence)


def _requeue_without_fence(self: State, task: int) -> int:
    for phase in self.phases_of(task):
        self._release(phase)
        self.retry_at.pop(phase, None)
        self.status[phase] = 0
    self._leave_process(task, reusable=False)
    self.cursor[task] = self.first_phase[task]
    return self.cursor[task]


def forgotten_transition(patch: pytest.MonkeyPatch) -> None:
    """The journal misses one kind of transition."""
    append = Journal.append

    def drop(self: Journal, event: m.Event, now: float, transitions: list[Any]) -> None:
        append(self, event, now, [t for t in transitions if t[0] != "hold"])

    patch.setattr(Journal, "append", drop)


def freed_at_stop(patch: pytest.MonkeyPatch) -> None:
    """A stopped phase's device is given to the next one before its code has stopped."""
    stop = State.stop

    def free(self: State, task: int) -> None:
        stop(self, task)
        lease = self.leases.get(self.cursor[task])
        if lease is not None:
            self.nodes[lease.node].give_back(lease)

    patch.setattr(State, "stop", free)


def pause_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A pause holds what is ready, and nothing that gets ready later."""
    patch.setattr(State, "pause_of", lambda *_: None)


MUTANTS: dict[str, Mutate] = {
    "no sync": no_sync,
    "no attempts": no_attempts,
    "perform first": perform_first,
    "no reconciliation": no_reconciliation,
    "no fencing": no_fencing,
    "torn tail kept": torn_tail_kept,
    "time stands still": time_stands_still,
    "requeue without a new attempt": lost_means_rejected,
    "a transition not journaled": forgotten_transition,
    "freed at stop": freed_at_stop,
    "pause forgotten": pause_forgotten,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_known_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutant breaks a claim within 200 seeds, most within ten."""
    MUTANTS[name](monkeypatch)
    found = first_failure()
    assert found is not None, f"{MOST_SEEDS} seeds do not notice"
    assert found.claim != "nothing raises", found.problem


def test_a_failing_seed_is_printed_and_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has the seed, the broken claim and the last events, and the command in it shows the same again."""
    forgotten_transition(monkeypatch)
    assert main(["--seeds", "0:30", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.startswith("replay: "))
    seed = line.split("--seed ")[1].split()[0]
    problem = next(text for text in shown.splitlines() if text.startswith(f"seed {seed}: broken claim: "))
    assert main(["--seed", seed]) == 1
    again = capsys.readouterr().out
    assert f"seed {seed}: {problem.split('broken claim: ')[1]}" in again
    last_event = shown[: shown.index(problem)].splitlines()[-1]
    assert last_event in again
