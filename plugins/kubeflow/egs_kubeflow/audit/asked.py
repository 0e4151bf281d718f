"""A cluster that is asked itself, page by page: nothing of it is changed. What may not be read is a note."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.kubernetes.cluster import NODES, PODS, WORKFLOWS, ApiError, Cluster, Kind
from egs_kubeflow.audit.shapes import Exported, Node, Pod, Workflow

MOST_CONFIG_BYTES = 4 << 20
ABSENT, FORBIDDEN = 404, 403
NO_ARGO = (
    "the cluster has no workflows of Argo: runs are those of pods with EGS's labels, and their edges are not known"
)
_CONFIG = re.compile(rb"""^(kind:\s*["']?Config["']?\s*|clusters:.*)$""", re.MULTILINE)
_SHAPES: tuple[tuple[Kind, type[Workflow | Pod | Node]], ...] = ((WORKFLOWS, Workflow), (PODS, Pod), (NODES, Node))


def is_kubeconfig(path: Path) -> bool:
    """Whether a file names a cluster, as kubectl is told of it, and is no export of one."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_CONFIG_BYTES:
            return False
        data = path.read_bytes()
    except (OSError, ValueError):  # said by who reads it
        return False
    if not data.lstrip().startswith(b"{"):
        return _CONFIG.search(data) is not None
    try:
        return bool(msgspec.json.decode(data).get("kind") == "Config")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def ask(kubeconfig: Path) -> tuple[list[Exported], float, str, list[str]]:
    """Its workflows, pods and nodes; the cluster's time, its address, and what could not be read. Raises InputError
    where it does not answer."""
    cluster = Cluster(kubeconfig)
    found: list[Exported] = []
    notes: list[str] = []
    try:
        for kind, shape in _SHAPES:
            found += [_as(shape, raw, cluster.host) for raw in _listed(cluster, kind, notes)]
        return found, cluster.now(), cluster.host, notes
    finally:
        cluster.close()


def _listed(cluster: Cluster, kind: Kind, notes: list[str]) -> list[dict[str, Any]]:
    """All of a kind; where nobody may have those of all namespaces, of the kubeconfig's own one."""
    try:
        return cluster.list(kind)[0]
    except ApiError as error:
        if error.status == ABSENT:
            notes.append(NO_ARGO if kind is WORKFLOWS else f"{kind.plural}: {error}")
            return []
        if error.status != FORBIDDEN:
            raise InputError(str(cluster.host), f"does not answer: {error}") from None
        said = error
    if kind.namespaced:
        try:
            found = cluster.list(kind, cluster.namespace)[0]
        except ApiError as error:
            said = error
        else:
            notes.append(f"{kind.plural} are those of namespace {cluster.namespace} alone: all may not be read")
            return found
    notes.append(f"{kind.plural} may not be read: {said}")
    return []


def _as(shape: type[Workflow | Pod | Node], raw: dict[str, Any], host: str) -> Workflow | Pod | Node:
    """A list of one kind does not repeat it in its objects."""
    try:
        return msgspec.convert({**raw, "kind": shape.__name__}, shape)
    except msgspec.ValidationError as error:
        name = (raw.get("metadata") or {}).get("name")
        raise InputError(host, f"{shape.__name__} {name}: {error}") from None
