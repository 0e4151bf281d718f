"""Where tasks run: flavors from labels and accelerator types, soft preferences, fractions, and needs stated twice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_core.errors import InputError
from egs_core.hints import TaskHints
from egs_ray.convert import convert
from egs_ray.gate.preferences import preferred_options
from tests.conformance.ray import run_tasks as t

Script = Callable[..., Any]
ANYWHERE: list[dict[str, Any]] = [{"label_selector": {}}]


@ray.remote(num_gpus=2)
@egs.task(gpus=1)
def torn() -> None:
    """States twice what it needs, and not the same."""


@ray.remote(num_cpus=2, memory=1000)
@egs.task(cpus=2, memory="2GiB")
def torn_memory() -> None:
    """Agrees on CPUs, but not on memory."""


@ray.remote(num_gpus=1, num_cpus=2)
@egs.task(gpus=1, cpus=2)
def agreed() -> None:
    """States the same twice."""


@ray.remote(num_gpus=1, num_cpus=0)
@egs.task(flavors=("no-such-gpu",))
def choosy() -> str:
    return "ran"


def test_a_need_stated_twice_is_one_clear_error() -> None:
    """Before anything runs: the function, both values, and what to do; stated twice alike is no conflict."""
    with pytest.raises(InputError, match=r"torn-0: Ray is told num_gpus=2 and egs.task gpus=1 \(state it once"):
        convert(torn.bind())
    with pytest.raises(InputError, match=r"memory=1000 and egs.task memory=2.1\d*e\+09|memory=2147483648"):
        convert(torn_memory.bind())
    assert convert(agreed.bind()).nodes[0].gpus == 1


@pytest.mark.parametrize(
    ("flavors", "options", "expected"),
    [
        (("A100",), {}, ({"ray.io/accelerator-type": "A100"}, ANYWHERE)),
        (
            ("A100", "ray.io/market-type=spot"),
            {"scheduling_strategy": "DEFAULT", "num_gpus": 1},
            (
                {"ray.io/accelerator-type": "A100"},
                [{"label_selector": {"ray.io/market-type": "spot"}}, *ANYWHERE],
            ),
        ),
        (("!in(A100)", "", "L4"), {}, ({"ray.io/accelerator-type": "L4"}, ANYWHERE)),
        ((), {}, None),
        (("A100",), {"label_selector": {"zone": "a"}}, None),
        (("A100",), {"accelerator_type": "L4"}, None),
        (("A100",), {"scheduling_strategy": "SPREAD"}, None),
        (("A100",), {"resources": {"slot": 1}}, None),
    ],
)
def test_flavors_become_soft_preferences(
    flavors: tuple[str, ...], options: dict[str, Any], expected: tuple[Any, Any] | None
) -> None:
    """In the order of the hint, at last anywhere; what a user set by hand is not touched."""
    found = preferred_options(TaskHints(flavors=flavors), options)
    assert (found.get("label_selector"), found.get("fallback_strategy")) == (expected or (None, None))


HINTED = """
import ray
import egs_core as egs

@ray.remote(num_gpus=1, max_calls=0)
@egs.task(flavors=("no-such-gpu", "label=no-such-value"))
def choosy():
    return "ran"

@ray.remote(num_gpus=2)
@egs.task(gpus=1)
def torn():
    return len(ray.get_gpu_ids())

ray.init(log_to_driver=False)
print(ray.get(choosy.remote(), timeout=150))
for _ in range(2):
    print(ray.get(torn.remote(), timeout=150))
"""


@pytest.mark.proves("ray hinted script", "flavors", "observe")
def test_hints_in_mode_on(run_script: Script) -> None:
    """A flavor that no node has does not hold up a task; of needs stated twice Ray's counts, with one warning, and none
    in mode observe."""
    on = run_script(HINTED, EGS_MODE="on")
    torn = "egs: torn: Ray is told num_gpus=2 and egs.task gpus=1 (state it once: take out num_gpus or gpus)"
    assert on.stdout.splitlines() == ["ran", "2", "2"], on.stderr
    assert on.stderr.count(torn) == 1, on.stderr
    observed = run_script(HINTED, EGS_MODE="observe")
    assert observed.stdout.splitlines() == ["ran", "2", "2"], observed.stderr
    assert "Ray is told" not in observed.stderr


HALVES = """
import time
import ray

