"""With a site server, on a real API server (`test_real_cluster`): one quota over pods and commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.real import Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import UNTIL, content

__all__ = ["pytestmark"]

QUEUES = "queues: [{name: all, nominal: {gpus: 1}}]\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with applied(tmp_path, 2) as found:
        yield found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSite]:
    """With a GPU of its own, and a queue that may have one, here or there."""
    for name in ("EGS_TOKEN", "EGS_QUEUE", "EGS_CA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "queues.yaml").write_text(QUEUES)
    found = RealSite(tmp_path / "site", 1)
    try:
        found.start("--queues", str(tmp_path / "queues.yaml"))
        yield found
    finally:
        found.close()


def test_a_quota_holds_over_commands_and_pods(site: Site, server: RealSite, tmp_path: Path) -> None:
    """The queue has one GPU. While a command has it both pods wait, though their node has two free; then they go one
    after the other, the one with more of its run behind it first, placed by Kubernetes' scheduler under the least
    rights."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    words = ("--gpus", "1", "--queue", "all", "--", sys.executable, "-c", UNTIL, str(begun), str(go), "0")
    command = server.run(*words)
    wait_for(lambda: content(begun), "the command runs")
    with controlled(site, "server: joined", url=f"unix://{server.ready['socket']}", queue="all"):
        site.add("short", gpus=1, rank=10, predicted=5)
        site.add("long", gpus=1, rank=99, predicted=5)
        site.add("free", cpu=1, run="free")
        until(lambda: site.pods()["free"].node)
        assert all(site.pods()[name].is_gated for name in ("short", "long"))
        go.touch()
        assert command.wait(240) == 0
        until(lambda: site.pods()["long"].node)
        assert site.pods()["short"].is_gated
        site.end("long")
        until(lambda: site.pods()["short"].node)
