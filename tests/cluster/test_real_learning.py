"""What was learned of one run orders the next one, on a real API server with its scheduler (`test_real_cluster`). No
container runs: the tests say what a kubelet would."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import CONFIG_MAPS, PODS, ApiError, Kind
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.placeholding import PlaceholderSettings
from tests.cluster.real import FILE, LIMIT_S, Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]

SECONDS = {"short": 5, "middle": 60, "long": 900}
NODES = PlaceholderSettings(most=1, node_s=60.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One GPU, and the right to ask for one more node."""
    with applied(tmp_path, placeholders=NODES) as found:
        yield found


def add_run(site: Site, number: int) -> None:
    """Three tasks that want the GPU, without a label of time."""
    for name in SECONDS:
        site.add(f"{name}-{number}", run=f"nightly-{number}", labels={"egs.io/task": name}, gpus=1)


def placed(site: Site) -> str:
    """The pod that gets the GPU."""
    until(lambda: any(one.node for one in site.pods().values()))
    (found,) = (one.name for one in site.pods().values() if one.node)
    return found


def ends(site: Site, name: str, seconds: float) -> None:
    """As its kubelet would say of one that has run so long."""
    now = time.time()
    times = {"exitCode": 0, "startedAt": moment(now - seconds), "finishedAt": moment(now)}
    about = {"ready": False, "restartCount": 0, "image": "image:1", "imageID": ""}
    states = [{"name": "main", **about, "state": {"terminated": times}}]
    status = {"phase": "Succeeded", "startTime": moment(now - seconds), "containerStatuses": states}
    site.admin.patch(Kind("/api/v1", "pods"), f"{name}/status", {"status": status}, site.name)


def kept(site: Site) -> dict[str, list[float]]:
    """By task, the durations that were kept."""
    data = site.admin.get(CONFIG_MAPS, names.DURATIONS, site.of.namespace).get("data", {})
    steps = json.loads(data.get(f"{site.name}.w", '{"steps": {}}'))["steps"]
    return {step: [one[1] for one in took] for step, took in steps.items()}


def stands_for_a_node(site: Site) -> bool:
    return bool(site.admin.list(PODS, site.of.namespace, names.PLACEHOLDER)[0])


def test_the_second_run_goes_by_what_the_first_one_took(site: Site) -> None:
    """Under the least rights, across a restart of the controller, and nothing left of the first run: its longest task
    comes first, and since that has the GPU for a quarter of an hour, a node is asked for. Applying the manifests again
    takes nothing away."""
    add_run(site, 1)
    with controlled(site, placeholders=NODES) as found:
        for number in range(1, len(SECONDS) + 1):
            name = placed(site)
            ends(site, name, SECONDS[name.removesuffix("-1")])
            until(lambda number=number: len(taught(found, site)) == number)  # type: ignore[misc]  # one each
            site.delete(name)
        assert kept(site) == {}  # each two minutes, and at its end
    assert kept(site) == {name: [pytest.approx(seconds, abs=1)] for name, seconds in SECONDS.items()}
    site.apply()
    add_run(site, 2)
    with controlled(site, placeholders=NODES):
        assert placed(site) == "long-2"
        until(lambda: stands_for_a_node(site))
        for name in ("long-2", "middle-2", "short-2"):
            assert placed(site) == name
            site.delete(name)


def taught(found: Controller, site: Site) -> set[str]:
    """The tasks of which the controller has learned."""
    return set(found._learning._learned._took.get(f"{site.name}/w", ()))


def test_a_controller_in_a_terminal_goes_when_egs_is_taken_out(site: Site) -> None:
    """With an administrator's rights and something learned that it would write at its end: it ends by itself, with
    exit code 0; no gate is closed, and the ConfigMap stays away. It has said three lines in all."""
    command = [sys.executable, "-m", "egs_core.cli.app", "kubernetes", "controller", "--kubeconfig", FILE]
    command += ["--serve", site.name, "--lease-namespace", site.of.namespace]
    file = site.folder / "said"
    with file.open("w") as said:
        process = subprocess.Popen(command, stderr=said)
    try:
        until(lambda: f"namespaces {site.name}: leads" in file.read_text())
        for name in ("short-1", "long-1"):
            site.add(name, run="nightly-1", labels={"egs.io/task": name}, gpus=1)
        first = placed(site)
        ends(site, first, 60.0)
        until(lambda: not any(one.is_gated for one in site.pods().values()))  # seen, so that it is learned
        site.add("waits", run="nightly-1", gpus=1)
        lines: list[str] = []
        assert leave(site.admin, site.of, lines.append) == 0
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert not any(one.is_gated for one in site.pods().values())
    assert any(line.endswith(f"-{process.pid}: has ended") for line in lines)
    with pytest.raises(ApiError, match="404"):
        site.admin.get(CONFIG_MAPS, names.DURATIONS, site.of.namespace)
    leads, gone, ended = file.read_text().splitlines()
    assert leads.startswith(f"egs kubernetes: cluster {site.admin.host}, ")
    assert "EGS was taken out of the cluster at " in gone
    assert "has ended; gates that it has opened: 2" in ended


def test_its_account_has_that_one_config_map(site: Site) -> None:
    """It reads and changes it. Others it neither reads, changes nor makes, nor does it take this one away."""
    cluster, where = site.account(names.CONTROLLER), site.of.namespace
    change = {"data": {"team.w": "{}"}}
    until(lambda: may(lambda: cluster.get(CONFIG_MAPS, names.DURATIONS, where)))  # its rights are a moment old
    assert may(lambda: cluster.patch(CONFIG_MAPS, names.DURATIONS, change, where))
    other = {"metadata": {"name": "other"}, "data": {"a": "b"}}
    site.admin.create(CONFIG_MAPS, other, where)
    assert not may(lambda: cluster.get(CONFIG_MAPS, "other", where))
    assert not may(lambda: cluster.patch(CONFIG_MAPS, "other", change, where))
    assert not may(lambda: cluster.list(CONFIG_MAPS, where))
    assert not may(lambda: cluster.create(CONFIG_MAPS, {"metadata": {"name": "more"}}, where))
    assert not may(lambda: cluster.delete(CONFIG_MAPS, names.DURATIONS, where))


def may(act: Callable[[], object]) -> bool:
    """Whether the API server lets it be done."""
    try:
        act()
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True
