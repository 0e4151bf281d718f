"""`egs kubernetes abort`, `pause`, `resume`: runs and pods steered with the rights of whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from egs_core.cli.kubernetes_pods import AsJson, Context, Kubeconfig, Namespace, asked_as
from egs_core.cli.printable import printable
from egs_core.kubernetes.pausing import Steered

if TYPE_CHECKING:
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.steering import Asked

Name = Annotated[str, typer.Argument(metavar="RUN|POD", help="As `egs kubernetes ps` lists it.")]
Stage = Annotated[str, typer.Option(help="Only this stage of the run: pods that have it among their hints.")]
IsPod = Annotated[bool, typer.Option("--pod", help="NAME is a pod's, whatever run has it too.")]
Reason = Annotated[str, typer.Option(help="Why; written beside who asks.")]
IsTried = Annotated[bool, typer.Option("--dry-run", help="Change nothing: say what would be done, and whether it may.")]
Done = TypeVar("Done", bound=msgspec.Struct)


def abort(
    name: Name,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    stage: Stage = "",
    pod: IsPod = False,
    reason: Reason = "",
    dry_run: IsTried = False,
    as_json: AsJson = False,
) -> None:
    """End a run, a stage of it or a pod, for good, as whoever asks may.

    Changes in the cluster: an Argo Workflow of that name gets `spec.shutdown: Terminate`, and its pods are deleted; of
    another run, or of a stage, its pods are; or that one pod is. Each has an event that says who asked. What has made a
    pod may make another: that is said. Needs the rights to list and delete pods, and to get and patch Workflows where
    there are any; without that to create events there is none.
    """
    from egs_core.kubernetes.steering import abort as go

    done = _do("abort", (name, stage, pod, reason, dry_run), (kubeconfig, context, namespace), go)
    if as_json:
        typer.echo(msgspec.json.encode(done).decode())
        return
    would = "would be " if dry_run else ""
    if done.workflow:
        typer.echo(printable(f"{done.namespace}/{done.workflow}: its Workflow {'would end' if dry_run else 'ends'}"))
    for one in done.pods:
        typer.echo(printable(f"{done.namespace}/{one}: {would}deleted"))
    for maker in done.makers:
        typer.echo(printable(f"{maker} goes on, and may make such a pod again"), err=True)


def pause(
    name: Name,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    stage: Stage = "",
    pod: IsPod = False,
    reason: Reason = "",
    dry_run: IsTried = False,
    as_json: AsJson = False,
) -> None:
    """Let nothing more of a run, a stage of it, or a pod start, until `egs kubernetes resume`. What runs goes on.

    Changes in the cluster: the annotation `egs.io/paused` of its pods, which keeps their gates closed whatever their
    release-by time is; an Argo Workflow of that name gets `spec.suspend`, so that it makes no more pods. Of other runs
    pods that are made later wait too, as long as one with the annotation is listed. Needs the rights to list and patch
    pods, and to get and patch Workflows where there are any. A pod without a gate of EGS's starts as it would.
    """
    from egs_core.kubernetes.pausing import pause as go

    done = _do("pause", (name, stage, pod, reason, dry_run), (kubeconfig, context, namespace), go)
    _tell(done, "makes no more pods", "waits until it is resumed", as_json, is_tried=dry_run)
    for one in () if as_json else done.runs:
        typer.echo(printable(f"{done.namespace}/{one}: goes on: it is past its gate"), err=True)
    for one in () if as_json else done.queued:
        typer.echo(printable(f"{done.namespace}/{one}: waits in Kueue, which may admit it all the same"), err=True)


def resume(
    name: Name,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "",
    stage: Stage = "",
    pod: IsPod = False,
    dry_run: IsTried = False,
    as_json: AsJson = False,
) -> None:
    """Take a pause back: of a run all in it, also what was paused alone.

    Changes in the cluster: the annotation `egs.io/paused` goes, `egs.io/resumed` says since when the pods that wait may
    start again, so that their release-by time begins anew; `spec.suspend` of an Argo Workflow goes. Needs the rights
    that `pause` needs.
    """
    from egs_core.kubernetes.pausing import resume as go

    done = _do("resume", (name, stage, pod, "", dry_run), (kubeconfig, context, namespace), go)
    _tell(done, "makes pods again", "waits for its turn", as_json, is_tried=dry_run)


def _do(
    verb: str,
    what: tuple[str, str, bool, str, bool],
    where: tuple[Kubeconfig, Context, str],
    go: Callable[[Cluster, Asked], Done],
) -> Done:
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.steering import Asked

    name, stage, is_pod, reason, is_tried = what
    with asked_as(verb):
        cluster = Cluster(where[0], where[1])
        return go(cluster, Asked(where[2] or cluster.namespace, name, stage, is_pod, reason, is_tried))


def _tell(done: Steered, workflow: str, pod: str, as_json: bool, *, is_tried: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(done).decode())
        return
    tried = " (tried only)" if is_tried else ""
    if done.workflow:
        typer.echo(printable(f"{done.namespace}/{done.workflow}: its Workflow {workflow}{tried}"))
    for one in done.held:
        typer.echo(printable(f"{done.namespace}/{one}: {pod}{tried}"))
