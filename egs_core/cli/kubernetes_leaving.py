"""`egs kubernetes leave`: EGS out of a cluster, with the rights of an administrator."""

from __future__ import annotations

from typing import Annotated

import typer

from egs_core.cli.kubernetes_names import check_namespaces
from egs_core.cli.kubernetes_pods import Context, Kubeconfig, asked_as
from egs_core.cli.printable import printable
from egs_core.kubernetes import names


def leave(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the controller.")] = names.SYSTEM,
    serve: Annotated[
        list[str] | None, typer.Option(help="Namespace whose pods are served; again for more; default: all.")
    ] = None,
) -> int:
    """Take EGS out of a cluster: what runs and what waits goes on without it.

    Changes in the cluster, in this order: the webhook's configuration is deleted; the gate `egs.io/order` is taken off
    every pod that has it (with --serve, in these namespaces), also where it is paused, which is said, and without the
    deadlines that limits would become; Deployment and CronJob are deleted; the Lease gets the
    annotation `egs.io/left`, at which a controller that runs outside of the cluster ends, too; what else
    `egs kubernetes manifests` has printed (with the same --namespace and --serve) is deleted, but for the namespace;
    the pods with which images were loaded ahead are, placeholders, and ResourceClaimTemplates `egs-gpus-…`. It may be
    repeated. Exit code 1: a gate could not be opened, or a controller leads all the same; the lines say which.
    """
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.leaving import leave as go
    from egs_core.kubernetes.manifests import Installation

    check_namespaces("--namespace", [namespace])
    check_namespaces("--serve", serve or ())
    with asked_as("leave", "; repeat it with the rights of an administrator"):
        failed = go(Cluster(kubeconfig, context), Installation(namespace=namespace, serve=tuple(serve or ())), _say)
    return 1 if failed else 0


def _say(line: str) -> None:
    typer.echo(printable(f"egs kubernetes: {line}"), err=True)
