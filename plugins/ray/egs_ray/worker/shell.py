"""What runs inside Ray's workers for `egs_ray.run`: the shell around a user's function, and the lease holder.

    shell (num_cpus=0)     hello ─ loads ─ warm ─ wait ─► go ─ decode ─ want ─► go ─ fit ─ free ─► go ─ write ─ end
    holder (num_cpus=1)                                     ├───────────────┤
    holder (num_gpus=1)                                                           ├──────┤

The shell is submitted before its task may start, so that its process is warm by then, and holds nothing in Ray's books.
What a phase holds there is held by a *holder*: a task with exactly the phase's resources that waits until the driver
ends it. When the shell's process dies, its connection ends and the driver ends the holder, so the GPU comes back.

A process that leaves its GPU phase with memory on the device keeps the device in the books: the phase goes on until
the task's end, and the holder until the process is gone.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from egs_core import hints
from egs_core.hints import PreloadItem
from egs_core.out_of_memory import GPU, lack_of
from egs_ray.link import Message, Peer, connect, forget
from egs_ray.worker import device_memory, moving
from egs_ray.worker.arguments import ArgumentsLostError as ArgumentsLostError
from egs_ray.worker.arguments import arrived, fetch, resolved
from egs_ray.worker.devices import uuids
from egs_ray.worker.gpu_process import GpuProcess
from egs_ray.worker.gpu_provider import VISIBLE, Provider, hide_gpus, node_id, show_gpus
from egs_ray.worker.niceness import Niceness
from egs_ray.worker.saving import lent, saving
from egs_ray.worker.spec import Address as Address
from egs_ray.worker.spec import Spec as Spec
from egs_ray.worker.waits import waits_told
from egs_ray.worker.working import work_told

DROPPED = "egs: dropped"
NOBODY: Address = ("", 0, "")  # where nothing answers
HASTEN_EVERY_S = 0.05
CONNECT_ERRORS = (OSError, EOFError, ValueError)
ANSWER_S = 10.0  # in which a driver says whether a task starts again
LOOK_S = 1.0  # between looks at the line of a holder whose task waits
LATE_S = 1.0  # for arguments; from then on they are waited for without resources, as Ray does
GONE_S = 60.0  # in a container of its own a process goes by another number, and that may be anybody's here


def make_shell(function: Callable[..., Any]) -> Callable[..., Any]:
    """The shell around one function, as Ray will export it; keeps the function's name for Ray's own views."""
    items = preload_items(function)

    def shell(spec: Spec, arguments: list[Any]) -> Any:
        return Shell(spec, function, items).run(arguments)

    _name_like(shell, function)
    return shell


def preload_items(function: Callable[..., Any]) -> tuple[PreloadItem, ...]:
    """What its hints say to load; for the driver: a function of a module reaches a worker by its name, without hints
    that the driver has given it."""
    found = hints.hints_of(function)
    return found.preload if found is not None else ()


def make_observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its start, end and outcome told to the driver; without a line to it, just the function."""

    def observed(spec: Spec, arguments: list[Any]) -> Any:
        tell = _teller(spec)

        def say(word: Message) -> None:
            tell({"task": spec.task, **word})

        args, kwargs = resolved(arguments)
        where = {"pid": os.getpid(), "id": _task_id(), "node": node_id()}
        tell({"m": "began", "task": spec.task, "at": time.time(), **where})
        try:
            with saving(spec), work_told(say), waits_told(say):
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
        ids = [str(i) for i in ray.get_gpu_ids()]
        peer.send({"m": "lease", "lease": lease, "devices": ids, "pid": os.getpid()})
        if names := uuids(",".join(ids)):  # behind it: the driver answers late while it takes another process's memory
            peer.send({"m": "named", "lease": lease, "uuids": names})
        while (message := _next_word(peer, lease))["m"] == "lend":
            _lend(peer, message)
        if message.get("after"):
            device_memory.wait_until_gone(message["after"], GONE_S)
    except CONNECT_ERRORS:
        forget(address)


def _next_word(peer: Peer, lease: int) -> Message:
    while (message := peer.receive()).get("lease") != lease:
        pass  # meant for an earlier holder in this process
    return message


def _lend(peer: Peer, message: Message) -> None:
    """Wait in Ray, which gives the CPUs of what waits to others, until the promise is kept or there is another word."""
    board = pickle.loads(base64.b64decode(message["board"]))
    kept = board.wait.remote(message["key"])
    while not (ray.wait([kept], timeout=LOOK_S)[0] or peer.has_word()):
        pass


