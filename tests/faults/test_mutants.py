"""The harness can fail: a known bug in the shipped code, put in on purpose, breaks a claim within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.journal import encode_entry
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.journal import Transition
from egs_core.engine.state.state import State
from egs_core.testing.fault_sim import Result, run_seeds, shell
from egs_core.testing.fault_sim.__main__ import main
from egs_core.testing.fault_sim.runner import old_journals_in
from egs_core.testing.fault_sim.store import SimulatedStore

OLD = Path(__file__).parents[1] / "fixtures" / "journal"
MOST_SEEDS = 200
Mutate = Callable[[pytest.MonkeyPatch], None]


def first_failure() -> Result | None:
    return next((result for result in run_seeds(range(MOST_SEEDS), old_journals_in(OLD)) if not result.is_good), None)


def not_durable(patch: pytest.MonkeyPatch) -> None:
    """The store says that it has what is lost when the driver dies."""
    state = SimulatedStore.state

    def lose(self: SimulatedStore) -> State:
        del self._entries[-1:]
        return state(self)

    patch.setattr(SimulatedStore, "state", lose)


def no_attempts(patch: pytest.MonkeyPatch) -> None:
    """The engine takes news of an old attempt for news of the current one."""
    patch.setattr(Engine, "_is_current", lambda self, phase, _: 0 <= phase < len(self.state.status))


def perform_first(patch: pytest.MonkeyPatch) -> None:
    """The driver carries decisions out before the store has what led to them."""

    def handle(self: EmbeddedDriver, event: m.Event) -> None:
        now = self.now()
        assert self._after is not None
        for decision in self.engine.handle(event, now):
            self._perform(decision, now)
        self._after(event, now)

    patch.setattr(EmbeddedDriver, "handle", handle)


def nothing_sent_again(patch: pytest.MonkeyPatch) -> None:
    """A recovered driver believes that all it had decided was heard."""
    patch.setattr(shell.Shell, "_send_again", lambda _: None)


def boots_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A recovered driver takes a node that has started again for the one that it knew."""
    begin = shell.Shell.begin

    def careless(self: shell.Shell) -> None:
        self._boots = {worker.name: worker.boot for worker in self._world.workers.values()}
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
    """The entries miss one kind of transition."""

    def drop(event: m.Event, now: float, transitions: list[Transition]) -> bytes:
        return encode_entry(event, now, [t for t in transitions if t[0] != "hold"])

    patch.setattr(shell, "encode_entry", drop)


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
    "not durable": not_durable,
    "no attempts": no_attempts,
    "perform first": perform_first,
    "nothing sent again": nothing_sent_again,
    "boots forgotten": boots_forgotten,
    "time stands still": time_stands_still,
    "requeue without a new attempt": lost_means_rejected,
    "a transition not kept": forgotten_transition,
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
