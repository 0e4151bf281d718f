"""How the command line reaches a framework without importing it: one small contract, found by entry point.

An adapter's distribution registers an object of this shape in the entry-point group `egs.adapters`:

    [project.entry-points."egs.adapters"]
    NAME = "egs_NAME.adapter:ADAPTER"

Importing that module must be cheap and must not start the framework: `egs doctor` asks every adapter what it can do.
"""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from egs_core.audit.observed import AuditRequest
from egs_core.checks import Check as Check
from egs_core.checks import private_api_checks as private_api_checks
from egs_core.checks import version_check as version_check
from egs_core.errors import InputError, listed
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.hints import TaskHints
from egs_core.notices import MAX_COST_UNUSED, warn_once
from egs_core.runlog.past import Past
from egs_core.surfaces import CAPABILITIES as CAPABILITIES
from egs_core.surfaces import Surface as Surface
from egs_core.surfaces import combined as combined

if TYPE_CHECKING:  # brings pydantic, which every process that runs pipelines would import
    from egs_core.graph.load import LoadedWorkload

T = TypeVar("T")
GROUP = "egs.adapters"

POLICIES = ("egs", "native")
"""What a replay may run under: EGS on, or the framework alone."""


SHOWN = 8  # workloads that an error names
UNMEASURED = "idle_timeout_s"  # a limit that nothing can apply yet
HINTED = tuple([name for name in TaskOptions.__struct_fields__ if hasattr(TaskHints, name) and name != UNMEASURED])
"""Hints that the engine is told of, under the same name. An adapter that does not apply one passes `NAME=None` to
`options_of_hints`, and says so in its surfaces."""


def options_of_hints(hints: TaskHints, *, has_prices: bool = False, **stated: Any) -> TaskOptions:
    """What the engine is told of a task with these hints. stated: what its framework says, or cannot do, instead.

    has_prices: whether the hardware has prices there. Without them a cost is never reached, and `max_cost` is left out
    with one warning.
    """
    if not has_prices:
        stated["max_cost"] = None
        if hints.max_cost is not None:
            warn_once(MAX_COST_UNUSED)
    return TaskOptions(**{**{name: getattr(hints, name) for name in HINTED}, **stated})


CONTROLS = ("abort", "pause", "resume", "preempt")
"""What an operator may ask for."""


class ControlRequest(msgspec.Struct, frozen=True):
    """What is to be done to a workload, a stage of it or one task of it that runs somewhere else.

    verb: one of CONTROLS. address: of the cluster, "" for the one that the framework itself would find; driver: which
    of several processes that have such a workload. actor, reason: for the run log. grace_s: for checkpoints (abort).
    """

    verb: str
    workload: str
    stage: str = ""
    task: str = ""
    address: str = ""
    driver: str = ""
    actor: str = ""
    reason: str = ""
    grace_s: float = 0.0


def who() -> str:
    """Who asks, where nobody says."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def unknown_workload(request: ControlRequest, there: Sequence[str]) -> InputError:
    """The error for a workload that does not run, where these do."""
    problem = "no such workload runs" + (f" in driver {request.driver}" if request.driver else "")
    return InputError(request.workload, problem, f"there are: {listed(there, SHOWN)}")


class ControlOutcome(msgspec.Struct, frozen=True):
    """What was done: the tasks that it was about. hangs: their driver did not answer; it is told when it goes on."""

    workload: str
    driver: str
    tasks: tuple[str, ...] = ()
    hangs: bool = False


class RunningWorkload(msgspec.Struct, frozen=True):
    """One workload as `egs ps` shows it; since: Unix time. tasks, open: how many it has, and that have not ended."""

    workload: str
    driver: str
    pid: int = 0
    host: str = ""
    state: str = ""
    tasks: int = 0
    open: int = 0
    stages: tuple[str, ...] = ()
    running: tuple[RunningTask, ...] = ()


class RunningTask(msgspec.Struct, frozen=True):
    """One task that runs, or is about to; since: Unix time at which it got into its state. waiting_for: names of tasks
    that it waits for."""

    task: str
    name: str = ""
    stage: str = ""
    state: str = ""
    since: float = 0.0
    gpus: float = 0.0
    node: str = ""
    pid: int = 0
    waiting_for: tuple[str, ...] = ()


Progress = Callable[[int, int], None]
"""Told now and then, from any thread, how many tasks have ended, and of how many."""


class ReplayWorkload(msgspec.Struct, frozen=True):
    """A workload that was read from a file, and when it is submitted after the replay's start (trace seconds)."""

    name: str
    graph: Graph
    submit_s: float = 0.0


class ReplayRequest(msgspec.Struct, frozen=True):
    """Run workloads on the real framework, each phase holding its resources for its duration x `time_scale`."""

    workloads: tuple[ReplayWorkload, ...]
    policy: str
    cpus: int
    gpus: int
    time_scale: float
    runlog_path: Path
    progress: Progress | None = None


