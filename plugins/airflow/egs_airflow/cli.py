"""`airflow egs …`, as Airflow's command line wants it. Every `airflow` command imports this: nothing heavy here."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

ARG_JSON = Arg(("--json",), help="Print one JSON object", action="store_true")
ARG_URL = Arg(("--url",), help="Airflow to learn from; by default this one's own [api] base_url", default="")
ARG_USER = Arg(("--user",), help="Who logs in, with the password of EGS_AIRFLOW_PASSWORD", default="")
ARG_DAYS = Arg(("--days",), help="How far back, where nothing was read yet", type=float, default=30.0)


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
        help="Create the GPU pools of [egs] pools, and give existing ones their size",
        func=lazy_load_command("egs_airflow.order.pools.run_pools"),
        args=(),
    )
    learn = ActionCommand(
        name="learn",
        help="Read what has run since the last time, and learn how long tasks take",
        func=lazy_load_command("egs_airflow.history.learn.run_learn"),
        args=(ARG_URL, ARG_USER, ARG_DAYS),
    )
    return [GroupCommand(name="egs", help="EGS: stop wasting GPUs", subcommands=[doctor, learn, pools])]


def run_doctor(args: Any) -> None:
    """The lines that `egs doctor` has for Airflow; exit code 1 when a check fails."""
    import json

    from egs_airflow.adapter import ADAPTER

    checks = ADAPTER.doctor()
    if args.json:
        print(json.dumps([{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks]))
    else:
        for check in checks:
            print(f"{'ok' if check.ok else 'no'}  {check.name}: {check.detail}")
    if not all(check.ok for check in checks):
        raise SystemExit(1)
