"""Ten scripts of the Ray project, unchanged, natively and under EGS's hook: wall time, exit codes, output.

    python -m benchmarks.upstream --how                      # the commands that bring the scripts (`upstream_scripts`)
    python -m benchmarks.upstream --scripts upstream         # interleaved pairs, a table, the geometric mean
    python -m benchmarks.upstream --scripts upstream --check # and exit code 1 where EGS is slower than the limit

Each run is a process of its own with an empty home, on a Ray of its own with emulated GPUs, as many as the script says.
The clock runs from before Python starts until the process has ended, so it has all that EGS adds: `import`, the hook in
`ray.init`, its threads, the run log at the end. `EGS_MODE=on`, no hint, no history. Pairs alternate who goes first.
Beside the wall clock stands what a busy machine changes less: how many processes there were, and the processor time of
all of them and of the driver (`process_tree`).

The limit: native x 1.03, plus 0.5 s a driver. The figure: the geometric mean of native over EGS, and the value above
which it lies with 95 % confidence (bootstrapped over the pairs of each script). A run under EGS with another exit code,
or with another output where all native runs print the same, counts as wrong: exit code 1, with or without --check.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.process_tree import Used, Watched
from benchmarks.upstream_scripts import SCRIPTS, Script, check_files, how_to_get
from egs_core.errors import InputError

SHARE, MORE_S = 1.03, 0.5
WAYS = ("native", "egs")
TIMEOUT_S = 300
DRAWS, SEED = 4000, 1
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}
CALM = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
COMPILES = (
    "PYTHONDONTWRITEBYTECODE"  # else each process would compile EGS again, where installed packages have that done
)
SAID = "run log:"
"""On stderr of each run in which EGS was on."""
RAYS = re.compile(r"(\x1b\[\d+m)?\(raylet\b")
"""Begins lines of Ray's own on a script's stdout: that a process of its has died, with its numbers. In max-calls that
happens in some runs, natively too: Ray's library aborts while the process ends."""
CALL = """
import importlib, json, sys
folder, path, function, arguments, packages = json.loads(sys.argv[1])
for name in packages:
    importlib.import_module(name).__path__.append(f"{folder}/python/{name.replace('.', '/')}")
space = {"__name__": "upstream", "__file__": path}
with open(path) as file:
    exec(compile(file.read(), path, "exec"), space)
space[function](*arguments)
import ray
ray.shutdown()
"""
"""Runs one function of a file as a program; packages: those whose tests, but not whose code, are the checkout's."""


class Seen(msgspec.Struct, frozen=True):
    """One run: seconds from before its start until its end, exit code, what it printed in a form that can be compared,
    the end of what it said on stderr, what it took of the processors, and how many lines Ray itself printed into it."""

    wall_s: float
    code: int
    output: str
    said: str
    used: Used = Used()
    rays_lines: int = 0


def command_of(script: Script, folder: Path) -> list[str]:
    """How the script is run."""
    path = str(folder / script.path)
    if not script.function:
        return [sys.executable, path]
    what = json.dumps([str(folder), path, script.function, script.arguments, script.packages])
    return [sys.executable, "-c", CALL, what]


