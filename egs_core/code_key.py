"""A name for a function that survives pickling: module, qualified name and a digest of what the function would do.

The digest covers the bytecode, its constants and defaults, and the values it reads from closures and module globals,
with the functions among them in turn. So two closures made by one factory differ, and so does a function in a notebook
after the constant that it reads was edited; two unpickled copies of one function do not.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from dis import get_instructions
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
_cache: weakref.WeakKeyDictionary[FunctionType, str] = weakref.WeakKeyDictionary()


def code_key(function: Callable[..., Any]) -> str:
    """`module:qualname:digest`. Computed once per function object, so later changes of globals are not seen by it."""
    if not isinstance(function, FunctionType):
        return _compute_key(function)
    key = _cache.get(function)
    if key is None:
        key = _cache[function] = _compute_key(function)
    return key


def digest_of(data: str | bytes) -> str:
    """16 hexadecimal digits that equal data share."""
    import hashlib  # costs a worker 2 ms, and most never need it

    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return hashlib.sha256(raw).hexdigest()[:16]


def _compute_key(function: Callable[..., Any]) -> str:
    digest = digest_of("\n".join(_describe(function, set())))
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}:{digest}"


def _describe(value: object, seen: set[int]) -> Iterator[str]:
    """Text that is equal for equal values, in every process. What cannot be described is told apart by identity."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
    elif id(value) in seen:
        yield "again"
    else:
        # Functions stay in `seen` (a helper used twice is described once). Other objects leave it, so that only cycles
        # count: whether two equal constants are one object depends on how they were pickled.
        seen.add(id(value))
        yield type(value).__qualname__
        yield from _describe_inside(value, seen)
        if not isinstance(value, FunctionType):
            seen.discard(id(value))


def _describe_inside(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, FunctionType):
        yield from _describe_function(value, seen)
    elif isinstance(value, CodeType):
        yield from _describe_code(value, seen)
    elif isinstance(value, functools.partial):
        yield from _describe((value.func, value.args, value.keywords), seen)
    elif isinstance(value, MethodType):
        yield from _describe((value.__func__, value.__self__), seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _describe(item, seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted("\n".join(_describe(item, set(seen))) for item in value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _describe(key, seen)
            yield from _describe(item, seen)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _describe(getattr(value, field.name, None), seen)
    else:
        yield _pickled(value)


def _describe_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    yield from _describe_code(function.__code__, seen)
    yield from _describe((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _describe(cell.cell_contents, seen)
        except ValueError:
            yield "empty cell"
    # An imported package's own functions change only with its version: their globals are not followed.
    for name in sorted(_globals_read(function.__code__)):
        value = function.__globals__.get(name)
        if not isinstance(value, FunctionType) or value.__module__ == function.__module__:
            yield name
            yield from _describe(value, seen)


def _describe_code(code: CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount))
    for constant in code.co_consts:
        yield from _describe(constant, seen)


def _globals_read(code: CodeType) -> set[str]:
    """Names that the code, or code nested in it, loads from module globals; attribute names are not among them."""
    names = {str(step.argval) for step in get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_read(constant)
    return names


def _pickled(value: object) -> str:
    import pickle

    try:
        return digest_of(pickle.dumps(value, protocol=4))
    except Exception:  # whatever an object's own pickling raises: then only itself is equal to it
        return f"at {id(value)}"
