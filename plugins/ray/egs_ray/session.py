"""The session: one engine for all runs of a driver process, and what it takes to carry out its decisions on Ray.

    worker ── hello, warm, began, want, free, end ─► events ─► engine ─► decisions ─► submit, lease, go, drop ─► worker

Everything below the public methods runs on the embedded driver's thread, so nothing here needs a lock. Whatever fails
inside EGS ends in `_fail_open`: the runs are finished by Ray alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.run_records import RunRecords
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.lifecycle import ENDED
from egs_core.graph.columns import GPU
from egs_core.runlog import records as r
from egs_core.sim.simulator import merge_phases
from egs_ray import compat
from egs_ray.cluster import Cluster, preload_slots
from egs_ray.convert import Converted
from egs_ray.install import warn
from egs_ray.learning import Learning
from egs_ray.leases import Leases
from egs_ray.link import Message, Peer, Server
from egs_ray.payload import submit
from egs_ray.promises import Promises
from egs_ray.shell import ArgumentsLostError, Spec, make_observed, make_shell, touch
from egs_ray.tasks import Job, RemoteFunctions, RunBooks, Way, finish_natively, first_of, reserving
from egs_ray.ways import choose_way, for_engine

PROCESS_ENV = {"env_vars": {"EGS_ROLE": "task"}}
MOST_PREPARED = 8
PREPARE_S = 30.0
KEEP_S = 0.5
MOST_LOST = 3  # holders of one phase that may die before it is left to Ray
LEFT_S = 2.0  # about what a new process takes: longer than this, none waits for one that is about to be free
WATCH_S = 2.0
FOREVER_S = 30.0
TOGETHER_S = 0.3  # long enough that several tasks need several processes


class Options(msgspec.Struct, frozen=True):
    """policy: a name of `egs_core.engine.POLICIES`. preload, split: switch off to compare. runlog: where the run log
    goes (None: EGS_RUNLOG, else the user's data folder); history: a database URL (None: beside the run logs)."""

    policy: str = "egs"
    preload: bool = True
    split: bool = True
    runlog: str | None = None
    history: str | None = None
    default_max_wait_s: float | None = None
    preload_timeout_s: float = 60.0  # a preload that takes longer does not keep its task from starting


class Session:
    """Runs graphs on the Ray that this process is connected to. `close` ends it; it is a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        config = EngineConfig(self.options.policy, self.options.preload, self.options.default_max_wait_s)
        self.engine = Engine(config)
        self._server = Server(ray.util.get_node_ip_address(), self._on_message, self._on_gone)
        self.learning = Learning(self.options.runlog, self.options.history, self.options.policy)
        self._records = RunRecords(self.engine.state, self.learning.record)
        self._leases = Leases(self._server.address, self._on_lease_end)
        self._promises = Promises()
        self._remotes = RemoteFunctions()
        self._jobs: dict[int, Job] = {}  # engine's task number -> job
        self._submitted: dict[int, Job] = {}  # submission -> job
        self._submissions = itertools.count(1)
        self._leaving: dict[str, int] = {}  # warm key -> processes whose task has ended but not yet left them
        self._loading: set[int] = set()  # submissions whose process still imports
        self._too_early: list[tuple[Job, str]] = []  # shells that wait for one of these
        self._deferred: dict[str, list[tuple[Job, str]]] = {}  # warm key -> shells that wait for one of these
        self._runs: dict[str, RunBooks] = {}
        self._run_numbers = itertools.count()
        self._warned: set[str] = set()
        self._awaited: set[Any] = set()  # references whose end something waits for
        self._native_envs: set[str] = set()  # runtime environments whose workers cannot work with EGS
        self._cluster = Cluster()
        self._watched_at = 0.0
        self._native_lock = threading.Lock()
        self._broken = False
        self.driver = EmbeddedDriver(self.engine, self._perform, after=self._after, on_death=self._fail_open)
        self.driver.start()
        self._closing = threading.Event()
        self._forget_disconnect = compat.before_disconnect(lambda: self.close(finish=False))
        threading.Thread(target=self._keep, name="egs-keep", daemon=True).start()
        self._prepared = self._describe_cluster()

    # --- for callers, from any thread ---

    def submit(self, converted: Converted, given: Any) -> RunBooks:
        """Start a run of a converted graph; returns at once."""
        if not self.options.split:
            converted = msgspec.structs.replace(converted, graph=merge_phases(converted.graph))
        books = RunBooks(f"{converted.name}#{next(self._run_numbers)}", converted, given)
        self._runs[books.workload] = books
        self.driver.do(lambda: self._begin(books))
        if not self.driver.is_alive:
            self._finish_natively(books)
        return books

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    def close(self, *, finish: bool = True) -> None:
        """End the session. Unfinished runs are left to Ray, or, without `finish`, end with an error."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._forget_disconnect()
        self.driver.do(lambda: self._hand_over(finish))
        if self.driver.ask(lambda _: len(self._leases), FOREVER_S) if finish and self.driver.is_alive else 0:
            threading.Thread(target=self._close_later, name="egs-close", daemon=True).start()
        else:
            self._close_now()

    def _hand_over(self, finish: bool) -> None:
        self._broken = True
        if finish:
            self._finish_all()
        for books in self._runs.values():
            if not books.over.is_set():
                books.error = RuntimeError(f"the session was closed before {books.workload} had ended")
                books.over.set()

    def _close_later(self) -> None:
        """Phases that run keep what they hold until they end."""
        while len(self._leases) and ray.is_initialized():
            time.sleep(KEEP_S)
        self._close_now()

    def _close_now(self) -> None:
        self.driver.close()
        self._server.close()
        self.learning.close()

    def __enter__(self) -> Session:
        """Wait, for a while, until its processes are there, as `ray.init` does for Ray's own."""
        ray.wait(self._prepared, num_returns=len(self._prepared), timeout=PREPARE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- the start of things ---

    def _describe_cluster(self) -> list[Any]:
        """Tell the engine what Ray's nodes offer, and let Ray start processes; returns references ready when it has."""
        self._watch_nodes()
        return [
            self._promises.ready(),
            *self._prepare_processes(min(self._cluster.process_slots, MOST_PREPARED)),
        ]

    def _watch_nodes(self) -> None:
        for event in self._cluster.news():
            self.driver.post(event)

    def _keep(self) -> None:
        """What has to be looked after now and then while runs are under way."""
        while not self._closing.wait(KEEP_S):
            if any(not books.over.is_set() for books in list(self._runs.values())):
                self.driver.do(self._look_after)

    def _look_after(self) -> None:
        """Keep processes for holders of the GPUs that are free: Ray ends idle ones after a second, and starting one
        takes about that long, with the GPU waiting. And let nothing wait for ever."""
        if self._broken or self._closing.is_set():
            return
        self._leases.keep(self._cluster.gpus)
        now = self.driver.now()
        for job in [job for job in self._submitted.values() if job.parked_since is not None and not job.is_warm]:
            if job.parked_since is not None and now - job.parked_since > self.options.preload_timeout_s:
                self._stop_warming(job, now)
        for job in [job for job in self._submitted.values() if job.waits_since and not job.is_warm]:
            if job.grant is not None and now - job.waits_since > self.options.preload_timeout_s:
                self._stop_warming(job, now)
        if now - self._watched_at > WATCH_S:
            self._watched_at = now
            self._watch_nodes()
            for key in [key for key, waiting in self._deferred.items() if waiting]:
                self._left(key)  # that process takes its time: start another one

    def _stop_warming(self, job: Job, now: float) -> None:
        """Its preload takes too long: it may start without."""
        if not job.gave_up_warming:
            job.gave_up_warming = True
            name = job.run.converted.graph.names[job.index]
            self._warn_once(f"preload for {name} took more than {self.options.preload_timeout_s:g} s: it starts cold")
        if job.grant is not None and job.lease is None and job.peer is not None:
            self._take_lease(job, job.grant)
        elif job.parked_since is not None:
            job.parked_since = None
            self._records.preload_ended(job.number, "failed", now)
            self._loaded(job.submission)
            self._handle(m.PreloadFailed(job.number))

    def _prepare_processes(self, count: int) -> list[Any]:
        """Let Ray start empty processes for the tasks to come, as it does itself for plain tasks."""
        remote = self._remotes.get(_touch, touch, max_calls=0)
        shell = remote.options(num_cpus=0, runtime_env=PROCESS_ENV, name="egs-process")
        return [shell.remote(TOGETHER_S) for _ in range(count)]

    def _begin(self, books: RunBooks) -> None:
        """Give the graph to the engine, with what is known about its durations."""
        if self._broken:
            self._finish_natively(books)
            return
        name = books.converted.name
        graph = self.learning.believe(name, books.converted.graph)
        submitted = m.WorkloadSubmitted(books.workload, name)
        self._handle(submitted)
        first = len(self.engine.state.task_ids)
        nodes = self.engine.state.nodes
        ways = [choose_way(books.converted.nodes[i], graph, i, nodes) for i in range(graph.n_tasks)]
        for index, way in enumerate(ways):
            books.jobs.append(Job(books, index, first + index, way))
            self._jobs[first + index] = books.jobs[-1]
        block = for_engine(graph, ways, nodes)
        tasks = m.TasksAdded(books.workload, block)
        self._records.workload(submitted, self.driver.now())
        self._handle(tasks)
        self._records.tasks(m.TasksAdded(books.workload, graph), self.driver.now())

    def _handle(self, event: m.Event) -> None:
        """Handle at once, on the driver's thread, what must not wait for its turn in the queue."""
        self.driver.handle(event)

    def _after(self, event: m.Event, now: float) -> None:
        if isinstance(event, m.NodeAdded):
            self._records.node(event, now)
        elif isinstance(event, m.NodeLost):
            self._records.node_lost(event, now)

    # --- decisions ---

    def _perform(self, decision: m.Decision, now: float) -> None:
        job = self._jobs[decision.task]  # type: ignore[attr-defined]  # every decision so far names its task
        try:
            self._carry_out(decision, job, now)
        except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
            if job.submission and job.ref is None:
                self._not_submitted(job, error)
            else:
                raise

    def _not_submitted(self, job: Job, error: BaseException) -> None:
        """Ray refuses the task as it is, which it would have told whoever called `.remote()`: the run's own error."""
        self._submitted.pop(job.submission, None)
        self._loaded(job.submission)
        job.submission, job.failed, job.run.error = 0, True, job.run.error or error
        self._give_back(job)
        grant, job.grant = job.grant, None
        if grant is not None:
            self._records.ended(grant.phase, grant.attempt, "failed", self.driver.now())
            self._handle(m.PhaseEnded(grant.phase, grant.attempt, "failed"))
        else:
            self._handle(m.AbortRequested("task", str(job.number), "ray", str(error)[:200]))
        self._check_over(job.run)

    def _carry_out(self, decision: m.Decision, job: Job, now: float) -> None:
        if isinstance(decision, m.Grant):
            self._grant(job, decision)
        elif isinstance(decision, m.Preload):
            self._preload(job, decision, now)
        elif isinstance(decision, m.DropPreload):
            self._drop(job, now)
        elif isinstance(decision, m.Stop):
            self._stop(job)

    def _preload(self, job: Job, decision: m.Preload, now: float) -> None:
        if job.way is not Way.SHELL or self._env_of(job) in self._native_envs:
            self._handle(m.PreloadFailed(job.number, decision.id))
            return
        self._records.preload_started(decision, now)
        job.parked_since, job.gave_up_warming = now, False
        self._submit_shell(job, decision.node)
        if job.is_warm:  # Ray has started its process again
            self._handle(m.PreloadReady(job.number))

    def _grant(self, job: Job, grant: m.Grant) -> None:
        job.grant, job.started, job.lost_leases = grant, False, 0
        self._records.grant(grant, self.driver.now())
        if job.way is not Way.NATIVE and not job.submission and self._env_of(job) in self._native_envs:
            job.way = Way.NATIVE
        if job.way is Way.NATIVE:
            self._submit_native(job)
        elif job.way is Way.OBSERVED:
            self._submit_observed(job)
        else:
            if job.parked_since is not None and job.peer is not None:
                self._records.preload_ended(job.number, "used", self.driver.now())
            job.parked_since = None
            self._submit_shell(job, grant.node)
            self._keep_promise(job)
            job.waits_since = 0.0
            if self._gets_warm_first(job, grant):
                job.waits_since = self.driver.now()
            elif not self._gets_place_first(job):
                self._take_lease(job, grant)

    def _keep_promise(self, job: Job) -> None:
        """Hand the arguments to a shell that was submitted before they were there."""
        if job.promised:
            job.promised = False
            self._promises.keep(str(job.submission), job.run.arguments(job.index))

    def _gets_warm_first(self, job: Job, grant: m.Grant) -> bool:
        """Whether a task that starts on the GPU is still being loaded: no GPU is taken for that."""
        state = self.engine.state
        starts_on_gpu = state.kind[grant.phase] == GPU and state.is_first_phase(grant.phase)
        return starts_on_gpu and self.options.preload and bool(self._key_of(job)) and not job.ready_to_start

    def _gets_place_first(self, job: Job) -> bool:
        """With several nodes only the process itself can tell which of them Ray has put it on."""
        return job.peer is None and not job.is_open and len(self.engine.state.nodes) > 1

    def _take_lease(self, job: Job, grant: m.Grant) -> None:
        self._give_back(job)
        state = self.engine.state
        shape = state.shapes[state.shape[grant.phase]]
        job.lease = self._leases.take(job, grant, shape)

    def _let_go(self, job: Job) -> None:
        """Open the phase's gate when the process waits there and Ray has given its resources."""
        lease = job.lease
        if job.peer is None or job.went_at:
            return
        if job.is_open:
            job.went_at = self.driver.now()
            self._send(job, {"m": "go", "open": True})
        elif lease is not None and lease.peer is not None:
            job.went_at = self.driver.now()
            self._record_start(job)
            self._send(job, {"m": "go", "devices": list(lease.devices)})

    def _drop(self, job: Job, now: float) -> None:
        """The process kept for this task is wanted elsewhere; the task is submitted again when its turn comes."""
        self._records.preload_ended(job.number, "unused", now)
        self._leave_shell(job)

    def _leave_shell(self, job: Job) -> None:
        """Let go of a shell that waits; the job has none then. One that has not said hello is told when it does."""
        submission, key = job.submission, self._key_of(job)
        self._send(job, {"m": "drop"})
        self._submitted.pop(submission, None)
        if job.peer is not None:
            self._about_to_leave(job)
        if job.promised:
            self._promises.keep(str(submission), ((), {}))  # nobody waits for it any more
        job.submission, job.ref, job.peer, job.parked_since, job.is_warm = 0, None, None, None, False
        job.promised = False
        job.run.results.pop(job.index, None)
        self._deferred[key] = [(other, node) for other, node in self._deferred.get(key, []) if other is not job]
        self._loaded(submission)

    def _stop(self, job: Job) -> None:
        """The engine waits for the end of this job's phase."""
        job.aborted = True
        if job.ref is not None:
            ray.cancel(first_of(job.ref), force=True)
        elif job.grant is not None:  # granted, but not yet submitted
            self._lost_attempt(job, "aborted")

    # --- submissions ---

    def _submit_shell(self, job: Job, node: str) -> None:
        """Submit a shell, unless there is one. While a process that would serve it is about to be free, wait for that:
        Ray would start another one."""
        if job.submission:
            return
        if job.grant is None and len(self._loading) >= preload_slots():
            self._too_early.append((job, node))
            return
        key = self._key_of(job)
        if self._leaving.get(key, 0) > len(self._deferred.setdefault(key, [])):
            self._deferred[key].append((job, node))
        elif all(job is not other for other, _ in self._deferred[key]):
            self._submit_shell_now(job, node)

    def _loaded(self, submission: int) -> None:
        """A process has done its loading, or never will: the next one may begin."""
        self._loading.discard(submission)
        while self._too_early and len(self._loading) < preload_slots():
            waiting, node = self._too_early.pop(0)
            if waiting.parked_since is not None or waiting.grant is not None:
                self._submit_shell(waiting, node)

    def _left(self, key: str) -> None:
        """A process that was about to be free is."""
        self._leaving[key] = max(0, self._leaving.get(key, 0) - 1)
        waiting = self._deferred.get(key)
        if waiting:
            job, node = waiting.pop(0)
            if not job.submission and not self._broken and (job.grant is not None or job.parked_since is not None):
                self._submit_shell_now(job, node)
                if job.grant is not None:
                    self._keep_promise(job)

    def _key_of(self, job: Job) -> str:
        return job.run.converted.graph.options_of(job.index).warm_key

    def _about_to_leave(self, job: Job) -> None:
        """The shell's process will be free as soon as its result is there."""
        key = self._key_of(job)
        self._leaving[key] = self._leaving.get(key, 0) + 1
        self._when_ready(first_of(job.ref), lambda: self._left(key))

    def _submit_shell_now(self, job: Job, node: str) -> None:
        payload, graph = job.run.converted.nodes[job.index], job.run.converted.graph
        on_gpu = tuple(graph.phase_kind[p] == GPU for p in graph.phases_of(job.index))
        options = dict(payload.options)
        for taken_by_leases in ("num_cpus", "num_gpus", "memory", "max_calls"):
            options.pop(taken_by_leases, None)
        options["runtime_env"] = self._process_env(options.get("runtime_env"))
        if "scheduling_strategy" not in options and len(self.engine.state.nodes) > 1:
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
            options["scheduling_strategy"] = strategy
        remote = self._remotes.get(make_shell, payload.function, max_calls=0)
        gpus = max(graph.shapes[graph.phase_shape[p]].gpu_milli for p in graph.phases_of(job.index)) / 1000
        spec = self._spec(job, gpus, on_gpu)
        self._loading.add(job.submission)
        self._submit(job, remote.options(num_cpus=0, num_gpus=0, **options), spec)

    def _process_env(self, given: Any) -> Any:
        """Shells have worker processes of their own: neither a plain task nor a holder gets one that was warmed."""
        environment = dict(given or {})
        return {**environment, "env_vars": {**environment.get("env_vars", {}), **PROCESS_ENV["env_vars"]}}

    def _submit_observed(self, job: Job) -> None:
        payload = job.run.converted.nodes[job.index]
        remote = self._remotes.get(make_observed, payload.function)
        self._submit(job, remote.options(**payload.options), self._spec(job, 0.0, (False,)))

    def _submit(self, job: Job, remote: Any, spec: Spec) -> None:
        if job.run.has_arguments(job.index):
            job.promised, arguments = False, list(job.run.arguments(job.index))
        else:
            job.promised, arguments = True, [self._promises.new(str(job.submission))]
        job.ref = remote.remote(spec, arguments)
        self._watch(job)

    def _submit_native(self, job: Job) -> None:
        payload = job.run.converted.nodes[job.index]
        job.submission, job.ref = next(self._submissions), None
        self._submitted[job.submission] = job
        job.ref = submit(reserving(payload, job.run.converted.graph, job.index), job.run.results, job.run.given)
        self._watch(job)
        if job.grant is not None:
            self._phase_started(job, job.grant)

    def _spec(self, job: Job, gpus: float, on_gpu: tuple[bool, ...]) -> Spec:
        job.submission, job.ref = next(self._submissions), None
        self._submitted[job.submission] = job
        job.peer, job.pid, job.began, job.ended, job.went_at = None, 0, False, False, 0.0
        job.is_open, job.submitted_at = False, self.driver.now()
        returns = job.run.converted.nodes[job.index].options.get("num_returns") or 1
        options = self.options
        address, load_s = self._server.address, options.preload_timeout_s
        return Spec(address, job.submission, gpus, options.preload, on_gpu, load_s, returns)

    def _watch(self, job: Job) -> None:
        job.run.results[job.index] = job.ref
        submission = job.submission
        self._when_ready(first_of(job.ref), lambda: self._on_result(submission))

    def _when_ready(self, ref: Any, action: Callable[[], None]) -> None:
        """Act on the driver's thread when the object is there; keeps the reference until then, or Ray may not tell."""

        def act() -> None:
            self._awaited.discard(ref)
            action()

        self._awaited.add(ref)
        compat.on_ready(ref, lambda: self.driver.do(act))

    def _send(self, job: Job, message: Message) -> None:
        if job.peer is not None:
            _tell(job.peer, {"task": job.submission, "life": job.life, **message})  # its end comes through `_on_gone`

    # --- what workers say ---

    def _on_message(self, peer: Peer, message: Message) -> None:
        self.driver.do(lambda: self._take_message(peer, message))

    def _on_gone(self, peer: Peer) -> None:
        self.driver.do(lambda: self._worker_gone(peer))

    def _take_message(self, peer: Peer, message: Message) -> None:
        if message.get("m") == "lease":
            job = self._leases.started(peer, message)
            if job is not None:
                self._lease_started(job)
            return
        job = self._submitted.get(message.get("task", 0))
        if job is None:
            if message.get("m") == "hello":
                _tell(peer, {"m": "drop", "task": message["task"], "life": message["life"]})
            return
        if job.way is Way.SHELL and message["m"] != "hello" and (peer is not job.peer or message["life"] != job.life):
            return  # from a try before this one
        said: dict[str, Callable[[Job, Peer, Message], None]] = {
            "hello": self._hello,
            "warm": self._warm,
            "began": self._began,
            "want": self._want,
            "free": self._free,
            "left": self._left_gpu,
            "end": self._end,
        }
        said[message["m"]](job, peer, message)

    def _hello(self, job: Job, peer: Peer, message: Message) -> None:
        if job.life and not job.succeeded:
            self._lost_attempt(job, "preempted")  # Ray tries again; the end of the last try may be heard later
        job.peer, job.pid, job.framework_id = peer, message["pid"], message["id"]
        job.node, job.was_warm, job.life = message["node"], message["warm"], message["life"]
        if job.succeeded or self._broken:
            self._on_its_own(job)  # Ray lost the result, or EGS its engine
        elif job.grant is not None and job.lease is None and not self._gets_warm_first(job, job.grant):
            self._take_lease(job, job.grant)
        self._let_go(job)

    def _on_its_own(self, job: Job) -> None:
        """EGS has no resources for this shell: it takes its GPUs from Ray by itself."""
        self._give_back(job)
        job.is_open = True
        self._let_go(job)

    def _warm(self, job: Job, _peer: Peer, message: Message) -> None:
        job.is_warm = True
        self._loaded(job.submission)
        for problem in message["errors"]:
            self._warn_once(f"preload for {job.run.converted.graph.names[job.index]}: {problem}")
        if not job.was_warm:
            self.learning.warmed_up(job.run.converted, job.index, self.driver.now() - job.submitted_at)
        if job.parked_since is not None:
            self._records.preload_ended(job.number, "warm", self.driver.now())
        if self._broken:
            return
        if job.grant is not None and job.lease is None and not job.is_open:
            self._take_lease(job, job.grant)
        self._handle(m.PreloadReady(job.number))

    def _began(self, job: Job, _peer: Peer, message: Message) -> None:
        job.began = job.ran = True
        self._loaded(job.submission)
        if job.way is Way.OBSERVED and job.grant is not None:
            job.pid, job.framework_id = message["pid"], message["id"]
            self._phase_started(job, job.grant)

    def _lease_started(self, job: Job) -> None:
        """Ray gave the phase its resources: it holds them from here."""
        lease = job.lease
        if lease is None:
            return
        devices = tuple(int(d) if d.isdecimal() else i for i, d in enumerate(lease.devices))
        grant = msgspec.structs.replace(lease.grant, devices=devices)
        self._phase_started(job, grant)
        self._let_go(job)

    def _phase_started(self, job: Job, grant: m.Grant) -> None:
        if self._broken or job.started or self.engine.state.leases.get(grant.phase) is None:
            return
        job.started = True
        job.to_record = (grant, self.driver.now())
        if job.way is not Way.SHELL:
            self._record_start(job)
        self._handle(m.PhaseStarted(grant.phase, grant.attempt))

    def _record_start(self, job: Job) -> None:
        """Write down a phase's start; a shell's when its process has told whether it is warm."""
        if job.to_record is None or self._broken:
            return
        (grant, at), job.to_record = job.to_record, None
        needs_process = self.engine.state.is_first_phase(grant.phase) and bool(self._key_of(job))
        warm = (job.is_warm or job.was_warm) if needs_process else None
        self._records.started(grant, at, warm, job.framework_id, job.pid)

    def _want(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phase_over(job)
        if self._broken:
            self._send(job, {"m": "go", "open": True})

    def _free(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phase_over(job)
        if self._broken:
            self._send(job, {"m": "go", "open": True})

    def _left_gpu(self, job: Job, _peer: Peer, _message: Message) -> None:
        """A task whose last phase is on the GPU has left it; what remains of the task holds nothing."""
        if job.grant is not None:
            self._used(job, job.grant, self.driver.now())
            job.went_at = 0.0
        self._give_back(job)

    def _phase_over(self, job: Job) -> None:
        """The current phase has ended well: give back what it held, then let the engine go on."""
        grant = job.grant
        if grant is None:
            return
        self._phase_noted(job, grant)
        if not self._broken:
            self._handle(m.PhaseEnded(grant.phase, grant.attempt))

    def _phase_noted(self, job: Job, grant: m.Grant) -> None:
        """Give back what a phase held, and write down that it has ended well."""
        now = self.driver.now()
        self._phase_started(job, grant)  # when nobody has told of it
        self._record_start(job)
        self._used(job, grant, now)
        self._give_back(job)
        job.grant, job.went_at = None, 0.0
        if not self._broken:
            self._records.ended(grant.phase, grant.attempt, "succeeded", now)

    def _used(self, job: Job, grant: m.Grant, now: float) -> None:
        """A GPU phase of its own is used from the moment its code was let go."""
        kinds = job.run.converted.graph.phases_of(job.index)
        if self.engine.state.kind[grant.phase] == GPU and job.went_at and (len(kinds) > 1 or self.options.split):
            workload, task, index = self._records.names(grant.phase)
            self.learning.record(r.Used(job.went_at, now, workload, task, index, grant.attempt))

    def _give_back(self, job: Job) -> None:
        if job.lease is not None:
            self._leases.release(job.lease)
            job.lease = None

    def _end(self, job: Job, _peer: Peer, message: Message) -> None:
        job.ended = True
        if job.way is Way.SHELL and message["ok"]:
            self._about_to_leave(job)
        if message["ok"]:
            self._succeeded(job)
        else:
            self._give_back(job)  # whether it is tried again is Ray's decision; see `_on_result`

    def _succeeded(self, job: Job) -> None:
        if job.succeeded:
            return
        job.succeeded = True
        state, grant = self.engine.state, job.grant
        is_last = grant is not None and grant.phase + 1 == state.first_phase[job.number + 1]
        if is_last or self._broken:
            self._phase_over(job)
        else:  # phases are left that the code did not take: the engine must not grant them
            if grant is not None:
                self._phase_noted(job, grant)
            self._handle(m.TaskFinished(job.number, state.attempt[job.number]))
        job.ref = None  # what needs the value has its own reference
        job.run.release_parents(job.index)
        if not self._broken:
            self._check_over(job.run)

    def _worker_gone(self, peer: Peer) -> None:
        """A worker process died, with a holder, a shell or an observed task in it. Ray may start the task again."""
        lease = self._leases.of(peer)
        if lease is not None:
            self._lease_over(lease)
        for job in [job for job in self._submitted.values() if job.peer is peer and not job.succeeded]:
            self._lost_attempt(job, "preempted")

    def _lost_attempt(self, job: Job, outcome: str) -> None:
        """A try of the task is over without its success, and Ray may try again: from its first phase."""
        was_there = bool(job.life)
        job.peer, job.is_warm, job.went_at, job.life, job.began, job.ended = None, False, 0.0, "", False, False
        self._loaded(job.submission)
        self._give_back(job)
        if self._broken:
            return
        state, grant, job.grant = self.engine.state, job.grant, None
        phase = state.cursor[job.number]
        if grant is not None:
            self._phase_started(job, grant)
            self._record_start(job)
            self._records.ended(grant.phase, grant.attempt, outcome, self.driver.now())
            self._handle(m.PhaseEnded(grant.phase, grant.attempt, outcome))
        elif was_there and not state.is_first_phase(phase):
            self._handle(m.PhaseEnded(phase, state.attempt[job.number], outcome))
        else:
            self._handle(m.PreloadFailed(job.number))

    def _on_lease_end(self, lease: int) -> None:
        self.driver.do(lambda: self._lease_over(lease))

    def _lease_over(self, number: int) -> None:
        """A holder has ended that was not told to: ask Ray for another one, so that its books stay true."""
        job = self._leases.lost(number)
        if job is None or job.lease is None or job.lease.id != number:
            return
        job.lease = None
        job.lost_leases += 1
        if job.grant is None or self._broken:
            return
        if job.lost_leases <= MOST_LOST:
            self._take_lease(job, job.grant)
        else:
            if job.peer is not None:
                self._warn_once("what holds resources for tasks keeps dying: tasks ask Ray for their GPUs themselves")
            self._on_its_own(job)

    def _on_result(self, submission: int) -> None:
        """The task's reference has a value or an error, for good."""
        job = self._submitted.pop(submission, None)
        self._loaded(submission)
        if job is None or job.succeeded or self._broken:
            return
        error = _error_of(job.ref)
        if error is None:
            if job.way is Way.SHELL and not job.pid:
                self._stay_native(job, "its worker cannot reach this process")
            self._succeeded(job)
        elif job.way is not Way.NATIVE and not job.aborted and _is_egs_fault(job, error):
            self._without_egs(job, error)
        else:
            self._failed(job, error)

    def _without_egs(self, job: Job, error: BaseException) -> None:
        """The wrapped task never got as far as the user's code: run it as the user wrote it."""
        if not job.pid and isinstance(error, ray.exceptions.RayTaskError):
            self._stay_native(job, _first_line(error))
        else:
            self._warn_once(f"{job.run.converted.graph.names[job.index]} runs without EGS: {_first_line(error)}")
        self._give_back(job)
        self._drop_children(job)
        job.way, job.submission, job.ref, job.promised = Way.NATIVE, 0, None, False
        job.peer, job.life = None, ""
        if job.grant is not None:
            self._submit_native(job)
        else:
            job.run.results.pop(job.index, None)
            self._handle(m.PreloadFailed(job.number))

    def _stay_native(self, job: Job, reason: str) -> None:
        """Workers of this runtime environment cannot work with EGS: tasks to come do not try."""
        self._native_envs.add(self._env_of(job))
        self._warn_once(f"{job.run.converted.graph.names[job.index]} and tasks like it run without EGS: {reason}")

    def _env_of(self, job: Job) -> str:
        return repr(job.run.converted.nodes[job.index].options.get("runtime_env"))

    def _drop_children(self, job: Job) -> None:
        """Shells that wait with a reference to a result that will not come."""
        for child in self.engine.state.children[job.number]:
            other = self._jobs[child]
            if other.submission and not other.promised and other.parked_since is not None:
                self._leave_shell(other)
                self._handle(m.PreloadFailed(child))

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            warn(problem)

    def _failed(self, job: Job, error: BaseException) -> None:
        job.failed = True
        job.run.failure = job.run.failure if job.run.failure is not None else job.ref
        self._give_back(job)
        grant, job.grant = job.grant, None
        aborted = job.aborted or isinstance(error, ray.exceptions.TaskCancelledError)
        if grant is not None:
            outcome = "aborted" if aborted else "failed"
            self._phase_started(job, grant)
            self._record_start(job)
            self._records.ended(grant.phase, grant.attempt, outcome, self.driver.now())
            self._handle(m.PhaseEnded(grant.phase, grant.attempt, outcome))
        else:
            self._handle(m.AbortRequested("task", str(job.number), "ray", str(error)[:200]))
        self._check_over(job.run)

    def _check_over(self, books: RunBooks) -> None:
        state = self.engine.state
        number = state.workload_number(books.workload)
        if not state.workloads[number].open_tasks and not books.over.is_set():
            self._records.workload_ended(number, self.driver.now())
            self.learning.run_over(books.workload, books.converted.name)
            books.over.set()

    # --- control ---

    def abort(self, scope: str, target: str, actor: str, reason: str) -> None:
        """Abort on behalf of an operator; from any thread."""

        def act() -> None:
            self._handle(m.AbortRequested(scope, target, actor, reason))
            for books in self._runs.values():
                if books.jobs:
                    self._check_over(books)

        self.driver.do(act)

    # --- when EGS itself fails ---

    def _fail_open(self, error: BaseException) -> None:
        """The engine is gone. What waits at a gate, or was not submitted, goes to Ray as written."""
        self._broken = True
        warn(f"off for the rest of this run, Ray goes on alone: {type(error).__name__}: {_first_line(error)}")
        if os.environ.get("EGS_DEBUG"):
            traceback.print_exception(error, file=sys.stderr)
        self._finish_all()

    def _finish_all(self) -> None:
        self._deferred.clear()
        self._too_early.clear()
        for job in self._submitted.values():
            if job.ran:  # it may be waiting for its next phase, and its question was lost with the engine
                self._send(job, {"m": "go", "open": True})
        for books in list(self._runs.values()):
            self._finish_natively(books)

    def _finish_natively(self, books: RunBooks) -> None:
        with self._native_lock:
            if books.over.is_set():
                return
            for job in books.jobs:
                if job.submission and job.way is Way.SHELL and not (job.went_at or job.ran or job.ended):
                    self._give_back(job)
                    self._leave_shell(job)
            finish_natively(books, self._is_over)

    def _is_over(self, job: Job) -> bool:
        """Ended in the engine's books, or on its way in a worker: nothing is to be submitted for it."""
        state = self.engine.state
        known = job.number < len(state.cursor) and state.status[state.cursor[job.number]] in ENDED
        return known or bool(job.submission) or job.succeeded or job.failed or job.aborted


def _touch(function: Any) -> Any:
    return function


def _tell(peer: Peer, message: Message) -> None:
    with contextlib.suppress(OSError):
        peer.send(message)


def _error_of(ref: Any) -> BaseException | None:
    """The error of a finished task, if it has one."""
    try:
        ray.get(first_of(ref))
    except Exception as error:
        return error
    return None


def _is_egs_fault(job: Job, error: BaseException) -> bool:
    """Whether the task failed before the user's code was reached, and not by the user's doing."""
    if job.ran or isinstance(error, ray.exceptions.TaskCancelledError):
        return False
    if isinstance(error, ray.exceptions.RayTaskError):
        return not job.pid or isinstance(error.cause, ArgumentsLostError)
    return True


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1] if isinstance(error, ray.exceptions.RayTaskError) else lines[0]
