"""What Ray's autoscaler can be asked and told: no public API says whether there is one, nor which request for nodes is
in force.

Part of `compat` (feature autoscaler): private Ray API, but for `request_nodes`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import ray

from egs_ray.compat import available

STATUS_S = 10.0  # for an answer of the second autoscaler's status


def has_autoscaler() -> bool:
    """Whether an autoscaler adds nodes to this cluster: its nodes then have types, where each is its own type else."""
    if not available("autoscaler"):
        return False
    try:
        types = _node_types_v2() if _is_autoscaler_v2() else _node_types_v1()
    except Exception:  # no status yet, or another shape
        return False
    return any(re.fullmatch("node_[0-9a-f]{20,}", name) is None for name in types if name)


def requested_nodes() -> str:
    """The request for nodes that is in force, by whomever, in words of Ray's; "" for none."""
    if not available("autoscaler"):
        return ""
    if _is_autoscaler_v2():
        constraints = _cluster_status_v2().resource_demands.cluster_constraint_demand
        return str(constraints) if any(constraint.bundles_by_count for constraint in constraints) else ""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    found = (_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"").decode()
    return "" if found == "[]" else found


def sign_request(text: str) -> None:
    """Note that the request in force is this driver's: should it be killed, another may replace it."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_SIGNED, json.dumps([ray.get_runtime_context().get_job_id(), text]).encode(), overwrite=True)


def is_leftover(text: str) -> bool:
    """Whether this request is one of EGS's, of a driver that is gone."""
    from ray._private.state import jobs
    from ray.experimental.internal_kv import _internal_kv_get

    job, signed = json.loads(_internal_kv_get(_SIGNED) or b'["", ""]')
    return signed == text and any(row["JobID"] == job and row["IsDead"] for row in jobs())


def request_nodes(bundles: list[dict[str, float]]) -> None:
    """Ask the autoscaler for a cluster in which all of these fit; replaces what was asked for before. Public API."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def state_number() -> int:
    """The number of the cluster's state by now: what an autoscaler looks at from now on has a higher one."""
    return int(_reply_v2().cluster_resource_state.cluster_resource_state_version) if _takes_all_or_nothing() else 0


def is_taken(since: int) -> bool | None:
    """Whether the autoscaler makes room for the request in force; None until it has looked at a state with a higher
    number. The first autoscaler does for as much of any request as it may, the second one for all of it or nothing."""
    if not _takes_all_or_nothing():
        return True
    try:
        state = _reply_v2().autoscaling_state
    except Exception:  # no answer for now
        return None
    if state.last_seen_cluster_resource_state_version <= since:
        return None
    return not state.infeasible_cluster_resource_constraints


_SIGNED = b"egs_requested_nodes"


def _takes_all_or_nothing() -> bool:
    return available("autoscaler") and _is_autoscaler_v2()


def _is_autoscaler_v2() -> bool:
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2())


def _node_types_v1() -> list[str]:
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report", {})
    return [*(report.get("active_nodes") or {}), *(report.get("idle_nodes") or {})]


def _node_types_v2() -> list[str]:
    status = _cluster_status_v2()
    return [node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)]


def _cluster_status_v2() -> Any:
    from ray.autoscaler.v2.sdk import get_cluster_status

    return get_cluster_status(ray.get_runtime_context().gcs_address)


def _reply_v2() -> Any:
    """Of the autoscaler's last look, which the public status leaves out."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of a compiled module
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    said = GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=STATUS_S)
    return GetClusterStatusReply.FromString(said)
