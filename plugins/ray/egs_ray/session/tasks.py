"""The session's books on the tasks of its runs: how each is run, what it holds, and how far it is."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from egs_core.errors import labelled
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.site import Grant
from egs_ray.link import Peer
from egs_ray.payload import Converted, Payload, fill, submit

UNGATED_S = 0.1
"""A CPU task known to be at most this long is not worth a decision: it goes to Ray at once."""


RAYS_RETRIES = 3
"""How often Ray starts a task again where neither it nor the driver's environment says how often."""

CREATIONS = 16
"""So many digits are the same in the ids of all tasks that create an actor; the actor's own id follows."""


class Way(Enum):
    """How a task reaches Ray. SHELL: early, in a process of its own that takes its resources phase by phase. OBSERVED:
    when granted, as the user wrote it, but telling its start and end. NATIVE: untouched, when EGS cannot do better.

    Of a script's own submissions, which Ray has already: TICKET: it waits there for a ticket. OUTSIDE: nothing but Ray
    decides about it; it is known because others wait for it, or it for others. ACTOR: as TICKET, from an actor's
    creation to its death. GROUP: a bundle of a placement group that waits for its ticket before Ray has it."""

    SHELL = "shell"
    OBSERVED = "observed"
    NATIVE = "native"
    TICKET = "ticket"
    OUTSIDE = "outside"
    ACTOR = "actor"
    GROUP = "group"


LASTING = (Way.ACTOR, Way.GROUP)  # nobody knows how long
WITH_TICKET = (Way.TICKET, *LASTING)


class Lease(msgspec.Struct, eq=False):
    """What a running phase holds in Ray's books: a holder task, from the moment its `peer` has told of its start.
    Without a `ref` the task's own process, the peer, holds it."""

    id: int
    grant: Grant
    ref: Any = None
    peer: Peer | None = None
    devices: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    pid: int = 0
    over: bool = False


