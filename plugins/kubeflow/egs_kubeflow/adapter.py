"""What `egs` asks of Kubeflow Pipelines: what EGS can do there, and whether this installation can do it.

Importing this module imports no kfp: `egs --help` and `egs doctor` load it where kfp is broken or missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from egs_core.adapter import AuditSource, Check, DemoOutcome, DemoRequest, ReplayRequest, RunOutcome
from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog.past import Past
from egs_kubeflow import compat

CAPABILITIES = {
    "observe": "no: runs in a cluster are read from exports only (audit), and what runs here does so in mode on",
    "order": "yes on this machine; in a cluster no: pods are labelled, a controller must order them",
    "split": "yes where `@egs_kubeflow.component` compiles phases, here and in a cluster; what is compiled stays whole",
    "preload": "no: not between local tasks; in a cluster its plan and pods are files, a controller must act on them",
    "gang": "yes on this machine, in one DAG or loop; in a cluster no, but by Kueue's pod groups, which are written",
    "preempt": "no: not between local tasks; in a cluster nothing recreates a pod that was deleted",
    "limits": "yes on this machine, of a task's time; in a cluster by Kubernetes: time limits are written",
    "abort": "yes on this machine, a run or a task of it; in a cluster no: kfp ends whole runs only",
    "audit": "yes, of a cluster, from what kubectl exports",
}

HELD_BACK = {
    "kubernetes": "pipelines with a platform document cannot be read, and none can be rewritten",
    "local": "pipelines cannot be run on this machine",
}
"""What a user misses where an API of kfp is not what EGS knows."""


class KubeflowAdapter:
    """See `egs_core.adapter.Adapter`."""

    name = "kubeflow"
    suffixes = (".yaml", ".yml")
    audit_source = AuditSource("File or folder of `kubectl get workflows,pods,nodes -A -o json`.", is_path=True)
    demo_variants = ("native", "fifo", "tuned", "egs")

    def capabilities(self) -> dict[str, str]:
        """What EGS can do on Kubeflow Pipelines, by the names of `egs_core.adapter.CAPABILITIES`."""
        return dict(CAPABILITIES)

    def doctor(self) -> list[Check]:
        """kfp's version and the API that EGS uses."""
        found = compat.kfp_version()
        if not found:
            return [Check("kfp", False, "not installed: pip install egs-kubeflow")]
        known = ", ".join(compat.KNOWN_VERSIONS)
        ok = compat.supported(found)
        version = Check("kfp", ok, found if ok else f"{found} is not a version EGS was tried with ({known})")
        missing = [feature for feature in compat.features() if not compat.available(feature)]
        if not missing:
            return [version, Check("private API", True, f"all {len(compat.features())} uses found")]
        return [version, *(Check(f"private API: {name}", False, HELD_BACK.get(name, "")) for name in missing)]

    def load(self, path: Path, select: str = "") -> LoadedWorkload:
        """A compiled pipeline as a workload; InputError for a file that is none."""
        from egs_kubeflow.convert.pipeline import load_workload

        if select:
            raise InputError("--select", "a compiled pipeline's file holds one pipeline", "leave it out")
        return load_workload(path)

    def read_history(self, request: AuditRequest) -> Past:
        """What a cluster has done, from exported workflows, pods and nodes."""
        from egs_kubeflow.audit.read import read_history

        return read_history(request)

    def commands(self) -> Any:
        """The commands behind `egs kubeflow`."""
        from egs_kubeflow.cli import app

        return app

    def replay(self, request: ReplayRequest) -> RunOutcome:
        """Run workload files as a kfp pipeline on the local runner."""
        from egs_kubeflow.replay.run import replay

        return replay(request)

    def demo(self, request: DemoRequest) -> DemoOutcome:
        """Run the demo's pipeline on kfp's own local runner and on EGS's."""
        from egs_kubeflow.demo.run import demo

        return demo(request)


ADAPTER = KubeflowAdapter()
