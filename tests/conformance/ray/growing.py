"""A real cluster of Ray with a real autoscaler, whose nodes are processes of this machine: none has a GPU at first.

Ray's own `AutoscalingCluster` ends every Ray of the machine with `ray stop`, and its configuration is not in the wheel.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

HEAD_TYPE = "ray.head.default"  # what the provider says its head is, whatever is configured
UNUSED_LISTS = (
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


@contextlib.contextmanager
def growing_cluster(most_gpu_nodes: int, environment: dict[str, str], *, is_v2: bool) -> Iterator[str]:
    """The cluster's address. Nodes of one CPU and one GPU come when they are wanted, and go when idle for six
    seconds. is_v2: by the autoscaler that KubeRay uses, which has to know the head as the provider does."""
    import ray
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    folder = tempfile.mkdtemp(prefix="egs-")
    address = f"{ray.util.get_node_ip_address()}:{_free_port()}"
    config = Path(folder, "cluster.yaml")
    config.write_text(json.dumps(_config(address, most_gpu_nodes, is_v2)))
    port = address.rpartition(":")[2]
    head = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    limits = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--include-dashboard=false"]
    places = [f"--temp-dir={folder}", f"--autoscaling-config={config}", "--disable-usage-stats"]
    v2 = {
        "RAY_NODE_TYPE_NAME": HEAD_TYPE,  # as KubeRay and `ray up` set it on every node
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    }
    fake = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", **(v2 if is_v2 else {})}
    variables = {**os.environ, **environment, **fake}
    with Path(folder, "head.out").open("w") as out:
        started = subprocess.Popen([*head, *limits, *places], env=variables, stdout=out, stderr=out)
    try:
        _wait_for_head(started, Path(folder, "head.out"))
        yield address
    finally:
        _end(started, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _config(address: str, most_gpu_nodes: int, is_v2: bool) -> dict[str, Any]:
    gpu = {"CPU": 1, "GPU": 1, "object_store_memory": 80_000_000}
    types = {
        HEAD_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": gpu, "node_config": {}, "min_workers": 0, "max_workers": most_gpu_nodes},
    }
    # The second autoscaler reads defaults for its own providers, which the wheel has not; for another it needs none.
    fake = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    kind = {"type": "external", "module": fake} if is_v2 else {"type": "fake_multinode"}
    provider = {
        **kind,
        "gcs_address": address,
        "launch_multiple": is_v2,
        **dict.fromkeys(("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check"), True),
    }
    return {
        "cluster_name": "growing",
        "max_workers": most_gpu_nodes,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1.0,
        "provider": provider,
        "available_node_types": types,
        "head_node_type": HEAD_TYPE,
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "auth": {},
        "docker": {},
        **{name: list[str]() for name in UNUSED_LISTS},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _wait_for_head(started: subprocess.Popen[bytes], out: Path) -> None:
    """Until Ray says that the head is one of the cluster's nodes: its port answers before, to no use."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and started.poll() is None:
        if "Ray runtime started" in out.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"the cluster did not start: {out.read_text()}")


def _end(started: subprocess.Popen[bytes], folder: str) -> None:
    """The head and all nodes, which have the folder in their command lines."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ours = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
        for process in [*ours, *(p for p in psutil.process_iter() if _is_of(p, folder))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ours, timeout=20)
    started.wait(20)


def _is_of(process: psutil.Process, folder: str) -> bool:
    try:
        return any(folder in argument for argument in process.cmdline())
    except psutil.Error:
        return False