class Job(msgspec.Struct, eq=False):
    """One task of a run. `number` is the site's; `submission` names its current submission to Ray, 0 before one."""

    run: RunBooks
    index: int  # in the run's graph
    number: int
    way: Way
    first_phase: int = 0  # the site's number of its first phase
    submission: int = 0
    ticket: str = ""  # that it waits for in Ray: the script has submitted it, and has its reference
    gpus: float = 0.0  # the most that a phase of such a task needs
    lack: str = ""  # what no node has of what it needs: it is Ray's, and waits there
    ref: Any = None
    peer: Peer | None = None
    node: str = ""
    pid: int = 0
    framework_id: str = ""
    lease: Lease | None = None
    grant: Grant | None = None  # of the phase that runs or is about to
    attempt: int = 1  # of its latest grant
    next_phase: int = 0  # the first of its phases that has not ended in this attempt
    home: str = ""  # node of its latest grant
    dropped: bool = False  # it will never run: the site has ended it while it waited
    operator_grace_s: float | None = None  # what an operator's abort gives it
    parked_since: float | None = None
    promised: bool = False  # its arguments are still to come
    is_warm: bool = False
    was_warm: bool = False  # its process was warm when it said hello
    is_gentle: bool = False  # its process lets others go first while it loads
    began: bool = False
    went_at: float = 0.0  # when its phase was let go
    ran: bool = False  # some try of it has reached the user's code
    ended: bool = False  # it told of its end, well or not
    succeeded: bool = False
    failed: bool = False
    life: str = ""  # of the shell that said hello last: it tells a retry from the try before
    aborted: bool = False  # its end was asked for
    lacked: set[str] = msgspec.field(default_factory=set)  # flavors whose memory was not enough for it
    over_limit: str = ""  # because of this limit
    stopped: str = ""  # why its end was asked for, and by whom
    requeues: bool = False  # it was stopped to start again
    saver: Peer | None = None  # where its process can be asked for a checkpoint
    leaves: bool = False  # that process ends when it is told to there
    checkpoint: Any = None  # a reference to what its last stopped try has kept
    is_open: bool = False  # it is on its own: EGS could not get its resources for it
    lost_leases: int = 0
    lost_tries: int = 0  # that reached the user's code and died: Ray has counted them
    moves: int = 0  # how often its process was not where it was granted, one after the other
    submitted_at: float = 0.0
    started: bool = False  # the site knows that the current phase has started
    to_record: tuple[Grant, float] | None = None  # a start that is not yet in the run log, and its time
    gave_up_warming: bool = False
    waits_since: float = 0.0  # it was granted, and takes nothing before it is warm
    apart: bool = False  # its GPU steps run in processes of their own
    once: bool = False  # its process ends with it
    holds_cpus: bool = False  # its process holds the CPUs and memory of its phases itself, from its start to its end
    own: bool = False  # its process is none of those that plain tasks run in
    met_cuda: bool = False  # such a process was given to it, and had used CUDA before
    stays: bool = False  # its process has memory on a device: that is held until the process is gone
    outside: bool = False  # it has left its GPU block, but its GPU phase goes on because something stays

    @property
    def warm_key(self) -> str:
        return self.run.converted.graph.options_of(self.index).warm_key

    @property
    def label(self) -> str:
        """What operators call it: its id in a graph; of a script's submissions the name and how Ray's id begins."""
        graph = self.run.converted.graph
        name, task = graph.names[self.index], graph.ids[self.index]
        if self.way is Way.ACTOR:
            task = task[CREATIONS:]
        return labelled(name, task) if self.run.grows else task

    @property
    def gang(self) -> str:
        """The name of its gang, as far as its members are started together."""
        return self.run.block.options_of(self.index).gang

    @property
    def n_phases(self) -> int:
        return len(self.run.block.phases_of(self.index))

    def shape(self, grant: Grant) -> Shape:
        """What the granted phase holds."""
        block = self.run.block
        return block.shapes[block.phase_shape[block.phase_offsets[self.index] + grant.index]]

    @property
    def shapes(self) -> list[Shape]:
        """What its phases hold."""
        graph = self.run.converted.graph
        return [graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(self.index)]

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or will never run."""
        return self.succeeded or self.failed or self.dropped

    @property
    def children(self) -> list[Job]:
        """What waits for it."""
        return [self.run.jobs[child] for child in self.run.children[self.index]]

    @property
    def waits_for_others(self) -> bool:
        return not all(self.run.jobs[parent].succeeded for parent in self.run.block.parents[self.index])

    @property
    def env(self) -> str:
        """Names its runtime environment."""
        return repr(self.run.converted.nodes[self.index].options.get("runtime_env"))

    @property
    def ready_to_start(self) -> bool:
        return self.is_warm or self.gave_up_warming


class RunBooks:
    """One call of `run`: the converted graph, the tasks' references, and whether all is over.

    block: the graph as the site has it, once it has begun.
    results[i] is the reference that stands for task i's value; it is dropped when no task or output needs it.
    promises[i]: of its arguments, with several nodes; without it Ray could not make a value again that is lost.
    """

    def __init__(self, workload: str, converted: Converted, given: Any) -> None:
        self.workload, self.converted, self.given = workload, converted, given
        self.jobs: list[Job] = []
        self.block = Graph()
        self.children: list[list[int]] = []
        self.results: dict[int, Any] = {}
        self.promises: dict[int, Any] = {}
        self.failure: Any = None  # the reference of the first task that failed
        self.error: BaseException | None = None
        self.over = threading.Event()
        self.queue = ""
        self.called_s = time.monotonic()  # when the user asked for the run
        self.aborted = ""  # by whom and why
        self._needed = [0] * converted.graph.n_tasks
        for parents in converted.graph.parents:
            for parent in parents:
                self._needed[parent] += 1
        keys = Counter(options.warm_key for options in converted.graph.options.values())
        self.shared_keys = {key for key, tasks in keys.items() if key and tasks > 1}  # of several tasks
        self._output: set[int] = set()
        fill(converted.output, _Noting(self._output))

    @property
    def grows(self) -> bool:
        """Whether it is a script's own submissions: Ray has them already, and what follows from a failure is Ray's."""
        return False

    @property
    def unfinished(self) -> Iterable[Job]:
        """Those of its tasks that have not ended."""
        return (job for job in self.jobs if not job.is_over)

    def take_block(self, block: Graph) -> None:
        self.block, self.children = block, block.children()

    def has_arguments(self, index: int) -> bool:
        """Whether every task that this one takes a value from has been submitted."""
        return all(parent in self.results for parent in self.converted.graph.parents[index])

    def has_lasting_arguments(self, index: int) -> bool:
        """And none of those waits in a process that may still be given up, and its reference with it."""
        parents = self.converted.graph.parents[index]
        return self.has_arguments(index) and all(self.jobs[parent].parked_since is None for parent in parents)

    def arguments(self, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The task's arguments, with references where other tasks' values go."""
        payload = self.converted.nodes[index]
        args = tuple(fill(value, self.results, self.given) for value in payload.args)
        return args, {key: fill(value, self.results, self.given) for key, value in payload.kwargs.items()}

    def output(self) -> Any:
        """What the graph returns: a reference, or a list of them."""
        return fill(self.converted.output, self.results, self.given)

    def release_parents(self, index: int) -> None:
        """Task `index` has ended: values that only it still needed can go."""
        for parent in self.converted.graph.parents[index]:
            self._needed[parent] -= 1
            if not self._needed[parent] and parent not in self._output:
                self.results.pop(parent, None)
                self.promises.pop(parent, None)


