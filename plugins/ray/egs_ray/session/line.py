"""Tasks that have been let go and have not ended: since when each, and how many GPUs all that were there then had."""

from __future__ import annotations

from egs_ray.session.tasks import Job


class Line:
    """The line of a program, in the order in which its tasks were let go. Changed on the holder's thread.

    gpus: of all in it.
    """

    def __init__(self) -> None:
        self.gpus = 0.0
        self._let_go: dict[int, tuple[float, float]] = {}  # a task's index -> when; GPUs of all that were by then

    def __contains__(self, job: Job) -> bool:
        return job.index in self._let_go

    def since(self, job: Job) -> float | None:
        """When it was let go, on the site's clock; None: it waits, or has ended."""
        return self._let_go.get(job.index, (None, 0.0))[0]

    def before(self, at_s: float) -> list[int]:
        """The indices of those that were let go before."""
        return [index for index, (since_s, _) in self._let_go.items() if since_s < at_s]

    def add(self, job: Job, at_s: float) -> None:
        """One that is not in it."""
        self.gpus += job.gpus
        self._let_go[job.index] = (at_s, self.gpus)

    def remove(self, job: Job) -> tuple[float, float] | None:
        """When it was let go, and the GPUs of all that were in the line by then."""
        if (let_go := self._let_go.pop(job.index, None)) is not None:
            self.gpus -= job.gpus
        return let_go
