"""What the parts of a session share: its options, its site, its ways to Ray and to workers, and its books.

    session ─► decisions, workers, failopen ─► endings ─► submissions ─► phases ─► shared

Each part uses those to its right only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import ray

from egs_core.notices import warn
from egs_core.site import Learning, Offers, Site
from egs_ray import waiting
from egs_ray.labels import ACCELERATOR
from egs_ray.link import Message, Server, tell
from egs_ray.promises import Promises
from egs_ray.session.leases import Leases
from egs_ray.session.tasks import Job, RunBooks

HEAR_S = 2.0  # what was sent before a result is here by then, or never


class Options(msgspec.Struct, frozen=True):
    """Options of a session, which runs everything that one process gives to `egs_ray.run`."""

    policy: str = "egs"
    """Rule of order, a name of `egs_core.engine.POLICIES`."""
    preload: bool = True
    """Whether processes are started and loaded ahead of their tasks."""
    split: bool = True
    """Whether tasks are split into CPU and GPU phases."""
    runlog: str | None = None
    """File of the run log; by default that of `EGS_RUNLOG`, else a new one in the user's data folder."""
    history: str | None = None
    """URL of the database of durations; by default that of `EGS_HISTORY`, else in the user's data folder."""
    default_max_wait_s: float | None = None
    """`max_wait` in seconds of tasks that state none."""
    flavor_label: str = ACCELERATOR
    """Node label whose value the hint `flavors` names."""
    flavors: str | None = None
    """File of what GPUs of which flavor cost, how fast they are and how much memory they have; flavors are the values
    of that label, else of `accelerator_type`."""
    objective: str = "finish"
    """By what a task's flavor is chosen where nodes are of several: `finish`, where it should end first, or `cost`, the
    cheapest within its deadline."""
    retry_out_of_memory: bool = False
    """Whether a task that ends for lack of a GPU's memory starts again on another flavor that it may have, each once,
    where nodes are of several. Not for members of gangs."""
    preload_timeout_s: float = 60.0
    """A preload that takes longer, in seconds, no longer delays its task."""
    residue_bytes: int = 0
    """GPU memory that a process may keep after its `with egs.gpu():` block without keeping the GPU."""
    gpu_process: bool | None = None
    """Whether GPU steps of `egs.phases` run in processes of their own; by default on real devices only."""
    queues: str | None = None
    """File of queues and quotas; `egs_ray.run(queue=…)` names one of them."""
    preempt: bool = False
    """Whether running tasks are stopped, and started again later, to reclaim lent quota, for higher priorities, and at
    limits with `on_limit: requeue`."""
    min_gain_s: float = 60.0
    """No task is preempted for one that would start within this time, in seconds, anyway."""
    control: bool = True
    """Whether other processes can list, abort, pause and preempt these runs (`egs ps` …), through a small actor;
    `EGS_CONTROL=off` in the environment switches it off for all sessions."""


class Shared:
    """Used on the site's thread for its holder; callers add to `runs`, and finish a run themselves when that is dead.

    offers: what Ray's nodes have been described as.
    """

    def __init__(
        self,
        options: Options,
        site: Site,
        server: Server,
        learning: Learning,
        leases: Leases,
        promises: Promises,
    ) -> None:
        self.options, self.site, self.server, self.learning = options, site, server, learning
        self.offers = Offers()
        self.leases, self.promises = leases, promises
        self.jobs: dict[int, Job] = {}  # the site's task number -> job
        self.submitted: dict[int, Job] = {}  # submission -> job
        self.unheard: dict[
            int, tuple[Job, float]
        ] = {}  # submission -> job whose process has not told of its end; result
        self.left: set[int] = set()  # submissions whose values nobody will ask for
        self.runs: dict[str, RunBooks] = {}
        self.tickets: Any = None  # a script's own submissions, where there are any: see `program`
        self.awaited: set[Any] = set()  # references whose end something waits for
        self.native_envs: set[str] = set()  # runtime environments whose workers cannot work with EGS
        self.real_gpus = False  # some machine has real devices: processes that used them end with their task
        self.broken = False  # the site is lost, or the session closed: Ray goes on alone
        self._warned: set[str] = set()

    def send(self, job: Job, message: Message) -> None:
        if job.peer is not None:
            tell(job.peer, {"task": job.submission, "life": job.life, **message})  # its end: `worker_gone`

    def when_ready(self, ref: Any, action: Callable[[], None]) -> None:
        """Act on the holder's thread when the object is there; keeps the reference until then, or Ray may not tell."""

        def act() -> None:
            self.awaited.discard(ref)
            action()

        self.awaited.add(ref)
        waiting.on_ready(ref, lambda: self.site.do(act))

    def warn_once(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            warn(problem)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1] if isinstance(error, ray.exceptions.RayTaskError) else lines[0]
