"""Preloading: what is warm, what is loaded once, and that a preload cannot break anything."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import PreloadItem, hints_of, is_warm, warm, warm_key


def make_loader(result: object = None) -> tuple[Callable[[], object], list[int]]:
    """A load function of its own (told apart by what it closes over) and the list that its calls grow."""
    calls: list[int] = []

    def load() -> object:
        calls.append(1)
        if isinstance(result, BaseException):
            raise result
        return result if result is not None else object()

    return load, calls


def from_source(source: str) -> Callable[[], Any]:
    """A function `load` as a worker gets it: defined elsewhere, pickled by value, in globals of its own."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(source, scope)
    return scope["load"]  # type: ignore[no-any-return]  # made by exec


def test_a_value_is_loaded_once() -> None:
    """Two calls give the same object and load it once."""
    load = from_source("calls = []\ndef load():\n    return object()")
    assert egs.loaded(load) is egs.loaded(load)


def test_none_is_a_value() -> None:
    """A load function that returns None (it fills a cache of its own) is not called again."""
    ran: list[int] = []
    load = from_source("def load(sink=None):\n    return SINK.append(1)")
    load.__globals__["SINK"] = ran
    assert egs.loaded(load) is None
    assert egs.loaded(load) is None
    assert ran == [1]


def test_unpickled_copies_share_the_value() -> None:
    """A function that came over twice, as two objects, is loaded once: also the copy inside the hints."""
    load = from_source("WEIGHTS = {'a': [1, 2]}\ndef helper():\n    return WEIGHTS\ndef load():\n    return [helper()]")
    data = cloudpickle.dumps(load)
    first, second = cloudpickle.loads(data), cloudpickle.loads(data)
    assert first is not second
    assert egs.loaded(first) is egs.loaded(second)
    assert is_warm([egs.call(cloudpickle.loads(data))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def load(): return ['a', 1]", "def load(): return ['a', 2]"),
        ("PATH = 'a'\ndef load(): return [PATH]", "PATH = 'b'\ndef load(): return [PATH]"),
        ("C = {'p': ['a']}\ndef load(): return [C]", "C = {'p': ['b']}\ndef load(): return [C]"),
        ("def h(): return 1\ndef load(): return [h()]", "def h(): return 2\ndef load(): return [h()]"),
        ("def load(path='a'): return [path]", "def load(path='b'): return [path]"),
        ("def load(): return [(lambda: 1)()]", "def load(): return [(lambda: 2)()]"),
        ("P = 'a'\ndef load(): return [x for x in [1] if P]", "P = 'b'\ndef load(): return [x for x in [1] if P]"),
    ],
)
def test_what_differs_is_not_shared(one: str, other: str) -> None:
    """Same name and module, but another body, constant, helper or default: each has a value of its own."""
    assert egs.loaded(from_source(one)) is not egs.loaded(from_source(other))
    assert egs.loaded(from_source(one)) is egs.loaded(from_source(one))


def test_closures_of_one_factory_are_not_shared() -> None:
    """Two load functions with the same code that close over different paths load different things."""

    def load_from(path: str) -> Callable[[], list[str]]:
        def load() -> list[str]:
            return [path]

        return load

    assert (egs.loaded(load_from("a")), egs.loaded(load_from("b"))) == (["a"], ["b"])
    assert egs.loaded(load_from("a")) is egs.loaded(load_from("a"))


def test_a_recursive_load_function_has_a_key() -> None:
    """A function that names itself, and containers that contain themselves, end."""
    load = from_source("LOOP = []\nLOOP.append(LOOP)\ndef load(n=2):\n    return load(n - 1) if n else [LOOP]")
    assert egs.loaded(load) is egs.loaded(load)


def test_an_exception_is_not_kept() -> None:
    """The first call raises, the second loads."""
    state = {"fail": True}

    def load() -> str:
        if state["fail"]:
            raise OSError("not there yet")
        return "model"

    with pytest.raises(OSError, match="not there yet"):
        egs.loaded(load)
    state["fail"] = False
    assert egs.loaded(load) == "model"


def test_threads_wait_for_one_load() -> None:
    """Eight threads that ask while the first one loads: one call, one object."""
    calls: list[int] = []
    started, go_on = threading.Event(), threading.Event()

    def load() -> object:
        calls.append(1)
        started.set()
        assert go_on.wait(240)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(egs.loaded(load))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert started.wait(240)
    go_on.set()
    for thread in threads:
        thread.join(240)
    assert len(calls) == 1
    assert len({id(value) for value in found}) == 1
    assert len(found) == 8


def test_warm_performs_every_kind(tmp_path: Path) -> None:
    """Cold before, warm after; the module is imported, the file read, and the function's value is there."""
    model = tmp_path / "model.pt"
    model.write_bytes(os.urandom(3_000_000))
    load, calls = make_loader()
    sys.modules.pop("this_is_cold", None)
    items: list[PreloadItem] = [egs.modules("colorsys", "json.tool"), egs.files(model), egs.call(load)]
    assert not is_warm(items)
    seconds = warm(items)
    assert seconds > 0
    assert is_warm(items)
    assert calls == [1]
    assert {"colorsys", "json.tool"} <= set(sys.modules)
    egs.loaded(load)
    warm(items)
    assert calls == [1]


