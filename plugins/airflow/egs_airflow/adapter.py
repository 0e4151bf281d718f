"""What `egs` asks of Airflow: what EGS can do there, and whether this installation can do it.

Importing this module imports no Airflow: `egs --help` and `egs doctor` load it where Airflow is broken or missing.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from egs_airflow import compat, config
from egs_airflow.kept_hints import hints_at
from egs_core.adapter import (
    AuditSource,
    Check,
    ControlOutcome,
    ControlRequest,
    DemoOutcome,
    DemoRequest,
    ReplayRequest,
    RunningWorkload,
    RunOutcome,
    private_api_checks,
    version_check,
)
from egs_core.audit.observed import AuditRequest
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog.past import Past
from egs_core.surfaces import Surface, hint_answers

_BY_MODE = {
    "observe": "yes",
    "order": "yes: by weights that task instances are made with",
    "split": "yes",
    "preload": "no: needs EgsLocalExecutor (modules) or the agent (files)",
    "gang": "no: needs an executor of EGS",
    "preempt": "no: running tasks are left alone",
    "limits": "no: needs the agent",
    "abort": "yes: on the host where it is asked at once, on others as Airflow's heartbeat does",
    "audit": "yes",
}
_WITH_EXECUTOR = {
    **_BY_MODE,
    "gang": "yes",
    "order": "yes: by weights; freed slots are kept for successors",
    "preload": "yes: modules, with EgsLocalExecutor",
}
_WITH_AGENT = {**_WITH_EXECUTOR, "limits": "yes", "abort": "yes", "order": "yes", "preload": "yes: modules and files"}
_WITH_CELERY = {
    **_BY_MODE,
    "order": "yes: by weights; freed slots are kept for successors",
    **dict.fromkeys(("split", "preload", "gang", "limits", "audit"), "no: never tried with Celery"),
}
_WITH_EDGE = {
    **_WITH_CELERY,
    **dict.fromkeys(("split", "preload", "gang", "limits", "audit"), "no: never tried with edge workers"),
}
_TRIED_HERE = ("gpus", "priority", "expect")
_TRIED_THERE = ("priority", "expect")
_UNTRIED = "no: never tried through a server"
_AT_SITE = {
    **dict.fromkeys(_BY_MODE, _UNTRIED),
    "order": "yes: tasks of one Airflow, in the server's order, with EgsLocalExecutor",
    "preempt": "no: running tasks are left alone",
    "abort": "yes: all DAG runs of an Airflow that EGS orders (`egs abort`)",
}
_IN_PODS = {
    **dict.fromkeys(_BY_MODE, "no: never tried, no cluster was there"),
    "order": "yes: pods get the class of their priority; weights as in `mode`",
    "preload": "no: no agent runs in pods",
    "gang": "no: needs an executor of EGS",
    "preempt": "no: running tasks are left alone",
    "limits": "yes: of time, as a deadline of the pod",
}
_TRIED_AS_PODS = ("priority", "max_runtime")
SURFACES = (
    Surface("mode", "[egs] mode = on, or EGS_MODE=on, in every component", _BY_MODE, hints_at(2, has_agent=False)),
    Surface("executor", "the same with EgsLocalExecutor", _WITH_EXECUTOR, hints_at(0, has_agent=False)),
    Surface("agent", "the same with `airflow egs agent` on each host", _WITH_AGENT, hints_at(0)),
    Surface(
        "site",
        "as agent, with [egs] url of a site server (`egs serve`)",
        _AT_SITE,
        hint_answers({"priority": ""}, {}, "never tried through a server"),
    ),
    Surface("celery", "mode on with EgsCeleryExecutor", _WITH_CELERY, hints_at(1, has_agent=False, tried=_TRIED_HERE)),
    Surface("edge", "mode on with EgsEdgeExecutor", _WITH_EDGE, hints_at(1, has_agent=False, tried=_TRIED_THERE)),
    Surface("kubernetes", "mode on with Airflow's own KubernetesExecutor", _IN_PODS, hints_at(3, tried=_TRIED_AS_PODS)),
)
"""What EGS can do on Airflow: the first three each with all that the one before has, then by executor. What was `never
tried` is made for that executor, too, and was not run with it."""

ENTRY_POINTS = {
    "airflow.plugins": "egs",
    "airflow.policy": "egs",
    "apache_airflow_provider": "provider_info",
}
"""The groups in which Airflow looks for us, and our name there."""


class AirflowAdapter:
    """See `egs_core.adapter.Adapter`."""

    name = "airflow"
    audit_source = AuditSource("Address of an Airflow: http://HOST:8080.", events="beside")
    demo_variants = ("native", "tuned", "egs", "egs-no-hints")

    def surfaces(self) -> tuple[Surface, ...]:
        """What EGS can do on Airflow, for each way of using it."""
        return SURFACES

    def doctor(self) -> list[Check]:
        """Airflow's version, how Airflow finds EGS, the mode; options that cannot work; each feature, whether it is
        active and why; the API that EGS uses, and the parts that Airflow loads."""
        found = compat.airflow_version()
        if not found:
            return [Check("airflow", False, "not installed: pip install airflow-provider-egs")]
        known = version_check("airflow", found, compat.KNOWN_VERSIONS, compat.FEATURES)
        if not compat.has_home():
            where = "no Airflow is set up here (AIRFLOW_HOME): run `airflow egs doctor` where it is"
            return [known, _entry_check(), Check("home", True, where)]
        from egs_airflow.features import feature_checks
        from egs_airflow.option_checks import option_checks

        basics = known, _entry_check(), mode_check()
        return [*basics, *option_checks(), *feature_checks(), *private_api_checks(compat.FEATURES), *_part_checks()]

    def convert(self, source: Any, select: str = "") -> LoadedWorkload:
        """A DAG, or that of a DAG file or a stored (serialized) DAG, as a workload; InputError for what cannot be one.

        select: the id of the DAG, where a file has several.
        """
        from egs_airflow.convert.source import load, workload_of

        return load(source, select) if isinstance(source, Path) else workload_of(source)

    def read_history(self, request: AuditRequest) -> Past:
        """What a running Airflow knows of its past, by its REST API; nothing is changed there."""
        from egs_airflow.audit import read_history

        return read_history(request)

    def control(self, request: ControlRequest) -> ControlOutcome:
        """Abort a DAG run, a task group of it or a task. InputError for what is unknown, or another verb."""
        from egs_airflow.agent.control import control

        return control(request)

    def running(self, address: str) -> list[RunningWorkload]:
        """The DAG runs that are under way."""
        from egs_airflow.agent.control import running

        return running(address)

    def replay(self, request: ReplayRequest) -> RunOutcome:
        """Run workload files on a real local Airflow."""
        from egs_airflow.replay.run import replay

        return replay(request)

    def demo(self, request: DemoRequest) -> DemoOutcome:
        """Run the demo's pipelines on a real local Airflow, once per variant."""
        from egs_airflow.demo.run import demo

        return demo(request)


