"""`egs kubernetes`: the order of a cluster's pods. Each command says what it changes there."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from egs_core.adapter import ClusterProfile
from egs_core.cli import kubernetes_leaving, kubernetes_pods, kubernetes_steering
from egs_core.cli.kubernetes_names import check_image, check_names, check_namespaces, check_texts, check_words
from egs_core.cli.kubernetes_reads import PreloadFiles, PreloadVolume, read_rules
from egs_core.cli.printable import printable
from egs_core.cli.profiles import lint, profiling
from egs_core.client.places import URL, parse_url
from egs_core.errors import InputError
from egs_core.hint_checks import check_limit
from egs_core.kubernetes import names
from egs_core.kubernetes.clusters import ROLES, WORKER
from egs_core.kubernetes.gates import RELEASE_BY_S
from egs_core.kubernetes.images import PULL_S
from egs_core.kubernetes.placeholders import IMAGE, NODE_S
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.tiers import rule_of
from egs_core.units import parse_seconds

QUEUE = "EGS_QUEUE"
kubernetes = typer.Typer(help="Order the pods of a Kubernetes cluster.", no_args_is_help=True)
kubernetes.command("lint")(lint)

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
    profile: Annotated[
        Path | None,
        typer.Option(help="Profile of the site, for what --serve and --lease-namespace leave out; compared once."),
    ] = None,
    lease_namespace: Annotated[
        str, typer.Option(help=f"Namespace of the Lease by which one leads; default: {names.SYSTEM}.")
    ] = "",
    webhook_host: Annotated[
        list[str] | None,
        typer.Option(help="Serve the admission webhook, which the API server calls by this name; again for more."),
    ] = None,
    webhook_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the webhook.")] = 9443,
    priority_class: Annotated[
        str, typer.Option(help="The webhook gives it to pods of EGS that name none; default: none.")
    ] = "",
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help="FLAVOR=CLASS: GPUs of that flavor are claimed of a DeviceClass (DRA), by the webhook; again for more."
        ),
    ] = None,
    kueue: Annotated[bool, typer.Option("--kueue/--no-kueue", help="Order what waits in Kueue too.")] = True,
    cpu_limit: Annotated[
        str, typer.Option(help="The longest that a pod without a GPU runs that states no time; default: the profile's.")
    ] = "",
    gpu_limit: Annotated[str, typer.Option(help="The same, of a pod with a GPU.")] = "",
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Delete a pod for one of higher priority, where it is made again.")
    ] = False,
    preload: Annotated[
        bool, typer.Option("--preload", help="Load the images of pods that wait on the nodes where they will start.")
    ] = False,
    pull_time: Annotated[
        str,
        typer.Option(
            help="With --preload: how long a pull takes, until one was seen; default: the profile's, or 120s."
        ),
    ] = "",
    preload_files: PreloadFiles = "",
    preload_volume: PreloadVolume = None,
    placeholders: Annotated[
        int | None,
        typer.Option(
            min=0, help="So many pods stand for what needs a node, for an autoscaler; default: the profile's, or 0."
        ),
    ] = None,
    node_time: Annotated[
        str, typer.Option(help="With placeholders: how long a node takes to come; default: the profile's, or 180s.")
    ] = "",
    placeholder_image: Annotated[
        str, typer.Option(help=f"Of placeholders; it has to wait for its end. Default: the profile's, or {IMAGE}.")
    ] = "",
    cluster_name: Annotated[
        str, typer.Option(help="With EGS_URL: what people at the site server see; default: the API server's address.")
    ] = "",
    notebook_queue: Annotated[
        str,
        typer.Option(help="With EGS_URL: the queue of notebooks; default: as of their namespace's pods."),
    ] = "",
    multikueue: Annotated[
        str,
        typer.Option(
            help="`worker`: tell the site server of EGS_URL this cluster's queues; `manager`: nominate clusters."
        ),
    ] = "",
) -> None:
    """Open the gates of pods, and raise Workloads of Kueue that wait, in the engine's order. Ends on SIGINT or SIGTERM,
    and when EGS is taken out of the cluster (`egs kubernetes leave`).

    Says in one line which cluster and namespaces it orders, and whether it leads or for whom it waits, and in one that
    it has ended; else what an administrator should know alone.

    Changes in the cluster: the scheduling gate `egs.io/order` is taken off pods that have the label `egs.io/workload`
    (with the annotation `egs.io/opened`; the annotation `egs.io/waits` says of those that wait why); those with a limit
    get a deadline, `spec.activeDeadlineSeconds` (with the annotation `egs.io/limit`); `spec.priority` of Workloads that
    wait in ClusterQueues which preempt nothing (with the annotation `egs.io/base-priority`); one Lease; and beside it
    the ConfigMap `egs-controller-durations`, with what pods took, for what later runs will take. With --webhook-host:
    pods with that label get the gate, its release-by time and the priority class when they are made, while the
    controller lives; and its certificate is written into the webhook's configuration. With --claim, too: a limit of
    GPUs of a pod whose hints name such flavors, and no others, becomes a claim of devices (DRA) with a tier for each
    flavor, the first one first, of a ResourceClaimTemplate `egs-gpus-…` that is made in its namespace; each is a line
    of the log. Any other limit stays, as do pods with claims of their own. With --preempt: a pod is deleted for one of
    higher priority that waits, where a Job makes it again or Argo under `retryPolicy: Always` (with the annotation
    `egs.io/preempted` and an event). With --preload: pods with the label `egs.io/preload` are made and removed, which
    load an image on a node and ask for nothing; with --preload-files, too, such as read what a task's hint `preload`
    names, of its image and of the volume claims of --preload-volume, read-only, so that the node has it in memory. With
    --placeholders: pods with the label `egs.io/placeholder` are made and removed in the namespace of the Lease, which
    ask for what pods that wait ask for, so that a cluster autoscaler adds a node, and make way for them. Else no pod is
    made, deleted or placed, and of running ones the deadline alone is changed. Argo's Workflows are read where there
    are any.

    With --profile: its namespace is served where --serve names none, its controller_namespace has the Lease where
    --lease-namespace names none, its time_limits hold where --cpu-limit and --gpu-limit are left out, its preload.takes
    where --pull-time is, its preload.files and preload.volumes where --preload-files and --preload-volume are, its
    capacity where --placeholders, --node-time and --placeholder-image are, flavor and device class of its pools with
    `claims: true` where --claim is, and one line at the start tells of each pool and queue that the cluster has not as
    the profile says. That changes nothing; of quotas and priority classes a controller makes no use.

    With --multikueue manager: of each Workload that waits for MultiKueue to have a cluster (Kueue's configuration names
    `egs.io/dispatcher`), `status.nominatedClusterNames` is written: the cluster where it should end first by what the
    site server is told of them, each by its own controller with --multikueue worker and the name that the
    MultiKueueCluster has as --cluster-name; all of them where nothing is known. A worker's controller tells, and
    writes nothing more than without.

    With EGS_URL in its environment, and EGS_TOKEN over TCP, the pods are ordered by that site server with all else that
    shares its queues: those of a namespace in the queue of its name, others in that of EGS_QUEUE, and
    notebooks in that of --notebook-queue. Nothing is preempted there. While it is away gates wait for a minute, then
    the controller orders its cluster alone until it is back.
    """
    from egs_core.kubernetes import admission
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.controller import Controller
    from egs_core.kubernetes.limits import Rules
    from egs_core.kubernetes.profiled import look
    from egs_core.kubernetes.settings import Settings
    from egs_core.kubernetes.webhook import Webhook

    if url := os.environ.get(URL, "").strip():
        parse_url(url)  # a mistyped one is an error at once
        if preempt:
            _say("--preempt: while the pods are ordered by the site server, nothing is preempted")
    for option, told in (("--cluster-name", cluster_name), ("--notebook-queue", notebook_queue)):
        if told and not url:
            raise InputError(option, "does nothing without a site server", "set EGS_URL, or leave it out")
    check_namespaces("--serve", serve or ())
    check_namespaces("--lease-namespace", [lease_namespace] if lease_namespace else ())
    check_names([("--priority-class", priority_class)])
    check_texts([("--cluster-name", cluster_name), ("--notebook-queue", notebook_queue)])
    check_words("--webhook-host", webhook_host or (), "say by which name the API server calls it")
    _check_role(multikueue, is_known=bool(url and cluster_name), with_kueue=kueue)
    if pull_time and not preload:
        raise InputError("--pull-time", "does nothing without --preload", "add --preload, or leave --pull-time out")
    site = profiling("").cluster_profile(profile) if profile is not None else None
    stated = claim if claim is not None else [f"{flavor}={of}" for flavor, of in site.claims] if site else []
    claims = tuple(rule_of(one, str(profile) if claim is None else "--claim") for one in stated)
    settings = Settings(
        namespaces=tuple(serve or ([site.namespace] if site else ())),
        window=window,
        ahead=ahead,
        longest_s=parse_seconds(release_by, "--release-by"),
        lease_namespace=lease_namespace or (site.controller_namespace if site else names.SYSTEM),
        identity=f"{socket.gethostname()}-{os.getpid()}",
        with_kueue=kueue,
        preempts=preempt,
        preloads=preload,
        placeholders=_placeholder_settings(placeholders, node_time, placeholder_image, site),
        pull_s=parse_seconds(pull_time, "--pull-time") if pull_time else (site and site.pull_s) or PULL_S,
        reads=read_rules(preload_files, preload_volume, serve or (), site, preloads=preload),
        limits=Rules(
            _limit(cpu_limit, "--cpu-limit") or (site.cpu_limit_s if site else None),
            _limit(gpu_limit, "--gpu-limit") or (site.gpu_limit_s if site else None),
        ),
        url=url,
        cluster_name=cluster_name,
        queue=os.environ.get(QUEUE, "").strip(),
        notebook_queue=notebook_queue,
        multikueue=multikueue,
    )
    cluster = Cluster(kubeconfig, context)
    kubernetes_pods.say_absent(cluster, settings.namespaces, _say)
    if site is not None:
        look(cluster, site, _say, with_queues=kueue)
    found = Controller(cluster, settings, _say, tell=_say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: found.stop())
    if webhook_host:
        rules = admission.Rules(settings.longest_s, priority_class, claims)
        # a connection of its own: what it waits for is in nobody's way
        hook = Webhook(
            Cluster(kubeconfig, context), rules, webhook_host, lambda: found.is_healthy, _say, ("", webhook_port)
        )
        hook.start()
    found.run()


@kubernetes.command("open-overdue")
def open_overdue(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    serve: Serve = None,
    release_by: ReleaseBy = f"{RELEASE_BY_S:.0f}s",
    multikueue: Annotated[
        bool, typer.Option("--multikueue", help="Nominate clusters, too, where no controller has for a minute.")
    ] = False,
) -> int:
    """Open the gates that are past their release-by time, once: for a CronJob, beside the controller.

    Changes in the cluster: the scheduling gate `egs.io/order` is taken off those pods, but of what is paused, and they
    get the deadline of their limits (`spec.activeDeadlineSeconds`, `egs.io/limit`). It needs no controller. With
    --multikueue: for Workloads that have waited for MultiKueue for a minute and have no cluster nominated,
    `status.nominatedClusterNames` gets all that are connected.
    """
    from egs_core.kubernetes import overdue
    from egs_core.kubernetes.cluster import Cluster

    check_namespaces("--serve", serve or ())
    longest_s = parse_seconds(release_by, "--release-by")
    with kubernetes_pods.asked_as("open-overdue"):
        cluster = Cluster(kubeconfig, context)
        failed = overdue.open_overdue(cluster, serve or (), longest_s, _say)
        if multikueue:
            failed += overdue.nominate_overdue(cluster, _say)
    return 1 if failed else 0


@kubernetes.command("manifests")
def manifests(
    image: Annotated[str, typer.Option(help="Image with egs-core[kubernetes], its entry point `egs`.")],
    namespace: Annotated[str, typer.Option(help="Namespace of the controller, which is written too.")] = names.SYSTEM,
    serve: Serve = None,
    release_by: ReleaseBy = f"{RELEASE_BY_S:.0f}s",
    argument: Annotated[
        list[str] | None, typer.Option(help="One more argument of the controller; again for more.")
    ] = None,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="With the rights to delete pods that make way, and the argument for it.")
    ] = False,
    preload: Annotated[
        bool,
        typer.Option("--preload", help="With the rights to make and delete preload pods, and the argument for it."),
    ] = False,
    preload_files: PreloadFiles = "",
    preload_volume: PreloadVolume = None,
    placeholders: Annotated[
        int, typer.Option(min=0, help="With the rights to make so many placeholder pods, and the argument for it.")
    ] = 0,
    node_time: Annotated[
        str, typer.Option(help="With --placeholders: how long a node takes to come; default: 180s.")
    ] = "",
    placeholder_image: Annotated[
        str, typer.Option(help=f"With --placeholders: of these, and of nothing else; default: {IMAGE}.")
    ] = "",
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help="FLAVOR=CLASS: with the right to make templates of such claims, and the argument; again for more."
        ),
    ] = None,
    egs_url: Annotated[str, typer.Option(help="The site server that the controller joins: its EGS_URL.")] = "",
    token_secret: Annotated[
        str, typer.Option(help="With --egs-url: Secret in that namespace whose `token` is the controller's EGS_TOKEN.")
    ] = "",
    ca_config_map: Annotated[
        str,
        typer.Option(
            help="With --egs-url: ConfigMap in that namespace whose `ca.crt` signs the server's certificate (EGS_CA)."
        ),
    ] = "",
    egs_queue: Annotated[
        str, typer.Option(help="With --egs-url: the queue of namespaces that have none of their name there.")
    ] = "",
    cluster_name: Annotated[
        str, typer.Option(help="With --egs-url: what people at the site server see; default: the API server's address.")
    ] = "",
    multikueue: Annotated[
        str, typer.Option(help="`manager`: with the right to nominate clusters, or `worker`; and the argument for it.")
    ] = "",
    helm: Annotated[
        Path | None, typer.Option(help="Write a Helm chart of it into this folder, new or empty, and print nothing.")
    ] = None,
) -> None:
    """Print what the controller needs in a cluster, as YAML for `kubectl apply --server-side -f -`.

    Changes nothing: no connection is made. What is printed: a namespace, two service accounts with the least rights
    that suffice, a ConfigMap for what pods took, policies that hold the accounts to opening gates, deadlines, raising
    priorities and the webhook's certificate, the controller and its Service, a CronJob that opens what is overdue, and
    a webhook that lets pods pass where it is not there. With --helm: the same objects
    but for the namespace, as a chart for `helm install --namespace egs-system --create-namespace`; its values are the
    image and, with --egs-url, what names the site server.
    """
    import yaml

    from egs_core.kubernetes import chart
    from egs_core.kubernetes.manifests import Installation, objects

    check_image("--image", image)
    check_namespaces("--namespace", [namespace])
    check_namespaces("--serve", serve or ())
    check_words("--argument", argument or (), "say one argument of `egs kubernetes controller`, or leave it out")
    check_names([("--token-secret", token_secret), ("--ca-config-map", ca_config_map)])
    check_texts([("--egs-queue", egs_queue), ("--cluster-name", cluster_name)])
    if egs_url:
        parse_url(egs_url)
    named = {"--token-secret": token_secret, "--egs-queue": egs_queue, "--ca-config-map": ca_config_map}
    for option, stated in (named | {"--cluster-name": cluster_name}).items():
        if stated and not egs_url:
            raise InputError(option, "does nothing without --egs-url", "name the site server, or leave it out")
    _check_role(multikueue, is_known=bool(egs_url and cluster_name))
    asked = Installation(
        image,
        namespace,
        tuple(serve or ()),
        parse_seconds(release_by, "--release-by"),
        tuple(argument or ()),
        preempt,
        preload,
        egs_url,
        token_secret,
        egs_queue,
        ca_config_map,
        _placeholder_settings(placeholders, node_time, placeholder_image),
        tuple(rule_of(one, "--claim") for one in claim or ()),
        multikueue,
        cluster_name,
        read_rules(preload_files, preload_volume, serve or (), preloads=preload),
    )
    if helm is None:
        typer.echo(yaml.safe_dump_all(objects(asked), sort_keys=False, width=110), nl=False)
        return
    if namespace != names.SYSTEM:
        raise InputError("--namespace", "a chart has none", "say it to `helm install --namespace`, and leave it out")
    _write(helm, chart.files(asked))


def _write(folder: Path, found: dict[str, str]) -> None:
    """Raises InputError for a folder that has something in it, or that cannot be written."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(str(folder), "is not empty", "name a new folder, or empty it first")
        for name, text in found.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(str(folder), f"cannot be written: {error.strerror}", "name a folder of yours") from None


