"""What no setting of Ray gives its nodes on a busy machine: minutes to start. For `conftest.py`, and for programs that
start nodes themselves.

A raylet crashes when the port of an agent, a Python process, is not in a file after 15 to 30 s, so it is told all
ports. Who starts a node waits 30 s for it, then raises while processes of it go on; here that takes minutes.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from typing import Any

START_S = 120.0
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
PATIENT = "from tests.conformance.ray.patience import be_patient\nbe_patient()\n"
"""At the top of a script; it needs this checkout on its path."""


def be_patient(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on in this process. put: how Ray's functions are replaced."""
    from ray._private import services
    from ray._private.parameter import RayParams
    from ray.cluster_utils import Cluster

    get_node, start, fill = services.get_node, services.start_ray_process, RayParams.__init__

    def wait_for_node(*about: str) -> Any:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return get_node(*about)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def with_ports(params: Any, *given: Any, **named: Any) -> None:
        fill(params, *given, **named)
        for name, port in free_ports().items():
            setattr(params, name, port)

    def with_last_port(command: list[str], kind: str, *given: Any, **named: Any) -> Any:
        """Ray tells it the agent, and not the raylet."""
        told = re.search(r"--listen-port=(\d+)", " ".join(command)) if kind == "raylet" else None
        more = [f"--dashboard_agent_listen_port={told[1]}"] if told else []
        return start([*command, *more], kind, *given, **named)

    put(services, "get_node", wait_for_node)
    put(RayParams, "__init__", with_ports)
    put(services, "start_ray_process", with_last_port)
    put(Cluster._wait_for_node, "__defaults__", (START_S,))


def free_ports() -> dict[str, int]:
    """For Ray's agents, by the names of its parameters."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {name: found.getsockname()[1] for name, found in zip(PORTS, sockets, strict=True)}
