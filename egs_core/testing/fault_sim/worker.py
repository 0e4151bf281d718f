"""A worker machine of the outside world: it runs what it is told to, remembers it, and outlives the driver.

What any real worker has to do for the claims to hold, and no more: know a repeated command by its decision's number,
refuse what has been fenced, say a process is gone only when it is, and repeat its news until acknowledged.
"""

from __future__ import annotations

import msgspec

from egs_core.engine import messages as m
from egs_core.testing.fault_sim import wire as w
from egs_core.testing.fault_sim.ledger import SUCCEEDED, Job
from egs_core.testing.fault_sim.surroundings import Surroundings

RUNNING = "running"
GRACE_S = (0.0, 1.0)
RUN_S = (0.05, 6.0)
REPEAT_S = 2.0


class Attempt(msgspec.Struct):
    """What the worker remembers of one attempt: the phase given last, how it stands, and whether its process lives."""

    phase: int
    status: str
    is_alive: bool
    is_stopped: bool = False
    is_finished: bool = False


class Worker:
    """One machine. Each start of it (`boot`) begins without memory and without processes."""

    def __init__(self, world: Surroundings, full: m.NodeAdded) -> None:
        self.name = full.node
        self.full = full
        self.capacity = full
        self.boot = 1
        self.version = 1
        self.is_up = True
        self.news: dict[int, m.Event] = {}
        self._world = world
        self._numbers = 0
        self._forget()

    def _forget(self) -> None:
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self._known: set[int] = set()
        self._fenced: set[int] = set()
        self.news.clear()

    # --- the machine ---

    def die(self) -> None:
        """Power off: processes and memory are gone."""
        self.is_up = False
        self.version += 1
        self._world.ledger.lose(self.name)
        self._forget()

    def rise(self) -> None:
        self.is_up = True
        self.boot += 1
        self.version += 1

    def resize(self, capacity: m.NodeAdded) -> None:
        self.capacity = capacity
        self.version += 1

    @property
    def standing(self) -> w.Standing:
        return w.Standing(self.name, self.boot, self.version, self.capacity if self.is_up else None)

    @property
    def living(self) -> list[tuple[int, int]]:
        """(task, attempt) of its processes."""
        return [key for key, attempt in self.attempts.items() if attempt.is_alive]

    # --- commands ---

    def receive(self, boot: int, command: w.Command) -> None:
        """A command that was addressed to this start of the machine."""
        if not self.is_up or boot != self.boot:
            return
        self._world.tell(self.name, command)
        if isinstance(command, w.Start):
            self._start(command)
        elif isinstance(command, w.Stop):
            self._stop(command)
        elif isinstance(command, w.Fence):
            self._fence(command)
        else:
            self._make_warm(command)

    def _start(self, command: w.Start) -> None:
        decision, job = command.decision, command.job
        if decision in self._known:
            self._answer(w.Taken(command, True))
            return
        if decision in self._fenced:
            self._answer(w.Taken(command))  # given up by a driver, which may have died before it heard so
            return
        self._known.add(decision)
        self._answer(w.Taken(command, True))
        attempt = self.attempts.get(job.key)
        if attempt is not None and (attempt.is_stopped or attempt.is_finished):
            self._say_again(job, attempt)
        elif job.index and (attempt is None or not attempt.is_alive):
            self._say(m.PhaseEnded(job.phase, job.attempt, "preempted"))
        elif self._world.chance("reject") or not self._has_room(job):
            self._world.counts["decision rejected"] += 1
            self._say(m.DecisionRejected(decision, "no"))
        else:
            self._run(decision, job)

    def _say_again(self, job: Job, attempt: Attempt) -> None:
        if attempt.is_finished:
            self._say(m.TaskFinished(job.task, job.attempt))
        else:
            self._say(m.PhaseEnded(job.phase, job.attempt, "aborted"))

    def _run(self, decision: int, job: Job) -> None:
        world = self._world
        world.ledger.start(job, self.full, self.boot)
        self.attempts[job.key] = Attempt(job.phase, RUNNING, True)
        if world.plan.rates.applies:
            self._say(m.DecisionApplied(decision))
        self._say(m.PhaseStarted(job.phase, job.attempt))
        if world.chance("checkpoint"):
            self._say(m.Checkpointed(job.task, job.attempt))
        boot, seconds = self.boot, job.seconds + job.warmup_s * (job.index == 0)
        world.later(seconds, lambda: self._end(boot, job, self._outcome()))

    def _outcome(self) -> str:
        if self._world.chance("fail"):
            return "failed"
        return "preempted" if self._world.chance("die") else SUCCEEDED

    def _end(self, boot: int, job: Job, outcome: str) -> None:
        """The phase is over, unless something else has ended it before."""
        attempt = self.attempts.get(job.key)
        if boot != self.boot or attempt is None or (attempt.phase, attempt.status) != (job.phase, RUNNING):
            return
        world, is_last = self._world, job.index + 1 == job.count
        world.tell(self.name, f"{job.name} {outcome}")
        world.ledger.end(job, outcome)
        attempt.status = outcome
        attempt.is_alive = outcome == SUCCEEDED and not is_last and not attempt.is_stopped
        self._say(m.PhaseEnded(job.phase, job.attempt, outcome))
        if attempt.is_alive and world.chance("finish_early"):
            attempt.is_alive, attempt.is_finished = False, True
            world.ledger.finish(job)
            self._say(m.TaskFinished(job.task, job.attempt))
        elif attempt.is_alive and world.chance("die"):
            world.later(world.rng.uniform(0, 2), lambda: self._die_between(boot, job))
        self._beat(boot, job)

    def _beat(self, boot: int, job: Job) -> None:
        """A process that waits for its task's next phase says so now and then: nobody may know of it any more."""
        attempt = self.attempts.get(job.key)
        if boot == self.boot and attempt is not None and attempt.is_alive and attempt.phase == job.phase:
            beat = w.Beat(job.task, job.attempt, job.phase)
            self._world.to_driver(self.name, lambda shell: shell.hear_beat(self.name, boot, beat))
            self._world.later(REPEAT_S, lambda: self._beat(boot, job))

    def _die_between(self, boot: int, job: Job) -> None:
        """The process of a started task is gone while its next phase waits."""
        attempt = self.attempts.get(job.key)
        if boot == self.boot and attempt is not None and attempt.is_alive and attempt.phase == job.phase:
            self._world.counts["process died between phases"] += 1
            attempt.is_alive = False
            self._say(m.PhaseEnded(job.phase + 1, job.attempt, "preempted"))

    def _stop(self, command: w.Stop) -> None:
        self._answer(w.Taken(command))
        key, phase = (command.task, command.attempt), command.phase
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.status == RUNNING:
            attempt.is_stopped = True
            live, boot = self._world.ledger.live[key], self.boot
            self._world.later(self._world.rng.uniform(*GRACE_S), lambda: self._end(boot, live.job, "aborted"))
        elif attempt is None or attempt.phase != phase:
            self.attempts[key] = Attempt(phase, "aborted", False, is_stopped=True)
            self._say(m.PhaseEnded(phase, command.attempt, "aborted"))
        else:
            attempt.is_stopped, attempt.is_alive = True, False  # its end has been told

    def _fence(self, command: w.Fence) -> None:
        has_started = command.decision in self._known
        if not has_started:
            self._fenced.add(command.decision)
            attempt = self.attempts.get((command.task, command.attempt))
            if attempt is not None:
                attempt.is_alive = False
        self._answer(w.Taken(command, has_started))

    def _make_warm(self, command: w.Warm) -> None:
        decision, task, boot = command.decision, command.task, self.boot
        self._answer(w.Taken(command))
        if decision in self._known:
            return
        self._known.add(decision)
        if self._world.chance("die"):
            self._say(m.PreloadFailed(task, decision))
            return
        self._world.later(command.seconds, lambda: self._warmed(boot, task, decision))

    def _warmed(self, boot: int, task: int, decision: int) -> None:
        if boot == self.boot and self.is_up:
            self._say(m.PreloadReady(task, decision))

    def _has_room(self, job: Job) -> bool:
        """Less than the engine believed, when the machine has shrunk meanwhile."""
        used = sum(live.job.cpu_milli for live in self._world.ledger.live.values() if live.node == self.name)
        fits = used + job.cpu_milli <= round(self.capacity.cpus * 1000)
        return fits and all(device < self.capacity.gpus for device in job.devices)

    # --- what it says ---

    def _answer(self, answer: w.Taken) -> None:
        boot = self.boot
        self._world.to_driver(self.name, lambda shell: shell.hear_answer(self.name, boot, answer))

    def _say(self, event: m.Event) -> None:
        """News: repeated until acknowledged."""
        self._numbers += 1
        news = w.News(self._numbers, event)
        self.news[news.number] = event
        self._repeat(self.boot, news)

    def _repeat(self, boot: int, news: w.News) -> None:
        if boot != self.boot or news.number not in self.news:
            return
        self._world.to_driver(self.name, lambda shell: shell.hear_news(self.name, boot, news))
        self._world.later(REPEAT_S, lambda: self._repeat(boot, news))

    def acknowledged(self, number: int) -> None:
        self.news.pop(number, None)
