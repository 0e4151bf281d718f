"""What Ray's nodes are asked, and by which private API: which worker processes they have, and to start others.

A raylet's RPC `PrestartWorkers` starts processes that no job has taken, for a runtime environment; Ray calls it itself.
The GCS is asked for jobs and nodes, without becoming a driver. Lost without them: `egs ray keep-ready`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, gcs_pb2, node_manager_pb2, node_manager_pb2_grpc

from egs_ray.ready.kept import Job, Process

ANSWER_S = 5.0
KEEP_S = 120
"""So long Ray leaves one of them alone that is more than there are free CPUs, by which it counts idle processes."""
NO_JOB = b"\xff\xff\xff\xff"


class Lost(Exception):
    """The cluster does not answer."""


class Cluster:
    """The one at HOST:PORT, to which this user may connect."""

    def __init__(self, address: str) -> None:
        self._gcs = import_module("ray._raylet").GcsClient(address=address)
        self._stubs: dict[str, tuple[str, Any]] = {}
        self._environments: dict[str, Any] = {}

    def nodes(self) -> list[str]:
        """Those that live. Raises Lost."""
        try:
            there = self._gcs.get_all_node_info(timeout=ANSWER_S)
        except Exception as error:  # Ray's own, of several kinds
            raise Lost(str(error)) from error
        living = {
            node.hex(): f"{about.node_manager_address}:{about.node_manager_port}"
            for node, about in there.items()
            if about.state == gcs_pb2.GcsNodeInfo.ALIVE
        }
        self._stubs = {node: self._stubs.get(node) or _stub(at) for node, at in living.items()}
        return list(living)

    def jobs(self) -> list[Job]:
        """All that Ray remembers. Raises Lost."""
        try:
            there = self._gcs.get_all_job_info(
                skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=ANSWER_S
            )
        except Exception as error:
            raise Lost(str(error)) from error
        found = []
        for job, about in there.items():
            info = about.config.runtime_env_info
            environment = "" if info.serialized_runtime_env in ("", "{}") else info.serialized_runtime_env
            self._environments[environment] = info
            found.append(Job(job.hex(), environment, about.is_dead))
        self._environments = {job.environment: self._environments[job.environment] for job in found}
        return found

    def processes(self, node: str) -> list[Process] | None:
        """None where the node does not answer."""
        try:
            answer = self._stubs[node][1].GetNodeStats(node_manager_pb2.GetNodeStatsRequest(), timeout=ANSWER_S)
        except grpc.RpcError:
            return None
        workers = (one for one in answer.core_workers_stats if one.worker_type == common_pb2.WorkerType.WORKER)
        return [Process(one.worker_id.hex(), _job(one.job_id)) for one in workers]

    def start(self, node: str, environment: str, count: int) -> bool:
        """Have Ray start processes for jobs with that environment; whether the node has answered."""
        asked = node_manager_pb2.PrestartWorkersRequest(
            language=common_pb2.Language.PYTHON, num_workers=count, keep_alive_duration_secs=KEEP_S
        )
        if environment:
            asked.runtime_env_info.CopyFrom(self._environments[environment])
        try:
            self._stubs[node][1].PrestartWorkers(asked, timeout=ANSWER_S)
        except grpc.RpcError:
            return False
        return True


def _stub(at: str) -> tuple[str, Any]:
    return at, node_manager_pb2_grpc.NodeManagerServiceStub(init_grpc_channel(at))


def _job(job_id: bytes) -> str:
    return "" if job_id in (b"", NO_JOB) else job_id.hex()
