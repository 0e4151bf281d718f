"""How Airflow's scheduler hands out slots at the beginning of a pass: private API of its job, apart from `compat` for
its length. Probe: `can_hand_out`. Fallback: slots are handed out at the end of each pass, as ever.

    pass      runs that are due ── new runs ── look at DAG runs ── hand out slots ── tell executors
    before it                                                      hand out slots ── tell executors

Of several schedulers one may hand out slots while another looks at DAG runs, so this is an order of things that Airflow
knows. Importing this module imports no Airflow.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HandOut = Callable[[], int]
"""Queues the tasks for which there are slots, in a transaction of its own; how many. Another scheduler that does so now
is waited for, or nothing is done, as in a pass."""


def can_hand_out() -> bool:
    """Whether all of it is as it was in 3.2 and 3.3."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner as Runner

    step, scheduling = Runner._critical_section_enqueue_task_instances, Runner._do_scheduling
    return (
        list(inspect.signature(step).parameters) == ["self", "session"]
        and list(inspect.signature(scheduling).parameters) == ["self", "session"]
        and "self._critical_section_enqueue_task_instances(session=session)" in inspect.getsource(scheduling)
        and "with prohibit_commit(session) as guard:" in inspect.getsource(scheduling)
    )


def wrap_scheduling(before: Callable[[HandOut], None]) -> Callable[[], None]:
    """Let `before(hand_out)` go before each pass of the scheduler of this process; returns the undo."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner as Runner

    original = Runner._do_scheduling

    @functools.wraps(original)
    def scheduling(self: Any, session: Any) -> int:
        before(lambda: _hand_out(self))
        return int(original(self, session))

    def undo() -> None:
        Runner._do_scheduling = original

    Runner._do_scheduling = scheduling
    return undo


def _hand_out(runner: Any) -> int:
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy.exc import OperationalError

    with suppress(OperationalError), create_session() as session, prohibit_commit(session) as guard:
        queued = int(runner._critical_section_enqueue_task_instances(session=session))
        guard.commit()
        return queued
    return 0
