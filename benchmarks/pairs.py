"""How much processor time one command takes in two checkouts of EGS: interleaved pairs, with their spread.

    git worktree add ../before main
    python -m benchmarks.pairs ../before . -- python -m benchmarks.rate --json --rounds 1
    python -m benchmarks.pairs ../before . --pairs 6 -- python -m pytest -q tests/unit/engine

The command is run as each checkout has it: in its folder, with its `.venv` where it has one, else with this Python and
its code. That `egs_core` is that checkout's is looked at first. Each side has a folder of its own for EGS's data and
sockets, and neither sees a site server or a Ray that is there already. One run of each is not counted; then the sides
take turns at going first.

A figure is what the command took of processors, with all processes below it that were waited for (`--daemons`: with
those that were not, by looks at /proc; `--printed`: what it prints as its last line, in seconds). A busy machine
changes processor time less than the clock, but not for all runs alike: so the pairs' ratios count. What they allow to
say is by the rule of `egs_core.runlog.claims`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.process_tree import Watched
from egs_core.errors import InputError, counted
from egs_core.runlog.claims import Claim, claim_of

SIDES = ("old", "new")
MARK = "EGS_PAIRS_RUN"
NOT_OURS = ("EGS_URL", "RAY_ADDRESS")  # a server or Ray that both sides would use
COMPILES = "PYTHONDONTWRITEBYTECODE"  # else each process would compile EGS again
WHICH = "import egs_core; print(list(egs_core.__path__)[0])"
SAID = 15  # lines of a command that failed


class Way(msgspec.Struct, frozen=True):
    """How a run's figure is had: see the module."""

    printed: bool = False
    daemons: bool = False


PROCESSES = Way()


class Side(msgspec.Struct, frozen=True):
    """A checkout, and the environment in which commands run there."""

    folder: Path
    environment: dict[str, str]


