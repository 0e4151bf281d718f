"""`egs slo`: how far a site server keeps what its file of queues promises, and the same as rules for Prometheus."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml

from egs_core.cli.rows import print_rows
from egs_core.cli.site import the_site
from egs_core.client.http import connected
from egs_core.client.slo import Slos, SloView
from egs_core.client.waiting_words import time_words
from egs_core.errors import InputError
from egs_core.queues import load_teams
from egs_core.slo_rules import rules_of

HEAD = "# Written by `egs slo rules`, in Sloth's format: rules for Prometheus (`rule_files`).\n"
NONE = "no queue promises anything: `slo: {wait_p95: 10m}` in the file of queues does"
DAY_S = 86400.0
SHOWN = ("5m", "1h", "6h", "1d", "3d")

slo = typer.Typer(
    help="Show how far the site server keeps what its file of queues promises (`slo:`); rules for Prometheus.",
    invoke_without_command=True,
)


@slo.callback()
def show(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show each objective: what is left of its error budget, and how fast that is used up."""
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise InputError(
                "--json", "goes with `egs slo` alone", f"leave it out of `egs slo {ctx.invoked_subcommand}`"
            )
        return
    with connected(the_site()) as client:
        found = client.slos()
    if as_json:
        typer.echo(found.model_dump_json())
    elif not found.slos:
        typer.echo(NONE)
    else:
        _print(found)


@slo.command("rules")
def rules(
    queues: Annotated[Path, typer.Option(help="YAML file of queues, as `egs serve` reads it.")],
) -> None:
    """Print recording and alert rules for the objectives of a file of queues, by multi-window burn rates."""
    slos = load_teams(queues).slos
    if not slos:
        raise InputError(str(queues), "no queue promises anything", "slo: {wait_p95: 10m}")
    sys.stdout.write(HEAD + yaml.dump(rules_of(slos), Dumper=_Rules, sort_keys=False, allow_unicode=True, width=1000))


class _Rules(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Expressions of several lines as they stand, and everything where it belongs."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Rules.add_representer(str, _text)


def _print(found: Slos) -> None:
    since_s = time.time() - found.since
    last = time_words(since_s) if since_s < 2 * DAY_S else f"{since_s / DAY_S:.1f} days"
    counted = f"counted in the last {last}: of wait objectives each wait, of the others each run"
    typer.echo(f"{counted}; a budget of 0 % is used up, a burn rate of 1 uses it up in 30 days")
    rows = []
    for one in found.slos:
        rates = ["-" if (rate := one.burn.get(name)) is None else f"{rate:.1f}" for name in SHOWN]
        left = "-" if one.budget_left is None else f"{one.budget_left:.0%}"
        counts = f"{one.events:,}", f"{one.bad:,}"
        order = "goes first" if one.at_risk else "-"
        rows.append((one.queue, one.slo, _promised(one), *counts, left, *rates, one.alert or "-", order))
    print_rows(("queue", "objective", "promised", "counted", "bad", "budget left", *SHOWN, "look", "order"), rows)


def _promised(one: SloView) -> str:
    within = "in time" if one.target_s is None else f"within {one.target_s:g} s"
    return f"{one.objective:.4g} {within}"
