"""What a gang's command finds in its environment."""

from __future__ import annotations

from egs_core.client.gang_env import FIRST_PORT, PORTS, gang_variables
from egs_core.client.messages import GangView

ALONE = GangView(name="train", size=2, runs=("7", "8"), number=7, rank=1, hosts=("gpu01", "gpu01"))
OWN = {"EGS_GANG_RANK": "1", "EGS_GANG_SIZE": "2", "EGS_GANG_HOSTS": "gpu01,gpu01"}


def test_a_gangs_own_variables() -> None:
    """Always; none outside of a gang, and at a server of an earlier version."""
    assert gang_variables(ALONE, False, {}) == OWN
    assert gang_variables(None, True, {}) == {}
    assert gang_variables(GangView(name="train", size=2, runs=("7",)), True, {}) == {}


def test_what_pytorch_reads() -> None:
    """On one host by loopback; on several by the name of rank 0's; what the user has set stays."""
    assert gang_variables(ALONE, True, {}) == OWN | {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20007",
    }
    far = ALONE.model_copy(update={"hosts": ("gpu02", "gpu01"), "number": 7 + PORTS})
    found = gang_variables(far, True, {"MASTER_PORT": "29500", "PATH": "/bin"})
    assert (found["MASTER_ADDR"], found["RANK"], "MASTER_PORT" in found) == ("gpu02", "1", False)
    assert gang_variables(far, True, {})["MASTER_PORT"] == "20007"
    assert FIRST_PORT + PORTS <= 32_768, "where Linux begins to give out ports by itself"