class DemoRequest(msgspec.Struct, frozen=True):
    """Run the demo's pipelines once per variant (`native`, `egs`, …) and leave one run log each in `out_dir`."""

    variants: tuple[str, ...]
    out_dir: Path
    progress: Progress | None = None


class RunOutcome(msgspec.Struct, frozen=True):
    """One finished run: its metrics (numbers by name, as `--json` prints them) and the run log they come from.

    digest: equal for runs whose pipelines gave equal results; empty where there are none to compare.
    """

    metrics: dict[str, Any]
    runlog_path: Path
    digest: str = ""


class DemoOutcome(msgspec.Struct, frozen=True):
    """The demo's runs by variant, beside the bound that no schedule can beat. title: what ran, over the table."""

    ideal_bound_s: float
    emulated_gpus: bool
    runs: dict[str, RunOutcome]
    title: str = "six pipelines, the same code and results"


@runtime_checkable
class Adapter(Protocol):
    """What every adapter has. What it may have besides are the protocols below; none of them needs another one."""

    name: str

    def surfaces(self) -> Sequence[Surface]:
        """The ways of using EGS with this framework and what each can do, the most used one first."""
        ...

    def doctor(self) -> list[Check]:
        """Whether the framework is installed, in a known version, and its hooks are in place."""
        ...

    def convert(self, source: Any, select: str = "") -> LoadedWorkload:
        """A pipeline as a workload. source: the framework's own object, or a Path of a file that has one; select:
        which, where a file has several. An attribute `suffixes` has the endings of files that are always this
        framework's, as (".yaml",), `json_fields` fields that only such JSON has at its top.
        InputError that names what a task graph cannot say; no edge is ever dropped."""
        ...


@runtime_checkable
class Replaying(Protocol):
    """What an adapter offers besides that can run workload files on its framework: `egs replay`."""

    def replay(self, request: ReplayRequest) -> RunOutcome:
        """Run the request's workloads on the real framework."""
        ...


@runtime_checkable
class Demonstrating(Protocol):
    """What an adapter offers besides that brings pipelines to show EGS with: `egs demo`. More variants than `native`
    and `egs`, where there are any, are all named in an attribute `demo_variants`, in the order in which they run."""

    def demo(self, request: DemoRequest) -> DemoOutcome:
        """Run the demo's pipelines on the real framework."""
        ...


@runtime_checkable
class Controlling(Protocol):
    """What an adapter offers whose running work can be reached from another process."""

    def control(self, request: ControlRequest) -> ControlOutcome:
        """Do it. Raises InputError that names what there is, for an unknown target or when there is no cluster."""
        ...

    def running(self, address: str) -> list[RunningWorkload]:
        """What runs. Raises InputError when there is no cluster."""
        ...


@runtime_checkable
class Sought(Protocol):
    """What an adapter offers besides whose framework is asked only where there is one of this user's."""

    def at_hand(self) -> str:
        """The address to ask where none was named, "" where nothing is there. Raises InputError where the user has
        named one that does not answer."""
        ...


class AuditSource(msgspec.Struct, frozen=True):
    """The option of `egs audit` under which an adapter's history is named, `--NAME`: an address, or a path.

    events: what `--events` is to this adapter: read `alone`, read `beside` the history, or nothing. also: other names
    of the option.
    """

    help: str
    is_path: bool = False
    events: Literal["", "alone", "beside"] = ""
    also: tuple[str, ...] = ()


@runtime_checkable
class HistoryReader(Protocol):
    """What an adapter with the capability `audit` offers: its framework's history, read and not changed. An attribute
    `audit_source` (AuditSource) says how the command line names it."""

    def read_history(self, request: AuditRequest) -> Past:
        """Runs, tasks and attempts in neutral words; InputError for a history that cannot be reached or read."""
        ...


@runtime_checkable
class Commanding(Protocol):
    """What an adapter offers besides that has commands of its own: `egs NAME …`. Its distribution also names
    them in the entry-point group `egs.commands`, so that `egs --help` lists them."""

    def commands(self) -> Any:
        """A typer app; the command line adds it under the adapter's name."""
        ...


