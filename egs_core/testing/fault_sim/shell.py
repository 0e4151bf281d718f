"""The driver's process: the shipped driver, engine and journal's entries, and around them what an adapter does.

event    ──► entry, in the store before anything that was decided is sent
beat     ──► nothing, or a stop
decision ──► command, repeated until the worker answers; given up by fencing, then DecisionLost
news     ──► event, then acknowledged: never before the store has it
a start  ──► what the cluster offers now, then every command again of which the answer may not have been heard
"""

from __future__ import annotations

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.journal import encode_entry
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import END
from egs_core.engine.state.metering import is_over_limit
from egs_core.testing.fault_sim import wire as w
from egs_core.testing.fault_sim.ledger import Job
from egs_core.testing.fault_sim.plan import Reconfiguration, Submission, Wish
from egs_core.testing.fault_sim.store import Crash
from egs_core.testing.fault_sim.surroundings import Surroundings

REPEAT_S = 1.5
PATIENCE = 1  # repetitions before a driver may give up on a grant


class Shell:
    """One life of the driver. is_written: whether the store has all that the engine did. Raises InputError."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.engine = Engine(world.plan.config, world.store.state())
        self.state = state = self.engine.state
        self.driver = EmbeddedDriver(self.engine, self._perform, after=self._after, clock=world.clock)
        self.pending: dict[w.Command, str] = {}
        self.is_written = True
        places = {**state.home, **{state.task_of[phase]: lease.node for phase, lease in state.leases.items()}}
        self._places = {task: state.nodes[node].name for task, node in places.items()}
        self._begun_before = state.next_decision
        self._boots = dict(world.store.boots)
        self._standings: dict[str, w.Standing] = {}

    def begin(self) -> None:
        """Learn what has happened while no driver was there."""
        world = self._world
        self._standings = {name: worker.standing for name, worker in world.workers.items()}
        for node in self.state.nodes:
            if node.alive and self._is_gone(node.name):
                self.handle(m.NodeLost(node.name))
        if world.plan.queues and not self.state.queues and not world.store.boots:
            self.handle(m.QueuesChanged(world.plan.queues))
        for standing in self._standings.values():
            self._take(standing)
        self._send_again()

    def _send_again(self) -> None:
        """What was decided in an earlier life, in which perhaps no answer was heard. A worker knows a decision that it
        has had by its number."""
        state = self.state
        self._note_boxes()
        for task in sorted(state.stopping | state.recalled):
            self._stop(self._places[task], task, state.attempt[task], state.cursor[task])
        for decision, subject in sorted(state.decisions.items()):
            if decision >= self._begun_before:
                continue
            self._world.counts["sent again"] += 1
            task = -1 - subject if subject < 0 else state.task_of[subject]
            node = self._places[task]
            if subject < 0:
                self._command(node, w.Warm(decision, task, state.options_of(task).warmup_s))
            else:
                devices = state.leases[subject].devices
                grant = m.Grant(decision, subject, task, state.attempt[task], node, devices)
                self._command(node, w.Start(decision, self._job(grant)))

    def handle(self, event: m.Event) -> None:
        self._world.tell("event", event)
        self.is_written = False
        self.driver.handle(event)

    # --- what comes in ---

    def hear_standing(self, standing: w.Standing) -> None:
        """News of a node, unless newer news were here before."""
        known = self._standings[standing.node]
        if known.version < standing.version:
            self._standings[standing.node] = standing
            self._take(standing)
        self._world.standing_heard(standing)

    def _take(self, standing: w.Standing) -> None:
        name = standing.node
        if self._is_gone(name):
            self.pending = {command: node for command, node in self.pending.items() if node != name}
            if any(node.alive and node.name == name for node in self.state.nodes):
                self.handle(m.NodeLost(name))
        if standing.capacity is not None:
            self._boots[name] = standing.boot
            self.handle(standing.capacity)

    def _is_gone(self, name: str) -> bool:
        """It is down, or has started again: then it has nothing of what it was told before."""
        standing = self._standings.get(name)
        return standing is None or standing.capacity is None or self._boots.get(name) != standing.boot

    def hear_news(self, name: str, boot: int, news: w.News) -> None:
        self.handle(news.event)
        worker = self._world.workers[name]
        if worker.boot == boot:
            self._world.network.carry(lambda: worker.acknowledged(news.number))

    def hear_beat(self, name: str, boot: int, beat: w.Beat) -> None:
        """A process that the engine has given up is stopped: the driver may have died before it said so."""
        state, task = self.state, beat.task
        lease = state.leases.get(state.cursor[task])
        home = state.home.get(task) if lease is None else lease.node
        is_wanted = state.attempt[task] == beat.attempt and home is not None and state.nodes[home].name == name
        if not is_wanted and self._boots.get(name) == boot:
            self._world.counts["stray stopped"] += 1
            self._stop(name, task, beat.attempt, beat.phase)

    def hear_answer(self, name: str, boot: int, answer: w.Taken) -> None:
        """The first answer to each command of this life counts."""
        command = answer.command
        if self._standings[name].boot != boot or self.pending.pop(command, None) is None:
            return
        if isinstance(command, w.Start | w.Fence) and not answer.has_started:
            self._world.counts["decision lost"] += 1
            self.handle(m.DecisionLost(command.decision))

    # --- what users ask for ---

    def submit(self, submission: Submission) -> bool:
        """Whether the block is there, perhaps since before."""
        if submission.workload not in self.state.workload_numbers:
            self.handle(m.WorkloadSubmitted(submission.workload, queue=submission.queue))
        known = len(self.state.workloads[self.state.workload_number(submission.workload)].numbers)
        if known == submission.known:
            self.handle(m.TasksAdded(submission.workload, submission.graph))
        return known >= submission.known

    def fulfil(self, wish: Wish) -> bool:
        """Whether the wish has been taken in; not before its task is known."""
        number = self.state.workload_numbers.get(wish.workload)
        if number is None or wish.task >= len(self.state.workloads[number].numbers):
            return False
        task = self.state.workloads[number].numbers[wish.task]
        ledger = self._world.ledger
        if wish.kind == "skip":
            ledger.skipped.add(self.state.task_ids[task])
            self.handle(m.BranchSkipped(task))
        elif wish.kind.startswith(("pause ", "resume ")):
            self._pause(wish, task)
        elif wish.kind == "estimate":
            phase = self.state.first_phase[task]
            self.handle(m.Estimates(((phase, wish.seconds, wish.seconds * 1.5),)))
        else:
            self._abort(wish, task)
        return True

    def reconfigure(self, request: Reconfiguration) -> bool:
        self._world.counts["queues changed"] += 1
        self._world.ledger.reconfigure(request.queues)
        self.handle(m.QueuesChanged(request.queues))
        return True

    def _pause(self, wish: Wish, task: int) -> None:
        """The ids that the pause holds are noted when the engine has taken it in, and released before it hears more."""
        verb, _, scope = wish.kind.partition(" ")
        target, ids = self._hit(scope, wish.workload, task)
        paused = self._world.ledger.paused
        if verb == "resume":
            paused.pop(f"{scope}:{target}", None)
            self.handle(m.ResumeRequested(scope, target, "ann"))
        else:
            self.handle(m.PauseRequested(scope, target, "ann"))
            paused[f"{scope}:{target}"] = ids

    def _hit(self, scope: str, workload: str, task: int) -> tuple[str, set[str]]:
        """What a request of this scope is for, and the ids of the tasks that it means now."""
        numbers = self.state.workloads[self.state.workload_number(workload)].numbers
        target, hit = {
            "task": (str(task), [task]),
            "stage": (f"{workload}/x", [t for t in numbers if self.state.options_of(t).stage == "x"]),
            "workload": (workload, numbers),
        }[scope]
        return target, {self.state.task_ids[t] for t in hit}

    def _abort(self, wish: Wish, task: int) -> None:
        target, ids = self._hit(wish.kind, wish.workload, task)
        ledger = self._world.ledger
        ledger.abort_asked |= ids
        if wish.kind == "workload":
            ledger.closed.add(wish.workload)
        self.handle(m.AbortRequested(wish.kind, target, "ann"))
        ledger.aborted |= ids

    # --- decisions ---

    def _perform(self, decision: m.Decision, _now: float) -> None:
        world = self._world
        world.tell("decide", decision)
        if world.crashes_now():
            raise Crash("while deciding")
        if isinstance(decision, m.Grant):
            self._grant(decision)
        elif isinstance(decision, m.Preload):
            seconds = 0.0 if decision.reuse else self.state.options_of(decision.task).warmup_s
            self._command(decision.node, w.Warm(decision.id, decision.task, seconds))
        elif isinstance(decision, m.Stop):
            if is_over_limit(self.state, decision.task):
                world.counts["over limit, then " + self.state.over_limit[decision.task].then] += 1
            elif decision.grace_s:
                world.counts["preempted for " + decision.reason.rpartition(": ")[2]] += 1
            else:
                world.counts["stopped"] += 1
            self._stop(self._places[decision.task], decision.task, decision.attempt, decision.phase)

    def _grant(self, grant: m.Grant) -> None:
        world = self._world
        world.ledger.grant(self.state.task_ids[grant.task])
        self._note_boxes()
        self._places[grant.task] = grant.node
        if not world.workers[grant.node].is_up and world.rng.random() < 0.5:
            self.handle(m.DecisionRejected(grant.id, "connection refused"))  # at once, within the performer
        else:
            self._command(grant.node, w.Start(grant.id, self._job(grant)))

    def _note_boxes(self) -> None:
        """What waits for a task that its limit ends well may start."""
        over_limit = self.state.over_limit
        self._world.ledger.boxed |= {self.state.task_ids[task] for task, over in over_limit.items() if over.then == END}

    def _job(self, grant: m.Grant) -> Job:
        state, task = self.state, grant.task
        first, options = state.first_phase[task], state.options_of(task)
        shape = state.shape_of(grant.phase)
        return Job(
            state.task_ids[task],
            task,
            grant.attempt,
            grant.phase,
            grant.phase - first,
            state.first_phase[task + 1] - first,
            state.workloads[state.task_workload[task]].queue,
            shape.cpu_milli,
            shape.memory_bytes,
            shape.gpu_milli // len(grant.devices) if grant.devices else 0,
            shape.gpu_memory_bytes,
            grant.devices,
            tuple(state.task_ids[p] for p in state.parents[task]),
            self._world.draw_seconds(),
            0.0 if grant.warm else options.warmup_s,
        )

    def _stop(self, node: str, task: int, attempt: int, phase: int) -> None:
        self._command(node, w.Stop(task, attempt, phase))

    # --- commands ---

    def _command(self, node: str, command: w.Command) -> None:
        """Send, and again until it is answered."""
        if self._standings[node].capacity is not None and command not in self.pending:
            self.pending[command] = node
            self._send(node, command, 0)

    def _send(self, node: str, command: w.Command, tries: int) -> None:
        world = self._world
        if world.shell is not self or command not in self.pending:
            return
        if isinstance(command, w.Start) and tries > PATIENCE and world.chance("gives_up"):
            del self.pending[command]
            self._command(node, w.Fence(command.decision, command.job.task, command.job.attempt))
            return
        boot = self._standings[node].boot
        world.network.carry(lambda: world.workers[node].receive(boot, command))
        world.later(REPEAT_S, lambda: self._send(node, command, tries + 1))

    # --- after the engine's handling of an event ---

    def _after(self, event: m.Event, now: float) -> None:
        store = self._world.store
        store.commit(encode_entry(event, now, self.engine.take_transitions()), self._boots)
        self.is_written = True
        if store.wants_snapshot:
            store.compact(self.engine.snapshot())
        self._world.check_event(self.engine)
