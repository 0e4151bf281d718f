"""How few tickets the local gate makes: none where nothing waits, one for several short tasks that are alike."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, TaskAdded

Script = Callable[..., "subprocess.CompletedProcess[str]"]

COUNTED = """
import json, os, time
import ray
from egs_ray import install
from egs_ray.session.tickets import Tickets

made, new_copies = [], Tickets._new_copies
def counted(self, key, copies):
    made.append(key)
    return new_copies(self, key, copies)
Tickets._new_copies = counted

@ray.remote(num_gpus=1, max_calls=0, num_cpus=0.5)
def quick(number, *after):
    return number

@ray.remote(num_gpus=2, max_calls=0, num_cpus=0.5)
def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def end_of(count):
    gate = install.interceptor._gate
    deadline = time.monotonic() + 120
    while gate.tickets._held_gpus and time.monotonic() < deadline:   # the last end is noted after its value is there
        time.sleep(0.01)
    print(json.dumps([count, len(made), gate.tickets._held_gpus, len(gate.tickets._held)]))

ray.init(log_to_driver=False)
"""

FEW = (
    COUNTED
    + """
from egs_ray.session import room
room.TOGETHER_S = 10.0                         # these are short, also on a machine where they take long

for number in range(40):                       # one at a time
    assert ray.get(quick.remote(number)) == number
    gate = install.interceptor._gate
    while gate.tickets._held_gpus:
        time.sleep(0.002)
end_of(40)
blocker = until.remote(os.path.abspath("go"))
refs = [quick.remote(number) for number in range(300)]
cancelled = quick.remote(-1)
ray.cancel(cancelled)
chained = quick.remote(7, quick.remote(6))     # takes a result: a ticket of its own
open("go", "w").close()
assert ray.get(refs) == list(range(300)) and ray.get(chained) == 7
end_of(304)
"""
)


def test_few_tickets(run_script: Script, tmp_path: Path) -> None:
    """Tasks one at a time need none; hundreds of short ones share a few, each is let go and told of exactly once, also
    where one of them is cancelled; nothing is left over."""
    done = run_script(FEW, EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert first == [40, 0, 0.0, 0]
    assert 3 <= second[1] <= 100
    assert second[2:] == [0.0, 0]
    run = read_run(tmp_path / "log.jsonl")
    tasks = {record.task for record in run.records if isinstance(record, TaskAdded)}
    granted = Counter(record.task for record in run.records if isinstance(record, Granted))
    assert len(tasks) == 40 + 1 + 300 + 1 + 2
    assert set(granted.values()) == {1}
    assert len(tasks - set(granted)) <= 1  # the cancelled one


LONG = (
    COUNTED
    + """
refs = [until.remote(os.path.abspath("go")), *(until.remote(os.path.abspath("go")) for _ in range(5))]
deadline = time.monotonic() + 120
while len(made) < 5 and time.monotonic() < deadline:
    time.sleep(0.01)
open("go", "w").close()
ray.get(refs)
end_of(6)

gate = install.interceptor._gate
operations = gate._session._operations
def operate(verb):
    request = {"workload": gate.books.workload, "verb": verb, "grace_s": None}
    answer = operations.carry_out({**request, "task": "", "stage": "", "actor": "me", "reason": ""})
    assert "problem" not in answer, answer
operate("pause")
held = quick.remote(1)
print(json.dumps([len(ray.wait([held], timeout=1.0)[0]), len(made)]))
from egs_ray.session.pulse import idle_gpus
had = gate.room.extra
for _ in range(6):                             # as in so many seconds of the pause
    gate.site.call(lambda: gate._pulse.review(ray.nodes(), idle_gpus()))
print(json.dumps(gate.room.extra - had))
operate("resume")
print(json.dumps([ray.get(held, timeout=120), len(made)]))
"""
)


def test_tasks_of_unknown_length_share_nothing(run_script: Script) -> None:
    """Where nothing tells how long tasks take, each waits for its own turn: the first passes, five have tickets. While
    the script is paused a task waits for its ticket, though all GPUs are free, and however long that is, no tickets are
    added for it: at its end all that waits would go at once, out of turn."""
    done = run_script(LONG, EGS_MODE="on")
    assert done.stdout == "[6, 5, 0.0, 0]\n[0, 6]\n0\n[1, 6]\n", done.stderr
