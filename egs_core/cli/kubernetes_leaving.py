"""`egs kubernetes leave`: EGS out of a cluster, with the rights of an administrator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from egs_core.cli.kubernetes_names import check_namespaces
from egs_core.cli.kubernetes_pods import AsJson, Context, Kubeconfig, asked_as
from egs_core.cli.kubernetes_steering import IsTried
from egs_core.cli.printable import printable
from egs_core.client.waiting_words import time_words
from egs_core.errors import InputError
from egs_core.kubernetes import names

if TYPE_CHECKING:
    from egs_core.kubernetes.leaving_tried import Leads, Tried


def leave(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the controller.")] = names.SYSTEM,
    serve: Annotated[
        list[str] | None, typer.Option(help="Namespace whose pods are served; again for more; default: all.")
    ] = None,
    dry_run: IsTried = False,
    as_json: AsJson = False,
) -> int:
    """Take EGS out of a cluster: what runs and what waits goes on without it.

    Changes in the cluster, in this order: the webhook's configuration is deleted; the gate `egs.io/order` is taken off
    every pod that has it (with --serve, in these namespaces), also where it is paused, which is said, and without the
    deadlines that limits would become; Deployment and CronJob are deleted; the Lease gets the
    annotation `egs.io/left`, at which a controller that runs outside of the cluster ends, too; what else
    `egs kubernetes manifests` has printed (with the same --namespace and --serve) is deleted, but for the namespace;
    the pods with which images were loaded ahead are, placeholders, and ResourceClaimTemplates `egs-gpus-…`. It may be
    repeated. Exit code 1: a gate could not be opened, or a controller leads all the same; the lines say which.

    With --dry-run, and --json beside it: which objects would be deleted, which gates opened and of what is paused, and
    who leads and would be told to end. It needs the same rights, for the API server is asked whether each change may be
    made. Exit code 1: a gate may not be opened.
    """
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.leaving import leave as go
    from egs_core.kubernetes.leaving_tried import try_leaving
    from egs_core.kubernetes.manifests import Installation

    check_namespaces("--namespace", [namespace])
    check_namespaces("--serve", serve or ())
    if as_json and not dry_run:
        raise InputError("--json", "does nothing without --dry-run", "add --dry-run, or leave --json out")
    of = Installation(namespace=namespace, serve=tuple(serve or ()))
    with asked_as("leave", "; repeat it with the rights of an administrator"):
        cluster = Cluster(kubeconfig, context)
        if not dry_run:
            return 1 if go(cluster, of, _say) else 0
        tried = try_leaving(cluster, of)
    if as_json:
        typer.echo(msgspec.json.encode(tried).decode())
    else:
        _tell(tried)
    return 1 if tried.refused else 0


def _tell(tried: Tried) -> None:
    for one in tried.deleted:
        where = f" in {one.namespace}" if one.namespace else ""
        typer.echo(printable(f"{one.kind}/{one.name}{where}: would be deleted"))
    for place in tried.opened:
        paused = " (it is paused, and would be no more)" if place in tried.paused else ""
        typer.echo(printable(f"{place}: would be opened{paused}"))
    if tried.is_told:
        about = _who(tried.leads) if tried.leads else f"nobody leads: the Lease would get the annotation {names.LEFT}"
        typer.echo(printable(about))
    if not (tried.deleted or tried.opened or tried.refused):
        typer.echo("nothing would be deleted or opened")
    typer.echo(f"namespace {tried.namespace} would be left")
    for line in tried.refused:
        _say(line)


def _who(leads: Leads) -> str:
    renewed = "" if leads.renewed_s is None else f" (renewed {time_words(leads.renewed_s)} ago)"
    outside = ", from outside of the cluster," if leads.is_outside else ""
    return f"controller {leads.holder}: has the lease{renewed}{outside} and would be told to end"


def _say(line: str) -> None:
    typer.echo(printable(f"egs kubernetes: {line}"), err=True)
