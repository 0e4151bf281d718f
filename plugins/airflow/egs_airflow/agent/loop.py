"""The agent of one host: `airflow egs agent`. Airflow runs on without it, and it keeps nothing: it may die at any time.

    each second   task processes of this host (none: no request at all)
                  └─► try marked as ended while its process runs on ─► end the process
                  └─► past a limit of its own or of its run ─► mark it (and so end it with the next look) or clear it
                  └─► what its runs' next tasks read, when the engine says so: see `staging`
                  └─► where it holds the lease: the engine's order, published for schedulers and agents: see `host`
    now and then  `airflow egs learn`, as a process of its own

A try that was marked is ended in mode on for its DAG; one that an operator aborted with EGS, in every mode: in
`observe` that is all that the agent changes. While Airflow does not answer it asks again, ever more rarely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from egs_airflow import config
from egs_airflow.agent.acts import note_act, say
from egs_airflow.agent.enforce import Enforcer
from egs_airflow.agent.host import REFUSED_S, Host
from egs_airflow.agent.instances import SIGN, Instance, iso, read_instances, was_aborted
from egs_airflow.agent.learner import Learner
from egs_airflow.agent.limits import Rule
from egs_airflow.agent.processes import TaskProcess, end_processes, task_processes
from egs_airflow.agent.staging import Stager
from egs_airflow.agent.tags import Modes
from egs_airflow.rest import Rest, Unreachable
from egs_core.errors import InputError

LOOK_S = 1.0
BACK_S = 30.0
"""How far back a question goes beyond the one before: clocks differ, and notes are written after states."""
MOST_WAIT_S = 30.0
MARKED = ("failed", "removed", "skipped")
"""States that a running process does not give itself: it reports a failure or a skip when it is over. A try that was
cleared cannot be found here, for its task instance has a new id at once: Airflow's heartbeat ends that one."""
ModeOf = Callable[[str], str]


class Agent:
    """See the module."""

    def __init__(self, rest: Rest, learner: Learner, rules: tuple[Rule, ...] = ()) -> None:
        self._rest, self._learner = rest, learner
        modes = Modes(rest)
        self._mode_of: ModeOf = modes.of
        self._enforcer = Enforcer(rest, modes, rules)
        is_on = config.settings().mode == "on"
        self._stager: Stager | None = Stager(rest) if is_on else None
        self._host: Host | None = Host(rest, modes) if is_on else None
        self._asked_s: float | None = None

    def run(self) -> NoReturn:
        """Look again and again. A signal that raises ends it."""
        fails = 0
        while True:
            began_s = time.monotonic()
            fails = self._try_look(fails)
            wait_s = min(MOST_WAIT_S, LOOK_S * 2**fails) if fails else LOOK_S
            time.sleep(max(0.0, wait_s - (time.monotonic() - began_s)))

    def look(self, processes: list[TaskProcess], now_s: float) -> None:
        """Do what is to be done about these processes. Raises InputError where Airflow does not answer, or refuses."""
        if not processes:
            self._asked_s = None
            return
        since_s = (processes[0].started_s if self._asked_s is None else self._asked_s) - BACK_S
        marked = read_instances(self._rest, state=MARKED, updated_at_gte=iso(since_s))
        self._asked_s = now_s
        for process, one in select_marked(processes, marked, self._mode_of):
            if end_processes([process]):
                note_act("ended", one, reason_of(one))
        if config.settings().mode == "on":
            self._enforcer.enforce(processes, now_s)

    def close(self) -> None:
        """End what it has started, and let go what it holds."""
        self._learner.close()
        if self._host is not None:
            self._host.close()
        if self._stager is not None:
            self._stager.close()

    def _stage(self, is_busy: bool) -> None:
        """Staging is what an agent may do without: what is wrong with it is one line, and it goes on with the rest."""
        stager = self._stager
        if stager is None:
            return
        try:
            stager.look(is_busy, time.monotonic())
        except Unreachable:
            raise
        except InputError as error:
            say(f"no file is staged for {REFUSED_S:.0f} s: {error}")
            stager.pause(time.monotonic() + REFUSED_S)
        except Exception as error:
            say(f"no file is staged any more: {type(error).__name__}: {error}")
            self._stager = None

    def _try_look(self, fails: int) -> int:
        """One look; how often in a row it has failed by now. Each outage is one line."""
        self._learner.tick(self._host is None or not self._host.lease.holder_seen or self._host.lease.is_held)
        try:
            processes = task_processes()
            self.look(processes, time.time())
            self._stage(bool(processes))
            if self._host is not None:
                self._host.look(time.monotonic())
        except Exception as error:  # the agent outlives whatever Airflow answers
            if not fails:
                told = error if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
                say(f"{told}; trying again")
            self._asked_s = None
            return fails + 1
        if fails:
            say("Airflow answers again")
        return 0


def select_marked(
    processes: Iterable[TaskProcess], marked: Iterable[Instance], mode_of: ModeOf
) -> list[tuple[TaskProcess, Instance]]:
    """The processes whose try was marked from outside, with what was marked, as far as the mode lets EGS end them."""
    by_id = {one.id: one for one in marked}
    found = [(process, by_id[process.instance]) for process in processes if process.instance in by_id]
    return [(process, one) for process, one in found if was_aborted(one.note) or mode_of(one.dag_id) == "on"]


def reason_of(one: Instance) -> str:
    """Why the process of a marked try is ended."""
    told = [line for line in one.note.splitlines() if line.startswith(SIGN)]
    return told[-1].removeprefix(SIGN) if told else f"marked {one.state}, and its process ran on"
