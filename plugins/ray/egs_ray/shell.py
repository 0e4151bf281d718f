"""What runs inside Ray's workers for `egs_ray.run`: the shell around a user's function, and the lease holder.

    shell (num_cpus=0)     hello ─ loads ─ warm ─ wait ─► go ─ decode ─ want ─► go ─ fit ─ free ─► go ─ write ─ end
    holder (num_cpus=1)                                     ├───────────────┤
    holder (num_gpus=1)                                                           ├──────┤

The shell is submitted before its task may start, so that its process is warm by then, and holds nothing in Ray's books.
What a phase holds there is held by a *holder*: a task with exactly the phase's resources that waits until the driver
ends it. When the shell's process dies, its connection ends and the driver ends the holder, so the GPU comes back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from egs_core import hints
from egs_ray.link import Message, Peer, connect, forget

Address = tuple[str, int, str]
DROPPED = "egs: dropped"
CONNECT_ERRORS = (OSError, EOFError, ValueError)


class Spec:
    """How the driver tells a shell what it is: plain data, pickled with the task. gpus: 0 for a task that takes none;
    on_gpu: for each phase whether it is one; load_s: how long a GPU phase waits for load functions that were started
    beside the phases before it."""

    def __init__(
        self,
        address: Address,
        task: int,
        gpus: float,
        preload: bool,
        on_gpu: tuple[bool, ...],
        load_s: float,
        returns: int = 1,
    ) -> None:
        self.address, self.task, self.gpus = address, task, gpus
        self.preload, self.on_gpu, self.load_s, self.returns = preload, on_gpu, load_s, returns


def make_shell(function: Callable[..., Any]) -> Callable[..., Any]:
    """The shell around one function, as Ray will export it; keeps the function's name for Ray's own views."""

    def shell(spec: Spec, arguments: list[Any]) -> Any:
        return _Shell(spec, function).run(arguments)

    _name_like(shell, function)
    return shell


def make_observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its start, end and outcome told to the driver; without a line to it, just the function."""

    def observed(spec: Spec, arguments: list[Any]) -> Any:
        tell = _teller(spec)
        args, kwargs = _resolved(arguments)
        tell({"m": "began", "task": spec.task, "at": time.time(), "pid": os.getpid(), "id": _task_id()})
        try:
            value = call_users_function(function, args, kwargs)
        except BaseException:
            tell({"m": "end", "task": spec.task, "ok": False, "at": time.time()})
            raise
        tell({"m": "end", "task": spec.task, "ok": True, "at": time.time()})
        return value

    _name_like(observed, function)
    return observed


