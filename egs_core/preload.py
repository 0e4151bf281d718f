"""What can be loaded before a task needs it: modules, files, and the result of a user's load function.

    @egs.task(gpus=1, preload=[egs.modules("torch"), egs.files("model.pt"), egs.call(load_model)])
    def train(path):
        model = egs.loaded(load_model)      # the preloaded object, or loaded now

`warm` performs the items in the current process; it never raises, because a preload may make a task faster but must
not be able to break it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from egs_core.code_key import code_key, digest_of
from egs_core.errors import InputError

T = TypeVar("T")
_CHUNK_BYTES = 1 << 20
_MISSING = object()


@dataclass(frozen=True)
class Modules:
    """Import these modules."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"egs.modules({', '.join(map(repr, self.names))})"


@dataclass(frozen=True)
class Files:
    """Read these files once, so that the task finds them in the machine's page cache."""

    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"egs.files({', '.join(map(repr, self.paths))})"


@dataclass(frozen=True)
class Call:
    """Call this function and keep its value for `loaded`."""

    function: Callable[[], Any]

    def __str__(self) -> str:
        return f"egs.call({getattr(self.function, '__qualname__', self.function)})"


PreloadItem = Modules | Files | Call


def modules(*names: str) -> Modules:
    """Preload item: import these modules, by their full dotted names."""
    for name in names:
        if not _is_module_name(name):
            raise InputError("egs.modules", f"{name!r} is not a module name", 'for example egs.modules("torch")')
    return Modules(_some(names, "egs.modules", "module name"))


def files(*paths: str | os.PathLike[str]) -> Files:
    """Preload item: read these files through the page cache. Relative paths are those of the task's process."""
    for path in paths:
        if not _is_path(path):
            raise InputError("egs.files", f"{path!r} is not a path", 'for example egs.files("model.pt")')
    return Files(_some(tuple(os.fspath(path) for path in paths), "egs.files", "path"))


def call(function: Callable[[], Any]) -> Call:
    """Preload item: call `function()` and keep its value; the task gets it with `loaded(function)`."""
    return Call(_check_load_function(function, "egs.call"))


class HasPreload(Protocol):
    """Hints, as far as `warm_key` needs them."""

    @property
    def preload(self) -> tuple[PreloadItem, ...]: ...


def warm_key(preload: HasPreload | Iterable[PreloadItem]) -> str:
    """A stable digest of a set of preload items (or of hints that have them): equal keys can share a warm process.

    The order does not matter; no items give "", the key of any process.
    """
    items = preload if isinstance(preload, Iterable) else preload.preload
    parts = sorted({part for item in items for part in _key_parts(item)})
    return digest_of("\n".join(parts)) if parts else ""


def loaded(function: Callable[[], T]) -> T:
    """The value of `function()`, made once per process and shared by every copy of the function.

    Copies are recognised by `code_key`, so a function that a framework unpickled twice is still loaded once. Threads
    that ask at the same time wait for one load. An exception goes to the caller and is not kept. Treat the value as
    shared: whoever changes it changes it for the next task.
    """
    key = code_key(_check_load_function(function, "egs.loaded"))
    value = _values.get(key, _MISSING)
    if value is _MISSING:
        with _lock_of(key):
            value = _values.get(key, _MISSING)
            if value is _MISSING:
                value = _values[key] = function()
    return cast(T, value)


def warm(preload: Iterable[PreloadItem], errors: list[tuple[PreloadItem, BaseException]] | None = None) -> float:
    """Perform the items in this process and return the seconds it took. Failures are appended to `errors`, not raised.

    An item that is warm already costs next to nothing. One failed name or path does not keep the others from loading.
    """
    began = time.perf_counter()
    for item in preload:
        for perform, subject in _steps(item):
            try:
                perform(subject)
            except (Exception, SystemExit) as error:  # user code: anything but an interrupt must stay here
                if errors is not None:
                    errors.append((item, error))
    return time.perf_counter() - began


def is_warm(preload: Iterable[PreloadItem]) -> bool:
    """True when this process has performed all items: modules imported, files read and unchanged, functions loaded."""
    return all(_is_item_warm(item) for item in preload)


_values: dict[str, object] = {}
_locks: dict[str, threading.RLock] = {}
_locks_guard = threading.Lock()
_files_read: dict[str, tuple[int, int]] = {}  # absolute path -> (size, modification time) when it was read


def _lock_of(key: str) -> threading.RLock:
    with _locks_guard:
        return _locks.setdefault(key, threading.RLock())


def _forget_locks() -> None:
    """A forked child has only the forking thread: a lock that another one held would never be freed."""
    global _locks_guard
    _locks_guard = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _steps(item: PreloadItem) -> list[tuple[Callable[[Any], object], Any]]:
    if isinstance(item, Modules):
        return [(importlib.import_module, name) for name in item.names]
    if isinstance(item, Files):
        return [(_read_through, path) for path in item.paths]
    return [(loaded, item.function)]


def _is_item_warm(item: PreloadItem) -> bool:
    if isinstance(item, Modules):
        return all(name in sys.modules for name in item.names)
    if isinstance(item, Files):
        return all(_is_file_warm(path) for path in item.paths)
    return code_key(item.function) in _values


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _is_file_warm(path: str) -> bool:
    try:
        found = os.stat(_absolute(path))
    except OSError:
        return False
    return _files_read.get(_absolute(path)) == (found.st_size, found.st_mtime_ns)


def _read_through(path: str) -> None:
    """Read a file to its end into one small buffer: the pages stay with the operating system, not with the process."""
    if _is_file_warm(path):
        return
    buffer = bytearray(_CHUNK_BYTES)
    with open(_absolute(path), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        while file.readinto(buffer):
            pass
    _files_read[_absolute(path)] = (found.st_size, found.st_mtime_ns)


def _key_parts(item: PreloadItem) -> list[str]:
    if isinstance(item, Modules):
        return [f"module {name}" for name in item.names]
    if isinstance(item, Files):
        return [f"file {path}" for path in item.paths]
    return [f"call {code_key(item.function)}"]


def _some(names: tuple[str, ...], place: str, what: str) -> tuple[str, ...]:
    if not names:
        raise InputError(place, f"needs at least one {what}")
    return names


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _is_path(path: object) -> bool:
    return isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str) and bool(os.fspath(path))


def _check_load_function(function: Callable[[], T], place: str) -> Callable[[], T]:
    if not callable(function):
        raise InputError(place, f"{function!r} is not a function", "pass the function itself, without calling it")
    if inspect.iscoroutinefunction(function):
        raise InputError(place, f"{function.__qualname__} is async", "pass a plain function that returns the value")
    return function
