"""A function with hints as a script's `.remote()` gives it to Ray: it waits for its ticket there, whose value says how
it is to run, phase by phase. Without one, and without this package, it takes its GPUs from Ray by itself.

Made inside a function, so that Ray pickles it by value: a worker's environment may lack this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from egs_ray.worker.spec import Address


def with_phases(
    function: Callable[..., Any],
    gpus: float,
    on_gpu: tuple[bool, ...],
    returns: int,
    items: tuple[Any, ...],
    line: Address | None = None,
) -> Callable[..., Any]:
    """The function with (ticket, [arguments, keyword arguments]) in place of its arguments. gpus: of its GPU phases;
    on_gpu: for each phase whether it is one; items: to load before; line: where it tells what it submits."""

    def hooked(told: dict[str, Any] | None, arguments: list[Any], /) -> Any:
        try:
            from egs_ray.worker.reach import reach
            from egs_ray.worker.shell import run_told
        except ImportError:
            pass
        else:
            if line is not None:
                reach(line)
            again = (hooked,) if told and told.get("moves") else ()  # a worker's EGS may be older, and not know it
            return run_told(function, told, arguments, gpus, on_gpu, returns, items, *again)
        import os

        import ray

        class Holder:
            def devices(self) -> list[str]:
                return [str(device) for device in ray.get_gpu_ids()]

        refs = [value for value in (*arguments[0], *arguments[1].values()) if isinstance(value, ray.ObjectRef)]
        values = dict(zip(refs, ray.get(refs), strict=True))
        args = [values[value] if isinstance(value, ray.ObjectRef) else value for value in arguments[0]]
        named = {
            name: values[value] if isinstance(value, ray.ObjectRef) else value for name, value in arguments[1].items()
        }
        holder: Any = None
        if gpus:
            node = ray.get_runtime_context().get_node_id()
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            made: Any = ray.remote(Holder)
            holder = made.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=here).remote()
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(ray.get(holder.devices.remote()))
        try:
            return function(*args, **named)
        finally:
            if holder is not None:
                ray.kill(holder)

    # Ray shows a task by its function's module and name. No `__wrapped__`: Ray would check the inner signature.
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(hooked, attribute, getattr(function, attribute, getattr(hooked, attribute)))
    return hooked
