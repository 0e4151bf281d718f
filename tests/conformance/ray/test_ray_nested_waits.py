"""Tasks with hints that wait for tasks of their own, on a real Ray of one CPU: they lend it while they wait, as
natively, keep their GPU, and have the CPU back after it. Each script ends with the same output natively and in `on`;
before EGS lent anything each of them hung."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Capacity
from tests.conformance.ray.conftest import _python_path
from tests.conformance.ray.patience import PATIENT

LIMIT_S = 240.0
HEAD = """
import sys, ray
address = ray.init(
    num_cpus=1, num_gpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False,
    _temp_dir=sys.argv[1],
)["gcs_address"]
print("at", address, flush=True)
sys.stdin.read()
ray.shutdown()
"""

BEGINNING = """
import os, time
import ray
import egs_core as egs

def hinted(**remote):
    return lambda function: ray.remote(num_cpus=1, **remote)(egs.task(preload=[egs.modules("json")])(function))

def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

@ray.remote
def child(value=1):
    time.sleep(0.1)                            # longer than what counts as no wait
    return value

@ray.remote
def middle():
    return ray.get(child.remote()) + 1

def say(*words):
    print(">", *words, flush=True)             # Ray's own words are on this output, too

ray.init(log_to_driver=False)
"""

WAYS = (
    BEGINNING
    + """
from ray import get as by_name

@ray.remote(num_returns="streaming")
def counts():
    for number in range(3):
        time.sleep(0.05)
        yield number

@ray.remote(max_retries=0)
def failing():
    time.sleep(0.05)
    raise ValueError("of the child")

@hinted()
def gets():
    return ray.get(child.remote()), by_name([child.remote(2), child.remote(3)])

@hinted()
def waits():
    refs, order = [child.remote(number) for number in range(3)], []
    while refs:
        (ready,), refs = ray.wait(refs)
        order.append(ray.get(ready))
    return sorted(order)

@hinted()
def generator():
    return [ray.get(ref) for ref in counts.remote()]

@hinted()
def two_levels():
    return ray.get(middle.remote()) + 1

@hinted()
def hinted_below():
    return ray.get(two_levels.remote()) + 1

@hinted()
def errors():
    told, nowhere = [], middle.options(resources={"node:__internal_head__": 5})
    try:
        ray.get(failing.remote())
    except ValueError as error:
        told.append(str(error.cause))
    try:
        ray.get(nowhere.remote(), timeout=0.1)
    except ray.exceptions.GetTimeoutError:
        told.append("time-out")
    ready, waiting = ray.wait([nowhere.remote()], timeout=0.1)
    return told, len(ready), len(waiting), ray.get(child.remote())

@ray.remote(num_gpus=1)
@egs.task()
def split():
    before = ray.get(child.remote())
    with egs.gpu():
        inside = ray.get(middle.remote())
    return before, inside, ray.get(child.remote(3))

for function in (gets, waits, generator, two_levels, hinted_below, errors, split):
    say(function._function_name, ray.get(function.remote(), timeout=120))
say(sorted(ray.get([gets.remote(), waits.remote(), two_levels.remote()], timeout=120), key=str))
"""
)

BOOKS = (
    BEGINNING
    + """
def settled():
    seen = 0                                                     # the books are news from a moment ago
    deadline = time.monotonic() + 120
    while seen < 30:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        seen = 0 if ray.available_resources().get("CPU") else seen + 1

@ray.remote
def free():
    until(lambda: not ray.available_resources().get("CPU"))      # lent to this task by then
    return ray.available_resources().get("GPU", 0.0)

@ray.remote
def other(path):
    with open(path, "a") as out:
        out.write("other ")

@hinted(num_gpus=1)
def parent(path):
    free_gpus = ray.get(free.remote())
    settled()                                                    # nothing else is there: it is this task's again
    waits = other.remote(path)
    time.sleep(0.5)                                              # time for it to begin, if it could
    with open(path, "a") as out:
        out.write("parent ")
    return free_gpus, ray.get_gpu_ids() or os.environ["CUDA_VISIBLE_DEVICES"], [waits]

free_gpus, device, (waits,) = ray.get(parent.remote(os.path.abspath("order")), timeout=120)
ray.get(waits, timeout=120)
say(free_gpus, open("order").read())
until(lambda: ray.available_resources().get("CPU") == 1.0 and ray.available_resources().get("GPU") == 1.0)
"""
)

MAILBOX = (
    BEGINNING
    + """
import asyncio

@ray.remote(num_cpus=0)
class Mailbox:
    def __init__(self):
        self.asked, self.letters = 0, asyncio.Queue()
    async def take(self):
        self.asked += 1
        return await self.letters.get()
    async def put(self, letter):
        await self.letters.put(letter)
    async def count(self):
        return self.asked