def mode_check() -> Check:
    """The mode, where it was set, and what it is for."""
    settings = config.read_settings()
    if settings.problem:
        return Check("mode", False, settings.problem)
    if settings.mode != "on":
        return Check("mode", True, f"{settings.mode} ({settings.source}): nothing is changed")
    chosen = [*(f"id {pattern}" for pattern in settings.dags), *(f"tag {tag}" for tag in sorted(settings.tags))]
    return Check("mode", True, f"on ({settings.source}) for DAGs with {' or '.join(chosen) if chosen else 'any id'}")


def _entry_check() -> Check:
    """Airflow finds EGS by installed metadata only: a folder on PYTHONPATH is not enough."""
    missing = [
        group
        for group, name in ENTRY_POINTS.items()
        if not any(entry.name == name and entry.value.startswith("egs_airflow") for entry in entry_points(group=group))
    ]
    if missing:
        return Check("entry points", False, f"Airflow does not find EGS ({', '.join(missing)}): pip install it again")
    return Check("entry points", True, "Airflow finds EGS")


def _part_checks() -> list[Check]:
    """Whether each part that Airflow calls can be loaded; in mode off none is."""
    from egs_airflow.plugin import PARTS, import_part

    checks = []
    for attribute, source in PARTS.items():
        try:
            found = ", ".join(describe(thing) for thing in import_part(source))
            checks.append(Check(attribute, True, found or "none"))
        except Exception as error:  # said, not raised: the other lines matter too
            checks.append(Check(attribute, False, f"off: {type(error).__name__}: {error}"))
    return checks


def describe(thing: object) -> str:
    """A part as a line shows it: its own name, or that of its class."""
    if isinstance(thing, dict):
        return str(thing.get("name", "unnamed"))
    return str(getattr(thing, "__name__", type(thing).__name__))


ADAPTER = AirflowAdapter()
