"""What `egs ray keep-ready` saves drivers that come one after the other: from a driver's start to the end of its first
task, which imports heavy modules.

    python -m benchmarks.ray_ready --drivers 8 --rounds 2 --json FILE

    plain    a cluster as `ray start` makes it
    modules  one that was started with RAY_preload_python_modules
    ready    the same, with `egs ray keep-ready 2` beside it

A round has each side once, in the other order than the round before: a Ray of its own (`ray start`, four CPUs), on
which drivers start `--gap-s` after the end of the one before. The clock runs from before Python starts until the driver
has the value of its task: `import ray` and `ray.init` are in it. The first driver of each side is told apart: Ray
starts processes for it by itself, and the keeper has seen none yet. `found` counts the later drivers whose task was in
a process that no job had when it started: Ray's own, of which the first drivers leave some, and those that the keeper
has asked for. `standing` is how many processes no job has when a later driver starts, `own_mib` what they have of the
host's memory for themselves, together (USS; on Linux alone): medians. Lists are in the order of the drivers, each
round's after the other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.plots import is_printed

CPUS = 4
MOST_READY = 2
MODULES = ("pandas", "scipy.stats", "sklearn.ensemble")
SIDES = ("plain", "modules", "ready")
OBJECT_STORE_BYTES = 100_000_000
START_S, END_S, TIMEOUT_S = 120.0, 20.0, 300.0
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
DRIVER = """
import sys, time
import ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote
def first(modules):
    import importlib
    for one in modules:
        importlib.import_module(one)
    return "RAY_JOB_ID=ffffffff" in open("/proc/self/environ").read().split(chr(0))

found = ray.get(first.remote(sys.argv[2].split(",")))
print(time.time() - float(sys.argv[1]), int(found))
"""
"""The variables with which Ray starts a process that no job has have this one."""
EGS = "import sys; from egs_core.cli.app import run; sys.exit(run(sys.argv[1:]))"


class Options(msgspec.Struct, frozen=True):
    """drivers: of each side in a round."""

    drivers: int = 8
    rounds: int = 2
    gap_s: float = 5.0
    modules: tuple[str, ...] = MODULES


class Driver(NamedTuple):
    """took_s: until it had its task's value; found: the task was in a process that no job had; standing, own_bytes: how
    many of those there were when the driver started, and their memory."""

    took_s: float
    found: bool
    standing: int
    own_bytes: int


def run_all(options: Options) -> dict[str, Any]:
    """One row a side."""
    rounds: dict[str, list[list[Driver]]] = {side: [] for side in SIDES}
    said: list[str] = []
    for number in range(options.rounds):
        for side in SIDES[:: 1 if number % 2 == 0 else -1]:
            found, told = stream(side, options)
            rounds[side].append(found)
            said += told
    rows = [row_of(side, rounds[side]) for side in SIDES]
    return {**msgspec.to_builtins(options), "most_ready": MOST_READY, "rows": rows, "keeper": said}


def stream(side: str, options: Options) -> tuple[list[Driver], list[str]]:
    """Its drivers on a Ray of its own, and what the keeper has said at its end."""
    modules = {} if side == "plain" else {"RAY_preload_python_modules": ",".join(options.modules)}
    said: list[str] = []
    with ExitStack() as stack:
        head, address = stack.enter_context(cluster(modules))
        if side == "ready":
            stack.enter_context(keeper(address, said))
        found = []
        for _ in range(options.drivers):
            time.sleep(options.gap_s)
            found.append(driver(address, head, options.modules))
    return found, said


def driver(address: str, head: psutil.Process, modules: tuple[str, ...]) -> Driver:
    """One, until its process has ended."""
    standing, own_bytes = memory_of_standing(head)
    command = [sys.executable, "-W", "ignore", "-c", DRIVER]
    began = time.time()
    done = subprocess.run(
        [*command, str(began), ",".join(modules)],
        env=variables({"RAY_ADDRESS": address}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a driver failed:\n{done.stderr[-3000:]}")
    took, found = done.stdout.split()[-2:]
    return Driver(float(took), found == "1", standing, own_bytes)


def memory_of_standing(head: psutil.Process) -> tuple[int, int]:
    """Of worker processes that no job has: how many, and bytes that nothing else has."""
    count = own_bytes = 0
    for process in head.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            name = process.name()
            if name.startswith("ray::IDLE") and process.environ().get("RAY_JOB_ID") == "ffffffff":
                own_bytes += process.memory_full_info().uss
                count += 1
    return count, own_bytes


@contextmanager
def cluster(own: dict[str, str]) -> Iterator[tuple[psutil.Process, str]]:
    """`ray start` with these variables: its process, and its address. Nothing of it is left afterwards."""
    folder = tempfile.mkdtemp(prefix="egs-", dir="/tmp")  # Ray's sockets have short paths
    words = f"start --head --block --port=0 --num-cpus={CPUS} --object-store-memory={OBJECT_STORE_BYTES}"
    more = ["--include-dashboard=false", f"--temp-dir={folder}"]
    command = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", *words.split(), *more]
    before = set(psutil.Process().children(recursive=True))
    out = Path(folder, "said")
    with out.open("w") as said:
        head = subprocess.Popen(command, env=variables(own), stdout=said, stderr=said)
    try:
        yield psutil.Process(head.pid), address_of(head, Path(folder), out)
    finally:
        started = [one for one in psutil.Process().children(recursive=True) if one not in before]
        head.terminate()
        _, alive = psutil.wait_procs(started, timeout=END_S)
        for process in alive:
            process.kill()
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def address_of(head: subprocess.Popen[bytes], folder: Path, out: Path) -> str:
    """HOST:PORT, once the head has told it: it notes it after it has said that it runs."""
    told, until = folder / "ray_current_cluster", time.monotonic() + START_S
    while "Ray runtime started" not in out.read_text() or not told.exists() or not told.read_text().strip():
        if head.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"`ray start` failed:\n{out.read_text()[-3000:]}")
        time.sleep(0.1)
    return told.read_text().strip()


@contextmanager
def keeper(address: str, said: list[str]) -> Iterator[None]:
    """`egs ray keep-ready` beside this cluster; its last line is added to what was said."""
    command = [sys.executable, "-c", EGS, "ray", "keep-ready", str(MOST_READY), "--address", address]
    begun = subprocess.Popen(command, env=variables({}), stdout=subprocess.PIPE, text=True)
    assert begun.stdout is not None
    try:
        if not begun.stdout.readline():
            raise SystemExit(f"`egs ray keep-ready` ended with exit code {begun.wait()}")
        yield
        begun.send_signal(signal.SIGTERM)
        said.append(begun.communicate(timeout=END_S)[0].splitlines()[-1])
    finally:
        begun.kill()
        begun.wait()


def variables(own: dict[str, str]) -> dict[str, str]:
    """Without the user's own of Ray and EGS, which would change what runs."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "EGS_"))}
    return {**plain, **QUIET, **own}


