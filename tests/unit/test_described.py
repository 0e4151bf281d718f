"""Types that several threads may decode are described when their modules are imported."""

from __future__ import annotations

import subprocess
import sys

FIND = """
import ast, gc, importlib, pkgutil, sys, typing
import msgspec

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
found = set()
for room in sys.argv[1:]:
    package = importlib.import_module(room)
    for info in pkgutil.iter_modules(package.__path__, room + "."):
        found.update(one for kind in decoded(importlib.import_module(info.name)) for one in structs(kind))
for kind in sorted(found, key=str):
    print(f"{kind.__module__}.{kind.__name__}", "described" if is_described(kind) else "UNDESCRIBED")
"""
ROOMS = (
    *("egs_core.site", "egs_core.client", "egs_core.server", "egs_core.engine.state"),
    *("egs_core.graph", "egs_core.history", "egs_core.predict", "egs_core.runlog"),
    *("egs_ray.session", "egs_ray.site", "egs_ray.worker"),
)


def test_what_threads_decode_is_described_at_import() -> None:
    """msgspec has ended the process (SIGSEGV) where two threads described a type at once: so the import does it."""
    for room in ROOMS:  # each in a process of its own: another room's import must not do it
        done = subprocess.run(
            [sys.executable, "-c", FIND, room], capture_output=True, text=True, check=False, timeout=240
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "UNDESCRIBED" not in done.stdout, f"{room}: {done.stdout}"
        assert " described" in done.stdout or room == "egs_ray.worker", room
