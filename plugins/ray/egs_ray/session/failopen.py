"""When EGS itself fails, or its session is closed: Ray finishes the runs alone."""

from __future__ import annotations

import os
import threading
import traceback

from egs_core.notices import say, warn
from egs_ray.session.phases import Phases
from egs_ray.session.shared import Shared, first_line
from egs_ray.session.submissions import Submissions
from egs_ray.session.tasks import Job, RunBooks, Way, finish_natively


class FailOpen:
    """Leaves a session's runs to Ray."""

    def __init__(self, shared: Shared, phases: Phases, submissions: Submissions) -> None:
        self._shared, self._phases, self._submissions = shared, phases, submissions
        self._native_lock = threading.Lock()
        self._error: BaseException = RuntimeError("its session has ended")

    def fail_open(self, error: BaseException) -> None:
        """The site is lost. What waits at a gate, or was not submitted, goes to Ray as written."""
        self._shared.broken = True
        self._error = error
        if any(not (books.grows or books.over.is_set()) for books in self._shared.runs.values()):
            warn(f"off for the rest of this run, Ray goes on alone: {type(error).__name__}: {first_line(error)}")
        if os.environ.get("EGS_DEBUG"):
            say("".join(traceback.format_exception(error)))
        self._finish_all()

    def hand_over(self, finish: bool) -> None:
        self._shared.broken = True
        if finish:
            self._finish_all()
        for books in self._shared.runs.values():
            if not books.over.is_set():
                books.error = RuntimeError(f"the session was closed before {books.workload} had ended")
                books.over.set()

    def _finish_all(self) -> None:
        self._submissions.forget_waiting()
        for job in self._shared.submitted.values():
            if job.ran:  # it may be waiting for its next phase, and its question was lost with the site
                self._shared.send(job, {"m": "go", "open": True})
        for books in list(self._shared.runs.values()):
            self.finish_natively(books)

    def finish_natively(self, books: RunBooks) -> None:
        with self._native_lock:
            if books.over.is_set():
                return
            if books.grows:
                self._let_all_go(books)
                return
            for job in books.jobs:
                if job.submission and job.way is Way.SHELL and not (job.went_at or job.ran or job.ended):
                    self._phases.give_back(job)
                    self._submissions.leave_shell(job)
            finish_natively(books, self._is_over)

    def _let_all_go(self, books: RunBooks) -> None:
        """A script's own submissions: Ray has them."""
        books.over.set()
        self._shared.tickets.fail(self._error)
        for job in [job for job in books.unfinished if job.submission and not (job.went_at or job.ran or job.ended)]:
            self._phases.on_its_own(job)

    def _is_over(self, job: Job) -> bool:
        """It has ended, or is on its way in a worker: nothing is to be submitted for it."""
        return bool(job.submission) or job.succeeded or job.failed or job.aborted or job.dropped
