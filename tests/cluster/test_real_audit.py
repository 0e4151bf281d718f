"""`egs audit --kubernetes` of a real API server, asked by its kubeconfig, and of what `kubectl` would export of it. No
container runs: the test says what a kubelet would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.audit.build import audit
from egs_core.audit.observed import AuditRequest, Observed, observed_of, only_job
from egs_core.kubernetes.cluster import NODES, PODS
from egs_kubeflow.audit.read import read_history
from tests.cluster.real import FILE, Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark
from tests.cluster.test_real_learning import ends

__all__ = ["pytestmark"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with applied(tmp_path) as found:
        yield found


def seen(path: Path, job: str) -> Observed:
    return only_job(observed_of(read_history(AuditRequest(events=path))), job)


def test_a_run_that_a_controller_has_ordered(site: Site, tmp_path: Path) -> None:
    """The pods that it let go are a run, and what it holds back has its words; an export tells the same."""
    for name, rank in (("first", "900"), ("second", "60")):
        site.add(name, run="night-1", labels={"egs.io/task": name, "egs.io/rank": rank}, gpus=1)
    with controlled(site):
        until(lambda: site.pods()["first"].node and site.pods()["second"].waits)
    (job,) = {pod.run for pod in site.pods().values()}
    asked = seen(Path(FILE), job)
    (wait,) = [one for one in audit(asked, simulated=False).waits if not one.started]
    assert wait.task == "second"
    assert wait.reason.endswith(site.pods()["second"].waits)
    ends(site, "first", 30.0)
    kinds = {"Pod": site.admin.list(PODS)[0], "Node": site.admin.list(NODES)[0]}
    items = [{**raw, "kind": kind} for kind, found in kinds.items() for raw in found]
    (tmp_path / "export.json").write_text(json.dumps({"kind": "List", "items": items}))
    assert audit(seen(tmp_path / "export.json", job), simulated=False).by_task[0].runs == 1
