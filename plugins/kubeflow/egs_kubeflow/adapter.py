"""What `egs` asks of Kubeflow Pipelines: what EGS can do there, and whether this installation can do it.

Importing this module imports no kfp: `egs --help` and `egs doctor` load it where kfp is broken or missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from egs_core.adapter import (
    AuditSource,
    Check,
    ClusterProfile,
    ControlOutcome,
    ControlRequest,
    DemoOutcome,
    DemoRequest,
    ProfileFault,
    ReplayRequest,
    RunningWorkload,
    RunOutcome,
    private_api_checks,
    version_check,
)
from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog.past import Past
from egs_core.surfaces import Surface, hint_answers
from egs_kubeflow import compat

_NEVER = {
    "idle_timeout": "nothing measures whether a task is idle",
    "max_cost": "there are no prices",
    **dict.fromkeys(("grace", "checkpoint"), "a task that was stopped starts from its beginning"),
}
SURFACES = (
    Surface(
        "run",
        "egs_kubeflow.run(pipeline), on this machine",
        {
            "observe": "no: what runs here does so in mode on",
            "order": "yes",
            "split": "yes: where `@egs_kubeflow.component` compiles phases; what is compiled stays whole",
            "preload": "yes: modules and files, of components without variables or a container of their own",
            "gang": "yes: in one DAG or loop",
            "preempt": "no: not between local tasks",
            "limits": "yes: of a task's time and GPU time",
            "abort": "yes: a run, a stage or a task, also from another process of the same user",
            "audit": "no: it is of what kubectl exports; a local run has a run log",
        },
        hint_answers(
            {
                **dict.fromkeys(("gpus", "cpus"), "as slots; kfp's own limits count first"),
                "gpu_cpus": "as slots",
                **dict.fromkeys(("priority", "max_wait", "deadline", "expect", "max_runtime", "max_gpu_time"), ""),
                "stage": "for `egs pause --stage` and the like",
            },
            {
                **_NEVER,
                "memory": "memory is not counted on this machine",
                "gpu_memory": "memory of GPUs is not counted on this machine",
                **dict.fromkeys(("flavors", "gang_same"), "there is one machine, of one kind"),
                "name": "a task has the name that kfp gives it",
            },
        ),
    ),
    Surface(
        "cluster",
        "egs kubeflow compile, and egs audit --kubeflow of a cluster or of what kubectl exports",
        {
            "observe": "no: runs are read afterwards only (audit)",
            "order": "no: pods are labelled, and `egs kubernetes controller` orders them by what is left of their runs",
            "split": "yes: where `@egs_kubeflow.component` compiles phases; what is compiled stays whole",
            "preload": "no: its plan is files; but `egs kubernetes controller --preload` loads images ahead, "
            "with `--preload-files` files and modules too",
            "gang": "no: but by Kueue's pod groups, which are written, or by `egs kubernetes controller`",
            "preempt": "no: but `egs kubernetes controller --preempt` deletes a pod where a retry makes it again",
            "limits": "yes: by Kubernetes: time limits are written",
            "abort": "no: but `egs kubernetes abort` ends a run's Workflow or a pod",
            "audit": "yes: of what the cluster, or an export of it by kubectl, still has",
        },
        hint_answers(
            {
                **dict.fromkeys(("gpus", "cpus", "memory"), "as the pod's limits"),
                "gpu_cpus": "as the limit of the GPU step",
                **dict.fromkeys(("gpu_memory", "flavors"), "the profile's pool that has it is chosen"),
                "max_runtime": "as a time limit of the pod",
                "priority": "as Kueue's priority class, where the profile names some",
            },
            {
                **_NEVER,
                "max_gpu_time": "but `egs kubernetes controller` makes a deadline of the pod of it",
                "stage": "but `egs kubernetes pause` and `abort` take `--stage`",
                "expect": "but it is in `egs.io/predicted-s`, by which `egs kubernetes controller` orders",
                **dict.fromkeys(("deadline", "max_wait"), "`egs kubernetes controller` does not keep it"),
            },
            "nothing in a cluster acts on it",
        ),
    ),
)
"""What EGS can do on Kubeflow Pipelines, for each way of using it."""


class KubeflowAdapter:
    """See `egs_core.adapter.Adapter`."""

    name = "kubeflow"
    suffixes = (".yaml", ".yml")
    json_fields = ("pipelineInfo", "pipelineSpec")
    audit_source = AuditSource(
        "A kubeconfig, whose cluster is asked, or a file or folder of `kubectl get workflows,pods,nodes -A -o json`.",
        is_path=True,
        also=("kubernetes",),
    )
    demo_variants = ("native", "fifo", "tuned", "egs")

    def surfaces(self) -> tuple[Surface, ...]:
        """What EGS can do on Kubeflow Pipelines, for each way of using it."""
        return SURFACES

    def doctor(self) -> list[Check]:
        """kfp's version and the API that EGS uses."""
        found = compat.kfp_version()
        if not found:
            return [Check("kfp", False, "not installed: pip install egs-kubeflow")]
        known = version_check("kfp", found, compat.KNOWN_VERSIONS, compat.FEATURES, "nothing is rewritten or run")
        return [known, *private_api_checks(compat.FEATURES)]

    def convert(self, source: Any, select: str = "") -> LoadedWorkload:
        """A pipeline, or that of a compiled pipeline's file, as a workload; InputError for what is none."""
        from egs_kubeflow.convert.pipeline import load_workload, workload_of

        if select:
            raise InputError("--select", "a compiled pipeline's file holds one pipeline", "leave it out")
        return load_workload(source) if isinstance(source, Path) else workload_of(source)

    def read_history(self, request: AuditRequest) -> Past:
        """What a cluster has done, from its workflows, pods and nodes, asked or exported."""
        from egs_kubeflow.audit.read import read_history

        return read_history(request)

    def commands(self) -> Any:
        """The commands behind `egs kubeflow`."""
        from egs_kubeflow.cli import app

        return app

    def profile_schema(self) -> dict[str, Any]:
        """Of a site's profile."""
        from egs_kubeflow.rewrite.lint import profile_schema

        return profile_schema()

    def profile_faults(self, path: Path) -> list[ProfileFault]:
        """All that is wrong with a site's profile."""
        from egs_kubeflow.rewrite.lint import faults_of

        return faults_of(path)

    def cluster_profile(self, path: Path) -> ClusterProfile:
        """What a site's profile says of its cluster."""
        from egs_kubeflow.rewrite.profile import cluster_profile, load_profile

        return cluster_profile(load_profile(path))

    def control(self, request: ControlRequest) -> ControlOutcome:
        """Abort, pause, resume or preempt what a local run of this user has."""
        from egs_kubeflow.run.reach import control

        return control(request)

    def running(self, address: str) -> list[RunningWorkload]:
        """The local runs of this user."""
        from egs_kubeflow.run.reach import running

        return running(address)

    def replay(self, request: ReplayRequest) -> RunOutcome:
        """Run workload files as a kfp pipeline on the local runner."""
        from egs_kubeflow.replay.run import replay

        return replay(request)

    def demo(self, request: DemoRequest) -> DemoOutcome:
        """Run the demo's pipeline on kfp's own local runner and on EGS's."""
        from egs_kubeflow.demo.run import demo

        return demo(request)


ADAPTER = KubeflowAdapter()
