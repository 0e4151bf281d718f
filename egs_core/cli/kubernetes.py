"""`egs kubernetes`: the order of a cluster's pods. Each command says what it changes there."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from egs_core.kubernetes import names
from egs_core.kubernetes.gates import RELEASE_BY_S
from egs_core.units import parse_seconds

kubernetes = typer.Typer(help="Order the pods of a Kubernetes cluster.", no_args_is_help=True)

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="File that names the cluster; default: the cluster it runs in, else the user's usual file."),
]
Context = Annotated[str | None, typer.Option(help="Context of that file; default: its current one.")]
Serve = Annotated[list[str] | None, typer.Option(help="Namespace whose pods are served; again for more; default: all.")]
ReleaseBy = Annotated[
    str, typer.Option(help="How long after a pod was made its gate is opened at the latest, whatever it states.")
]


@kubernetes.command("controller")
def controller(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    serve: Serve = None,
    release_by: ReleaseBy = f"{RELEASE_BY_S:.0f}s",
    window: Annotated[int, typer.Option(min=1, help="So many opened pods may wait for their node at once.")] = 50,
    ahead: Annotated[
        int,
        typer.Option(min=0, help="Open so many beyond what has room: a cluster autoscaler sees only opened pods."),
    ] = 0,
    lease_namespace: Annotated[str, typer.Option(help="Namespace of the Lease by which one leads.")] = names.SYSTEM,
    kueue: Annotated[bool, typer.Option("--kueue/--no-kueue", help="Order what waits in Kueue too.")] = True,
) -> None:
    """Open the gates of pods, and raise Workloads of Kueue that wait, in the engine's order. Ends on SIGINT or SIGTERM.

    Changes in the cluster: the scheduling gate `egs.io/order` is taken off pods that have the label `egs.io/workload`
    (with the annotation `egs.io/opened`), `spec.priority` of Workloads that wait in ClusterQueues which preempt nothing
    (with the annotation `egs.io/base-priority`), and one Lease. Nothing is made, deleted or placed. It adds no gate:
    pods without one are left alone.
    """
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.controller import Controller, Settings

    settings = Settings(
        namespaces=tuple(serve or ()),
        window=window,
        ahead=ahead,
        longest_s=parse_seconds(release_by),
        lease_namespace=lease_namespace,
        identity=f"{socket.gethostname()}-{os.getpid()}",
        with_kueue=kueue,
    )
    found = Controller(Cluster(kubeconfig, context), settings, _say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: found.stop())
    found.run()


@kubernetes.command("open-overdue")
def open_overdue(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    serve: Serve = None,
    release_by: ReleaseBy = f"{RELEASE_BY_S:.0f}s",
) -> int:
    """Open the gates that are past their release-by time, once: for a CronJob, beside the controller.

    Changes in the cluster: the scheduling gate `egs.io/order` is taken off those pods. It needs no controller.
    """
    from egs_core.kubernetes import overdue
    from egs_core.kubernetes.cluster import Cluster

    failed = overdue.open_overdue(Cluster(kubeconfig, context), serve or (), parse_seconds(release_by), _say)
    return 1 if failed else 0


def _say(line: str) -> None:
    typer.echo(f"egs kubernetes: {line}", err=True)
