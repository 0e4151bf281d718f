"""Start what `egs run` or `egs redo` was asked for: here, without this terminal, or as an array."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec

from egs_core.client import messages as c
from egs_core.client.detach import detach
from egs_core.client.http import SiteClient, trusted_owners
from egs_core.client.jobs import Job, keep
from egs_core.client.places import Address
from egs_core.client.supervise import ENDING, Supervisor
from egs_core.errors import EgsError, InputError
from egs_core.flavor_names import is_meant
from egs_core.out_of_memory import GPU

MOST_MEMBERS = 256  # each is a process of its own, that of its supervisor


def supervised(address: Address, job: Job) -> Callable[[Callable[[str], None], Callable[[c.RunView], None]], int]:
    """What runs the job to its exit code, in the process that calls it."""
    owners = trusted_owners()

    def supervise(tell: Callable[[str], None], known: Callable[[c.RunView], None]) -> int:
        mine, run = job, ""

        def is_known(view: c.RunView) -> None:
            nonlocal run
            run = view.id
            try:
                keep(job, view)
            except OSError as error:
                tell(f"run {view.id} cannot be done again by `egs redo`: {error}")
            known(view)

        try:
            os.chdir(job.folder)
        except OSError as error:
            raise EgsError(f"{job.folder}: {error.strerror}") from None
        while True:
            supervisor = Supervisor(lambda: SiteClient(address, owners), mine, tell)
            code, lack = supervisor.run(is_known), supervisor.lack
            left = [one for one in mine.or_flavors if not is_meant(one, supervisor.flavor)]
            if not (code and lack and left):
                if code and lack:
                    tell(f"run {run}: {lack}; --or-flavor names no flavor that it has not had")
                return code
            note = f"tried again on {left[0]}: run {run} was {GPU}"  # not the line: that is the command's own
            tell(f"run {run}: {lack}; it is tried again on {left[0]}" + (f", then on {left[1]}" if left[1:] else ""))
            fields = {**mine.fields, "flavors": [left[0]], "note": note}
            mine = msgspec.structs.replace(mine, fields=fields, or_flavors=left[1:])

    return supervise


def start_here(address: Address, job: Job) -> int:
    """Its exit code."""
    return supervised(address, job)(say, lambda _: None)


def start_detached(address: Address, job: Job) -> str:
    """The run's number, once the server knows it. Only where this process has one thread."""
    return detach(supervised(address, job), say)


def members(job: Job, size: int) -> list[Job]:
    """The jobs of an array. Raises InputError."""
    if not 1 <= size <= MOST_MEMBERS:
        raise InputError("--array", f"must be 1 to {MOST_MEMBERS}, not {size}")
    named = [{**job.fields, "name": f"{job.fields['name']}[{index}]"} for index in range(size)]
    return [msgspec.structs.replace(job, fields=one, index=index, size=size) for index, one in enumerate(named)]


def start_all_here(address: Address, jobs: Sequence[Job]) -> int:
    """All of them beside each other, each with a supervisor of its own, to the worst exit code. Signals go to all."""
    begun: list[int] = []
    taken = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
    signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    for job in jobs:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _be_member(address, job, taken)
        begun.append(pid)

    def pass_on(number: int, _frame: object) -> None:
        for pid in begun:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in taken:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
    worst = 0
    for pid in list(begun):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        begun.remove(pid)
        worst = max(worst, code if code >= 0 else 128 - code)
    return worst


def _be_member(address: Address, job: Job, taken: Sequence[signal.Signals]) -> None:
    """In the new process: never returns."""
    code = 1
    try:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
        code = start_here(address, job)
    except EgsError as error:
        code = 2
        say(f"{job.fields['name']}: {error}")
    finally:
        sys.stdout.flush()
        os._exit(code)


def say(line: str) -> None:
    """To the user."""
    print(f"egs: {line}", file=sys.stderr, flush=True)
