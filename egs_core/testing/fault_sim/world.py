"""The loop of a simulated world: a clock, a store, a network, workers and one driver that dies and comes back.

    heap of (time, number, action) ── mishaps, deliveries, ends of phases, repetitions, what users ask for
    the driver's next wake-up      ── a Tick when its own clock, which jumps, has got there

After `calm_at` nothing goes wrong any more; then everything must come to its end within a bounded number of steps.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ENDED
from egs_core.errors import InputError
from egs_core.testing.fault_sim import claims
from egs_core.testing.fault_sim.ledger import ClaimBroken, Ledger
from egs_core.testing.fault_sim.plan import Plan, Reconfiguration, Submission, Wish
from egs_core.testing.fault_sim.shell import Shell
from egs_core.testing.fault_sim.store import Crash, SimulatedStore
from egs_core.testing.fault_sim.wire import Network, Standing
from egs_core.testing.fault_sim.worker import REPEAT_S, RUN_S, Worker

Request = Submission | Wish | Reconfiguration
STEP_LIMIT = 20_000
DOWN_S, LEAN_S, RESTART_S, AGAIN_S = (0.5, 15.0), (1.0, 20.0), (0.05, 5.0), (0.5, 2.0)
JUMP_S, BOOT_CLOCK_S = 60.0, 1e5
LATEST_S = 1000.0  # after the calm: whoever waits longer waits for nothing
NEVER = float("inf")


class World:
    """See the module. journal: an earlier run's, from which the driver starts; history: its tasks that had ended."""

    def __init__(self, plan: Plan, journal: bytes | None = None) -> None:
        self.plan = plan
        self.now = 0.0
        self.rng = random.Random(f"{plan.seed}/world")
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[float, str, object]] = []
        self.ledger = Ledger(plan.queues)
        self.store = SimulatedStore(self.rng, self.counts, plan.compact_every)
        self.network = Network(plan.rates, self.rng, self.counts, self.later)
        self.workers = {node.node: Worker(self, node) for node in plan.nodes}
        self.shell: Shell | None = None
        self.history: set[str] = set()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0
        self._lives = 0
        self._offset = 0.0
        self._perform_fuse: int | None = None
        self._dead: Shell | None = None
        self._to_do = len(plan.submissions) + len(plan.wishes) + len(plan.reconfigurations)
        self._standings_due: dict[str, int] = {}
        self._old_journal = journal

    def _take_over(self, journal: bytes) -> None:
        self.store.put(journal)
        state = self.store.state()
        for task, name in enumerate(state.task_ids):
            self.ledger.latest[name] = state.attempt[task]
            if all(state.status[p] in ENDED for p in state.phases_of(task)):
                self.history.add(name)
            if state.is_done(task):
                self.ledger.done.add(name)
            if task in state.stopping:
                self.ledger.abort_asked.add(name)
        self.ledger.closed |= {workload.id for workload in state.workloads if workload.aborted}

    # --- the loop ---

    def run(self) -> None:
        """Until all is over. Raises ClaimBroken, and whatever the shipped code raises."""
        if self._old_journal is not None:
            self._take_over(self._old_journal)
        self._schedule_plan()
        self._start_driver()
        for _ in range(STEP_LIMIT):
            if self._is_over():
                break
            self._step()
            if self.now > self.plan.calm_at + LATEST_S:
                self._stuck("waiting too long")
        else:
            self._stuck("too many steps")
        assert self.shell is not None
        for claim in claims.AT_END:
            claim(self, self.shell.engine)

    def _schedule_plan(self) -> None:
        for at, mishap in self.plan.mishaps:
            self.later(at, partial(self._mishap, mishap))
        for submission in self.plan.submissions:
            self._schedule_request(submission.at, submission)
        for wish in self.plan.wishes:
            self._schedule_request(wish.at, wish)
        for change in self.plan.reconfigurations:
            self._schedule_request(change.at, change)
        self.later(self.plan.calm_at, self._calm)

    def _step(self) -> None:
        due = self._timer_at()
        if self._heap and self._heap[0][0] <= due:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        elif due < NEVER:
            self.now = due
            self.at_driver(lambda shell: shell.handle(m.Tick()))
        else:
            self._stuck("nothing is left to happen")

    def _timer_at(self) -> float:
        """When the driver's clock will have reached its next wake-up, if it does not jump before."""
        if self.shell is None:
            return NEVER
        due = self.shell.engine.next_wakeup()
        return NEVER if due is None else self.now + max(1e-6, due - self.shell.driver.now())

    def _is_over(self) -> bool:
        if self._to_do or self.shell is None or self.shell.pending or self.ledger.live or self._standings_due:
            return False
        if any(worker.news or worker.living for worker in self.workers.values()):
            return False
        return not any(workload.open_tasks for workload in self.shell.state.workloads)

    def _stuck(self, why: str) -> None:
        engine = self.shell.engine if self.shell else None
        if engine is not None:
            claims.every_task_has_ended(self, engine)
        pending = list(self.shell.pending) if self.shell else "no driver"
        raise ClaimBroken(claims.ENDS, f"{why} at {self.now:.3f}; unanswered: {pending}, requests: {self._to_do}")

    # --- what everything in the world uses ---

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, action))

    def clock(self) -> float:
        """What the driver's machine takes for the time."""
        return self.now + self._offset

    def tell(self, who: str, what: object) -> None:
        self.trace.append((self.now, who, what))

    def chance(self, name: str) -> bool:
        """Whether a fault of this name (a field of `Rates`) happens here and now."""
        rate: float = getattr(self.plan.rates, name)
        return not self.network.calm and self.rng.random() < rate

    def draw_seconds(self) -> float:
        """How long a phase takes."""
        return self.rng.uniform(*RUN_S)

    def to_driver(self, _sender: str, deliver: Callable[[Shell], object]) -> None:
        self.network.carry(lambda: self.at_driver(deliver))

    def at_driver(self, action: Callable[[Shell], object]) -> bool:
        """Whether the driver was there, outlived it and did not say False."""
        if self.shell is None:
            return False
        try:
            return action(self.shell) is not False
        except (Crash, OSError) as error:
            self._driver_dies(error)
            return False

    def check_event(self, engine: Engine) -> None:
        for claim in claims.AFTER_EVENT:
            claim(self, engine)

    # --- the driver's lives ---

    def _start_driver(self) -> None:
        self._lives += 1
        self._offset = self.rng.uniform(-BOOT_CLOCK_S, BOOT_CLOCK_S)  # a clock begins somewhere with each start
        self.tell("driver", f"life {self._lives} begins")
        try:
            shell = Shell(self)
            dead, self._dead = self._dead, None
            if dead is not None:
                for claim in claims.AFTER_RECOVERY:
                    claim(self, dead, shell)
            self.shell = shell
            shell.begin()
        except (Crash, OSError) as error:
            self._driver_dies(error)
        except InputError as error:
            raise ClaimBroken(claims.LOST, f"the store cannot be read: {error}") from error

    def _driver_dies(self, error: BaseException) -> None:
        self.counts["driver died"] += 1
        self.tell("driver", f"dies: {type(error).__name__} {error}")
        self._dead, self.shell = self.shell or self._dead, None
        self.later(self.rng.uniform(*RESTART_S), self._start_driver)

    def crashes_now(self) -> bool:
        """Whether the driver dies before it carries out this decision."""
        if self._perform_fuse is None:
            return False
        self._perform_fuse -= 1
        if self._perform_fuse:
            return False
        self._perform_fuse = None
        self.counts["crash while deciding"] += 1
        return True

    # --- what goes wrong ---

    def _mishap(self, name: str) -> None:
        self.tell("mishap", name)
        if name == "crash at a write":
            self.store.fuse = self.rng.randint(1, 12)
        elif name == "crash while deciding":
            self._perform_fuse = self.rng.randint(1, 5)
        elif name == "disk error":
            self.store.error = self.rng.randint(1, 12)
        elif name == "clock jump":
            self._offset += self.rng.uniform(-JUMP_S, JUMP_S)
            self.counts[name] += 1
        else:
            self._hit_node(name)

    def _hit_node(self, name: str) -> None:
        worker = self.workers[self.rng.choice(sorted(self.workers))]
        if not worker.is_up:
            return
        self.counts[name] += 1
        if name == "node loss":
            worker.die()
            self._at_latest_when_calm(DOWN_S, lambda: self._rise(worker))
        else:
            full = worker.full
            worker.resize(msgspec.structs.replace(full, cpus=1.0, gpus=min(1, full.gpus), process_slots=1))
            self._at_latest_when_calm(LEAN_S, lambda: self._resize(worker, full))
        self._announce(worker)

    def _at_latest_when_calm(self, span_s: tuple[float, float], action: Callable[[], object]) -> None:
        self.later(min(self.rng.uniform(*span_s), max(0.0, self.plan.calm_at - self.now)), action)

    def _rise(self, worker: Worker) -> None:
        worker.rise()
        self._announce(worker)

    def _resize(self, worker: Worker, capacity: m.NodeAdded) -> None:
        worker.resize(capacity)
        self._announce(worker)

    def _calm(self) -> None:
        self.tell("mishap", "no more")
        self.network.calm = True
        self.store.fuse = self.store.error = self._perform_fuse = None

    # --- news of nodes ---

    def _announce(self, worker: Worker) -> None:
        """Tell the driver how the node stands now, until it has heard that or something newer."""
        self.tell(worker.name, worker.standing)
        self._standings_due[worker.name] = worker.version
        self._repeat_standing(worker, worker.standing)

    def _repeat_standing(self, worker: Worker, standing: Standing) -> None:
        if self._standings_due.get(worker.name) == standing.version:
            self.to_driver(worker.name, lambda shell: shell.hear_standing(standing))
            self.later(REPEAT_S, lambda: self._repeat_standing(worker, standing))

    def standing_heard(self, standing: Standing) -> None:
        if self._standings_due.get(standing.node) == standing.version:
            del self._standings_due[standing.node]

    # --- what users ask for ---

    def _schedule_request(self, seconds: float, request: Request) -> None:
        self.later(seconds, lambda: self._request(request))

    def _request(self, request: Request) -> None:
        """Ask, and again until the driver has acknowledged it; its word may get lost on the way. Whoever has paused
        something resumes it, at the latest when all is calm."""

        def ask(shell: Shell) -> bool:
            if isinstance(request, Reconfiguration):
                return shell.reconfigure(request)
            return shell.submit(request) if isinstance(request, Submission) else shell.fulfil(request)

        if self.at_driver(ask) and not self.chance("drop"):
            self._to_do -= 1
            if isinstance(request, Wish) and request.kind.startswith("pause "):
                self.counts["paused"] += 1
                self._to_do += 1
                resume = msgspec.structs.replace(request, kind=request.kind.replace("pause", "resume"))
                self._at_latest_when_calm((0.0, request.seconds), lambda: self._request(resume))
        else:
            self._schedule_request(self.rng.uniform(*AGAIN_S), request)
