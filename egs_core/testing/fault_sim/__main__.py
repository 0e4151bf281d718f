"""`python -m egs_core.testing.fault_sim`: replay one seed with its trace (`--seed`), or run many (`--seeds`)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from egs_core.errors import InputError
from egs_core.testing.fault_sim.runner import Result, old_journals_in, report, run_seed, run_seeds, summary

MODULE = "python -m egs_core.testing.fault_sim"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when all claims held, 1 when a seed broke one, 2 for bad input."""
    options = _parse(arguments)
    try:
        old = old_journals_in(options.old_journals) if options.old_journals else []
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if options.seed is not None:
        return _replay(run_seed(options.seed, old, whole_trace=True))
    began, results, failed = time.monotonic(), [], 0
    for result in run_seeds(options.seeds, old, options.jobs):
        results.append(result)
        if not result.is_good:
            failed += 1
            print(report(result, _command(result.seed, options.old_journals)), flush=True)
    print(summary(results))
    print(f"{len(results)} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay this one and show its whole trace")
    which.add_argument(
        "--seeds", type=seed_range, metavar="FIRST:END", help="run these, show what those that fail did last"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes for --seeds; default: one a core")
    parser.add_argument("--old-journals", type=Path, metavar="DIR", help="journals that every fourth seed starts from")
    return parser.parse_args(arguments)


def seed_range(text: str) -> range:
    """`FIRST:END` as a range. Raises ValueError for anything else and for an empty one."""
    first, _, end = text.partition(":")
    found = range(int(first), int(end))
    if not found:
        raise ValueError(text)
    return found


def _replay(result: Result) -> int:
    print("\n".join(result.lines))
    print(summary([result]))
    print(f"digest {result.digest}")
    print(f"seed {result.seed}: " + ("all claims held" if result.is_good else f"{result.claim}: {result.problem}"))
    return 0 if result.is_good else 1


def _command(seed: int, old_journals: Path | None) -> str:
    return f"{MODULE} --seed {seed}" + (f" --old-journals {old_journals}" if old_journals else "")


if __name__ == "__main__":
    sys.exit(main())
