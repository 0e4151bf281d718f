"""Whether there is a Ray to ask where nobody has named one: RAY_ADDRESS, or a Ray of this user's own on this host.

A process of its own asks first. Ray tries twenty seconds to reach a cluster that refuses it, as one with another
token does, and meanwhile writes of that to the terminal.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

from egs_core.errors import InputError
from egs_ray.control.reachable import own_addresses

START_S = 20.0  # for Ray's import
ANSWER_S = 2.0
PROBE = """
import sys, threading
from ray._raylet import GcsClient
def ask(address):
    GcsClient(address=address)
    print(address, flush=True)
print(flush=True)
asking = [threading.Thread(target=ask, args=(one,), daemon=True) for one in sys.argv[1:]]
for one in asking:
    one.start()
for one in asking:
    one.join()
"""


def at_hand(place: str) -> str:
    """The address to ask, "" where there is none. Raises InputError where RAY_ADDRESS names one that does not answer,
    and where several answer."""
    named = os.environ.get("RAY_ADDRESS", "")
    if "://" in named:
        return named  # Ray's client: no address that can be asked like this
    there = own_addresses() if named in ("", "auto", "local") else [named]
    found = answering(there)
    if len(found) > 1:
        raise InputError(place, f"several clusters: {', '.join(found)}", "say which with --address, or RAY_ADDRESS")
    if not found and there == [named]:
        problem = f"the Ray at {named}, which RAY_ADDRESS names, does not answer within {ANSWER_S:g} s"
        raise InputError(place, problem, "is it there, and has it this user's token?")
    return found[0] if found else ""


def answering(addresses: Sequence[str]) -> list[str]:
    """Those of them, as HOST:PORT, at which a cluster lets this user in within `ANSWER_S`."""
    if not addresses:
        return []
    env = {name: value for name, value in os.environ.items() if name not in ("EGS_HOOK", "RAY_RUNTIME_ENV_HOOK")}
    command = [sys.executable, "-c", PROBE, *addresses]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=env) as child:
        assert child.stdout is not None
        try:
            told = _read(child.stdout.fileno(), 1, START_S)
            told += _read(child.stdout.fileno(), len(addresses), ANSWER_S) if told else b""
        finally:
            child.kill()
    said = told.decode().split()
    return [one for one in addresses if one in said]


def _read(pipe: int, lines: int, patience_s: float) -> bytes:
    """So many lines, or what came of them in time."""
    until, found = time.monotonic() + patience_s, b""
    while found.count(b"\n") < lines and select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        more = os.read(pipe, 4096)
        if not more:
            break
        found += more
    return found