@ray.remote(num_cpus=0)
class Board:
    def __init__(self):
        self.now, self.most = set(), 0
    def enter(self, name):
        self.now.add(name)
        self.most = max(self.most, len(self.now))
        return len(self.now)
    def leave(self, name):
        self.now.discard(name)
    def seen(self):
        return self.most

@ray.remote(num_gpus=0.5, num_cpus=0.1, max_calls=0)
def half(board, name):
    ray.get(board.enter.remote(name))
    began = time.time()
    while time.time() - began < 120 and ray.get(board.seen.remote()) < 4:
        time.sleep(0.02)
    time.sleep(0.2)
    ray.get(board.leave.remote(name))
    return ray.get_gpu_ids()[0]

ray.init(log_to_driver=False)
board = Board.remote()
devices = ray.get([half.remote(board, i) for i in range(5)], timeout=150)
print((ray.get(board.seen.remote()), sorted(devices[:4])))
"""


def test_halves_of_gpus_at_the_gate(run_script: Script) -> None:
    """Five tasks of half a GPU on two GPUs: four at once, two on each device, and the fifth waits."""
    done = run_script(HALVES, EGS_MODE="on")
    most, devices = ast.literal_eval(done.stdout)
    assert most == 4, done.stderr
    assert len(devices) == 4
    assert "ordered 5 GPU tasks" in done.stderr


@ray.remote(num_gpus=0.5, num_cpus=0.1, max_retries=0)
def half(folder: str, name: str) -> str:
    about = ray.get_runtime_context().get_node_id()
    t.note(folder, f"{name}.runs", about)
    t.wait_for(folder, f"{name}.end")
    return ",".join(str(i) for i in sorted(ray.get_gpu_ids())) or "none"


@pytest.fixture(scope="module")
def session(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[egs_ray.Session]:
    assert ray_address
    with t.session(tmp_path_factory.mktemp("placement")) as made:
        yield made


def test_halves_of_gpus_in_a_run(session: egs_ray.Session, tmp_path: Path) -> None:
    """The same for `egs_ray.run`: the engine's books and Ray's agree on who runs beside whom."""
    folder = str(tmp_path)
    made = egs_ray.run(MultiOutputNode([half.bind(folder, str(i)) for i in range(5)]), session=session)
    t.until(lambda: len(list(tmp_path.glob("*.runs"))) == 4)
    t.until(lambda: t.free("GPU") == 0)
    states = [made.why(f"half-{i}").status for i in range(5)]
    assert sorted(states) == ["ready", *["running"] * 4]
    first = next(i for i in range(5) if states[i] == "running")
    t.signal_to(folder, f"{first}.end")
    t.until(lambda: len(list(tmp_path.glob("*.runs"))) == 5)
    for i in range(5):
        t.signal_to(folder, f"{i}.end")
    made.get(t.LIMIT_S)
    t.until(t.is_idle)


def test_an_unknown_flavor_is_no_reason_to_wait(session: egs_ray.Session, capfd: pytest.CaptureFixture[str]) -> None:
    """A run whose flavor no node has runs anywhere, as it would without EGS, and says so."""
    assert egs_ray.run(choosy.bind(), session=session).get(t.LIMIT_S) == "ran"
    assert "choosy may run anywhere: no node is of flavor no-such-gpu" in capfd.readouterr().err


@ray.remote(num_gpus=5)
def too_large() -> int:
    return 1


def test_a_task_that_fits_no_node_is_said_to_wait_in_ray(session: egs_ray.Session) -> None:
    """It is Ray's, whose autoscaler may bring such a node; until then it is not running, and holds nothing."""
    run = egs_ray.run(too_large.bind(), session=session)
    t.until(lambda: run.why("too_large-0").status == "pending")
    lack = "needs 5 GPUs and 1 CPU on one node; the largest has 2 and 4"
    assert run.why("too_large-0").text == f"waits in Ray: {lack}"
    shown = session._operations.snapshot()
    assert shown is not None
    ((row, _),) = shown["tasks"].values()
    assert (row["state"], row["gpus"]) == (f"waits in Ray: {lack}", 0.0)
    run.abort()
    t.until(run.done)
