"""Which processes stand ready on Ray's nodes, by an emulated pool that does what Ray's was seen to do: a job's task
takes a process of its environment that no job has, else one is started for it, and those of a job end with it."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest
import ray

from egs_ray.ready.kept import LEAST_JOBS, MISSES, START_S, Job, Kept, Process
from egs_ray.ready.loaded import lines_of, own_modules

NODE, LOAD_S = "n", 1.5


class Pool:
    """One node. fits: whether tasks have their job's environment, and so take what stands ready."""

    def __init__(self, most: int, *, fits: bool = True, standing: int = 0) -> None:
        self.kept, self.fits, self.now_s = Kept(most), fits, 0.0
        self.jobs: dict[str, Job] = {}
        self._ids = map(str, count())
        self.free: dict[str, str] = {next(self._ids): "earlier" for _ in range(standing)}
        self.taken: dict[str, str] = {}
        self._due: list[tuple[float, str]] = []

    def look(self) -> None:
        """A second later."""
        self.now_s += 1.0
        for due_s, environment in [one for one in self._due if one[0] <= self.now_s]:
            self._due.remove((due_s, environment))
            self.free[next(self._ids)] = environment
        there = [*(Process(one, "") for one in self.free), *(Process(one, job) for one, job in self.taken.items())]
        if self.now_s == 1.0 or self.kept.must_hear(NODE, there):
            self.kept.hear(self.jobs.values(), self.now_s)
        self.kept.see(NODE, there, self.now_s)
        for environment, number in self.kept.wanted(NODE, self.now_s).items():
            self._due += [(self.now_s + LOAD_S, environment)] * number
            self.kept.asked(NODE, environment, number, self.now_s)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.look()

    def job(self, environment: str = "", processes: int = 1, lasts: int = 2) -> int:
        """One driver, whose tasks need so many at once: how many stood ready."""
        name = f"job{len(self.jobs)}"
        self.jobs[name] = Job(name, environment, is_over=False)
        warm = [one for one, of in self.free.items() if self.fits and of == environment][:processes]
        for one in warm:
            del self.free[one]
        self.taken |= dict.fromkeys([*warm, *(next(self._ids) for _ in range(processes - len(warm)))], name)
        self.wait(lasts)
        self.jobs[name] = Job(name, environment, is_over=True)
        self.taken = {one: job for one, job in self.taken.items() if job != name}
        return len(warm)


def started() -> Pool:
    pool = Pool(2)
    pool.look()
    return pool


def stream(pool: Pool, number: int, environment: str = "", gap: int = 8) -> list[int]:
    found = []
    for _ in range(number):
        found.append(pool.job(environment))
        pool.wait(gap)
    return found


def test_the_third_driver_finds_a_process() -> None:
    """Of one job nothing is known to come again; a second one makes it a stream. What ran is counted at the end."""
    pool = started()
    assert stream(pool, 6) == [0, 0, 1, 1, 1, 1]
    assert (pool.kept.came, pool.kept.found) == (6, 4)
    assert len(pool.free) <= 2


def test_each_environment_has_its_own() -> None:
    """A stream of another environment gets processes though those of the first one still stand, and Ray has no call
    that ends them."""
    pool = started()
    stream(pool, 4)
    assert stream(pool, 4, '{"env_vars":{"A":"1"}}') == [0, 0, 1, 1]


def test_an_environment_that_never_comes_again_gets_nothing() -> None:
    """As where the working directory changes with each job."""
    pool = started()
    for number in range(6):
        assert stream(pool, LEAST_JOBS - 1, f"gcs://{number}") == [0]
    assert not pool.free


def test_a_job_that_is_over_between_two_looks_counts() -> None:
    """It took the process that is gone, though nobody saw it there."""
    pool = started()
    stream(pool, 3)
    assert (pool.job(lasts=0), pool.kept.found) == (1, 1)
    pool.wait(8)
    assert (pool.kept.found, pool.job()) == (2, 1)


