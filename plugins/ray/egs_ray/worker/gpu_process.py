"""A process of its own for the GPU steps of `egs.phases`: its end is what gives a device's memory back.

    shell        decode ─ values ─►               ─ values ─► write
    GPU process  loads ─ warm ──────── fit ─ ends             one for each GPU step, as an actor that holds nothing

It is a Ray worker on the shell's node, so Ray's own calls work in it, and it ends with the shell. Load functions of a
task run here, where their values are used. Steps hand on values, pickled: what one of them changes elsewhere in its
process (a global variable, say) the next one does not see. A step's checkpoint callback is called here, too, and goes
with the process: no later step is asked for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from egs_core import hints
from egs_core.preload import PreloadItem
from egs_core.worked import take, work
from egs_ray.link import Message, connect
from egs_ray.worker.device_memory import wait_until_gone
from egs_ray.worker.saving import saving
from egs_ray.worker.spec import Spec
from egs_ray.worker.waits import waits_told
from egs_ray.worker.working import where_told

END_S = 10.0


class GpuActor:
    """What runs in the process."""

    def warm(self, preload: bytes) -> tuple[int, list[tuple[str, str]]]:
        """Load without seeing a device; the process and (item, error) of what could not be loaded."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        errors: list[Any] = []
        hints.warm(cloudpickle.loads(preload), errors)
        return os.getpid(), [(str(item), f"{type(error).__name__}: {error}") for item, error in errors]

    def call(self, step: bytes, devices: str, spec: Spec, life: str) -> bytes:
        """One step with these devices in sight, whose checkpoints and waits are its task's: its value, and what it has
        told of its work."""
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        function, args, kwargs = cloudpickle.loads(step)

        def say(word: Message) -> None:
            _tell(spec, {"task": spec.task, "life": life, **word})

        with saving(spec), where_told(say), waits_told(say):
            return bytes(cloudpickle.dumps((function(*args, **kwargs), take())))


def _tell(spec: Spec, message: Message) -> None:
    with contextlib.suppress(OSError, EOFError, ValueError):  # no driver: nobody else holds anything for the task
        connect(spec.address).send(message)


class GpuProcess:
    """The shell's side. A process is started by `start` or, where there is none, by `call`; `end` ends it."""

    def __init__(self, preload: tuple[PreloadItem, ...], node: str, spec: Spec, life: str) -> None:
        self._preload, self._node, self._spec, self._life = preload, node, spec, life
        self._actor: Any = None
        self._warmed: Any = None

    def start(self) -> None:
        """Start one and let it load; returns at once."""
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        options = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": here, "enable_task_events": False}
        self._actor = ray.remote(GpuActor).options(**options).remote()
        self._warmed = self._actor.warm.remote(cloudpickle.dumps(self._preload))

    def errors(self) -> list[tuple[str, str]]:
        """Wait until it has loaded; what it could not load. Raises RayActorError when it could not be started."""
        return list(ray.get(self._warmed)[1])

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, devices: str) -> Any:
        """The step's value, or its exception. Without a process, and for values that cannot be pickled, it runs in this
        one; a process that dies in the step takes this one with it: Ray sees the task's die, as it would without EGS.
        """
        try:
            step = cloudpickle.dumps((function, args, kwargs))
            if self._actor is None:
                self.start()
            self.errors()
        except (ray.exceptions.RayActorError, TypeError, ValueError, AttributeError, pickle.PicklingError):
            self.end()
            return function(*args, **kwargs)
        try:
            done = ray.get(self._actor.call.remote(step, devices, self._spec, self._life))
            value, told = cloudpickle.loads(done)
            work(**told)
            return value
        except ray.exceptions.RayTaskError:
            raise  # the step's own, which may be of any type
        except ray.exceptions.RayActorError:
            os.kill(os.getpid(), signal.SIGKILL)
            raise

    def end(self) -> None:
        """End it and wait until it is gone, and with it all that it had on a device."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        try:
            pid = int(ray.get(self._warmed)[0])
        except ray.exceptions.RayError:
            return  # it was never there
        ray.kill(actor)
        wait_until_gone(pid, END_S)