def row_of(side: str, rounds: list[list[Driver]]) -> dict[str, Any]:
    """Medians over later drivers, of all rounds."""
    later = [one for drivers in rounds for one in drivers[1:]]
    took = [one.took_s for one in later]
    return {
        "side": side,
        "first_s": [round(drivers[0].took_s, 2) for drivers in rounds],
        "later_median_s": round(statistics.median(took), 2),
        "least_s": round(min(took), 2),
        "most_s": round(max(took), 2),
        "found": f"{sum(one.found for one in later)} of {len(later)}",
        "standing": statistics.median(one.standing for one in later),
        "own_mib": round(statistics.median(one.own_bytes for one in later) / 2**20),
        "later_s": [round(one, 2) for one in took],
    }


def show(result: dict[str, Any], console: Console) -> None:
    names = [name for name in result["rows"][0] if name != "later_s"]
    table = Table(*names)
    for row in result["rows"]:
        table.add_row(*(str(row[name]) for name in names))
    console.print(table)
    for line in result["keeper"]:
        console.print(f"the keeper: {line}", highlight=False)


def main() -> int:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ray_ready", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--drivers", type=int, default=defaults.drivers, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=defaults.rounds)
    parser.add_argument("--gap-s", type=float, default=defaults.gap_s, help="between a driver's end and the next one")
    parser.add_argument("--modules", default=",".join(defaults.modules), help="what each task imports")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the result as JSON, to stdout or a file")
    arguments = parser.parse_args()
    modules = tuple(arguments.modules.split(","))
    if arguments.drivers < 2 or arguments.rounds < 1 or arguments.gap_s < 0:
        parser.error("at least two drivers and one round, and no negative gap")
    if absent := [one for one in modules if find_spec(one.partition(".")[0]) is None]:
        parser.error(f"not installed: {', '.join(absent)}; --modules names others")
    result = run_all(Options(arguments.drivers, arguments.rounds, arguments.gap_s, modules))
    if not is_printed(result, arguments.json):
        show(result, Console(width=140))
    return 0


if __name__ == "__main__":
    sys.exit(main())
