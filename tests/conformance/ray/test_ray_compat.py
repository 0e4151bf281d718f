"""Every private API of Ray and its fallback do the same, on a real Ray."""

from __future__ import annotations

import threading
import time

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from egs_ray import compat, functions, groups, submitting, waiting
from egs_ray.events import TaskEvent, actor_deaths, task_events
from tests.conformance.ray.conftest import Script

pytestmark = pytest.mark.usefixtures("ray_address")
BOTH = pytest.mark.parametrize("without", ["", "ready,task_events,actors,disconnect"])


@ray.remote(num_cpus=0.5)
def after(gate: str, value: int) -> int:
    if value < 0:
        raise ValueError(gate)
    return value


class Gate:
    def __init__(self) -> None:
        self.open = threading.Event()

    def wait(self) -> int:
        self.open.wait(120)
        return 1

    def release(self) -> None:
        self.open.set()


Turnstile = ray.remote(Gate)


@BOTH
def test_on_ready_tells_of_values_and_errors(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback comes once per reference, for results and for failures, and not before the object exists; which
    tasks have not ended is known by the same."""
    monkeypatch.setenv(compat.WITHOUT, without)
    turnstile = Turnstile.options(max_concurrency=2).remote()
    late = turnstile.wait.remote()
    told: list[str] = []
    done = {name: threading.Event() for name in ("value", "error", "late")}

    def tell(name: str) -> None:
        told.append(name)
        done[name].set()

    waiting.on_ready(late, lambda: tell("late"))
    waiting.on_ready(after.remote("a", 1), lambda: tell("value"))
    waiting.on_ready(after.remote("a", -1), lambda: tell("error"))
    assert done["value"].wait(120)
    assert done["error"].wait(120)
    assert not done["late"].is_set()
    values = [late, after.remote("a", 1), after.remote("a", -1), object()]
    ray.wait(values[1:3], num_returns=2, timeout=120)
    assert waiting.unfinished(values) == {late.task_id().hex()}
    ray.get(turnstile.release.remote())
    assert done["late"].wait(120)
    assert sorted(told) == ["error", "late", "value"]


def events_of(ids: set[str]) -> dict[str, TaskEvent]:
    """Ray's word on these tasks once it has told of all their ends; Ray's processes report every second."""
    deadline = threading.Event()
    for _ in range(1200):
        events = {event.task_id: event for event in task_events() if event.task_id in ids}
        if len(events) == len(ids) and all(event.started_s and event.ended_s for event in events.values()):
            return events
        deadline.wait(0.1)
    raise AssertionError(f"Ray did not tell of {ids - events.keys()}")


@BOTH
def test_task_events(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sources tell of tasks, actors and methods: kind, name, times, outcome, node."""
    monkeypatch.setenv(compat.WITHOUT, without)
    good, bad, turnstile = after.remote("b", 1), after.remote("b", -1), Turnstile.remote()
    released = turnstile.release.remote()
    ray.wait([good, bad, released], num_returns=3)
    keys = {
        name: functions.task_id_of(x)
        for name, x in (("good", good), ("bad", bad), ("new", turnstile), ("call", released))
    }
    events = events_of(set(keys.values()))
    told = {name: (events[key].kind, events[key].name, events[key].outcome) for name, key in keys.items()}
    assert told == {
        "good": ("task", "after", "succeeded"),
        "bad": ("task", "after", "failed"),
        "new": ("actor", "Gate.__init__", "succeeded"),
        "call": ("method", "Gate.release", "succeeded"),
    }
    node = ray.get_runtime_context().get_node_id()
    assert all(event.node_id in ("", node) for event in events.values())
    assert events[keys["call"]].actor_id == events[keys["new"]].actor_id == turnstile._actor_id.hex()


def test_private_events_agree_with_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both sources a task's times are within its life, and only the private one tells of its resources."""
    before = time.time()
    key = functions.task_id_of(ref := after.remote("c", 1))
    ray.get(ref)
    private = events_of({key})[key]
    monkeypatch.setenv(compat.WITHOUT, "task_events")
    public = events_of({key})[key]
    for told in (private, public):
        assert told.started_s is not None
        assert told.ended_s is not None
        assert before <= told.started_s <= told.ended_s <= time.time()
    assert (private.cpus, public.cpus) == (0.5, 0.0)


def test_known_events_are_left_out() -> None:
    """What is known already is not told again."""
    key = functions.task_id_of(ref := after.remote("d", 1))
    ray.get(ref)
    events_of({key})
    assert key not in {event.task_id for event in task_events({(key, 1)})}


def test_actor_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed actor's death is told; without the private API nothing is."""
    turnstile = Turnstile.remote()
    ray.get(turnstile.release.remote())
    ray.kill(turnstile)
    for _ in range(1200):
        if turnstile._actor_id.hex() in actor_deaths():
            break
        threading.Event().wait(0.1)
    assert turnstile._actor_id.hex() in actor_deaths()
    monkeypatch.setenv(compat.WITHOUT, "actors")
    assert actor_deaths() == {}


@BOTH
def test_before_disconnect(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both places are restored by the undo; the callback itself is proven by the observed scripts."""
    monkeypatch.setenv(compat.WITHOUT, without)
    places = ray._private.worker.disconnect, ray.shutdown
    undo = waiting.before_disconnect(lambda: None)
    assert (ray._private.worker.disconnect, ray.shutdown) != places
    undo()
    assert (ray._private.worker.disconnect, ray.shutdown) == places


def test_wrapped_submissions_and_the_handlers_own() -> None:
    """Calls, options, actors and methods go through the handler; what the handler submits itself does not."""
    seen: list[str] = []

    def handler(original, target, args, kwargs, options):  # type: ignore[no-untyped-def]  # its types are Ray's
        seen.append(functions.name_of(target))
        ray.get(after.remote("inner", 0))
        return original(target, args, kwargs, **options)

    unwrap = submitting.wrap_submissions(handler)
    try:
        assert ray.get(after.remote("e", value=1)) == 1
        assert ray.get(after.options(num_cpus=0).remote("e", 2)) == 2
        turnstile = Turnstile.options(num_cpus=0).remote()
        ray.get(turnstile.release.remote())
        ray.get(turnstile.release.options(name="x").remote())
    finally:
        unwrap()
    ray.get(after.remote("e", 3))
    assert seen == ["after", "after", "Gate.__init__", "Gate.release", "Gate.release"]


LATE = """
import threading, ray
from egs_ray import submitting

ray.init(log_to_driver=False)
ref = ray.put(1)
ray.shutdown()

def ask():
    submitting.never_start_ray()
    try:
        ray.wait([ref], timeout=0)
    except Exception as error:
        print(type(error).__name__, error)

thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(ray.is_initialized())
print(ray.get(ray.put(2)), ray.is_initialized())
"""


CAPTURE: tuple[dict[str, object], ...] = (
    {},
    {"placement_group_capture_child_tasks": False},
    {"placement_group_capture_child_tasks": True},
    {"placement_group": None},
    {"placement_group": None, "placement_group_capture_child_tasks": True},
    {"placement_group": "default"},
    {"scheduling_strategy": "DEFAULT"},
)


@ray.remote(num_cpus=0.1)
def in_a_group() -> bool:
    return ray.util.get_current_placement_group() is not None


@ray.remote(num_cpus=0.1)
def captured() -> list[tuple[bool, bool]]:
    """Of each set of options, what is believed of a task that is submitted with it, and where that is."""
    return [(groups.is_captured(one), ray.get(in_a_group.options(**one).remote())) for one in CAPTURE]


@pytest.mark.parametrize("captures", [True, False])
def test_what_a_group_captures(captures: bool) -> None:
    """It is known of each submission of a task in a group whether it goes there, too: by the group, and by what is said
    of the submission itself."""
    group = ray.util.placement_group([{"CPU": 1}])
    place = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=captures)
    try:
        found = ray.get(captured.options(scheduling_strategy=place).remote(), timeout=120)
    finally:
        ray.util.remove_placement_group(group)
    assert [believed for believed, _ in found] == [there for _, there in found]
    assert {there for _, there in found} == {True, False}


def test_own_threads_never_start_a_ray(run_script: Script) -> None:
    """After ray.shutdown a call of one fails; the script's own call starts Ray as it does natively."""
    done = run_script(LATE, hook=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("Runtime", "False", "2 "))]
    assert said == ["RuntimeError Ray was shut down", "False", "2 True"]