class ProfileFault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a file that says what a site has. line: 0 where the file cannot be read; field: ""
    for all of the file; remedy: what to do."""

    file: str
    line: int
    field: str
    problem: str
    remedy: str


class ProfiledPool(msgspec.Struct, frozen=True):
    """Nodes that a profile puts pods onto: those with all labels of the selector. tolerations: that pods have there,
    as Kubernetes has them. gpus_per_node: 0 where it is not said; resource: what its GPUs are called, "": anything."""

    name: str
    selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...] = ()
    has_gpus: bool = False
    gpus_per_node: int = 0
    resource: str = ""


class ClusterProfile(msgspec.Struct, frozen=True):
    """What a profile says that is of use in the cluster itself. namespace: where pods run; controller_namespace: where
    what serves them runs; queues: of Kueue, which pods name in a label; cpu_limit_s, gpu_limit_s: the longest that a
    pod without, or with, a GPU runs that states no time; pull_s: how long an image takes to be pulled; placeholders: so
    many pods may stand for what needs a node, each of placeholder_image; node_s: how long a node takes to come; claims:
    flavors of GPUs and the DeviceClass of each, that are claimed in the place of limits; read_bytes: so much of files
    one preload may read; read_volumes: of these volume claims, `NAMESPACE/CLAIM`."""

    namespace: str
    controller_namespace: str
    pools: tuple[ProfiledPool, ...] = ()
    queues: tuple[str, ...] = ()
    cpu_limit_s: float | None = None
    gpu_limit_s: float | None = None
    pull_s: float | None = None
    placeholders: int = 0
    node_s: float | None = None
    placeholder_image: str = ""
    claims: tuple[tuple[str, str], ...] = ()
    read_bytes: int = 0
    read_volumes: tuple[str, ...] = ()


@runtime_checkable
class Profiling(Protocol):
    """What an adapter offers whose users say in a file, a profile, what their cluster has."""

    def profile_schema(self) -> dict[str, Any]:
        """The JSON schema of such a file."""
        ...

    def profile_faults(self, path: Path) -> list[ProfileFault]:
        """All that is wrong with a file, in its order; [] where it can be used. Raises nothing for any file."""
        ...

    def cluster_profile(self, path: Path) -> ClusterProfile:
        """What a file says. Raises InputError, with the line."""
        ...


class CollectRequest(msgspec.Struct, frozen=True):
    """Receive what a framework pushes. history: URL of the history, "" for the user's; told: hears one line at a time,
    the first when it listens."""

    host: str
    port: int
    folder: Path
    history: str
    told: Callable[[str], None]


@runtime_checkable
class Collector(Protocol):
    """What an adapter offers besides whose framework can push its history."""

    def collect(self, request: CollectRequest) -> None:
        """Receive until SIGTERM; InputError where it cannot listen or write."""
        ...


def installed_adapters() -> dict[str, Adapter]:
    """The installed adapters that can be loaded, by name."""
    found = {}
    for name in adapter_names():
        with contextlib.suppress(InputError):
            found[name] = load_adapter(name)
    return found


def default_adapter() -> str:
    """The adapter that a command uses where none is named: the only one, else the first that states `is_default`."""
    names = adapter_names()
    if len(names) < 2:
        return names[0] if names else ""
    return next((name for name, one in installed_adapters().items() if getattr(one, "is_default", False)), names[0])


def audit_sources() -> dict[str, AuditSource]:
    """How the history of each installed adapter that can audit is named on the command line."""
    return {
        name: getattr(one, "audit_source", AuditSource(f"Address of the history of {name}."))
        for name, one in installed_adapters().items()
        if isinstance(one, HistoryReader)
    }


def source_of_suffix(suffix: str) -> str:
    """The installed adapter whose framework keeps pipelines in files of that ending; "" where none does."""
    adapters = installed_adapters().items() if suffix else ()
    return next((name for name, one in adapters if suffix in getattr(one, "suffixes", ())), "")


def source_of_fields(fields: Collection[str]) -> str:
    """The installed adapter whose framework keeps pipelines in JSON with one of these fields at its top; else ""."""
    adapters = installed_adapters().items() if fields else ()
    return next((name for name, one in adapters if not set(fields).isdisjoint(getattr(one, "json_fields", ()))), "")


def load_able(name: str, protocol: type[T], what: str) -> T:
    """The installed adapter of that name, which must have what a protocol asks for. what: it, after "cannot"; for the
    InputError, which names those that can."""
    adapter = load_adapter(name)
    if not isinstance(adapter, protocol):
        able = ", ".join(one for one, other in installed_adapters().items() if isinstance(other, protocol))
        raise InputError(f"adapter '{name}'", f"cannot {what}", f"these can: {able or 'none that is installed'}")
    return adapter


def adapter_names() -> list[str]:
    """Names of the installed adapters, sorted; none is imported."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def adapter_distributions() -> list[str]:
    """Names of the distributions that the installed adapters come from, sorted."""
    return sorted({entry.dist.name for entry in entry_points(group=GROUP) if entry.dist is not None})


def _how_to_install(name: str) -> str:
    return f"pip install 'egs-core[{name}]'"


def load_adapter(name: str) -> Adapter:
    """The installed adapter of that name; an `InputError` that says how to install it when there is none."""
    found = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if found is None:
        installed = ", ".join(adapter_names()) or "none"
        raise InputError(f"adapter '{name}'", f"not installed; installed: {installed}", _how_to_install(name))
    try:
        adapter = found.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"adapter '{name}'", f"cannot be imported: {error}", _how_to_install(name)) from error
    if not isinstance(adapter, Adapter):
        problem = f"{found.value} is not an egs_core.adapter.Adapter: name, surfaces, doctor, convert"
        raise InputError(f"adapter '{name}'", problem, "update the adapter")
    return adapter
