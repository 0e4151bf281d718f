"""Types that several threads may decode are described when their modules are imported."""

from __future__ import annotations

import subprocess
import sys

FIND = """
import ast, contextlib, gc, importlib, os, pkgutil, sys, typing
import msgspec

gc.disable()  # else it goes through all that was imported with each further import

def structs(kind):
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for one in typing.get_args(kind):
        yield from structs(one)

def is_described(kind):
    return any(type(one).__name__ == "StructInfo" for one in gc.get_referents(kind))

def decoded(module):
    # The types that calls of msgspec.convert and msgspec.json.decode name.
    with open(module.__file__) as file:
        tree = ast.parse(file.read())
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("msgspec.convert", "msgspec.json.decode"):
            typed = [word.value for word in call.keywords if word.arg == "type"] + call.args[1:]
            names = [name.id for one in typed for name in ast.walk(one) if isinstance(name, ast.Name)]
            if "kind" not in names:  # what its caller asks for
                yield from (eval(ast.unparse(one), vars(module)) for one in typed)

class Never(msgspec.Struct):
    number: int

assert not is_described(Never)
msgspec.json.Decoder(Never)
assert is_described(Never)
for library in ("fastapi", "pydantic", "sqlalchemy"):  # once for all rooms; where one is not, no room has it
    with contextlib.suppress(ImportError):
        importlib.import_module(library)
for room in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0, room
        continue
    found = set()
    assert not [name for name in sys.modules if name.startswith("egs_")]
    package = importlib.import_module(room)
    for info in pkgutil.iter_modules(package.__path__, room + "."):
        found.update(one for kind in decoded(importlib.import_module(info.name)) for one in structs(kind))
    for kind in sorted(found, key=str):
        print(f"{room}: {kind.__module__}.{kind.__name__}", "described" if is_described(kind) else "UNDESCRIBED")
    break
"""
ROOMS = (
    *("egs_core.site", "egs_core.client", "egs_core.server", "egs_core.engine.state"),
    *("egs_core.graph", "egs_core.history", "egs_core.predict", "egs_core.runlog"),
    *("egs_ray.session", "egs_ray.site", "egs_ray.worker"),
)


def test_what_threads_decode_is_described_at_import() -> None:
    """msgspec has ended the process (SIGSEGV) where two threads described a type at once: so the import does it. Each
    room is looked at in a process of its own: another room's import must not do it."""
    command = [sys.executable, "-c", FIND, *ROOMS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(" UNDESCRIBED")] == []
    rooms = {line.partition(":")[0] for line in lines if line.endswith(" described")}
    assert rooms >= {*ROOMS} - {"egs_ray.worker"}