def call_users_function(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """In a traceback the name of this frame says that the user's code was reached: see `reached_users_code`."""
    return function(*args, **kwargs)


def reached_users_code(error: ray.exceptions.RayTaskError) -> bool:
    """Whether a task that ended with this error got as far as the user's function."""
    return f" in {call_users_function.__name__}\n" in str(error)


def hold(address: Address, lease: int) -> None:
    """Hold whatever resources this task was given until the driver says so, or is gone."""
    try:
        peer = connect(address)
        peer.send({"m": "lease", "lease": lease, "devices": [str(i) for i in ray.get_gpu_ids()], "at": time.time()})
        while peer.receive().get("lease") != lease:
            pass  # meant for an earlier holder in this process
    except CONNECT_ERRORS:
        forget(address)


def touch(seconds: float) -> None:
    """Only makes Ray start a process for leases; long enough that several of these need several processes."""
    time.sleep(seconds)


class ArgumentsLostError(RuntimeError):
    """What keeps promised arguments died: the driver submits the task again, as the user wrote it."""


class LeaseActor:
    """The fallback lease, when the driver's side of EGS is dead: an actor with the GPUs, killed when the phase ends."""

    def devices(self) -> list[str]:
        return [str(i) for i in ray.get_gpu_ids()]


class _Shell:
    """One task's way through its phases. Main thread only, but for loads, which run beside the first phase."""

    def __init__(self, spec: Spec, function: Callable[..., Any]) -> None:
        self.spec, self.function = spec, function
        found = hints.hints_of(function)
        self.preload = found.preload if found is not None and spec.preload else ()
        self.loaded = threading.Event()
        self.life = os.urandom(8).hex()  # tells this try of the task from an earlier one in the same process
        self.peer = self._connect()
        self.open = self.peer is None  # no engine at the other end: start at once, take GPUs from Ray directly

    def _connect(self) -> Peer | None:
        try:
            return connect(self.spec.address)
        except CONNECT_ERRORS:
            return None

    def run(self, arguments: list[Any]) -> Any:
        hide_gpus()
        started_warm = bool(self.preload) and hints.is_warm(self.preload)
        self._tell({"m": "hello", "pid": os.getpid(), "id": _task_id(), "warm": started_warm, "node": _node_id()})
        self._warm(started_warm)
        answer = self._await_go()
        if answer.get("m") == "drop":
            return DROPPED if self.spec.returns == 1 else (DROPPED,) * self.spec.returns
        args, kwargs = _resolved(arguments)
        self._tell({"m": "began", "at": time.time()})
        try:
            value = self._call(answer, args, kwargs)
        except BaseException:
            self._tell({"m": "end", "ok": False, "at": time.time()})
            raise
        self._tell({"m": "end", "ok": True, "at": time.time()})
        return value

    def _call(self, answer: Message, args: list[Any], kwargs: dict[str, Any]) -> Any:
        provider = _Provider(self, answer.get("devices", ()))
        if len(self.spec.on_gpu) == 1:
            show_gpus(provider.take_from_ray() if self.open and self.spec.gpus else answer.get("devices", ()))
            try:
                return call_users_function(self.function, args, kwargs)
            finally:
                provider.give_to_ray()
        hints.set_gpu_provider(provider)
        try:
            return call_users_function(self.function, args, kwargs)
        finally:
            hints.set_gpu_provider(None)

    # --- warming ---

    def _warm(self, started_warm: bool) -> None:
        """Imports here, on the main thread, where modules expect to be imported; load functions beside what follows.
        A preload that fails leaves a task that starts cold, no more."""
        began = time.time()
        calls = [item for item in self.preload if isinstance(item, hints.Call)]
        errors: list[Any] = []
        hints.warm([item for item in self.preload if item not in calls], errors)
        if started_warm or not calls:
            self._warmed(began, errors)
        else:
            threading.Thread(target=self._load, args=(began, calls, errors), name="egs-load", daemon=True).start()

    def _load(self, began: float, calls: list[Any], errors: list[Any]) -> None:
        hints.warm(calls, errors)
        self._warmed(began, errors)

    def _warmed(self, began: float, errors: list[Any]) -> None:
        self.loaded.set()
        if self.preload:
            problems = [f"{item}: {type(error).__name__}: {error}"[:300] for item, error in errors]
            self._tell({"m": "warm", "seconds": time.time() - began, "at": time.time(), "errors": problems})

    # --- the line ---

    def _tell(self, message: Message) -> None:
        if self.peer is None:
            return
        try:
            self.peer.send({"task": self.spec.task, "life": self.life, **message})
        except CONNECT_ERRORS:
            self._lost_line()

    def _await_go(self) -> Message:
        """The driver's next word to this shell; without a driver, go and help yourself."""
        if self.open or self.peer is None:
            return {"m": "go", "open": True}
        try:
            answer = self.peer.receive()
            while answer.get("task") != self.spec.task or answer.get("life") != self.life:
                answer = self.peer.receive()  # that was for an earlier task in this process
        except CONNECT_ERRORS:
            self._lost_line()
            return {"m": "go", "open": True}
        self.open = bool(answer.get("open"))
        return answer

    def _lost_line(self) -> None:
        self.open, self.peer = True, None
        forget(self.spec.address)


class _Provider:
    """What `with egs.gpu():` asks: the driver's engine for its turn, and Ray's books for the device.

    A block belongs to the task's next GPU phase. One that the graph does not know of (a second block in a function)
    takes its GPU from Ray directly, out of order.
    """

    def __init__(self, shell: _Shell, devices: Any) -> None:
        self.shell = shell
        self.devices = devices  # of the current phase, when that is on the GPU and was not entered yet
        self.phase = 0
        self.is_fresh = shell.spec.on_gpu[0]
        self.actor: Any = None

    def acquire(self, _cpus: float | None = None) -> tuple[int | str, ...]:
        self.shell.loaded.wait(self.shell.spec.load_s)
        if self.is_fresh and not self.shell.open:
            self.is_fresh = False
            return show_gpus(self.devices)
        if self.shell.open or not self._next_is_on_gpu():
            return show_gpus(self.take_from_ray())
        answer = self._ask("want")
        return show_gpus(self.take_from_ray() if answer.get("open") else answer.get("devices", ()))

    def release(self) -> None:
        hide_gpus()
        if self.actor is not None:
            self.give_to_ray()
        elif self.phase + 1 == len(self.shell.spec.on_gpu):
            self.shell._tell({"m": "left", "at": time.time()})
        elif not self._next_is_on_gpu():
            self._ask("free")

    def _next_is_on_gpu(self) -> bool:
        return True in self.shell.spec.on_gpu[self.phase + 1 : self.phase + 2]

    def _ask(self, word: str) -> Message:
        """End the current phase, and wait until the next one may go on."""
        self.phase += 1
        self.shell._tell({"m": word, "at": time.time()})
        return self.shell._await_go()

    def give_to_ray(self) -> None:
        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = None

    def take_from_ray(self) -> list[str]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(_node_id(), soft=False)
        actor = ray.remote(LeaseActor).options(num_cpus=0, num_gpus=self.shell.spec.gpus, scheduling_strategy=here)
        self.actor = actor.remote()
        return ray.get(self.actor.devices.remote())  # type: ignore[no-any-return]  # Ray is untyped here


def show_gpus(devices: Any) -> tuple[int | str, ...]:
    """Let libraries that look from now on see these devices, and no others."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in devices)
    return tuple(int(d) if str(d).isdecimal() else str(d) for d in devices)


def hide_gpus() -> None:
    """A CPU phase sees no GPU; unset would mean all of them."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _teller(spec: Spec) -> Callable[[Message], None]:
    try:
        peer = connect(spec.address)
    except CONNECT_ERRORS:
        return lambda _: None

    def tell(message: Message) -> None:
        try:
            peer.send(message)
        except CONNECT_ERRORS:
            forget(spec.address)

    return tell


def _resolved(arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as Ray passes them: references directly among them become values, nested ones stay references.

    `arguments` is [args, kwargs], or [a promise of these two].
    """
    try:
        args, kwargs = ray.get(arguments[0]) if len(arguments) == 1 else arguments
    except ray.exceptions.RayActorError as error:
        raise ArgumentsLostError(f"its arguments did not come: {error}") from error
    refs = [value for value in (*args, *kwargs.values()) if isinstance(value, ray.ObjectRef)]
    got = dict(zip(refs, ray.get(refs), strict=True)) if refs else {}

    def value_of(value: Any) -> Any:
        return got[value] if isinstance(value, ray.ObjectRef) else value

    return [value_of(value) for value in args], {key: value_of(value) for key, value in kwargs.items()}


def _name_like(wrapper: Any, function: Callable[..., Any]) -> None:
    """Ray shows a task by its function's module and name. No `__wrapped__`: Ray would check the inner signature."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(function, attribute, getattr(wrapper, attribute)))


def _task_id() -> str:
    return str(ray.get_runtime_context().get_task_id())


def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())
