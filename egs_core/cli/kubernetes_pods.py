"""`egs kubernetes ps`, `why`: the pods that EGS orders, with the rights of whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from egs_core.cli.printable import printable
from egs_core.cli.rows import print_table
from egs_core.errors import EgsError, InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.standing import Standing, standing_of, standings

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

    Changes nothing. Needs the right to list pods.
    """
    from egs_core.kubernetes.cluster import PODS, Cluster

    with asked_as("ps"):
        cluster = Cluster(kubeconfig, context)
        where = "" if everywhere else namespace or cluster.namespace
        found = standings(cluster.list(PODS, where, names.WORKLOAD)[0])
    if as_json:
        typer.echo(msgspec.json.encode({"pods": found}).decode())
    elif found:
        print_table(_table(found))
    else:
        typer.echo(f"no pod of EGS's in {where or 'any namespace'}")


def why(
    pod: Annotated[str, typer.Argument(help="Name of the pod, as `egs kubernetes ps` lists it.")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    as_json: AsJson = False,
) -> None:
    """Say where a pod stands, and why it waits: what the controller has written into it, and what the scheduler says.

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
def asked_as(verb: str) -> Iterator[None]:
    """What the API server refuses is one line."""
    from egs_core.kubernetes.cluster import ApiError

    try:
        yield
    except ApiError as error:
        raise EgsError(printable(f"egs kubernetes {verb}: {error}")) from error


def _table(found: list[Standing]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("NAMESPACE", "RUN", "TASK", "POD", "STATE", "NODE", "SINCE", "WHY"):
        table.add_column(head, no_wrap=head != "WHY")
    for one in found:
        row = (one.namespace, one.run, one.task, one.pod, one.state, one.node, one.created, one.why)
        table.add_row(*(Text(printable(cell)) for cell in row))  # whoever may annotate a pod wrote them: no markup
    return table