for _command in (
    kubernetes_pods.ps,
    kubernetes_pods.why,
    kubernetes_steering.abort,
    kubernetes_steering.pause,
    kubernetes_steering.resume,
    kubernetes_leaving.leave,
):
    kubernetes.command(_command.__name__)(_command)


def _placeholder_settings(
    most: int | None, node_time: str, image: str, site: ClusterProfile | None = None
) -> PlaceholderSettings:
    """What is said, else what the profile says. Raises InputError for what would do nothing."""
    many = most if most is not None else site.placeholders if site else 0
    for option, stated in (("--node-time", node_time), ("--placeholder-image", image)):
        if stated and not many:
            raise InputError(
                option, "does nothing without --placeholders", f"add --placeholders, or leave {option} out"
            )
    if image:
        check_image("--placeholder-image", image)
    node_s = parse_seconds(node_time, "--node-time") if node_time else (site and site.node_s) or NODE_S
    if node_s < 1:
        raise InputError("--node-time", "is less than a second", "say how long a node takes to come, such as 3m")
    return PlaceholderSettings(many, node_s, image or (site.placeholder_image if site else "") or IMAGE)


def _check_role(stated: str, *, is_known: bool, with_kueue: bool = True) -> None:
    """is_known: a site server is told the cluster's name. Raises InputError."""
    if stated and stated not in ROLES:
        raise InputError("--multikueue", f"has no {stated!r}", f"say one of {', '.join(ROLES)}")
    if stated and not with_kueue:
        raise InputError("--multikueue", "does nothing with --no-kueue", "leave one of them out")
    if stated == WORKER and not is_known:
        raise InputError(
            "--multikueue worker",
            "tells a site server what the cluster's queues have, by its name",
            "say which server, and --cluster-name, the name of its MultiKueueCluster",
        )


def _limit(stated: str, place: str) -> float | None:
    return check_limit(stated, place) if stated else None


def _say(line: str) -> None:
    typer.echo(printable(f"egs kubernetes: {line}"), err=True)
