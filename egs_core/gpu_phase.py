"""`with egs.gpu():`: the stretch of a task that holds a GPU, and how to see from outside that a function has one.

The block itself knows no framework. An adapter that can lend GPUs installs a *provider*; without one the block does
nothing, because the whole task then holds its GPU anyway.
"""

from __future__ import annotations

import contextlib
import dis
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Protocol

from egs_core.errors import InputError

Devices = tuple[int | str, ...]
_REQUEST = "EGS_GPU_REQUEST"  # set by `egs run --split`
_installing = threading.Lock()
_ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
_IMPORT_STEPS = ("IMPORT_FROM", "SWAP", "POP_TOP")
_LOCAL_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF")


class GpuProvider(Protocol):
    """What an adapter installs. Both calls come from the task's own thread (or one that the task started).

    `acquire` blocks until the task holds its GPUs and returns their ids; it gets `cpus` only when the author wrote
    `egs.gpu(cpus=…)`. `release` gives back what `acquire` took. What `acquire` raises goes to the task's code.
    It may also have `call(function, args, kwargs)`: how to run a GPU step of `egs.phases`, between the two.
    """

    def acquire(self, cpus: float | None = None) -> Devices: ...

    def release(self) -> None: ...


class _Lease:
    """One provider's lease, shared by nested blocks and a task's threads: the first in takes, the last out frees."""

    def __init__(self, provider: GpuProvider) -> None:
        self.provider = provider
        self.devices: Devices = ()
        self.holders = 0  # the lease is held exactly while this is above zero
        self.lock = threading.Lock()

    def enter(self, cpus: float | None) -> Devices:
        with self.lock:
            if self.holders == 0:
                self.devices = tuple(self.provider.acquire() if cpus is None else self.provider.acquire(cpus))
            self.holders += 1
            return self.devices

    def leave(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0:
                self.devices = ()
                self.provider.release()


_process_lease: _Lease | None = None
_context_lease: ContextVar[_Lease | None] = ContextVar("egs_gpu_lease", default=None)


def set_gpu_provider(provider: GpuProvider | None) -> None:
    """Install the process's provider, seen by every thread; None removes it. Open blocks keep the one they entered."""
    global _process_lease
    _process_lease = _Lease(provider) if provider is not None else None


@contextlib.contextmanager
def gpu_provider(provider: GpuProvider) -> Iterator[None]:
    """Use `provider` in this context only: for a process that runs several tasks at once, each in its own thread."""
    token = _context_lease.set(_Lease(provider))
    try:
        yield
    finally:
        _context_lease.reset(token)


def _lease() -> _Lease | None:
    """The lease that a block takes part in; in a command of `egs run --split` that of the site server."""
    if _process_lease is None and os.environ.get(_REQUEST):
        from egs_core.client.phases import site_gpus  # needs more than the standard library

        with _installing:
            if _process_lease is None:
                set_gpu_provider(site_gpus())
    return _context_lease.get() or _process_lease


class _GpuBlock:
    """The context manager that `gpu()` returns; it may be entered again after it was left, or while it is open."""

    def __init__(self, cpus: float | None) -> None:
        self._cpus = cpus
        self._entered: list[_Lease | None] = []

    def __enter__(self) -> Devices:
        lease = _lease()
        devices = lease.enter(self._cpus) if lease is not None else ()
        self._entered.append(lease)
        return devices

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lease = self._entered.pop()
        if lease is not None:
            lease.leave()

    async def __aenter__(self) -> Devices:
        raise InputError("egs.gpu()", "'async with' is not supported", "write 'with egs.gpu():'")

    async def __aexit__(self, *_: object) -> None:
        """Present because Python looks for it before it calls `__aenter__`, which is where the clear error is."""


def gpu(cpus: float | None = None) -> _GpuBlock:
    """Hold the task's GPUs for the length of a `with` block, which gets their ids; outside it none is held.

    cpus: CPUs held meanwhile, when they differ from the task's. A block inside another one does nothing of its own.
    Without a provider (no adapter, EGS off or failed) it does nothing and gives `()`.
    """
    return _GpuBlock(cpus)


def call_on_gpu(cpus: float | None, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function inside `with gpu(cpus):`, the way the provider wants it done."""
    with gpu(cpus):
        lease = _lease()
        call = getattr(lease.provider, "call", None) if lease is not None else None
        return function(*args, **kwargs) if call is None else call(function, args, kwargs)


def has_gpu_block(function: object) -> bool:
    """True when the function's own bytecode surely enters `with egs.gpu()`; helpers it calls are not looked into.

    Exact: the context expression must be a call of this module's `gpu`, reached through a global, a closure variable
    or what the function itself imports from this package (`egs.gpu()`, `gpu()`, under any alias). Another local name, a
    conditional expression or an unknown bytecode: False.
    """
    if not isinstance(function, FunctionType):
        return False
    code = [i for i in dis.get_instructions(function) if i.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    return any(
        with_at > 0
        and code[with_at].opname == "BEFORE_WITH"
        and not code[with_at].is_jump_target  # a jump to here brings another context manager
        and _calls_gpu(function, code, with_at - 1)
        for with_at in range(len(code))
    )


def _calls_gpu(function: FunctionType, code: list[dis.Instruction], call_at: int) -> bool:
    """Whether code[call_at] is the call of an expression that begins with loading `gpu`.

    The expression is the shortest run of instructions up to the call that leaves one value more than it found:

        LOAD_GLOBAL egs   LOAD_ATTR gpu (+ self or NULL)   LOAD_CONST 2   CALL 1
             +1                 +1                             +1           -2      = 1
    """
    if code[call_at].opname not in ("CALL", "CALL_KW"):
        return False
    height = 0
    for start in range(call_at, -1, -1):
        step = code[start]
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        height += _effect(step)
        if height == 1:
            return _resolves_to_gpu(function, code[start:call_at])
    return False


def _resolves_to_gpu(function: FunctionType, steps: list[dis.Instruction]) -> bool:
    """Whether the steps load `gpu` in the form for a call (two values: it, and NULL or self), then its arguments."""
    has_null = steps[0].opname == "PUSH_NULL"  # before 3.13 it comes first, and only where a closure variable is called
    steps = steps[has_null:]
    value, at = _loaded_value(function, steps[0]), 1
    while at < len(steps) and steps[at].opname in _ATTRIBUTE_LOADS and isinstance(value, ModuleType):
        value, at = _attribute(value, str(steps[at].argval)), at + 1
    at += at < len(steps) and steps[at].opname == "PUSH_NULL"  # from 3.13 it comes after the variable
    pushed = has_null + sum(_effect(step) for step in steps[:at])
    if value is not gpu or pushed != 2 or (has_null and steps[0].opname == "LOAD_GLOBAL"):
        return False
    return _leaves_alone_what_is_below(steps[at:])


def _leaves_alone_what_is_below(steps: list[dis.Instruction]) -> bool:
    """Whether steps only compute arguments; taking a value from below them uses `gpu` up: `gpu().x()`, `(gpu, f)[1]()`.

    Every step that takes values leaves one, so it takes 1 - effect; attributes may leave two, and the first part of a
    call (3.11) and the names of its keywords only look.
    """
    height = 0
    for step in steps:
        taken = max(0, 1 - _effect(step))
        if step.opname in _ATTRIBUTE_LOADS:
            taken = 1
        elif step.opname in ("PRECALL", "KW_NAMES"):
            taken = 0
        if height < taken:
            return False
        height += _effect(step)
    return True


def _effect(step: dis.Instruction) -> int:
    return dis.stack_effect(step.opcode, step.arg)


def _attribute(module: ModuleType, name: str) -> object:
    """A module's attribute without running its code; this package alone makes its names when they are first used."""
    if module is sys.modules.get(str(__package__)):
        return getattr(module, name, None)
    return vars(module).get(name)


def _loaded_value(function: FunctionType, step: dis.Instruction) -> object:
    if step.opname == "LOAD_GLOBAL":
        return function.__globals__.get(str(step.argval))
    if step.opname in _LOCAL_LOADS and step.argval not in function.__code__.co_freevars:
        return _imported_value(function, str(step.argval))
    if step.opname == "LOAD_DEREF" and step.argval in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(step.argval)]
        with contextlib.suppress(ValueError):  # an empty cell: not assigned yet
            return cell.cell_contents
    return None


def _imported_value(function: FunctionType, name: str) -> object:
    """What a local name stands for where nothing but imports from this package bind it, all to the same; else None."""
    arguments = inspect.getargs(function.__code__)
    if name in (*arguments.args, arguments.varargs, arguments.varkw):
        return None
    code = [i for i in dis.get_instructions(function) if i.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    bound = [
        _import_at(code, at - 1)
        for at, step in enumerate(code)
        if step.opname.startswith(("STORE_FAST", "STORE_DEREF")) and name in _names(step)
    ]
    return bound[0] if bound and all(value is bound[0] for value in bound) else None


def _names(step: dis.Instruction) -> tuple[object, ...]:
    """Of one that stores; from Python 3.13 one may store two."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _import_at(code: list[dis.Instruction], at: int) -> object:
    """What `import egs_core`, or a name of `from egs_core import …`, has made; None for anything else.

    IMPORT_NAME egs_core         IMPORT_FROM gpu    STORE_FAST gpu   IMPORT_FROM task   STORE_FAST task   POP_TOP
    IMPORT_NAME egs_core.hints   IMPORT_FROM hints   SWAP   POP_TOP   STORE_FAST h          import egs_core.hints as h
    """
    last = code[at]
    while at > 0 and code[at].opname != "IMPORT_NAME":
        if code[at].opname not in _IMPORT_STEPS and not code[at].opname.startswith("STORE_"):
            return None
        at -= 1
    name, package = str(code[at].argval), str(__package__)
    if at < 2 or name.partition(".")[0] != package or code[at - 2].argval != 0:  # a relative import is of another one
        return None
    if last.opname == "IMPORT_NAME":
        return sys.modules.get(package)
    with contextlib.suppress(ImportError):
        module, taken = importlib.import_module(name), str(last.argval)
        if last.opname != "IMPORT_FROM" or (code[at - 1].argval is None and name.endswith(f".{taken}")):
            return module  # `import egs_core.hints as h` takes `hints` out of the package, and has no list of names
        return _attribute(module, taken)
    return None
