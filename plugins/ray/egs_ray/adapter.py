"""What `egs` asks of Ray: what EGS can do there, whether this installation can do it, and to run something for real.

Importing this module imports no Ray: `egs --help` and `egs doctor` load it on machines where Ray is broken or missing.
"""

from __future__ import annotations

import os
import shutil
import site
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egs_core.adapter import (
    AuditSource,
    Check,
    CollectRequest,
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
from egs_core.compat import installed_version
from egs_core.errors import InputError
from egs_core.mode import VARIABLE, parse_mode
from egs_core.runlog.past import Past
from egs_core.surfaces import Surface
from egs_ray.settings import chosen_gate, chosen_priority, chosen_retry, chosen_split, unread_queues
from egs_ray.surfaces import SURFACES

if TYPE_CHECKING:
    from types import ModuleType

    from egs_core.graph.load import LoadedWorkload
    from egs_ray.demo.measure import Measured

PTH = "egs_ray_hook.pth"


class RayAdapter:
    """See `egs_core.adapter.Adapter`."""

    name = "ray"
    is_default = True  # it runs without a server, so `egs demo` and the like use it where several are installed
    audit_source = AuditSource("Dashboard of a running Ray cluster: http://HOST:8265.", events="alone")

    def surfaces(self) -> tuple[Surface, ...]:
        """What EGS can do on Ray, for each way of using it."""
        return SURFACES

    def doctor(self) -> list[Check]:
        """Ray's version, the private API that EGS uses, and where the hook would come from."""
        found = installed_version("ray")
        if not found:
            return [Check("ray", False, "not installed: pip install egs-ray")]
        try:
            compat = import_module("egs_ray.compat")
        except ImportError as error:
            return [Check("ray", False, f"{found} cannot be imported: {error}")]
        known = version_check("ray", found, compat.KNOWN_VERSIONS, compat.FEATURES, "the hook only observes")
        return [known, *private_api_checks(compat.FEATURES), _mode_check(), _hook_check(compat)]

    def convert(self, source: Any, select: str = "") -> LoadedWorkload:
        """A static graph (`.bind(...)`), given its last node, as a workload; `select` names it."""
        if isinstance(source, Path):
            raise InputError(
                str(source), "Ray has no files of pipelines", "give a graph: egs_ray.convert.convert(node)"
            )
        from egs_core.graph.load import LoadedWorkload
        from egs_ray.convert import convert

        converted = convert(source, select or "dag")
        return LoadedWorkload(converted.name, converted.name, "", "", 0.0, converted.graph)

    def replay(self, request: ReplayRequest) -> RunOutcome:
        """Run the request's workloads on a local Ray; raises InputError for what cannot run there."""
        from egs_ray.replay.run import replay

        return replay(request)

    def demo(self, request: DemoRequest) -> DemoOutcome:
        """Run the demo's pipelines once per variant, each on a Ray of its own, and leave a run log of each."""
        from egs_core.digits import require_packages
        from egs_ray.demo.graph import ideal_bound_s
        from egs_ray.demo.measure import measure_variant
        from egs_ray.demo.pipelines import EMULATED_GPUS
        from egs_ray.demo.variants import find_variant

        require_packages()
        for name in request.variants:
            find_variant(name)
        runs = {name: _leave(measure_variant(name, request.progress), request.out_dir) for name in request.variants}
        return DemoOutcome(ideal_bound_s(), EMULATED_GPUS, runs)

    def commands(self) -> Any:
        """The commands behind `egs ray`."""
        from egs_ray.cli import app

        return app

    def control(self, request: ControlRequest) -> ControlOutcome:
        """Abort, pause, resume or preempt something that another process runs with EGS; see `control.commands`."""
        return _control().carry_out(request)  # type: ignore[no-any-return]  # the module is found by name

    def running(self, address: str) -> list[RunningWorkload]:
        """What runs with EGS on the cluster."""
        return _control().ps(address)  # type: ignore[no-any-return]  # the module is found by name

    def at_hand(self) -> str:
        """The cluster that RAY_ADDRESS names, or this user's own on this host; asked for two seconds at most."""
        from egs_ray.control.at_hand import at_hand

        return at_hand("control of Ray")

    def read_history(self, request: AuditRequest) -> Past:
        """What a running cluster's dashboard knows, or the events that a cluster left; nothing is changed there."""
        from egs_ray.audit.read import read_history

        return read_history(request)

    def collect(self, request: CollectRequest) -> None:
        """Receive the events that Ray pushes, until SIGTERM."""
        from egs_ray.audit.collect import collect

        collect(request)


def _control() -> ModuleType:
    """The module behind `control`. This process only asks: what is hooked into scripts is not for it."""
    os.environ.pop("RAY_RUNTIME_ENV_HOOK", None)
    try:
        return import_module("egs_ray.control.commands")
    except ImportError as error:
        raise InputError("ray", f"cannot be imported: {error}", "pip install egs-ray") from error


def _leave(measured: Measured, folder: Path) -> RunOutcome:
    """Write the run log, and beside it the session's own, with the names and the clock that it has."""
    from egs_core.runlog.figures import figures_of
    from egs_core.runlog.io import write_run
    from egs_ray.demo.variants import EGS_LOG

    path = folder / f"{measured.variant}.jsonl"
    write_run(path, measured.header, measured.records)
    own = Path(measured.folder) / EGS_LOG
    if own.exists():
        shutil.copyfile(own, folder / f"{measured.variant}-session.jsonl")
    return RunOutcome(figures_of(measured.records), path, measured.digest)


def _mode_check() -> Check:
    mode, problem = parse_mode(os.environ.get(VARIABLE, ""), "observe")
    gate, gate_problem = chosen_gate()
    if found := problem or gate_problem or chosen_priority()[1] or chosen_split()[1] or chosen_retry()[1]:
        return Check("mode", False, found)
    if mode != "on":
        return Check("mode", True, f"{mode}; EGS_MODE=on orders GPU tasks")
    if unread := unread_queues():
        return Check("mode", False, f"on, {unread}")
    whose = "those of all drivers of the cluster" if gate == "cluster" else "the script's own only"
    return Check("mode", True, f"on, {gate} gate: GPU tasks are ordered with {whose}")


def _hook_check(compat: ModuleType) -> Check:
    value = os.environ.get("RAY_RUNTIME_ENV_HOOK", "")
    if value == "egs_ray.hook" and compat.available("uv") and _runs_under_uv() and not _rays_uv_hook_is_off():
        instead = "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_RUNTIME_ENV_HOOK=egs_ray.uv_hook runs both"
        return Check("hook", False, f"under `uv run` Ray calls its own hook in place of egs_ray.hook: {instead}")
    if os.environ.get("EGS_HOOK", "") not in ("", "ray"):
        return Check("hook", False, f"EGS_HOOK={os.environ['EGS_HOOK']} does nothing: it must be `ray`")
    if value == "":
        return _pth_check()
    if value in ("egs_ray.hook", "egs_ray.uv_hook"):
        elsewhere = "" if os.environ.get("EGS_HOOK") else f"; {ELSEWHERE}"
        return Check("hook", True, f"{value} is set{elsewhere}")
    return Check("hook", True, f"RAY_RUNTIME_ENV_HOOK={value} is another tool's; EGS is reached by egs_ray.run only")


ELSEWHERE = "ray.init fails in environments without egs-ray that the variable reaches: EGS_HOOK=ray does not"


def _pth_check() -> Check:
    """Whether EGS_HOOK works in this environment: an editable install has no .pth file of ours."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if any((Path(folder) / PTH).exists() for folder in folders):
        return Check("hook", True, "not set; EGS_HOOK=ray observes unmodified scripts")
    return Check("hook", True, f"not set; RAY_RUNTIME_ENV_HOOK=egs_ray.hook observes scripts (no {PTH} here)")


def _runs_under_uv() -> bool:
    from egs_ray.launch import runs_under_uv  # where Ray cannot be imported, nobody asks

    return runs_under_uv()


def _rays_uv_hook_is_off() -> bool:
    return os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "").lower() in ("0", "false")


ADAPTER = RayAdapter()