class _Noting(dict[int, Any]):
    """Notes which results an output asks for."""

    def __init__(self, noted: set[int]) -> None:
        super().__init__()
        self._noted = noted

    def __missing__(self, key: int) -> None:
        self._noted.add(key)


def finish_natively(books: RunBooks, is_over: Callable[[Job], bool] = lambda _: False) -> None:
    """Submit to Ray what has not been, as it was written; the run is Ray's from then on. What Ray raises is the run's.

    is_over: whether a task needs no submission any more.
    """
    try:
        if not ray.is_initialized():
            raise RuntimeError(f"Ray was shut down before {books.workload} had ended")
        for index, payload in enumerate(books.converted.nodes):
            ours = index < len(books.jobs) and is_over(books.jobs[index])
            if not ours and books.has_arguments(index):
                payload = reserving(payload, books.converted.graph, index)
                books.results[index] = submit(payload, books.results, books.given)
    except Exception as error:
        books.error = error
    books.over.set()


def references_in(value: Any) -> list[Any]:
    """The references that a graph's output consists of."""
    if isinstance(value, list | tuple):
        return [ref for item in value for ref in references_in(item)]
    return [value] if isinstance(value, ray.ObjectRef) else []


def reserving(payload: Payload, graph: Graph, index: int) -> Payload:
    """The payload with what its hints say reserved from Ray for the whole task: nobody else does it then."""
    shapes = [graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(index)]
    options = payload.all_options
    gpus = max(shape.gpu_milli for shape in shapes) / 1000
    if options.get("num_gpus") is None and gpus:
        options["num_gpus"] = gpus
    return msgspec.structs.replace(payload, options=options)


def is_placed_by_ray(options: dict[str, Any], n_nodes: int) -> bool:
    """Whether options name something that a shell without resources, or a holder beside it, would take wrongly: custom
    resources and bundles are not the driver's to hold; labels and strategies matter where there are several nodes."""
    if options.get("resources") or options.get("accelerator_type") or options.get("placement_group"):
        return True
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return True
    chooses = strategy not in (None, "DEFAULT", "SPREAD") or any(
        options.get(name) for name in ("label_selector", "fallback_strategy")
    )
    return n_nodes > 1 and bool(chooses)


def first_of(ref: Any) -> Any:
    """One reference that tells of a submission's end: with num_returns there are several."""
    return ref[0] if isinstance(ref, list) else ref


def way_of(graph: Graph, index: int) -> Way:
    """A shell for tasks with a GPU phase, something to preload or a gang; the others run as written."""
    kinds = {graph.phase_kind[p] for p in graph.phases_of(index)}
    options = graph.options_of(index)
    return Way.OBSERVED if kinds == {CPU} and not (options.warm_key or options.gang) else Way.SHELL


def is_ungated(graph: Graph, index: int, estimate_s: float | None) -> bool:
    """Whether a CPU task is so short that it goes to Ray without a decision."""
    return way_of(graph, index) is Way.OBSERVED and estimate_s is not None and estimate_s <= UNGATED_S


class RemoteFunctions:
    """One RemoteFunction for each (wrapper, function): Ray exports each to the cluster once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, Any], tuple[Any, Any]] = {}

    def get(self, wrapper: Callable[[Any], Any], function: Callable[..., Any], **options: Any) -> Any:
        key = (wrapper.__name__, id(function), options.get("max_calls"))
        if key not in self._made:
            remote = ray.remote(**options) if options else ray.remote
            self._made[key] = (remote(wrapper(function)), function)  # the function is kept: its id is the key
        return self._made[key][0]


def retries_of(options: Mapping[str, Any]) -> int:
    """How often Ray starts a task with these options again, -1: for ever."""
    try:
        return int(options.get("max_retries", os.environ.get("RAY_TASK_MAX_RETRIES", RAYS_RETRIES)))
    except ValueError:  # of the variable: Ray refuses the submission by itself
        return RAYS_RETRIES
