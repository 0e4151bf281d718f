"""`airflow egs …`, as Airflow's command line wants it. Every `airflow` command imports this: nothing heavy here."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

ARG_JSON = Arg(("--json",), help="Print one JSON object", action="store_true")
ARG_URL = Arg(("--url",), help="Address of the Airflow; by default this one's own [api] base_url", default="")
ARG_USER = Arg(("--user",), help="User that logs in; EGS_AIRFLOW_PASSWORD has the password", default="")
ARG_DAYS = Arg(("--days",), help="How far back, where nothing was read yet", type=float, default=30.0)
ARG_HISTORY = Arg(
    ("--history-only",), help="Keep what is learned in the history, and tell no scheduler", action="store_true"
)
ARG_WORKLOAD = Arg(("workload",), help="DAG/RUN, as `airflow egs ps` lists it")
ARG_TASK = Arg(("--task",), help="Only this task of it, `fit` or `fit[3]`", default="")
ARG_GROUP = Arg(("--group",), help="Only this task group of it", default="")
ARG_REASON = Arg(("--reason",), help="For the note that users see", default="")
ARG_GRACE = Arg(("--grace",), help="How long tasks may take to end what they have started elsewhere", default="0s")


def get_cli_commands() -> list[CLICommand]:
    """The group `egs`. Airflow calls this through the provider's `cli`."""
    doctor = ActionCommand(
        name="doctor",
        help="What of EGS is active in this Airflow, and why",
        func=run_doctor,
        args=(ARG_JSON,),
    )
    pools = ActionCommand(
        name="pools",
        help="Create the GPU pools that the option pools of the section egs names, and give existing ones their size",
        func=lazy_load_command("egs_airflow.order.pools.run_pools"),
        args=(),
    )
    learn = ActionCommand(
        name="learn",
        help="Read what has run since the last time, and learn how long tasks take",
        func=lazy_load_command("egs_airflow.history.learn.run_learn"),
        args=(ARG_URL, ARG_USER, ARG_DAYS, ARG_HISTORY),
    )
    agent = ActionCommand(
        name="agent",
        help="Run this host's agent: ends aborted tasks at once, keeps limits, learns now and then",
        func=lazy_load_command("egs_airflow.agent.commands.run_agent"),
        args=(ARG_URL, ARG_USER),
    )
    abort = ActionCommand(
        name="abort",
        help="End a DAG run, a task group or a task of it for good; its processes on this host at once",
        func=lazy_load_command("egs_airflow.agent.commands.run_abort"),
        args=(ARG_WORKLOAD, ARG_GROUP, ARG_TASK, ARG_REASON, ARG_GRACE, ARG_URL, ARG_USER),
    )
    ps = ActionCommand(
        name="ps",
        help="List the DAG runs that are under way, with what runs of each",
        func=lazy_load_command("egs_airflow.agent.commands.run_ps"),
        args=(ARG_URL, ARG_USER),
    )
    order = ActionCommand(
        name="order",
        help="Show which agent hosts the engine, and the order in which waiting tasks get slots",
        func=lazy_load_command("egs_airflow.agent.commands.run_order"),
        args=(ARG_URL, ARG_USER),
    )
    commands = [abort, agent, doctor, learn, order, pools, ps]
    return [GroupCommand(name="egs", help="EGS: stop wasting GPUs", subcommands=commands)]


def run_doctor(args: Any) -> None:
    """The lines that `egs doctor` has for Airflow; exit code 1 when a check fails."""
    import json

    try:
        from egs_airflow.adapter import ADAPTER
    except ImportError as error:  # of egs-core, or of something that it needs
        print(f"no  egs-core  cannot be imported, so EGS is off: {error}: pip install egs-core")
        raise SystemExit(1) from None

    checks = ADAPTER.doctor()
    if args.json:
        print(json.dumps([{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks]))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{'ok' if check.ok else 'no'}  {check.name:<{width}}  {check.detail}")
    if not all(check.ok for check in checks):
        raise SystemExit(1)
