"""Generators of a script that need GPUs, on a real Ray with two: ordered as any other task of it, their values one by
one as natively, and what their code submits ordered with them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, TaskAdded
from tests.conformance.ray.scripts import Script, egs_lines

BEGINNING = """
import os, time
import ray
import egs_core as egs
import egs_ray.install as hook

FOLDER = os.getcwd()                          # the driver's: workers have this by value

def signal(name):
    open(os.path.join(FOLDER, name), "w").close()

def until(condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

def until_signal(name):
    until(lambda: os.path.exists(os.path.join(FOLDER, name)))

def known(count):
    "Until the driver's engine has been told of so many tasks."
    until(lambda: len(hook.interceptor._gate.books.open) >= count)

ray.init(log_to_driver=False, logging_level="ERROR")
"""

ORDER = """
@ray.remote(num_gpus=2, num_cpus=0)
def hold():
    until_signal("go")

@ray.remote(num_gpus=2, num_cpus=0)
def stream(name):
    for number in range(2):
        with open(os.path.join(FOLDER, "log"), "a") as file:
            file.write(f"{name}{number} ")
        yield number

@ray.remote(num_gpus=2, num_cpus=0)
@egs.task(priority=5, max_runtime=60)
def urgent(name):
    yield from stream._function(name)

held = hold.remote()
late = [stream.remote("a"), stream.options(num_returns="streaming").remote("b")]
early = urgent.remote("c")
known(4)
signal("go")
print([[ray.get(value) for value in values] for values in (*late, early)], ray.get(held))
print(open("log").read())
"""


@pytest.mark.proves("ray script", "order")
@pytest.mark.proves("ray hinted script", "order", "priority")
def test_generators_are_ordered(run_script: Script) -> None:
    """What has priority goes first though it was submitted last, one after the other; the values are the script's. A
    hint that a generator cannot have kept is named."""
    done = run_script(BEGINNING + ORDER, EGS_MODE="on")
    assert done.stdout == "[[0, 1], [0, 1], [0, 1]] None\nc0 c1 a0 a1 b0 b1 \n", done.stderr
    assert "egs: urgent: of a generator the hints max_runtime are not kept" in egs_lines(done)
    assert egs_lines(done)[-1].startswith("egs: ordered 4 GPU tasks")


HINTED = """
ALL = dict(priority=2, max_wait="1h", deadline="2h", stage="streams", flavors=("a100",))
LOST = dict(preload=[egs.modules("json")], max_runtime="1h", max_gpu_time="1h", grace="1s", gpu_cpus=1)

def seen():
    held = [ray.get_runtime_context().get_assigned_resources().get(name, 0) for name in ("CPU", "GPU", "memory")]
    return [*held[:2], held[2] / 2**20]

@ray.remote
@egs.task(gpus=1, cpus=0.5, memory="64MiB", expect=("0s", "1s", "0s"), **ALL, **LOST)
def ordered():
    yield seen()
    with egs.gpu():
        yield seen()

@ray.remote
@egs.task(gpus=1, cpus=0.5, memory="64MiB", expect="1s", gang="pair", **ALL, **LOST)
def taken():
    yield seen()
    yield seen()

def values(found):
    return [ray.get(value) for value in (ray.get(found) if isinstance(found, ray.ObjectRef) else found)]

pressed, dynamic = dict(_generator_backpressure_num_objects=1), dict(num_returns="dynamic")
print([values(ordered.remote()) for _ in range(2)])
print([values(taken.options(**options).remote()) for options in (pressed, dynamic, pressed)])
print(ray.get(taken.options(num_returns=2).remote()))

@ray.remote(num_cpus=0)
def on_a_worker():
    return values(ordered.remote()), values(taken.options(**pressed).remote())

print(ray.get(on_a_worker.remote()))
"""


@pytest.mark.proves("ray hinted script", "gpus", "cpus", "memory")
def test_hints_of_generators(run_script: Script, tmp_path: Path) -> None:
    """Needs that only hints state are in Ray's books, of generators that are ordered and of those that pass (back
    pressure, other kinds of returns), in the script and on a worker, and in the run log. All other hints that are not
    kept are named, once a function, also that `with egs.gpu():` gives no GPU back."""
    done = run_script(BEGINNING + HINTED, EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    needs = [0.5, 1.0, 64.0]
    said = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert said == [[[needs] * 2] * 2, [[needs] * 2] * 3, [needs] * 2, ([needs] * 2, [needs] * 2)], done.stderr
    kept = "deadline, expect, gang, gpu_cpus, grace, max_gpu_time, max_runtime, max_wait, preload, priority, stage"
    why = "it has no GPU, back pressure or another num_returns, or says itself where it runs, so Ray alone decides"
    assert egs_lines(done)[:-1] == [
        "egs: ordered: of a generator the hints preload, grace, gpu_cpus, max_runtime, max_gpu_time are not kept",
        "egs: ordered: a generator holds its GPUs to its end, outside of `with egs.gpu():`, too",
        f"egs: taken: its hints {kept} are not kept: {why} about it",
    ]
    assert egs_lines(done)[-1].startswith("egs: ordered 3 GPU tasks")
    tasks = [record for record in read_run(tmp_path / "log.jsonl").records if isinstance(record, TaskAdded)]
    phases = {record.phases for record in tasks if record.name in ("ordered", "taken")}
    assert phases == {(("gpu", 0.5, 1.0, 64 * 2**20),)}


STREAM = """
@ray.remote(num_gpus=1, num_cpus=0)
def stream():
    yield "first"
    until_signal("taken")                     # by who takes the first value, with the other GPU
    yield "second"