def test_a_file_that_changed_is_cold(tmp_path: Path) -> None:
    """A new version of a file, and a deleted one, are not warm."""
    model = tmp_path / "model.pt"
    model.write_bytes(b"1")
    items = [egs.files(model)]
    warm(items)
    assert is_warm(items)
    model.write_bytes(b"22")
    assert not is_warm(items)
    model.unlink()
    assert not is_warm(items)


def test_failures_are_collected_and_the_rest_is_loaded(tmp_path: Path) -> None:
    """A missing module, a missing file, an error and an exit in user code: reported, never raised."""
    broken, _ = make_loader(ValueError("bad weights"))
    leaving, _ = make_loader(SystemExit(3))
    good, calls = make_loader("weights")
    items: list[PreloadItem] = [
        egs.modules("no_such_module_anywhere", "this_too.is_missing", "colorsys"),
        egs.files(tmp_path / "none"),
        egs.call(broken),
        egs.call(leaving),
        egs.call(good),
    ]
    errors: list[tuple[PreloadItem, BaseException]] = []
    warm(items, errors)
    assert [(item, type(error)) for item, error in errors] == [
        (items[0], ModuleNotFoundError),
        (items[0], ModuleNotFoundError),
        (items[1], FileNotFoundError),
        (items[2], ValueError),
        (items[3], SystemExit),
    ]
    assert calls == [1]
    assert not is_warm(items)
    assert warm(items) >= 0


def test_a_warm_key_names_a_set() -> None:
    """Order and grouping do not matter, contents do; no items is the empty key."""
    load = from_source("def load(): return 1")
    key = warm_key([egs.modules("json", "csv"), egs.files("m.pt"), egs.call(load)])
    assert key == warm_key([egs.files("m.pt"), egs.call(load), egs.modules("csv"), egs.modules("json")])
    hints = hints_of(
        egs.task(preload=[egs.modules("json", "csv"), egs.files("m.pt"), egs.call(load)])(from_source("def load(): 1"))
    )
    assert hints is not None
    assert warm_key(hints) == key
    others: list[list[PreloadItem]] = [
        [egs.modules("json")],
        [egs.files("json")],
        [egs.modules("json"), egs.call(load)],
    ]
    assert len({key, *(warm_key(items) for items in others)}) == 4
    assert warm_key([]) == ""


KEY = """
import sys
sys.path[:0] = sys.argv[1:]
import egs_core as egs
from egs_core.hints import warm_key
NAMES = {"b", "a", "c"}
def load(): return [NAMES, frozenset({"x", "y", "z"}), "x" in {"p", "q", "r"}]
print(warm_key([egs.modules("torch"), egs.call(load)]))
"""


def test_a_warm_key_is_the_same_in_every_process() -> None:
    """Hash seeds differ between processes; the keys of the same program do not."""
    found = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", KEY, str(Path(egs.__file__).parents[1])]
        environment = {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_a_fork_does_not_inherit_a_held_lock() -> None:
    """A child forked while another thread loads can load by itself."""
    code = """
import os, sys, threading
sys.path[:0] = sys.argv[1:]
import egs_core as egs
main_is_in, go_on = threading.Event(), threading.Event()
parent = os.getpid()
def load():
    if os.getpid() == parent:
        main_is_in.set(); go_on.wait(240)
    return os.getpid()
thread = threading.Thread(target=egs.loaded, args=(load,)); thread.start(); main_is_in.wait(240)
child = os.fork()
if child == 0:
    os._exit(0 if egs.loaded(load) == os.getpid() else 1)
_, status = os.waitpid(child, 0)
go_on.set(); thread.join(240)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(Path(egs.__file__).parents[1])]
    assert subprocess.run(command, timeout=240, check=False).returncode == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: egs.modules(),
        lambda: egs.modules("no spaces"),
        lambda: egs.modules(""),
        lambda: egs.modules(5),  # type: ignore[arg-type]  # bad on purpose
        lambda: egs.files(),
        lambda: egs.files(""),
        lambda: egs.files(5),  # type: ignore[arg-type]  # bad on purpose
        lambda: egs.call("load"),  # type: ignore[arg-type]  # bad on purpose
        lambda: egs.loaded(5),  # type: ignore[arg-type]  # bad on purpose
    ],
)
def test_bad_items_are_clear_errors(make: Callable[[], object]) -> None:
    """What is no module name, path or function is refused where it is written."""
    with pytest.raises(InputError, match=r"^egs\.(modules|files|call|loaded): "):
        make()


def test_an_async_load_function_is_refused() -> None:
    """Its value would be a coroutine, which can be used once."""

    async def load() -> int:
        return 1

    with pytest.raises(InputError, match="is async"):
        egs.call(load)
