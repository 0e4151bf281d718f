"""`egs kubernetes ps`, `why`: the pods that EGS orders, with the rights of whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from egs_core.cli.printable import printable
from egs_core.cli.rows import print_table
from egs_core.client.waiting_words import time_words
from egs_core.errors import EgsError, InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.objects import seconds_of
from egs_core.kubernetes.standing import OPENED, Standing, standing_of, standings

if TYPE_CHECKING:
    from egs_core.kubernetes.cluster import Cluster

HEADS = ("NAMESPACE", "RUN", "TASK", "POD", "STATE", "FOR", "NODE", "WHY")
OLD_S = 200.0  # of a reason: the controller says what holds each 130 s (`telling`), so an older one may hold no more
LEAST_WHY = 24  # columns, however narrow a terminal is
Kubeconfig = Annotated[Path | None, typer.Option(help="File that names the cluster; default: the user's usual one.")]
Context = Annotated[str | None, typer.Option(help="Context of that file; default: its current one.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace; default: that of the context.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def ps(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pods that EGS orders and that have not ended: what runs, what is next, what waits and why.

    FOR is how long a pod has run, or, where it has not started, how long it has waited since it was made. WHY is cut to
    the width of a terminal; `egs kubernetes why POD` and --json have all of it. What may hold no more begins with how
    long ago it was said: no controller has said it again, or so many pods wait that it looks at each seldom.

    Changes nothing. Needs the right to list pods.
    """
    from egs_core.kubernetes.cluster import PODS, Cluster

    with asked_as("ps"):
        cluster = Cluster(kubeconfig, context)
        where = "" if everywhere else namespace or cluster.namespace
        found = standings(cluster.list(PODS, where, names.WORKLOAD)[0])
        if where and not found:
            _check_is_there(cluster, where)
    if as_json:
        typer.echo(msgspec.json.encode({"pods": found}).decode())
    elif found:
        _print(found, cluster.now())
    else:
        more = "" if everywhere else "; -A lists those of all namespaces"
        typer.echo(f"no pod with the label {names.WORKLOAD} runs or waits in {where or 'any namespace'}{more}")


def why(
    pod: Annotated[str, typer.Argument(help="Name of the pod, as `egs kubernetes ps` lists it.")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    as_json: AsJson = False,
) -> None:
    """Say where a pod stands, and why it waits: what the controller has written into it, and what the scheduler says.

    Of a pod that has ended: how and when, and how long it had waited for what.

    Changes nothing. Needs the right to get pods. The controller looks at a pod that waits once a minute.
    """
    from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
    from egs_core.kubernetes.pods import pod_of

    with asked_as("why"):
        cluster = Cluster(kubeconfig, context)
        where = namespace or cluster.namespace
        try:
            raw = cluster.get(PODS, pod, where)
        except ApiError as error:
            if error.status != 404:
                raise
            raise InputError(f"{where}/{pod}", "no such pod", "egs kubernetes ps -A lists them") from None
    if not (listed := pod_of(raw)).is_ours:
        gated = f", and its gate {names.GATE} is opened at its release-by time only" if listed.is_gated else ""
        raise InputError(f"{where}/{pod}", f"EGS does not order it: it has no label {names.WORKLOAD}{gated}")
    found = standing_of(raw)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    on = f" on {found.node}" if found.node else ""
    typer.echo(printable(f"{where}/{pod}: task {found.task} of run {found.run} {found.state}{on}"))
    for line in filter(None, (found.why, *found.facts)):
        typer.echo(f"  {printable(line)}")


@contextmanager
def asked_as(verb: str, refused: str = "") -> Iterator[None]:
    """What the API server refuses is one line. refused: what to do where rights are missing."""
    from egs_core.kubernetes.cluster import ApiError

    try:
        yield
    except ApiError as error:
        remedy = refused if error.status in (401, 403) else ""
        raise EgsError(printable(f"egs kubernetes {verb}: {error}{remedy}")) from error


def _check_is_there(cluster: Cluster, namespace: str) -> None:
    """Raises InputError where there is no such namespace. Who may not ask that is told nothing."""
    from egs_core.kubernetes.cluster import NAMESPACES, ApiError

    try:
        cluster.get(NAMESPACES, namespace)
    except ApiError as error:
        if error.status == 404:
            hint = "kubectl get namespaces lists them; -A is for the pods of all"
            raise InputError(f"namespace {namespace}", "is not there", hint) from None


def say_absent(cluster: Cluster, namespaces: Iterable[str], say: Callable[[str], None]) -> None:
    """Those that are not there now, a line each. Nothing else keeps a controller from its work: who may not ask, or is
    not answered, says nothing."""
    from egs_core.kubernetes.cluster import NAMESPACES, ApiError

    for name in namespaces:
        try:
            cluster.get(NAMESPACES, name)
        except ApiError as error:
            if error.status != 404:
                return
            say(f"namespace {name}, which is to be served, is not there now: its pods are ordered once it is")


def _print(found: list[Standing], now: float) -> None:
    """A line each: of what is too wide for a terminal the reasons are cut, and no name."""
    rows = [[printable(cell) for cell in _row(one, now)] for one in found]
    table = Table(box=None, pad_edge=False)
    for head in HEADS:
        table.add_column(head, no_wrap=head != HEADS[-1])
    for row in rows:  # whoever may annotate a pod wrote them: no markup
        table.add_row(*map(Text, row[:-1]), Text(row[-1], no_wrap=True, overflow="ellipsis"))
    widths = (max(map(cell_len, column)) + 2 for column in list(zip(HEADS, *rows, strict=True))[:-1])
    print_table(table, sum(widths) + LEAST_WHY)


def _row(one: Standing, now: float) -> tuple[str, ...]:
    since = seconds_of(one.since)
    lasts = time_words(now - since) if since else ""
    first, _, more = one.why.partition(". ") if one.state == OPENED else (one.why, "", "")
    why = f"{first} …" if more else first  # the scheduler says a sentence more about each node that does not do
    said = seconds_of(one.said)
    old = f"(said {time_words(now - said)} ago) " if said and now - said > OLD_S else ""
    return one.namespace, one.run, one.task, one.pod, one.state, lasts, one.node, old + why
