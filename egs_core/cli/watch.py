"""`egs watch`: what the site server's rules see now and what they did; and whether a file of rules is right."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.cli.rows import print_rows
from egs_core.cli.site import the_site
from egs_core.cli.starting import say
from egs_core.client.following import NO_RULES, follow_rules
from egs_core.client.http import connected
from egs_core.client.watching import RuleView, Watching
from egs_core.errors import InputError, counted, listed
from egs_core.watch_rules import OF_TASKS, Rules, load_rules, span

SHOWN = 30
OUTCOMES = {"would": "would have", "done": "done", "left": "left", "failed": "failed", "waits": "waits"}

watch = typer.Typer(
    help="Show what the site server's rules see now, and what they did or would have done; check a file of rules.",
    invoke_without_command=True,
)


@watch.callback()
def show(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show the rules, the conditions that hold now, and the latest of what was done."""
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise InputError("--json", "goes behind the command", f"egs watch {ctx.invoked_subcommand} --json FILE")
        return
    with connected(the_site()) as client:
        found = client.watching()
    if as_json:
        typer.echo(found.model_dump_json())
    elif not found.is_on:
        typer.echo(NO_RULES)
    else:
        _print(found)


@watch.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="YAML file of rules, as `egs serve --rules` reads it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a file of rules is right, and what each rule would do. Needs no server."""
    found = load_rules(file)
    if as_json:
        told = msgspec.to_builtins(found)
        told["webhook"] = bool(found.webhook)  # an address of this kind is a secret
        told["apprise"] = len(found.apprise)
        typer.echo(json.dumps(told))
        return
    for rule in found.rules:
        for_ = f", for {span(rule.for_s)}" if rule.for_s else ""
        queues = f" in queue {', '.join(rule.queues)}" if rule.queues else ""
        dry = " (dry run)" if rule.is_dry else ""
        typer.echo(f"{rule.name}: when {rule.when.words}{for_}{queues}: {', '.join(rule.do)}{dry}")
    typer.echo(_summary(found))
    of_runs = [rule for rule in found.rules if rule.when.kind == "run"]
    if apart := [rule.name for rule in of_runs if rule.when.name not in OF_TASKS]:
        typer.echo(f"note: {listed(apart)}: of commands of `egs run` alone, not of tasks of a framework", err=True)
    both = [rule.name for rule in of_runs if rule.when.name in OF_TASKS and set(rule.do) - {"alert", "hook"}]
    if both:
        typer.echo(f"note: {listed(both)}: of tasks of a framework they only tell: alert, hook", err=True)


@watch.command("follow")
def follow(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments.")],
    rule: Annotated[list[str] | None, typer.Option(help="Only of this rule. Repeatable.")] = None,
) -> None:
    """Start a command, here and as this user, whenever a rule of the site server fires that has `hook` among what it
    does. EGS_WATCH_RULE, EGS_WATCH_SUBJECT (a GPU, or a run's number) and EGS_WATCH_TEXT tell it of what. Goes on until
    it is ended."""
    follow_rules(the_site(), command, frozenset(rule or ()), say)


def _summary(found: Rules) -> str:
    dry = sum(rule.is_dry for rule in found.rules)
    act = len(found.rules) - dry
    bound = f"; at most {counted(found.most_an_hour, 'firing')} an hour change something" if act else ""
    return f"{counted(len(found.rules), 'rule')}: {act} act, {dry} only say what they would have done{bound}"


def _print(found: Watching) -> None:
    if found.problem:
        typer.echo(f"the rules are not followed any more, until the server is started again: {found.problem}")
    rows = []
    for rule in found.rules:
        when = f"{rule.when}, for {span(rule.for_s)}" if rule.for_s else rule.when
        held = sum(one.rule == rule.name for one in found.seen)
        mode = "dry run" if rule.dry_run else "acts"
        rows.append((rule.name, when, ", ".join(rule.do), mode, _looked(rule), str(held)))
    print_rows(("rule", "when", "do", "mode", "looks at", "true now"), rows)
    typer.echo("\nnow:" if found.seen else "\nnow: no condition holds")
    for one in found.seen:
        since = datetime.fromtimestamp(one.since).isoformat(" ", "seconds")
        state = "fired" if one.has_fired else "not yet fired"
        typer.echo(f"  {one.rule}: {one.text}; since {since}, {state}")
    typer.echo("\ndone:" if found.done else "\ndone: nothing since the server has started")
    for did in found.done[-SHOWN:]:
        at = datetime.fromtimestamp(did.at).isoformat(" ", "seconds")
        typer.echo(
            f"  {at} {did.rule}: {OUTCOMES.get(did.outcome, did.outcome)}: {did.action} {did.subject}: {did.text}"
        )


def _looked(rule: RuleView) -> str:
    if rule.looked_at is None:
        return "-"
    return f"{rule.looked_at}" + (f", {rule.unknown} not known" if rule.unknown else "")
