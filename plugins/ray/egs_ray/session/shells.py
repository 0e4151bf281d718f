"""A function with hints as Ray gets it: a shell that runs it phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from egs_core.graph.columns import GPU
from egs_ray import functions
from egs_ray.session.described import Described, Hinted
from egs_ray.session.gangs import NODE_LABEL
from egs_ray.session.room import Place
from egs_ray.session.submissions import own_env
from egs_ray.worker import device_memory
from egs_ray.worker.hooked import with_phases
from egs_ray.worker.moving import retried
from egs_ray.worker.shell import preload_items
from egs_ray.worker.spec import Address

TAKEN = ("num_cpus", "num_gpus", "memory", "max_calls")  # by leases


class HintedShells(Hinted):
    """The functions with hints of a driver. line: where their code tells what it submits."""

    def __init__(self, line: Callable[[], Address | None]) -> None:
        super().__init__()
        self._line = line
        self._shells: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
        self._seen: set[str] = set()  # warm keys of tasks submitted so far

    def shell_of(
        self, target: Any, described: Described, options: dict[str, Any], place: Place
    ) -> tuple[Any, dict[str, Any]]:
        """The function as Ray gets it, and the options to submit it with: its phases hold what it needs."""
        once = described.payload.gpus > 0 and (
            device_memory.has_devices() or not (described.options.warm_key or _keeps_processes(target))
        )
        returns = options.get("num_returns") or 1
        known = self._shells.setdefault(target, {})
        line = self._line()
        key = (described.payload.gpus, len(described.phases), once, returns, line)
        if key not in known:
            on_gpu = tuple(kind == GPU for kind, _, _ in described.phases)
            function = described.payload.function
            shell = with_phases(function, described.payload.gpus, on_gpu, returns, preload_items(function), line)
            known[key] = functions.remade(target, shell, max_calls=int(once), without=TAKEN)
        chosen = {name: value for name, value in options.items() if name not in TAKEN}
        if (warm := described.options.warm_key) in self._seen:
            chosen["runtime_env"] = own_env(options.get("runtime_env"))
        elif warm:
            self._seen.add(warm)
        if described.moves:
            chosen["retry_exceptions"] = retried(options.get("retry_exceptions"))
        return known[key], {**chosen, **_placed(place, options), "num_cpus": 0, "num_gpus": 0}


def _placed(place: Place, options: dict[str, Any]) -> dict[str, Any]:
    """Options with which Ray starts it there: it asks Ray for nothing, by which Ray would put all on one node. Beside
    these, which may say where the task would rather run."""
    found: dict[str, Any] = {}
    if place.is_spread and not options.get("label_selector") and not options.get("scheduling_strategy"):
        found["scheduling_strategy"] = "SPREAD"
    if not place.unfit:
        return found
    off = {NODE_LABEL: f"!in({','.join(place.unfit)})"}
    found["label_selector"] = {**(options.get("label_selector") or {}), **off}
    if rather := options.get("fallback_strategy"):
        found["fallback_strategy"] = [{"label_selector": {**one["label_selector"], **off}} for one in rather]
    return found


def _keeps_processes(target: Any) -> bool:
    """Whether the script wants the process of a GPU task to serve another: Ray ends it by default."""
    return functions.declared_options(target).get("max_calls") == 0
