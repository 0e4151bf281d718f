"""`airflow egs agent`, `abort` and `ps`. What the user can mend is one line on stderr and exit code 2."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from egs_airflow import config
from egs_airflow.agent.control import abort, own_url
from egs_airflow.agent.control import running as running_at
from egs_airflow.agent.instances import read_instances
from egs_airflow.agent.learner import Learner
from egs_airflow.options import NO
from egs_airflow.rest import Rest, Unreachable, airflow_url, connect
from egs_core.adapter import ControlRequest
from egs_core.errors import InputError
from egs_core.units import parse_seconds

MOST_WAIT_S = 30.0


def run_agent(args: Any) -> None:
    """The command: args has url ("" for this Airflow's own) and user. Ends on SIGTERM or SIGINT with exit code 0."""
    _mended(lambda: _run_agent(args.url or own_url(), args.user))


def run_abort(args: Any) -> None:
    """The command: args has workload (DAG/RUN), task, group, reason, grace, url and user."""
    _mended(lambda: _run_abort(args))


def run_ps(args: Any) -> None:
    """The command: args has url and user."""
    _mended(lambda: _run_ps(args.url, args.user))


def run_order(args: Any) -> None:
    """The command: args has url and user."""
    _mended(lambda: print("\n".join(order_lines(connect(args.url or own_url(), args.user)))))


def order_lines(rest: Rest) -> list[str]:
    """Who hosts the engine, and in which order it lets start what waits now. Raises InputError."""
    from egs_airflow.agent.lease import record_of
    from egs_airflow.agent.lease_store import ConnectionStore
    from egs_airflow.order.published import order_of

    epoch, text, published = ConnectionStore(rest).published()
    holder = record_of(text).holder if epoch else ""
    if not holder:
        return ["no agent hosts the engine: weights are those from creation, and pools are Airflow's own"]
    order = order_of(published)
    who = f"the engine is that of the site server {order.site}, joined by" if order is not None and order.site else ""
    lines = [f"{who or 'the engine is hosted by'} {holder}, epoch {epoch}"]
    names = {one.id: f"{one.workload} {one.name}" for one in read_instances(rest, state="scheduled")}
    for turn in order.turns if order is not None else ():
        if turn.id in names:  # else it has begun meanwhile
            kept = "; slots are kept for it" if turn.keeps else ""
            lines.append(f"  {names[turn.id]}  {turn.why}{kept}".rstrip())
    return lines if len(lines) > 1 else [*lines, "  nothing waits for slots"]


def _mended(act: Callable[[], None]) -> None:
    try:
        act()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _run_agent(address: str, user: str) -> None:
    from egs_airflow.agent.acts import say
    from egs_airflow.agent.limits import load_rules
    from egs_airflow.agent.lock import take_lock
    from egs_airflow.agent.loop import Agent

    mode = config.settings().mode
    if mode == "off":
        raise InputError("[egs] mode", "is off: there is nothing for an agent to do")
    every_s = learn_every_s()
    stated = config.option("limits")
    rules = load_rules(Path(stated)) if stated else ()
    url = airflow_url(address)[0]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    lock = take_lock(url)
    agent: Agent | None = None
    learner = Learner(address, user, every_s)
    try:
        rest = _connect(address, user)
        learning = f"learning every {config.option('learn_every')}" if every_s else "not learning"
        say(f"on {socket.gethostname()} for {url}, mode {mode}, {learning}")
        agent = Agent(rest, learner, rules)
        agent.run()
    except SystemExit:
        say("ended")
        raise
    finally:
        if agent is not None:
            agent.close()
        os.close(lock)


def _stop(*_: object) -> NoReturn:
    raise SystemExit(0)


def _connect(address: str, user: str) -> Rest:
    """The Airflow, once it answers; it may start later than the agent. Raises InputError where it refuses."""
    from egs_airflow.agent.acts import say

    wait_s = 0.0
    while True:
        try:
            rest = connect(address, user)
            rest.get("dags", limit=1)  # the version is told to everybody
            return rest
        except Unreachable as error:
            if not wait_s:
                say(f"{error}; trying again")
            wait_s = min(MOST_WAIT_S, 2 * wait_s or 1.0)
            time.sleep(wait_s)


def learn_every_s() -> float:
    """`[egs] learn_every` in seconds; 0 for never. Raises InputError."""
    stated = config.option("learn_every")
    return 0.0 if stated.strip().lower() in NO else parse_seconds(stated, "[egs] learn_every")


def _run_abort(args: Any) -> None:
    request = ControlRequest(
        "abort",
        args.workload,
        stage=args.group,
        task=args.task,
        reason=args.reason,
        grace_s=parse_seconds(args.grace, "--grace"),
    )
    done = abort(connect(args.url or own_url(), args.user), request)
    print(f"{args.workload}: aborted; {len(done.here)} processes on this host ended: {', '.join(done.here) or '-'}")
    if done.hosts:
        print(f"on {', '.join(done.hosts)}: ended there by the host's agent, or in about 10 s by Airflow")


def _run_ps(address: str, user: str) -> None:
    for workload in running_at(address, user):
        print(f"{workload.workload}  {workload.state}, {workload.tasks - workload.open} of {workload.tasks} ended")
        for task in workload.running:
            where = f"process {task.pid} on {task.node}"
            print(f"  {task.task}  {task.state} for {max(0.0, time.time() - task.since):,.0f} s, {where}")
