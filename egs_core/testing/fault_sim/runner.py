"""Runs seeds: one in this process, many over several processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from egs_core.errors import InputError
from egs_core.testing.fault_sim.ledger import ClaimBroken
from egs_core.testing.fault_sim.plan import draw
from egs_core.testing.fault_sim.world import World

LAST_LINES = 40
OLD_EVERY = 4  # one seed in so many starts from an old journal, where there are any
CHUNK = 10


class Result(msgspec.Struct, frozen=True):
    """What became of a seed. claim: the broken one, "" when all held; lines: the trace, or its end; digest: of the
    whole trace, equal for equal runs, when that was asked for; counts: what has happened, by name."""

    seed: int
    claim: str
    problem: str
    lines: list[str]
    digest: str
    counts: dict[str, int]
    started_from: str = ""

    @property
    def is_good(self) -> bool:
        return not self.claim


def run_seed(seed: int, old_journals: Sequence[Path] = (), *, whole_trace: bool = False) -> Result:
    """Run one seed to its end. old_journals: files that some seeds start from, as a driver after an update does."""
    old = old_journals[seed // OLD_EVERY % len(old_journals)] if old_journals and seed % OLD_EVERY == 0 else None
    world = World(draw(seed), old.read_bytes() if old else None)
    claim = problem = ""
    try:
        world.run()
    except ClaimBroken as error:
        claim, problem = error.claim, error.problem
    except Exception as error:  # whatever the shipped code raises is a finding, and goes into the report
        claim, problem = "nothing raises", "".join(traceback.format_exception(error)[-8:])
    lines = [f"{at:9.3f}  {who:8} {what}" for at, who, what in world.trace] if whole_trace or claim else []
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""
    world.counts["events"] = sum(who == "event" for _, who, _ in world.trace)
    shown = lines if whole_trace else lines[-LAST_LINES:]
    return Result(seed, claim, problem, shown, digest, dict(world.counts), old.name if old else "")


def run_seeds(seeds: Sequence[int], old_journals: Sequence[Path] = (), jobs: int = 1) -> Iterator[Result]:
    """The results in the order of the seeds, computed by `jobs` processes."""
    run = partial(run_seed, old_journals=old_journals)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, CHUNK)


def old_journals_in(folder: Path) -> list[Path]:
    """The journals (`*.jsonl`) of a folder, by name. Raises InputError when there are none."""
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise InputError(str(folder), "has no journals", "*.jsonl files are expected")
    return found


def summary(results: Sequence[Result]) -> str:
    """One line a kind of thing that has happened."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.counts)
    return "\n".join(f"{count:9,}  {name}" for name, count in sorted(total.items()))


def report(result: Result, command: str) -> str:
    """A failing seed: what is wrong, what led there, and how to see it again."""
    trace = "\n".join(result.lines)
    return f"{trace}\nseed {result.seed}: broken claim: {result.claim}: {result.problem}\nreplay: {command}"
