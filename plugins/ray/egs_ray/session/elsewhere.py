"""Where else a task may run that a GPU's memory was not enough for; of a script's own, also where it runs at all."""

from __future__ import annotations

from collections.abc import Collection

from egs_core.out_of_memory import GPU
from egs_core.site import Node, fits
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job, retries_of

MOST_MOVES = 3  # of a task whose process Ray puts elsewhere than it was asked to


def flavor_of(shared: Shared, node: str) -> str:
    """Of its GPUs; "" where nobody says."""
    return next((one.flavor for one in shared.offers.nodes if one.name == node and one.alive and one.gpus), "")


def nodes_left(shared: Shared, job: Job, wishes: Collection[str] = ()) -> list[Node]:
    """Those that could hold each of its phases, and on whose flavor its memory has not been too little. wishes: of
    flavors that it may have; none: all."""
    fitting = [one for one in shared.offers.nodes if one.alive and all(fits(one, shape) for shape in job.shapes)]
    return [one for one in fitting if one.flavor not in job.lacked and (not wishes or one.flavor in wishes)]


def note_lack(shared: Shared, job: Job, lack: str, had: str, wishes: Collection[str] = ()) -> list[str]:
    """A task has ended for lack of memory on GPUs of this flavor: the others to try it on, which is said once, and is
    the reason of this end."""
    job.lacked.add(had)
    left = sorted({one.flavor for one in nodes_left(shared, job, wishes)} - {""})
    if not left:
        return []
    name = job.run.converted.graph.names[job.index]
    shared.warn_once(f"{name} was {GPU} on {had}: it is tried again on {' or '.join(left)}")
    job.stopped = f"{lack}; tried again on another flavor than {had}"
    return left


class Moves:
    """Of tasks whose references a script has. Ray starts such a task where it likes, as its process asks for nothing;
    that process has what runs it started elsewhere (`worker.moving`). On the holder's thread."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def retries(self, job: Job) -> int:
        """How often Ray starts it again at most, -1 for ever; 0 where it is not to be moved."""
        is_asked = self._shared.options.retry_out_of_memory and self._shared.offers.are_several
        if not (is_asked and job.ticket and _gpus(job)):
            return 0
        return retries_of(job.run.converted.nodes[job.index].options)

    def start_again(self, job: Job, lack: str) -> bool:
        """Whether a task that has ended for lack of memory shall be started again by Ray, and can be."""
        had, retries = flavor_of(self._shared, job.node), self.retries(job)
        is_able = lack.startswith(GPU) and had and had not in job.lacked
        if not is_able or job.aborted or job.stopped or self._shared.broken or 0 <= retries <= job.lost_tries:
            return False
        return bool(note_lack(self._shared, job, lack, had))

    def elsewhere(self, job: Job, node: str) -> str:
        """The node on which to run a task whose process Ray has put on this one; "" where that may stay: its GPUs are
        free there, or no others are."""
        left = {one.name: one for one in nodes_left(self._shared, job)}
        if self._shared.broken or not left or job.moves >= MOST_MOVES:
            job.moves = 0
            return ""
        free = {name: one.gpus - self._held(name, job) for name, one in left.items()}
        best = max(sorted(free), key=lambda name: free[name])
        if node in free and (free[node] >= _gpus(job) or free[best] < _gpus(job)):
            best = node
        job.moves = job.moves + 1 if best != node else 0
        return best if best != node else ""

    def _held(self, node: str, but: Job) -> float:
        """GPUs that other tasks have there, or are about to."""
        others = (job for job in self._shared.submitted.values() if job.node == node and job is not but)
        return sum(_gpus(job) for job in others if not job.is_over)


def _gpus(job: Job) -> float:
    return max(shape.gpu_milli for shape in job.shapes) / 1000