@hinted()
def parent(mailbox):
    (ref,) = ray.get(mailbox.take.remote())
    return ray.get(ref)

@hinted()
def later(value):
    return value

mailbox = Mailbox.remote()
parents = [parent.remote(mailbox) for _ in range(4)]
until(lambda: ray.get(mailbox.count.remote()) == 4)              # all of them wait, on one CPU
for value in range(4):
    ray.get(mailbox.put.remote([later.remote(value)]))
say(sorted(ray.get(parents, timeout=120)))
"""
)

DIES = (
    BEGINNING
    + """
@hinted(max_retries=1)
def parent(path):
    if not os.path.exists(path):
        open(path, "w").close()
        dies.options(num_cpus=0).remote(os.getpid())
    return ray.get(child.remote(5))

@ray.remote
def dies(pid):
    time.sleep(0.3)
    os.kill(pid, 9)

@hinted()
def after():
    return ray.get(child.remote(6))

say(ray.get(parent.remote(os.path.abspath("once")), timeout=120), ray.get(after.remote(), timeout=120))
until(lambda: ray.available_resources().get("CPU") == 1.0)
"""
)

RUN = (
    BEGINNING
    + """
import egs_ray

@hinted()
def fan(value):
    return sum(ray.get([child.remote(value), child.remote(2)]))

@hinted(num_gpus=1)
def fit(value):
    with egs.gpu():
        return value + ray.get(middle.remote())

@ray.remote
def plain(value):
    return value + ray.get(middle.remote())

def decode(value):
    return value

def train(value):
    return value + ray.get(middle.remote())

steps = ray.remote(num_cpus=1, num_gpus=1)(egs.task(gpu_cpus=1)(egs.phases(decode, egs.on_gpu(train), name="steps")))
with egs_ray.Session(egs_ray.Options(gpu_process=True)) as session:
    say(egs_ray.run(steps.bind(plain.bind(fit.bind(fan.bind(1)))), session=session).get(120))
"""
)


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """The address of a Ray of one CPU and one GPU, which all scripts here have one after the other."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    variables |= {"PYTHONPATH": _python_path(), "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    pipe = subprocess.PIPE
    with tempfile.TemporaryDirectory(prefix="egs-", ignore_cleanup_errors=True) as folder:  # short: for sockets
        command = [sys.executable, "-W", "ignore", "-c", PATIENT + HEAD, folder]
        head = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)
        try:
            assert head.stdout is not None
            address = next((line.split()[1] for line in head.stdout if line.startswith("at ")), "")
            assert address, "this Ray does not start"
            yield address
        finally:
            started = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
            head.communicate(timeout=LIMIT_S)
            for process in psutil.wait_procs(started, timeout=20)[1]:
                process.kill()


def _ends(source: str, address: str, folder: Path, **environment: str) -> str:
    """What a script prints on that Ray."""
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(source)
    variables = {**os.environ, "RAY_ADDRESS": address, **environment}
    done = subprocess.run(
        [sys.executable, str(path)], env=variables, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return "".join(line.removeprefix("> ") for line in done.stdout.splitlines(keepends=True) if line.startswith("> "))


def _hooked(source: str, address: str, folder: Path) -> str:
    log = str(folder / "log.jsonl")
    return _ends(source, address, folder, RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on", EGS_RUNLOG=log)


@pytest.mark.parametrize("source", [WAYS, MAILBOX, DIES], ids=["ways", "mailbox", "dies"])
def test_as_natively(source: str, small: str, tmp_path: Path) -> None:
    """A parent that waits in `ray.get`, `ray.wait` or for a generator, two and three levels deep, with errors and
    time-outs; parents that wait for tasks with hints which the driver submits while they wait, so the site lends, too;
    one whose process dies while it waits."""
    natively = _ends(source, small, tmp_path / "native")
    assert natively
    assert _hooked(source, small, tmp_path / "on") == natively


def test_what_is_lent(small: str, tmp_path: Path) -> None:
    """In Ray's books the child has the CPU while the parent waits, and no GPU is free; after it the CPU is the
    parent's, so what it submits then starts when it has ended. The run log has the node as it is."""
    assert _hooked(BOOKS, small, tmp_path / "on") == _ends(BOOKS, small, tmp_path / "native") == "0.0 parent other \n"
    offered = [
        record.cpus for record in read_run(tmp_path / "on" / "log.jsonl").records if isinstance(record, Capacity)
    ]
    assert set(offered) <= {0.0, 1.0}


def test_run(small: str, tmp_path: Path) -> None:
    """The same for the tasks of `egs_ray.run`, with and without hints, and in a GPU step with a process of its own."""
    assert _ends(RUN, small, tmp_path / "run") == "9\n"