def side_of(checkout: Path, own: Path) -> Side:
    """own: a folder for what EGS keeps. Raises InputError for what is no checkout, or would run the code of another."""
    folder = checkout.resolve()
    if not (folder / "egs_core" / "__init__.py").is_file():
        raise InputError(str(checkout), "is no checkout of EGS", "name the folder that has egs_core/")
    programs = folder / ".venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if name not in (*NOT_OURS, COMPILES)}
    environment["PATH"] = os.pathsep.join(
        [str(programs if programs.is_dir() else Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *map(str, sorted(folder.glob("plugins/*/")))])
    for name in ("XDG_DATA_HOME", "EGS_RUNTIME_DIR"):
        environment[name] = str(own / name.lower())
        (own / name.lower()).mkdir(parents=True, mode=0o700)
    done = subprocess.run(
        ["python", "-c", WHICH], cwd=own, env=environment, check=False, capture_output=True, text=True
    )
    found = done.stdout.strip()
    if done.returncode or Path(found).resolve() != folder / "egs_core":
        problem = f"`python` there runs {f'the EGS of {found}' if found else 'no EGS'}"
        raise InputError(str(checkout), problem, "make its .venv anew, or remove it")
    return Side(folder, environment)


def take(side: Side, command: Sequence[str], way: Way = PROCESSES) -> float:
    """Seconds that a run of the command took. Raises InputError where it cannot be started, or fails: then what it said
    last is on stderr."""
    mark = f"{os.getpid()}-{os.urandom(4).hex()}"
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            environment = side.environment | {MARK: mark}
            process = subprocess.Popen(command, cwd=side.folder, env=environment, stdout=out, stderr=err)
        except OSError as error:
            raise InputError(command[0], f"cannot be started: {error.strerror}", "name a program behind `--`") from None
        watched = Watched(process.pid, f"{MARK}={mark}") if way.daemons else None
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
            used = watched.stop() if watched is not None else None
        printed, said = _lines(out), _lines(err)
    if process.returncode:
        print(*[*printed, *said][-SAID:], sep="\n", file=sys.stderr)
        problem = f"the command ended with exit code {process.returncode}"
        raise InputError(str(side.folder), problem, "run it there by itself first")
    if way.printed:
        last = printed[-1] if printed else ""
        try:
            return float(last)
        except ValueError:
            raise InputError("--printed", f"the command's last line is {last!r}", "it must be seconds") from None
    return used.cpu_s if used is not None else usage.ru_utime + usage.ru_stime


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().splitlines()


def in_turns(pairs: int, run: Callable[[int], float]) -> list[tuple[float, float]]:
    """What both sides took, by pairs; each side, by its number, goes first in every second one."""
    found = []
    for number in range(pairs):
        took = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            took[side] = run(side)
        found.append((took[0], took[1]))
        ratio = f"{took[1] / took[0]:.3f}" if took[0] > 0 else "none"
        words = f"pair {number + 1} of {pairs}: {took[0]:.3f} s, {took[1]:.3f} s: {ratio}"
        print(f"{words}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return found


def claimed(found: Sequence[tuple[float, float]]) -> Claim:
    """What the pairs allow to say of new / old. Raises InputError where a run took nothing."""
    claim = claim_of([(new, old) for old, new in found], least_s=0.0)
    if claim is None:
        raise InputError("the command", "took no time that can be measured", "let it do more")
    return claim


def words(found: Sequence[tuple[float, float]], claim: Claim) -> list[str]:
    """For people: each side's median and spread, and what follows."""
    lines = []
    for name, took in zip(SIDES, zip(*found, strict=True), strict=True):
        lines.append(f"{name}: {statistics.median(took):.3f} s, from {min(took):.3f} to {max(took):.3f}")
    interval = f"95 % from {claim.low:.3f} to {claim.high:.3f}"
    told = f"new takes {claim.ratio:.3f} times as much as old"
    if claim.pairs == 1:
        return [*lines, f"{told}, by one pair, which says nothing of its own spread"]
    of = f"{interval}, {counted(claim.pairs, 'pair')}"
    return [*lines, f"{told}: {of}" if claim.is_claimed else f"no difference can be told: {told}, {of}"]


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pairs",
        usage="%(prog)s OLD NEW [options] -- COMMAND…",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="a checkout, as a worktree of git is")
    parser.add_argument("new", type=Path, metavar="NEW", help="another one, or this one: .")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=1, metavar="RUNS", help="of each that are not counted (1)")
    parser.add_argument("--printed", action="store_true", help="the figure is the last line that the command prints")
    parser.add_argument("--daemons", action="store_true", help="count processes that nobody waited for, too (Linux)")
    parser.add_argument(
        "--check", type=float, metavar="FACTOR", help="exit code 1 where new may take more, by the 95 %%"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments, command = parser.parse_args(given[:at]), given[at + 1 :]
    if not command or arguments.pairs < 1 or arguments.warm_up < 0 or (arguments.printed and arguments.daemons):
        parser.error("needs a command behind `--`, one pair or more, and one of --printed and --daemons at most")
    way = Way(arguments.printed, arguments.daemons)
    try:
        with tempfile.TemporaryDirectory(prefix="egs-pairs-", ignore_cleanup_errors=True) as own:
            sides = [
                side_of(checkout, Path(own) / name)
                for name, checkout in zip(SIDES, (arguments.old, arguments.new), strict=True)
            ]
            for _ in range(arguments.warm_up):
                for side in sides:
                    take(side, command, way)  # compiles, and fills what the system keeps of files
            found = in_turns(arguments.pairs, lambda number: take(sides[number], command, way))
        claim = claimed(found)
    except InputError as error:
        print(f"benchmarks.pairs: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        old, new = zip(*found, strict=True)
        row: dict[str, Any] = msgspec.to_builtins(claim)
        print(json.dumps({"command": command, **row, "old_s": old, "new_s": new}))
    else:
        print("\n".join(words(found, claim)))
    return 1 if arguments.check is not None and claim.high > arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
