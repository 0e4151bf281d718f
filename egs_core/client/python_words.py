"""A command that starts Python: which of its words are the interpreter's own, and where its program's modules are."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from egs_core.client.arguments import GPUS
from egs_core.errors import InputError

PYTHON = re.compile(r"python[0-9.]*t?")
WITH_VALUE, LONG_WITH_VALUE = "WX", "--check-hash-based-pycs"
PROGRAM = {"c": "", "m": "."}
"""Options that name what is run, and what Python then puts in front of `sys.path`."""
UNFIT = {
    "E": "it ignores PYTHONPATH",
    "I": "it ignores PYTHONPATH",
    "S": "it runs no sitecustomize",
    "V": "it runs nothing",
    "h": "it runs nothing",
    "?": "it runs nothing",
}
"""Options of Python with which nothing can be loaded ahead, and why."""
PLACE = "--preload"
HINT = "leave --preload out"


class PythonWords(NamedTuple):
    """interpreter: the program and its own options, up to what it is to run; first: what that has it put in front of
    `sys.path`: a folder or file, "" or "." for the current folder, as Python writes it or by its name; arguments: what
    its program finds in `sys.argv` behind its own name."""

    interpreter: list[str]
    first: str
    arguments: list[str]


def python_words(command: Sequence[str]) -> PythonWords:
    """Raises InputError where no modules can be loaded before the command's turn.

    >>> python_words(["python3", "-OW", "error", "-Bm", "trainer", "--lr", "0.1"])
    PythonWords(interpreter=['python3', '-OW', 'error', '-B'], first='.', arguments=['--lr', '0.1'])
    """
    if not PYTHON.fullmatch(PurePath(command[0]).name):
        problem = f"{command[0]!r} is not Python, and nothing can be imported for it before its turn"
        raise InputError(PLACE, problem, f"python FILE, or {HINT}")
    if any(GPUS in word for word in command[1:]):
        raise InputError(PLACE, f"{GPUS} among the arguments is known only at its turn", f"{HINT}, or {GPUS}")
    own, left = [command[0]], list(command[1:])
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        word = left.pop(0)
        if word.startswith("--"):
            if word != LONG_WITH_VALUE:
                raise InputError(PLACE, f"Python is given {word}", HINT)
            own += [word, *left[:1]]
            del left[:1]
            continue
        for at, letter in enumerate(word[1:]):
            if letter in UNFIT:
                raise InputError(PLACE, f"Python is given -{letter}: {UNFIT[letter]}", f"{HINT}, or -{letter}")
            if letter in PROGRAM:
                arguments = left if word[2 + at :] else left[1:]
                return PythonWords(own + ([word[: 1 + at]] if at else []), PROGRAM[letter], arguments)
            if letter in WITH_VALUE:
                value = left[:1] if at == len(word) - 2 else []
                del left[: len(value)]
                own += [word, *value]
                break
        else:
            own.append(word)
    if left[:1] == ["--"]:
        del left[0]
    if not left:
        raise InputError(PLACE, "Python is given no program", f"name one, or {HINT}")
    return PythonWords(own, "" if left[0] == "-" else _place_of(left[0]), left[1:])


def _place_of(program: str) -> str:
    """As Python has it: a folder or zip file that can be run by itself, else the folder in which the script is."""
    real = os.path.realpath(program)
    is_whole = os.path.isdir(real) or (os.path.isfile(real) and zipfile.is_zipfile(real))
    return real if is_whole else os.path.dirname(real)
