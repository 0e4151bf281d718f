"""How tasks get to Ray: shells ahead of their turn, others when granted, and when a shell is let go of again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ray

from egs_core.graph.columns import GPU, Shape
from egs_core.hints import phase_steps
from egs_core.site import fits
from egs_ray.cluster import preload_slots
from egs_ray.link import Peer
from egs_ray.payload import submit
from egs_ray.session.elsewhere import Moves
from egs_ray.session.gangs import NODE_LABEL
from egs_ray.session.phases import Phases
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job, RemoteFunctions, Way, first_of, is_placed_by_ray, reserving, retries_of
from egs_ray.worker.shell import Spec, make_observed, make_shell, touch

PROCESS_ENV = {"env_vars": {"EGS_ROLE": "task"}}
SHORT_LOAD_S = 0.5  # what is loaded again sooner than this is worth no process of its own: one takes a second to start
TOGETHER_S = 0.3  # long enough that several tasks need several processes
MOST_LOOKED_AT = 1000


class Submissions:
    """A session's submissions. on_result(submission): called when the reference has a value or an error."""

    def __init__(self, shared: Shared, phases: Phases, on_result: Callable[[int], None]) -> None:
        self._shared, self._phases, self._on_result = shared, phases, on_result
        self.moves = Moves(shared)
        self._remotes = RemoteFunctions()
        self._numbers = itertools.count(1)
        self._leaving: dict[str, int] = {}  # warm key -> processes whose task has ended but not yet left them
        self._loading: dict[int, str] = {}  # submission whose process still imports -> its node
        self._too_early: list[tuple[Job, str]] = []  # shells that wait for one of these
        self._deferred: dict[str, list[tuple[Job, str]]] = {}  # warm key -> shells that wait for one of these
        self._worth_keeping: set[str] = set()  # warm keys whose loading takes long
        self._standing: dict[str, set[Peer]] = {}  # warm key -> processes of EGS's own that have loaded for it

    def prepare_processes(self, own: int, plain: int = 0) -> list[Any]:
        """Let Ray start empty processes for the tasks to come, as it does itself for plain tasks: so many of EGS's own,
        and so many like Ray's."""
        remote, options = self._remotes.get(_touch, touch, max_calls=0), {"num_cpus": 0, "name": "egs-process"}
        shells = [remote.options(runtime_env=PROCESS_ENV, **options)] * own + [remote.options(**options)] * plain
        started = [shell.remote(TOGETHER_S) for shell in shells]
        for ref in started:
            self._shared.when_ready(ref, partial(self._look_at, ref))
        return started

    def gpu_tasks_left(self) -> int:
        """Tasks of all runs that will take a GPU by a holder, and have not ended."""
        left = (job for job in self._unfinished() if job.way is Way.SHELL)
        return sum(_uses_gpu(job) for job in itertools.islice(left, MOST_LOOKED_AT))

    def _unfinished(self) -> Iterator[Job]:
        """Tasks of all runs that have not ended."""
        runs = [books for books in self._shared.runs.values() if not books.over.is_set()]
        return (job for books in runs for job in books.unfinished)

    def _look_at(self, started: Any) -> None:
        """Whether a process has found real devices on its machine."""
        with contextlib.suppress(Exception):  # it was ended before it could tell; shells will
            self._shared.real_gpus = self._shared.real_gpus or bool(ray.get(started))

    def submit_shell(self, job: Job, node: str) -> None:
        """Submit a shell, unless there is one. While a process that would serve it is about to be free, wait for that:
        Ray would start another one."""
        if job.submission:
            return
        if job.grant is None and self._is_full(node):
            self._too_early.append((job, node))
            return
        key = job.warm_key
        if self._leaving.get(key, 0) > len(self._deferred.setdefault(key, [])):
            self._deferred[key].append((job, node))
        elif all(job is not other for other, _ in self._deferred[key]):
            self._submit_shell_now(job, node)

    def took_to_load(self, job: Job, seconds: float) -> None:
        """Its process needed so long for its preload items."""
        if seconds > SHORT_LOAD_S:
            self._worth_keeping.add(job.warm_key)

    def loaded(self, submission: int) -> None:
        """A process has done its loading, or never will: the next one may begin."""
        self._loading.pop(submission, None)
        early, self._too_early = self._too_early, []
        for waiting, node in early:  # those whose node is still full come back to the list
            if waiting.parked_since is not None or waiting.grant is not None:
                self.submit_shell(waiting, node)

    def stands(self, job: Job) -> None:
        """Its process is there for the next task that loads the same, of whichever run, until it is `gone`."""
        if job.own and job.peer is not None and not (job.once or job.apart):
            self._standing.setdefault(job.warm_key, set()).add(job.peer)

    def gone(self, peer: Peer) -> None:
        """A process has ended."""
        for key in [key for key, peers in self._standing.items() if peer in peers]:
            self._standing[key].discard(peer)
            if not self._standing[key]:
                del self._standing[key]

    def _is_full(self, node: str) -> bool:
        """Whether as many processes load on the node as the site was told that it may have at once."""
        loading = sum(other == node for other in self._loading.values())
        slots = self._shared.offers.preload_slots(node)
        return loading >= (preload_slots() if slots is None else slots)

    def _left(self, key: str) -> None:
        """A process that was about to be free is. One that waits for its turn to load need not load any more."""
        self._leaving[key] = max(0, self._leaving.get(key, 0) - 1)
        waiting = self._deferred.get(key) or []
        early = next((one for one in self._too_early if one[0].warm_key == key), None)
        if not waiting and early is not None:
            self._too_early.remove(early)
            waiting = [early]
        if waiting:
            job, node = waiting.pop(0)
            is_wanted = job.grant is not None or job.parked_since is not None
            if not job.submission and not self._shared.broken and is_wanted:
                self._submit_shell_now(job, node)
                if job.grant is not None:
                    self.keep_promise(job)

    def wait_no_longer(self) -> None:
        """Processes that were about to be free take their time: start others."""
        for key in [key for key, waiting in self._deferred.items() if waiting]:
            self._left(key)

    def forget_waiting(self) -> None:
        self._deferred.clear()
        self._too_early.clear()

    def about_to_leave(self, job: Job) -> None:
        """The shell's process will be free as soon as its result is there."""
        key = job.warm_key
        self._leaving[key] = self._leaving.get(key, 0) + 1
        self._shared.when_ready(first_of(job.ref), lambda: self._left(key))

    def keep_promise(self, job: Job) -> None:
        """Hand the arguments to a shell that was submitted before they were there."""
        if job.promised:
            job.promised = False
            self._shared.promises.keep(str(job.submission), job.run.arguments(job.index))

    def keep_promises_after(self, parent: Job) -> None:
        """A task was granted: those that wait for its value in processes of their own may know where it will be, so
        that it is fetched as soon as it is there."""
        for child in parent.children:
            if child.promised and child.run.has_lasting_arguments(child.index):
                self.keep_promise(child)

    def hasten(self, job: Job) -> None:
        """Where nothing but its load keeps a task waiting, that lets nobody go first any more."""
        if job.is_gentle and job.peer is not None and not (job.is_warm or job.is_over or job.waits_for_others):
            job.is_gentle = False
            self._shared.send(job, {"m": "hasten"})

    def hasten_after(self, parent: Job) -> None:
        """A task has ended: what waits for it may wait for nothing else."""
        for child in parent.children:
            self.hasten(child)

    def leave_shell(self, job: Job) -> None:
        """Let go of a shell that waits; the job has none then. One that has not said hello is told when it does."""
        submission, key = job.submission, job.warm_key
        self._shared.send(job, {"m": "drop"})
        self._shared.submitted.pop(submission, None)
        self._shared.left.add(submission)
        if job.peer is not None and not job.once:
            self.about_to_leave(job)
        if job.promised:
            self._shared.promises.keep(str(submission), ((), {}))  # nobody waits for it any more
        job.submission, job.ref, job.peer, job.parked_since, job.is_warm = 0, None, None, None, False
        job.promised, job.life = False, ""
        job.run.results.pop(job.index, None)
        self._deferred[key] = [(other, node) for other, node in self._deferred.get(key, []) if other is not job]
        self.loaded(submission)

    def forget(self, job: Job) -> None:
        """Its submission has been ended: the job has none, as before the first."""
        if job.promised:
            self._shared.promises.keep(str(job.submission), ((), {}))
        key = job.warm_key
        self._deferred[key] = [(other, node) for other, node in self._deferred.get(key, []) if other is not job]
        self._too_early = [(other, node) for other, node in self._too_early if other is not job]
        self.loaded(job.submission)
        job.submission, job.ref, job.promised, job.parked_since = 0, None, False, None
        job.requeues, job.saver, job.gave_up_warming, job.waits_since = False, None, False, 0.0

    def submit_observed(self, job: Job) -> None:
        payload = job.run.converted.nodes[job.index]
        remote = self._remotes.get(make_observed, payload.function)
        self._submit(job, remote.options(**payload.all_options), self._spec(job, 0.0, (False,)))

    def submit_native(self, job: Job) -> None:
        payload = job.run.converted.nodes[job.index]
        if job.ticket:
            self._shared.tickets.start(job, None)
            if job.grant is not None:
                self._phases.started(job, job.grant)
            return
        job.submission, job.ref = next(self._numbers), None
        self._shared.submitted[job.submission] = job
        job.ref = submit(reserving(payload, job.run.converted.graph, job.index), job.run.results, job.run.given)
        self._watch(job)
        if job.grant is not None:
            self._phases.started(job, job.grant)

    def _submit_shell_now(self, job: Job, node: str) -> None:
        payload, graph = job.run.converted.nodes[job.index], job.run.converted.graph
        on_gpu = tuple(graph.phase_kind[p] == GPU for p in graph.phases_of(job.index))
        gpus = max(shape.gpu_milli for shape in job.shapes) / 1000
        if job.ticket:
            spec = self._spec(job, gpus, on_gpu)
            self._loading[job.submission] = node
            self._shared.tickets.start(job, spec.told())
            return
        options = dict(payload.options)
        for taken_by_leases in ("num_cpus", "num_gpus", "memory", "max_calls"):
            options.pop(taken_by_leases, None)
        job.own = self.needs_own_process(job)
        if job.own:
            options["runtime_env"] = own_env(options.get("runtime_env"))
        if not is_placed_by_ray(options, len(self._shared.offers.nodes)):
            options |= self._place(job, node)
        if job.lost_tries and (retries := retries_of(options)) > 0:
            options["max_retries"] = max(0, retries - job.lost_tries)
        job.apart, job.once = self._is_apart(job), self._is_once(job)
        remote = self._remotes.get(make_shell, payload.function, max_calls=int(job.once))
        spec = self._spec(job, gpus, on_gpu)
        self._loading[job.submission] = node
        job.holds_cpus = self._may_hold_cpus(job)
        held = job.shapes[0] if job.holds_cpus else Shape(0)
        memory = {"memory": held.memory_bytes} if held.memory_bytes else {}
        self._submit(job, remote.options(num_cpus=held.cpu_milli / 1000, num_gpus=0, **memory, **options), spec)

    def _place(self, job: Job, node: str) -> dict[str, Any]:
        """On this node; when that is lost, Ray may start the process again, or make its value again, on any other that
        could give its phases what they need."""
        shapes = job.shapes
        if not self._shared.offers.are_several:
            return {}
        alive = [other for other in self._shared.offers.nodes if other.alive]
        unfit = sorted(other.name for other in alive if not all(fits(other, shape) for shape in shapes))
        place: dict[str, Any] = {
            "scheduling_strategy": ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        }
        if unfit and len(unfit) < len(alive):
            place["label_selector"] = {NODE_LABEL: f"!in({','.join(unfit)})"}
        return place

    def _submit(self, job: Job, remote: Any, spec: Spec) -> None:
        if job.run.has_lasting_arguments(job.index):
            job.promised, arguments = False, list(job.run.arguments(job.index))
        else:
            job.promised, arguments = True, [self._shared.promises.new(str(job.submission))]
            if self._shared.offers.are_several:
                job.run.promises[job.index] = arguments[0]
        job.ref = remote.remote(spec, arguments)
        self._watch(job)

    def _spec(self, job: Job, gpus: float, on_gpu: tuple[bool, ...]) -> Spec:
        job.submission, job.ref = next(self._numbers), job.ref if job.ticket else None
        self._shared.submitted[job.submission] = job
        job.peer, job.pid, job.began, job.ended, job.went_at = None, 0, False, False, 0.0
        job.is_open, job.submitted_at = False, self._shared.site.now()
        job.stays = job.outside = False
        job.saver, job.requeues = None, False
        returns = job.run.converted.nodes[job.index].options.get("num_returns") or 1
        options = self._shared.options
        address, load_s = self._shared.server.address, options.preload_timeout_s
        gentle = job.grant is None and job.waits_for_others
        spec = Spec(address, job.submission, gpus, options.preload, on_gpu, load_s, returns, job.checkpoint)
        spec.apart, spec.residue_bytes, spec.gentle = job.apart, options.residue_bytes, gentle
        spec.moves = self.moves.retries(job)
        return spec

    def keeps_process(self, job: Job) -> bool:
        """Whether its process, with all that was loaded for it, can serve another task."""
        return self.needs_own_process(job) and not (self._is_once(job) or self._is_apart(job))

    def needs_own_process(self, job: Job) -> bool:
        """Whether its process must be none of those that Ray uses for plain tasks and holders too: what it loads serves
        other tasks, or one that a task before it has left has loaded it, of whichever run; or Ray's has used CUDA, and
        may not see another device. Ray has some of its own started, so a task by itself begins a second earlier
        there."""
        key = job.warm_key
        is_kept = key in job.run.shared_keys or key in self._worth_keeping or key in self._standing
        return (bool(key) and is_kept) or job.met_cuda

    def suits(self, job: Job) -> bool:
        """Whether its process is what it would be given now, with all that is known of devices."""
        wanted = self._is_apart(job), self._is_once(job)
        return bool(job.ticket) or ((job.apart, job.once) == wanted and (job.own or not job.met_cuda))

    def is_misplaced(self, job: Job) -> bool:
        """Whether its process is on another node than the one whose resources it was granted."""
        return job.peer is not None and job.grant is not None and job.node != job.grant.node and not job.ticket

    def submit_again(self, job: Job, node: str) -> None:
        """In another process; what the task was granted or kept for stays."""
        parked_since = job.parked_since
        self.leave_shell(job)
        job.parked_since = parked_since
        self._submit_shell_now(job, node)
        if job.grant is not None:
            self.keep_promise(job)

    def _may_hold_cpus(self, job: Job) -> bool:
        """Whether its process may hold the CPUs of its phases itself: no holder has to be started for them. Only while
        there is room for all that is left at once: else it would wait for its GPU with them."""
        nodes, grant = self._shared.offers.nodes, job.grant
        is_first = grant is not None and grant.index == 0 and not grant.is_gpu
        is_same = len({(shape.cpu_milli, shape.memory_bytes) for shape in job.shapes}) == 1
        if not (is_first and is_same and len(nodes) == 1) or self._phases.gangs.is_member(job):
            return False
        cpu_milli, gpu_milli = nodes[0].cpu_milli, 1000 * nodes[0].gpus
        for other in self._unfinished():
            cpu_milli -= max(shape.cpu_milli for shape in other.shapes)
            gpu_milli -= max(shape.gpu_milli for shape in other.shapes)
            if cpu_milli < 0 or gpu_milli < 0:
                return False
        return True

    def _is_apart(self, job: Job) -> bool:
        """Whether its GPU steps run in processes of their own: for steps that are functions, on real devices."""
        wanted, graph = self._shared.options.gpu_process, job.run.converted.graph
        wanted = self._shared.real_gpus if wanted is None else wanted
        return wanted and len(graph.phases_of(job.index)) > 1 and bool(phase_steps(self._function(job)))

    def _is_once(self, job: Job) -> bool:
        """Whether its process ends with it, as Ray itself has it for tasks with GPUs: CUDA stays with the first device
        that it has seen, and keeps memory there."""
        return self._shared.real_gpus and _uses_gpu(job) and not self._is_apart(job)

    def _function(self, job: Job) -> Callable[..., Any]:
        return job.run.converted.nodes[job.index].function

    def _watch(self, job: Job) -> None:
        job.run.results[job.index] = job.ref
        submission = job.submission
        self._shared.when_ready(first_of(job.ref), lambda: self._on_result(submission))


def own_env(given: Any) -> Any:
    """A runtime environment whose worker processes no plain task and no holder gets."""
    environment = dict(given or {})
    return {**environment, "env_vars": {**environment.get("env_vars", {}), **PROCESS_ENV["env_vars"]}}


def _uses_gpu(job: Job) -> bool:
    graph = job.run.converted.graph
    return any(graph.phase_kind[p] == GPU for p in graph.phases_of(job.index))


def _touch(function: Any) -> Any:
    return function
