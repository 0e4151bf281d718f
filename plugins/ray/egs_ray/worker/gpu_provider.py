"""The GPU block of a task that runs in a shell: from the driver's engine its turn, from Ray's books the device."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from egs_ray.link import Message
from egs_ray.worker import device_memory
from egs_ray.worker.gpu_process import GpuProcess
from egs_ray.worker.spec import Spec
from egs_ray.worker.waits import untold

VISIBLE = "CUDA_VISIBLE_DEVICES"


def lease_actor() -> Any:
    """The fallback lease, when the driver's side of EGS is dead: an actor with the GPUs, killed when the phase ends.

    Made in a function, so that Ray pickles all of it: its worker may have no EGS any more.
    """

    class LeaseActor:
        def devices(self) -> list[str]:
            return [str(i) for i in ray.get_gpu_ids()]

    return ray.remote(LeaseActor)


class Line(Protocol):
    """What a block needs of the shell around its task: see `shell.Shell`. open: nobody answers at the other end."""

    spec: Spec
    loaded: threading.Event
    apart: GpuProcess | None
    open: bool

    def tell(self, message: Message) -> None: ...

    def await_go(self) -> Message: ...


class Provider:
    """What `with egs.gpu():` asks: the driver's engine for its turn, and Ray's books for the device.

    A block belongs to the task's next GPU phase. One that the graph does not know of (a second block in a function)
    takes its GPU from Ray directly, out of order.
    """

    def __init__(self, shell: Line, devices: Any) -> None:
        self.shell = shell
        self.devices = devices  # of the current phase, when that is on the GPU and was not entered yet
        self.held: Any = ()  # of the block that was entered last
        self.stays = False  # this process left something there, so they are still held
        self.phase = 0
        self.is_fresh = shell.spec.on_gpu[0]
        self.actor: Any = None

    def acquire(self, _cpus: float | None = None) -> tuple[int | str, ...]:
        self.shell.loaded.wait(self.shell.spec.load_s)
        self.held = self._take()
        return show_gpus(self.held)

    def _take(self) -> Any:
        if self.stays:
            self.shell.tell({"m": "again", "at": time.time()})
            return self.held
        if self.is_fresh and not self.shell.open:
            self.is_fresh = False
            return self.devices
        if self.shell.open or not self._next_is_on_gpu():
            return self.take_from_ray()
        answer = self._ask("want")
        return self.take_from_ray() if answer.get("open") else answer.get("devices", ())

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A GPU step of `egs.phases`, in a process of its own where that is worth it."""
        apart = self.shell.apart
        if apart is None:
            return function(*args, **kwargs)
        with untold():  # the step runs there
            return apart.call(function, args, kwargs, _listed(self.held))

    def release(self) -> None:
        if self.shell.apart is not None:
            self.shell.apart.end()
        hide_gpus()
        left = self._left_bytes()
        if left is None or left > 0:
            self.stays = True
            if self.actor is None:
                self.shell.tell({"m": "stays", "bytes": left, "at": time.time()})
        elif self.actor is not None:
            self.give_to_ray()
        elif self.phase + 1 == len(self.shell.spec.on_gpu):
            self.shell.tell({"m": "left", "at": time.time()})
        elif not self._next_is_on_gpu():
            self._ask("free")

    def _left_bytes(self) -> int | None:
        """What this process and its children have on devices: 0 when it may be left there. None: nobody can say."""
        device_memory.release_cache()
        left = device_memory.held_by_family(os.getpid())
        comes_again = True in self.shell.spec.on_gpu[self.phase + 1 :]  # it could not use another device then
        return 0 if left is not None and left <= self.shell.spec.residue_bytes and not comes_again else left

    def _next_is_on_gpu(self) -> bool:
        return True in self.shell.spec.on_gpu[self.phase + 1 : self.phase + 2]

    def _ask(self, word: str) -> Message:
        """End the current phase, and wait until the next one may go on."""
        self.phase += 1
        self.shell.tell({"m": word, "at": time.time()})
        return self.shell.await_go()

    def give_to_ray(self) -> None:
        """Its GPUs, unless something stays there: then they are held until the task's end."""
        if self.actor is not None and not self.stays:
            ray.kill(self.actor)
            self.actor = None

    def take_from_ray(self) -> list[str]:
        here = NodeAffinitySchedulingStrategy(node_id(), soft=False)
        actor = lease_actor().options(num_cpus=0, num_gpus=self.shell.spec.gpus, scheduling_strategy=here)
        self.actor = actor.remote()
        return ray.get(self.actor.devices.remote())  # type: ignore[no-any-return]  # Ray is untyped here


def show_gpus(devices: Any) -> tuple[int | str, ...]:
    """Let libraries that look from now on see these devices, and no others."""
    os.environ[VISIBLE] = _listed(devices)
    return tuple(int(d) if str(d).isdecimal() else str(d) for d in devices)


def _listed(devices: Any) -> str:
    return ",".join(str(device) for device in devices)


def hide_gpus() -> None:
    """A CPU phase sees no GPU; unset would mean all of them."""
    os.environ[VISIBLE] = ""


def node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())