def touch(seconds: float) -> bool:
    """Only makes Ray start a process; long enough that several of these need several processes. Whether the machine has
    real devices."""
    time.sleep(seconds)
    return device_memory.has_devices()


def run_told(
    function: Callable[..., Any],
    told: dict[str, Any] | None,
    arguments: list[Any],
    gpus: float,
    on_gpu: tuple[bool, ...],
    returns: int,
    items: tuple[PreloadItem, ...] = (),
    hooked: Callable[..., Any] | None = None,
) -> Any:
    """Run a task that a script has submitted as its ticket says; None: nobody decides, so by itself. hooked: as Ray has
    got it."""
    spec = Spec(NOBODY, 0, gpus, False, on_gpu, 0.0, returns) if told is None else Spec.of(told)
    return Shell(spec, function, items, hooked).run(arguments)


class Shell:
    """One task's way through its phases. Main thread only, but for loads, which run beside the first phase.

    hooked: as Ray has got it, for a task that may have to run elsewhere."""

    def __init__(
        self,
        spec: Spec,
        function: Callable[..., Any],
        items: tuple[PreloadItem, ...],
        hooked: Callable[..., Any] | None = None,
    ) -> None:
        self.spec, self.function, self.hooked = spec, function, hooked
        self.early: Message | None = None  # the driver's word that came before it was asked for
        self.preload = items if spec.preload else ()
        self.loaded = threading.Event()
        self.niceness = Niceness() if spec.gentle and self.preload else None
        self.life = os.urandom(8).hex()  # tells this try of the task from an earlier one in the same process
        self.apart = GpuProcess(self.preload, node_id(), spec, self.life) if spec.apart else None
        self.peer = self._connect()
        self.open = self.peer is None  # no engine at the other end: start at once, take GPUs from Ray directly

    def _connect(self) -> Peer | None:
        if self.spec.address == NOBODY:
            return None
        try:
            return connect(self.spec.address)
        except CONNECT_ERRORS:
            return None

    def run(self, arguments: list[Any]) -> Any:
        """The task's value. The process may be one that Ray uses for plain tasks next: it gets its variable back."""
        seen = os.environ.get(VISIBLE)
        try:
            return self._run(arguments)
        finally:
            os.environ.pop(VISIBLE, None)
            if seen is not None:
                os.environ[VISIBLE] = seen

    def _run(self, arguments: list[Any]) -> Any:
        used_cuda = self.spec.gpus > 0 and device_memory.uses_cuda(os.getpid())
        hide_gpus()
        started_warm = bool(self.preload) and self.apart is None and hints.is_warm(self.preload)
        task_id = self.spec.task_id or _task_id()
        hello = {"m": "hello", "pid": os.getpid(), "id": task_id, "warm": started_warm, "node": node_id()}
        hello |= {"gentle": self.niceness is not None, "moves": self.spec.moves != 0}
        self.tell({**hello, "real": device_memory.has_devices(), "cuda": used_cuda})
        if self.hooked is not None and (node := self._told_where()):
            return moving.run_on(node, self.hooked, self.spec, task_id, arguments)
        fetch(arguments)
        self._warm(started_warm)
        answer = self.await_go()
        if answer.get("m") == "go" and not self.open and not arrived(arguments, LATE_S):
            self.tell({"m": "late"})
            arrived(arguments)
            self.tell({"m": "here"})
            answer = self.await_go()
        if answer.get("m") == "drop":
            return DROPPED if self.spec.returns == 1 else (DROPPED,) * self.spec.returns
        if answer.get("restored"):
            self.spec.restored = lent(answer)
        if self.niceness is not None:
            self.niceness.restore()
        args, kwargs = resolved(arguments)
        self.tell({"m": "began", "at": time.time()})
        try:
            with saving(self.spec), work_told(self.tell), waits_told(self.tell):
                value = self._call(answer, args, kwargs)
        except BaseException as error:
            is_again = self._starts_again(error)
            self.tell({"m": "end", "ok": False, "at": time.time(), "stays": self._stays()})
            if is_again:
                moving.mark(error)
            raise
        self.tell({"m": "end", "ok": True, "at": time.time(), "stays": self._stays()})
        return value

    def _told_where(self) -> str:
        """The node on which the driver wants the task to run; "" for here."""
        if not self.spec.moves or self.peer is None:
            return ""
        answer = self.await_go()
        if answer["m"] not in ("here", "elsewhere"):
            self.early = answer
        return str(answer["node"]) if answer["m"] == "elsewhere" else ""

    def _starts_again(self, error: BaseException) -> bool:
        """Whether Ray is to start the task again, for another flavor of GPUs: the driver knows of one."""
        if not self.spec.moves or self.open or not (lack := lack_of(error)).startswith(GPU):
            return False
        self.tell({"m": "lacks", "why": lack})
        until_s = time.monotonic() + ANSWER_S
        with contextlib.suppress(*CONNECT_ERRORS):
            while (peer := self.peer) is not None and not peer.has_word():
                if time.monotonic() > until_s:
                    return False
                time.sleep(HASTEN_EVERY_S)
        return bool(self.await_go()["m"] == "again")

    def _stays(self) -> bool:
        """Whether this process still has something on a device that it was given."""
        return bool(self.spec.gpus) and device_memory.held_by_family(os.getpid()) != 0

    def _call(self, answer: Message, args: list[Any], kwargs: dict[str, Any]) -> Any:
        provider = Provider(self, answer.get("devices", ()))
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
            if self.apart is not None:
                self.apart.end()

    # --- warming ---

    def _warm(self, started_warm: bool) -> None:
        """Imports here, on the main thread, where modules expect to be imported; load functions beside what follows.
        A preload that fails leaves a task that starts cold, no more."""
        began = time.time()
        calls = [item for item in self.preload if isinstance(item, hints.Call)]
        errors: list[Any] = []
        if self.apart is not None:
            self.apart.start()
        if self.niceness is not None:
            threading.Thread(target=self._hasten, args=(self.niceness,), name="egs-hasten", daemon=True).start()
            self.niceness.lower()
        hints.warm([item for item in self.preload if item not in calls], errors)
        if started_warm or not (calls or self.apart):
            self._warmed(began, errors)
        else:
            threading.Thread(target=self._load, args=(began, calls, errors), name="egs-load", daemon=True).start()
        if self.niceness is not None:
            self.niceness.restore_this()

    def _hasten(self, niceness: Niceness) -> None:
        """From the moment at which nothing but it keeps the task waiting, a load is in nobody's way."""
        while not self.loaded.wait(HASTEN_EVERY_S) and (peer := self.peer) is not None:
            with contextlib.suppress(*CONNECT_ERRORS):
                if peer.has_word():
                    niceness.restore()

    def _load(self, began: float, calls: list[Any], errors: list[Any]) -> None:
        if self.apart is None:
            hints.warm(calls, errors)
        else:
            with contextlib.suppress(ray.exceptions.RayError):  # the step will find out
                errors = [*errors, *self.apart.errors()]
        self._warmed(began, errors)

    def _warmed(self, began: float, errors: list[Any]) -> None:
        self.loaded.set()
        if self.preload:
            problems = [_problem(item, error) for item, error in errors]
            self.tell({"m": "warm", "seconds": time.time() - began, "at": time.time(), "errors": problems})

    # --- the line ---

    def tell(self, message: Message) -> None:
        if (peer := self.peer) is None:  # another thread may lose the line
            return
        try:
            peer.send({"task": self.spec.task, "life": self.life, **message})
        except CONNECT_ERRORS:
            self._lost_line()

    def await_go(self) -> Message:
        """The driver's next word to this shell; without a driver, go and help yourself."""
        if self.early is not None:
            answer, self.early = self.early, None
            return answer
        if self.open or self.peer is None:
            return {"m": "go", "open": True}
        try:
            answer = self.peer.receive()
            while not self._is_answer(answer):
                answer = self.peer.receive()
        except CONNECT_ERRORS:
            self._lost_line()
            return {"m": "go", "open": True}
        self.open = bool(answer.get("open"))
        return answer

    def _is_answer(self, message: Message) -> bool:
        """Not for an earlier task in this process, and no word that was for the load alone."""
        is_for_this = message.get("task") == self.spec.task and message.get("life") == self.life
        return is_for_this and message["m"] != "hasten"

    def _lost_line(self) -> None:
        self.open, self.peer = True, None
        forget(self.spec.address)


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


def _problem(item: Any, error: Any) -> str:
    return (f"{item}: {error}" if isinstance(error, str) else f"{item}: {type(error).__name__}: {error}")[:300]


def _name_like(wrapper: Any, function: Callable[..., Any]) -> None:
    """Ray shows a task by its function's module and name. No `__wrapped__`: Ray would check the inner signature."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(function, attribute, getattr(wrapper, attribute)))


def _task_id() -> str:
    return str(ray.get_runtime_context().get_task_id())
