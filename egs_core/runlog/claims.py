"""What pairs of runs allow to say of how much sooner one way ends than another. The rule, for every report and demo:

**Several pairs**: the median of the ratios before / after. It is claimed only if the 95 % interval of the mean log
ratio (Student's t) excludes 1.

**One pair** says nothing of its own spread. It is claimed only if the two makespans differ by more than LEAST_S and by
more than the noise: LEAST_NOISE, or twice the median difference between the times that the same CPU tasks took in the
two runs, if that is more: a machine that was not equally busy shows there. (Tasks with a GPU do not tell: what is
loaded ahead is meant to shorten them.)

Simulated runs have no noise: there every difference is one.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from egs_core.runlog.intervals import Timeline

LEAST_NOISE = 0.10
LEAST_S = 1.0
LEAST_TASK_S = 0.05  # what is shorter says nothing of the machine
SAME = 0.01  # ratios that no reader would call a difference
# Student's t, 97.5 %, by degrees of freedom; beyond the table the last one, which is larger than the right one
T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


class Claim(msgspec.Struct, frozen=True):
    """ratio: median of before / after; low, high: its 95 % interval; of one pair, what the noise makes of it."""

    pairs: int
    ratio: float
    low: float
    high: float
    is_claimed: bool

    @property
    def times(self) -> float:
        """How many times as long the slower way takes."""
        return max(self.ratio, 1 / self.ratio)


def claim_of(
    pairs: Sequence[tuple[float, float]], noise: float = LEAST_NOISE, least_s: float = LEAST_S
) -> Claim | None:
    """What pairs (seconds before, seconds after) allow to say; None where a run took no time. noise, least_s: of one
    pair, see the module."""
    if not pairs or any(before <= 0 or after <= 0 for before, after in pairs):
        return None
    logs = [math.log(before / after) for before, after in pairs]
    middle = statistics.median(logs)
    if len(logs) == 1:
        return _of_one(pairs[0], middle, noise, least_s)
    mean, half = statistics.fmean(logs), _t(len(logs)) * statistics.stdev(logs) / math.sqrt(len(logs))
    is_apart = abs(mean) > half and abs(middle) > math.log1p(SAME)
    return Claim(len(logs), math.exp(middle), math.exp(mean - half), math.exp(mean + half), is_apart)


def _of_one(pair: tuple[float, float], log: float, noise: float, least_s: float) -> Claim:
    half = math.log1p(max(noise, SAME))
    is_apart = abs(log) > half and abs(pair[0] - pair[1]) > least_s
    return Claim(1, math.exp(log), math.exp(log - half), math.exp(log + half), is_apart)


def _t(pairs: int) -> float:
    return T_975[min(pairs - 2, len(T_975) - 1)]


def noise_between(one: Timeline, other: Timeline) -> float:
    """The share by which two runs may differ although they were scheduled alike; see the module."""
    times, others = _own_times(one), _own_times(other)
    differences = [abs(math.log(times[name] / others[name])) for name in times.keys() & others.keys()]
    return max(LEAST_NOISE, 2 * math.expm1(statistics.median(differences))) if differences else LEAST_NOISE


def _own_times(line: Timeline) -> dict[str, float]:
    """Mean seconds of the tasks of each name that succeeded and had no GPU, without their cold starts."""
    with_gpu = {(hold.workload, hold.task) for hold in line.holds if hold.demand.gpus > 0}
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for hold in line.holds:
        if hold.outcome == "succeeded" and (hold.workload, hold.task) not in with_gpu:
            seconds[hold.workload, hold.task] += hold.end_s - hold.start_s - sum(b - a for a, b in hold.cold)
    by_name: dict[str, list[float]] = defaultdict(list)
    for (workload, task), took in seconds.items():
        added = line.tasks.get((workload, task))
        by_name[(added.name if added else "") or task].append(took)
    means = {name: statistics.fmean(took) for name, took in by_name.items()}
    return {name: mean for name, mean in means.items() if mean >= LEAST_TASK_S}