@ray.remote(num_cpus=0)
def between(value):
    return value

@ray.remote(num_gpus=1, num_cpus=0)
def takes(value, other, inside):
    assert ray.get(inside) == [value] == [other]
    signal("taken")
    return value

def consume():
    values = stream.remote()
    first = next(values)
    taken = takes.remote(first, between.remote(first), [between.remote(first)])
    return ray.get([taken, next(values)]), [ray.get(value) for value in values]

@ray.remote(num_cpus=0)
def on_a_worker():
    return consume()

print(consume())
os.remove("taken")
print(ray.get(on_a_worker.remote()))
"""


def test_values_are_there_before_the_end(run_script: Script) -> None:
    """A GPU task that takes the first value of a generator, directly, by another task or inside of an argument, runs
    beside it: the generator ends after it. In the script and on a worker."""
    done = run_script(BEGINNING + STREAM, EGS_MODE="on")
    assert done.stdout == "(['first', 'second'], [])\n" * 2, done.stderr
    assert egs_lines(done)[0].startswith("egs: ordered 4 GPU tasks")


NESTED = """
@ray.remote(num_gpus=1, num_cpus=0)
def fit(x):
    return x

@ray.remote(num_cpus=0)
def on_cpus(n):
    for number in range(n):
        yield ray.get(fit.remote(number))

@ray.remote(num_gpus=2, num_cpus=0)
def on_all_gpus(n):
    for number in range(n):
        yield number

@ray.remote(num_gpus=1, num_cpus=0)
def on_gpus(n):
    yield from (ray.get(value) for value in on_cpus.remote(n))

print([ray.get(value) for value in on_cpus.remote(2)])
print([ray.get(value) for value in on_gpus.remote(2)])
print([ray.get(value) for value in on_all_gpus.remote(2)])
"""


def test_what_generators_submit_is_ordered(run_script: Script, tmp_path: Path) -> None:
    """GPU tasks of a generator, with a GPU of its own or without, and of a generator that it has begun, belong to the
    script's workload."""
    done = run_script(BEGINNING + NESTED, EGS_MODE="on")
    assert done.stdout == "[0, 1]\n" * 3, done.stderr
    records = read_run(tmp_path / "log.jsonl").records
    names = {record.task: record.name for record in records if isinstance(record, TaskAdded)}
    granted = [names[record.task] for record in records if isinstance(record, Granted)]
    assert sorted(granted) == ["fit"] * 4 + ["on_all_gpus", "on_gpus"]
    assert len({record.workload for record in records if isinstance(record, Granted)}) == 1


NATIVELY = """
@ray.remote(num_gpus=1, num_cpus=0)
def stream(n, fails=False):
    for number in range(n):
        yield number
    if fails:
        raise ValueError("after all")

@ray.remote(num_gpus=1, num_cpus=0)
def endless():
    number = 0
    while True:
        yield number
        time.sleep(0.05)
        number += 1

@ray.remote(num_gpus=1, num_cpus=0, max_retries=1)
def crashes():
    yield 1
    if not os.path.exists(os.path.join(FOLDER, "crashed")):
        signal("crashed")
        os._exit(1)
    yield 2

@ray.remote(num_gpus=1, num_cpus=0)
def broken():
    raise KeyError("before")

def said(values):
    out = []
    try:
        for value in values:
            out.append(ray.get(value))
    except Exception as error:
        out.append((type(error).__name__, type(getattr(error, "cause", None)).__name__))
    return out

print(said(stream.remote(2)), said(stream.remote(n=3)), said(stream.remote(0)), said(stream.remote(1, fails=True)))
print(said(stream.options(_generator_backpressure_num_objects=1).remote(3)))
print(len(list(ray.get(stream.options(num_returns="dynamic").remote(3)))))
print(ray.get(stream.options(num_returns=2).remote(2)))
print(said(stream.remote(broken.remote())), said(stream.remote(ray.put(2))))
print(said(crashes.remote()))
values = endless.remote()
print(ray.get(next(values)), ray.get(next(values)))
ray.cancel(values)
print(said(values)[-1])
values = stream.remote(3)
print(ray.get(values.completed()), values.is_finished(), said(values), values.is_finished())
values = stream.remote(2)
del values
print(said(stream.remote(2)))
try:
    stream.remote(1, 2, 3, 4)
except TypeError as error:
    print("TypeError")

@ray.remote(num_cpus=0)
def on_a_worker():
    return said(stream.remote(2)), said(stream.remote(1, fails=True))

print(ray.get(on_a_worker.remote()))
"""


def test_as_natively(run_script: Script, tmp_path: Path) -> None:
    """Values, errors in the middle and before, retries, cancelling, what is dropped, back pressure, other kinds of
    returns and wrong calls: a script reads what it reads natively."""
    natively = run_script(BEGINNING + NATIVELY, hook=False)
    assert natively.returncode == 0, natively.stderr
    (tmp_path / "crashed").unlink()
    ordered = run_script(BEGINNING + NATIVELY, EGS_MODE="on")
    assert ordered.stdout == natively.stdout, ordered.stderr
    assert len(natively.stdout.splitlines()) == 12
    assert len(egs_lines(ordered)) == 1
