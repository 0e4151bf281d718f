"""Modules that a command of `egs run --preload` names and its Python does not find: said when the run is asked for,
since a run that has its turn at once loads nothing ahead, and nobody would notice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from egs_core.client.phases import CUDA_VISIBLE
from egs_core.client.places import TOKEN, TOKEN_FILE
from egs_core.client.python_words import PLACE, python_words
from egs_core.errors import InputError, listed

ANSWER_S = 5.0
PROGRAM = """
import sys
from importlib.util import find_spec
first = sys.argv[1]
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = first
for name in sys.argv[2:]:
    try:
        is_there = name in sys.modules or find_spec(name) is not None
    except Exception:
        is_there = True
    if not is_there:
        print(name)
"""
"""It looks for packages, and imports none."""


def absent_words(command: Sequence[str], modules: Sequence[str]) -> str:
    """A line about them; "" for none."""
    found = absent_modules(command, modules)
    problem = f"{PLACE}: {command[0]} finds no module {listed(found)} here now"
    return f"{problem}: unless there is one by its turn, nothing is loaded ahead" if found else ""


def absent_modules(command: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Those of which the package is not there, by the command's own Python, folder and environment; none where that
    cannot be told."""
    packages = list(dict.fromkeys(name.partition(".")[0] for name in modules))
    environment = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_FILE)}
    try:
        words = python_words(command)
        first = os.getcwd() if words.first in ("", ".") else words.first
        done = subprocess.run(
            [*words.interpreter, "-c", PROGRAM, first, *packages],
            env=environment | {CUDA_VISIBLE: ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=True,
        )
    except (InputError, OSError, subprocess.SubprocessError):
        return []
    told = done.stdout.decode(errors="replace").split()
    return [name for name in modules if name.partition(".")[0] in told]