def test_what_ray_has_ended_is_no_demand() -> None:
    """No job is there that may have taken it, so nothing has come."""
    pool = started()
    stream(pool, 4)
    came = pool.kept.came
    pool.wait(150)
    pool.free.clear()
    pool.wait(3)
    assert pool.kept.came == came


def test_what_no_task_takes_is_not_started_again() -> None:
    """Tasks with environments of their own: after so many that took none of those that stood."""
    pool = Pool(2, fits=False)
    pool.look()
    stream(pool, LEAST_JOBS + MISSES + 1)
    stood = len(pool.free)
    pool.free.clear()  # Ray has ended them
    pool.wait(2)
    stream(pool, 4)
    assert (stood, len(pool.free)) == (2, 0)


def test_what_stands_before_the_first_look_is_of_an_unknown_environment() -> None:
    """A keeper that starts anew does not take it for one that fits, and so as one that jobs leave."""
    pool = Pool(2, standing=2)
    pool.look()
    assert stream(pool, 2 + MISSES + 2)[-1] == 1


@pytest.mark.parametrize("most", [1, 3])
def test_a_job_of_three_finds_as_many_as_may_stand(most: int) -> None:
    pool = Pool(most)
    pool.look()
    for _ in range(4):
        found = pool.job(processes=3)
        pool.wait(10)
    assert found == most


def test_what_was_not_started_is_asked_for_again() -> None:
    pool = started()
    stream(pool, 2)
    pool.free.clear()
    pool._due.clear()
    pool.wait(int(START_S) + 3)
    assert pool.free


def test_what_is_taken_as_it_comes_is_not_waited_for() -> None:
    """Nobody saw it stand ready: another is asked for before it counts as not started."""
    kept = Kept(1)
    kept.see(NODE, [], 0.0)
    for number in range(2):
        kept.hear([Job(str(one), "", is_over=False) for one in range(number + 1)], 10.0 * number)
        kept.see(NODE, [Process(f"p{number}", str(number))], 10.0 * number)
    assert kept.wanted(NODE, 14.0) == {"": 1}
    kept.asked(NODE, "", 1, 14.0)
    assert kept.wanted(NODE, 15.0) == {}
    kept.see(NODE, [Process("asked", "1")], 15.0)
    assert kept.wanted(NODE, 18.5) == {"": 1}


TOLD: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "the same on all": ({"a": "torch,numpy", "b": "torch,numpy"}, ["they import torch,numpy, as Ray was told"]),
    "nothing anywhere": (
        {"a": "", "b": ""},
        ["Ray was started without RAY_preload_python_modules: what stands ready there has nothing loaded"],
    ),
    "not on all": (
        {"a": "", "b": "torch", "c": "", "d": "numpy"},
        [
            "they import numpy or torch, as Ray was told",
            "nodes a, c were started without RAY_preload_python_modules: what stands ready there has nothing loaded",
        ],
    ),
    "workers that cannot tell": ({"a": None}, []),
    "no worker": ({}, []),
}


@pytest.mark.parametrize(("told", "lines"), TOLD.values(), ids=TOLD)
def test_what_workers_import_is_said_where_they_tell(told: dict[str, str | None], lines: list[str]) -> None:
    assert lines_of(told) == lines


def test_a_worker_of_a_ray_that_has_another_way_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It goes by its own program, as Ray's is, and by the words that it was started with."""
    program = tmp_path / "default_worker.py"
    program.write_text("")
    monkeypatch.setattr(sys, "argv", [str(program), "--worker-preload-modules=torch"])
    assert own_modules() is None
    monkeypatch.setattr(sys, "argv", [default_worker(), "--worker-preload-modules=torch,numpy"])
    assert own_modules() == "torch,numpy"
    monkeypatch.setattr(sys, "argv", [default_worker()])
    assert own_modules() == ""


def default_worker() -> str:
    """Ray's own, which is not imported: it would begin to work."""
    return str(Path(ray.__file__).parent / "_private/workers/default_worker.py")
