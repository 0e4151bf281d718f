"""The shipped engine, driver and journal's entries hold their claims whatever fails around them, seed by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.testing.fault_sim import run_seed, run_seeds
from egs_core.testing.fault_sim.__main__ import main
from egs_core.testing.fault_sim.ledger import ClaimBroken, Job, Ledger
from egs_core.testing.fault_sim.plan import draw
from egs_core.testing.fault_sim.runner import old_journals_in, report

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "fixtures" / "journal"
SEEDS = range(2000 if os.environ.get("CI") else 100)
HAPPENS = {
    "message dropped",
    "message doubled",
    "message late",
    "driver died",
    "disk error",
    "crash in a commit",
    "crash in a compaction",
    "crash while deciding",
    "decision rejected",
    "decision lost",
    "node loss",
    "less capacity",
    "clock jump",
    "sent again",
    "stray stopped",
    "process died between phases",
    "preempted for reclaim",
    "preempted for priority",
    "paused",
    "queues changed",
    "over limit, then fail",
    "over limit, then requeue",
    "over limit, then end",
}


@pytest.mark.slow  # `test_mutants.py`, which is not, runs as many seeds as show each of its bugs
def test_all_claims_hold_whatever_fails() -> None:
    """100 seeds, 2,000 in CI: nothing is granted twice, lost or run twice, and every workload ends; and every kind of
    fault has happened."""
    counts: Counter[str] = Counter()
    starts = set()
    for result in run_seeds(SEEDS, old_journals_in(OLD), jobs=2):
        command = f"python -m egs_core.testing.fault_sim --seed {result.seed} --old-journals tests/fixtures/journal"
        assert result.is_good, report(result, command)
        counts.update(result.counts)
        starts.add(result.started_from)
    assert {name for name in HAPPENS if not counts[name]} == set()
    assert starts == {"", *(path.name for path in old_journals_in(OLD))}


ONCE_BROKEN = (2000, 2170)
"""What waited for a warm process for too long was back in the queue, and its submission not late yet."""


def test_the_first_seeds_hold_all_claims() -> None:
    """Fifteen of them, one with each journal of an older version."""
    found = list(run_seeds([*range(15), *ONCE_BROKEN], old_journals_in(OLD)))
    assert [result.problem for result in found if not result.is_good] == []
    assert {result.started_from for result in found} == {"", *(path.name for path in old_journals_in(OLD))}


@pytest.mark.parametrize("seed", [4, 11])
def test_a_seed_is_the_same_in_every_process(seed: int) -> None:
    """The command replays a seed to the letter: same trace under another hash seed and in this process."""
    command = [sys.executable, "-m", "egs_core.testing.fault_sim", "--seed", str(seed), "--old-journals", str(OLD)]
    found = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    assert f"digest {run_seed(seed, old_journals_in(OLD), whole_trace=True).digest}" in found[0]


def test_several_processes_give_the_same_results() -> None:
    """Two processes side by side change nothing but the time it takes."""
    assert list(run_seeds(range(12), jobs=2)) == list(run_seeds(range(12)))


def test_seeds_are_many_different_worlds() -> None:
    """5 to about 50 tasks on 1 to 3 nodes, with and without each fault."""
    plans = [draw(seed) for seed in range(400)]
    sizes = {sum(s.graph.n_tasks for s in plan.submissions) for plan in plans}
    assert (min(sizes), max(sizes) > 35, max(sizes) <= 60) == (5, True, True)
    assert {len(plan.nodes) for plan in plans} == {1, 2, 3}
    assert {len(plan.queues) for plan in plans} == {0, 2, 3}
    assert {plan.config.preempt for plan in plans} == {True, False}
    assert any(o.gang for plan in plans for s in plan.submissions for o in s.graph.options.values())
    assert {plan.rates.drop > 0 for plan in plans} == {True, False}


def test_the_command_runs_many_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Without failures: what has happened, how many seeds, exit code 0."""
    assert main(["--seeds", "20:23", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 seeds, 0 failed" in shown
    assert "events" in shown


def test_a_folder_without_journals_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that names the folder."""
    assert main(["--seed", "0", "--old-journals", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == f"{tmp_path}: has no journals (*.jsonl files are expected)"


def test_a_queue_that_comes_back_lends_again() -> None:
    """Seeds 4835 and 4905 from an old journal: `other` goes and comes back, so `own` may borrow from it, up to its
    limit and no further. What ran in `other` without limits breaks no quota."""
    own = QueueSpec("own", "lab", (2000, 0, 0), borrowing_limit=(1000, 0, 0))
    other = QueueSpec("other", "lab", (1000, 0, 0))
    ledger, node = Ledger((own, other)), m.NodeAdded("n0", cpus=16.0)

    def start(number: int, queue: str) -> None:
        ledger.start(Job(f"t{number}", number, 1, number, 0, 1, queue, 1000, 0, 0, 0, (), (), 1.0, 0.0), node, 1)

    ledger.reconfigure((own,))
    for number in range(2):
        start(number, "other")
    ledger.reconfigure((own, other))
    for number in range(2, 5):
        start(number, "own")
    with pytest.raises(ClaimBroken, match="own uses 4000 of 3000 cpus"):
        start(5, "own")
