"""How the members of a gang find each other: what their commands have in the environment.

    EGS_GANG_RANK=1  EGS_GANG_SIZE=4  EGS_GANG_HOSTS=gpu01,gpu01,gpu02,gpu02      by rank; always
    RANK=1  WORLD_SIZE=4  MASTER_ADDR=gpu01  MASTER_PORT=20017                    PyTorch's env://, with --torch-env

Nobody listens anywhere for that: the one with rank 0 opens the port, and the others come to it. All have to name the
same one before any of them runs, so it follows from the gang's number; who knows a better one sets it.
"""

from __future__ import annotations

from collections.abc import Mapping

from egs_core.client.messages import GangView

RANK, SIZE, HOSTS = "EGS_GANG_RANK", "EGS_GANG_SIZE", "EGS_GANG_HOSTS"
LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 20_000, 12_000  # below those that Linux gives out by itself


def gang_variables(gang: GangView | None, torch_env: bool, environment: Mapping[str, str]) -> dict[str, str]:
    """{} outside of a gang, and of a server that names no ranks. environment: what its user has set stays."""
    if gang is None or gang.rank is None:
        return {}
    found = {RANK: str(gang.rank), SIZE: str(gang.size), HOSTS: ",".join(gang.hosts)}
    if torch_env:
        found |= {name: value for name, value in _torch(gang, gang.rank).items() if name not in environment}
    return found


def _torch(gang: GangView, rank: int) -> dict[str, str]:
    address = gang.hosts[0] if len(set(gang.hosts)) > 1 else LOOPBACK
    port = FIRST_PORT + gang.number % PORTS
    return {"RANK": str(rank), "WORLD_SIZE": str(gang.size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