def run_once(script: Script, way: str, folder: Path) -> Seen:
    """One run in a home of its own; one that takes longer than TIMEOUT_S has exit code 124."""
    home = Path(tempfile.mkdtemp(prefix="egs-up-"))
    own = {"HOME": str(home), "XDG_DATA_HOME": str(home), "RAY_TMPDIR": str(home), **CALM}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("EGS_", "RAY_", COMPILES))}
    env = {**others, **own, **(HOOK if way == "egs" else {})}
    began = time.perf_counter()
    process = subprocess.Popen(
        command_of(script, folder), cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watched = Watched(process.pid, f"HOME={home}")
    try:
        output, said = process.communicate(timeout=TIMEOUT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        (output, said), code = process.communicate(), 124
    wall_s, used = time.perf_counter() - began, watched.stop()
    shutil.rmtree(home, ignore_errors=True)
    rays_lines = sum(RAYS.match(line) is not None for line in output.splitlines())
    return Seen(wall_s, code, comparable(output), said[-3000:], used, rays_lines)


def comparable(output: str) -> str:
    """What of an output can be the same in two runs: no numbers of processes, and nothing that Ray says of itself;
    sorted, as lines of several workers come as they come."""
    own = [line for line in output.splitlines() if not RAYS.match(line)]
    return "\n".join(sorted(re.sub(r"pid=\d+", "pid=", line) for line in own))


def run_pairs(script: Script, pairs: int, folder: Path) -> dict[str, list[Seen]]:
    """The runs of each way, in the order of the pairs."""
    runs: dict[str, list[Seen]] = {way: [] for way in WAYS}
    for number in range(pairs):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            seen = run_once(script, way, folder)
            runs[way].append(seen)
            used = seen.used
            cpu = (
                f"{used.processes} processes, {used.cpu_s:.1f} s of a core, {used.driver_cpu_s:.2f} of it the driver's"
            )
            print(f"{script.name} {number + 1}/{pairs} {way}: {seen.wall_s:.1f} s; {cpu}", file=sys.stderr)
    return runs


def compare(script: Script, runs: dict[str, list[Seen]]) -> dict[str, Any]:
    """A script's row; `wrong` names what EGS did otherwise than native."""
    native, egs = runs["native"], runs["egs"]
    over_s = [ours.wall_s - own.wall_s * SHARE - MORE_S * script.drivers for own, ours in zip(native, egs, strict=True)]
    return {
        "script": script.name,
        "pairs": len(native),
        "native_s": round(statistics.median(seen.wall_s for seen in native), 2),
        "egs_s": round(statistics.median(seen.wall_s for seen in egs), 2),
        "native_over_egs": round(geometric_mean([ratios(runs)]), 3),
        "over_limit_s": round(statistics.median(over_s), 2),
        **{way: middle_of([seen.used for seen in runs[way]]) for way in WAYS},
        "rays_lines": {way: sum(seen.rays_lines for seen in runs[way]) for way in WAYS},
        "wrong": wrong(native, egs),
    }


def middle_of(used: Sequence[Used]) -> dict[str, float]:
    """The medians of what runs took."""
    figures = ("processes", "workers", "cpu_s", "driver_cpu_s")
    return {name: round(statistics.median(getattr(one, name) for one in used), 2) for name in figures}


def wrong(native: Sequence[Seen], egs: Sequence[Seen]) -> str:
    """What makes these runs no comparison, or "": exit codes, output where all native runs agree, EGS not on."""
    codes = {seen.code for seen in native}
    if bad := [seen for seen in native if seen.code]:
        return f"native exit code {bad[0].code}: {_last_line(bad[0].said)}"
    if bad := [seen for seen in egs if seen.code not in codes]:
        return f"exit code {bad[0].code} under EGS: {_last_line(bad[0].said)}"
    if not all(SAID in seen.said for seen in egs):
        return "EGS was not on"
    outputs = {seen.output for seen in native}
    if len(native) > 1 and len(outputs) == 1 and any(seen.output not in outputs for seen in egs):
        return "other output under EGS"
    return ""


def _last_line(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if line.strip() and SAID not in line), "")[:200]


def ratios(runs: dict[str, list[Seen]]) -> list[float]:
    """Native over EGS, of each pair."""
    return [own.wall_s / ours.wall_s for own, ours in zip(runs["native"], runs["egs"], strict=True)]


def geometric_mean(of_scripts: Sequence[Sequence[float]]) -> float:
    """Of the scripts' own geometric means: each counts once, however many pairs it has."""
    return math.exp(statistics.fmean(statistics.fmean(map(math.log, pairs)) for pairs in of_scripts))


def at_least(of_scripts: Sequence[Sequence[float]]) -> float:
    """The fifth percentile of the geometric mean, each script's pairs drawn again: how far noise may have raised it."""
    draw = random.Random(SEED)
    drawn = sorted(geometric_mean([draw.choices(pairs, k=len(pairs)) for pairs in of_scripts]) for _ in range(DRAWS))
    return drawn[DRAWS // 20]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=(__doc__ or "").splitlines()[0])
    names = tuple(script.name for script in SCRIPTS)
    parser.add_argument("--scripts", type=Path, help="the folder with the checkout; see --how")
    parser.add_argument("--how", action="store_true", help="print the commands that bring the scripts")
    parser.add_argument("--list", action="store_true", help="print what is run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is broken, or the mean's bound")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    chosen = [script for script in SCRIPTS if script.name in arguments.only]
    if arguments.how or arguments.list:
        shown = (f"{s.name}: {s.path}:{s.function}; {s.cpus} CPUs, {s.gpus} GPUs; {s.what}" for s in chosen)
        print(how_to_get() if arguments.how else "\n".join(shown))
        return 0
    if arguments.scripts is None or arguments.pairs < 1:
        parser.error("--scripts DIR, and at least one pair")
    try:
        check_files(arguments.scripts.resolve(), chosen)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    before = os.getloadavg()[0]
    runs = {script.name: run_pairs(script, arguments.pairs, arguments.scripts.resolve()) for script in chosen}
    rows = [compare(script, runs[script.name]) for script in chosen]
    every = [ratios(of_script) for of_script in runs.values()]
    found = {
        "rows": rows,
        "load_before": round(before, 1),
        "native_over_egs": round(geometric_mean(every), 3),
        "with_95_percent_at_least": round(at_least(every), 3),
        "over_the_limit": [row["script"] for row in rows if row["over_limit_s"] > 0],
    }
    print(json.dumps(found, indent=None if arguments.json else 2))
    missed = bool(found["over_the_limit"]) or at_least(every) <= 1
    return int(any(row["wrong"] for row in rows) or (arguments.check and missed))


if __name__ == "__main__":
    sys.exit(main())
