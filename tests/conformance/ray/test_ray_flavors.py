"""GPUs of two flavors on a real Ray cluster: a run learns how long its tasks take on each, and the next one uses it.

The GPUs and their speeds are emulated: nodes say that they have some, and a task sleeps by the node that it is on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended
from tests.conformance.ray.test_ray_nodes import outcome_of
from tests.unit.server.real_site import wait_for
from tests.unit.server.served import own_site

pytestmark = pytest.mark.long
MESSAGE = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB"
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}

SCRIPT = """
import json, os, sys, time
import ray
from ray.cluster_utils import Cluster
from ray.dag import MultiOutputNode
import egs_core as egs

folder = sys.argv[1]
prices = os.path.join(folder, "flavors.yaml")
with open(prices, "w") as file:
    file.write("flavors: [{name: a100, gpu_hour: 4.0}, {name: l4, gpu_hour: 1.0}]")
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=folder, **small))
cluster.add_node(num_cpus=2, num_gpus=1, labels={"ray.io/accelerator-type": "L4"}, **small)
cluster.add_node(num_cpus=2, num_gpus=1, resources={"accelerator_type:A100": 1}, **small)
seen = {}

def here():
    row = next(row for row in ray.nodes() if row["NodeID"] == ray.get_runtime_context().get_node_id())
    return row["Labels"].get("ray.io/accelerator-type") or "A100"

def work(fast):
    kind = here()
    time.sleep(1.0 if kind == fast else 2.0)  # emulated speeds
    return kind

def of(name, fast, *flavors):
    @ray.remote(num_gpus=1, num_cpus=0.1)
    @egs.task(name=name, flavors=flavors)
    def job():
        return work(fast)
    return job.bind()

def job(*flavors):
    return of("job", "A100", *flavors)

def other(*flavors):
    return of("other", "L4", *flavors)

@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(flavors=("A100",), expect="1h")
def long(file):
    open(file + ".runs", "w").close()
    while not os.path.exists(file):
        time.sleep(0.05)
    return here()

def until(what):
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def run(node, **options):
    until(lambda: ray.available_resources().get("GPU", 0) >= free)
    return egs_ray.run(node, session=session).get(150)

try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_ray
    with egs_ray.Session(egs_ray.Options(preload=False)) as session:
        free = 2
        seen["taught"] = [run(each(flavor)) for each in (job, other) for flavor in ("L4", "A100")]
        seen["both free"] = [run(job()), run(other()), run(job())]
        gate = os.path.join(folder, "gate")
        held = egs_ray.run(long.bind(gate), session=session)
        until(lambda: os.path.exists(gate + ".runs"))
        free = 1
        seen["A100 held"] = run(job())
        open(gate, "w").close()
        held.get(150)
    with egs_ray.Session(egs_ray.Options(preload=False, objective="cost", flavors=prices)) as session:
        free = 2
        seen["cheapest"] = run(job())
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.proves("ray run", "flavors", "order")
def test_a_task_is_placed_by_what_it_took_on_each_flavor(tmp_path: Path) -> None:
    """Two tasks, each on both flavors once by its hint; then without one, and with both free: each on the GPU on which
    it took half as long; and on the other one at once while that is held for an hour. In another session, by cost: the
    L4, on which it takes twice as long at a quarter of the price."""
    seen, errors = outcome_of(SCRIPT, tmp_path)
    assert seen == {
        "taught": ["L4", "A100"] * 2,
        "both free": ["A100", "L4", "A100"],
        "A100 held": "L4",
        "cheapest": "L4",
    }, errors


TWO_FLAVORS = """
import json, os, sys, time
import ray
from ray.cluster_utils import Cluster
import egs_core as egs

folder = sys.argv[1]
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=folder, **small))
cluster.add_node(num_cpus=2, num_gpus=1, labels={"ray.io/accelerator-type": "L4"}, **small)
cluster.add_node(num_cpus=2, num_gpus=1, labels={"ray.io/accelerator-type": "A100"}, **small)
"""

LACKS = (
    TWO_FLAVORS
    + """
with open(os.path.join(folder, "flavors.yaml"), "w") as file:
    file.write("flavors: [{name: A100, gpu_hour: 4.0}, {name: L4, gpu_hour: 1.0}]")
prices = dict(objective="cost", flavors=os.path.join(folder, "flavors.yaml"))

def of(name, needs, *flavors):
    @ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
    @egs.task(name=name, flavors=flavors, expect=1.0)
    def fit():
        row = next(row for row in ray.nodes() if row["NodeID"] == ray.get_runtime_context().get_node_id())
        kind = row["Labels"]["ray.io/accelerator-type"]
        with open(os.path.join(folder, name), "a") as file:
            file.write(kind + " ")
        if kind not in needs:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return kind
    return fit.bind()

@ray.remote(num_cpus=0.1)
def after(kind):
    return "after " + kind

def tries(name):
    with open(os.path.join(folder, name)) as file:
        return file.read().split()

def ended(made):
    try:
        return made.get(150)
    except Exception as error:
        return "out of memory" in str(error)

seen = {}
try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_ray
    log = os.path.join(folder, "run.jsonl")
    with egs_ray.Session(egs_ray.Options(preload=False, retry_out_of_memory=True, runlog=log, **prices)) as session:
        seen["asked"] = ended(egs_ray.run(after.bind(of("asked", ["A100"])), session=session)), tries("asked")
        seen["nowhere"] = ended(egs_ray.run(of("nowhere", []), session=session)), tries("nowhere")
        seen["wish"] = ended(egs_ray.run(of("wish", ["A100"], "L4"), session=session)), tries("wish")
    from egs_core.runlog.io import read_run
    from egs_core.runlog.records import Ended
    ends = [one for one in read_run(log).records if isinstance(one, Ended)]
    seen["told"] = [(one.outcome, one.reason) for one in ends]
    with egs_ray.Session(egs_ray.Options(preload=False, **prices)) as session:
        seen["not asked"] = ended(egs_ray.run(of("plain", ["A100"]), session=session)), tries("plain")
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""
)


def test_a_task_that_lacks_memory_is_tried_on_another_flavor_where_that_was_asked_for(tmp_path: Path) -> None:
    """By cost each task has the L4. It ends there for lack of memory: the A100 is next, once, and what waits for the
    task gets its value. One that lacks memory there, too, ends with its error after both; one that may have the L4
    alone, and one of a session that was not asked to, after one. The run log says why it was tried again."""
    seen, errors = outcome_of(LACKS, tmp_path)
    told: Any = seen.pop("told")
    assert seen == {
        "asked": ["after A100", ["L4", "A100"]],
        "nowhere": [True, ["L4", "A100"]],
        "wish": [True, ["L4"]],
        "not asked": [True, ["L4"]],
    }, errors
    assert sorted(outcome for outcome, _ in told) == sorted(2 * ["preempted", "succeeded", "failed"])
    again = [reason for outcome, reason in told if outcome == "preempted"]
    lack = "out of GPU memory: CUDA out of memory. Tried to allocate 20.00 GiB"
    assert all(reason.startswith(lack) and reason.endswith("another flavor than L4") for reason in again), again


BEGUN = """
seen = {}

def begun(name):
    row = next(row for row in ray.nodes() if row["NodeID"] == ray.get_runtime_context().get_node_id())
    kind = row["Labels"].get("ray.io/accelerator-type", "head")
    with open(os.path.join(folder, name), "a") as file:
        file.write(kind + " ")
    return kind

def tries(name):
    with open(os.path.join(folder, name)) as file:
        return file.read().split()

def lacks():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

"""
SCRIPT_LACKS = (
    TWO_FLAVORS
    + BEGUN
    + """
@ray.remote(num_gpus=1)
def plain(start):
    kind = begun("plain")
    if len(tries("plain")) == 1:
        lacks()
    deadline = time.monotonic() + 60
    while ray.available_resources().get("GPU", 0) != 1:  # nothing holds the GPU that was too small
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return start + kind + " " + os.environ["CUDA_VISIBLE_DEVICES"]

@ray.remote(num_cpus=0.1)
def after(value):
    return "after " + value

@ray.remote(num_returns=2)
@egs.task(gpus=1, cpus=0.1)
def split():
    with egs.gpu():
        kind = begun("split")
        if len(tries("split")) == 1:
            lacks()
    return kind, "both"

@ray.remote(num_gpus=1)
def nowhere():
    begun("nowhere")
    lacks()

@ray.remote(num_gpus=1, max_retries=0)
def never():
    begun("never")
    lacks()

@ray.remote(num_gpus=1)
def wrong():
    begun("wrong")
    raise ValueError("a mistake")

def error_of(ref):
    try:
        ray.get(ref, timeout=150)
    except Exception as error:
        return [isinstance(error, (RuntimeError, ValueError)), str(error).splitlines()[-1]]

try:
    ray.init(cluster.address, log_to_driver=False)
    seen["plain"] = ray.get(after.remote(plain.remote("on ")), timeout=150), tries("plain")
    if os.environ["TRIED"] == "all":
        seen["split"] = ray.get(split.remote(), timeout=150), tries("split")
        seen["nowhere"] = error_of(nowhere.remote()), tries("nowhere")
        seen["never"] = error_of(never.remote()), tries("never")
        seen["wrong"] = error_of(wrong.remote()), tries("wrong")
except RuntimeError:
    seen["plain"] = "lacked", tries("plain")
finally:
    ray.shutdown()
    cluster.shutdown()
print(json.dumps(seen))
"""
)


def test_a_scripts_task_that_lacks_memory_is_tried_on_another_flavor(tmp_path: Path) -> None:
    """Under the hook, with `EGS_RETRY_OUT_OF_MEMORY=on`: a plain task and one with phases that lack memory where Ray
    has put them run on the other flavor, the first GPU free meanwhile, and what the script holds, or hands on, has the
    value. One that lacks memory there, too, ends with its own error after both; one that Ray may not start again, and
    one with another error, after one. The run log says why each try ended."""
    seen, errors = outcome_of(SCRIPT_LACKS, tmp_path, EGS_RETRY_OUT_OF_MEMORY="on", TRIED="all", **HOOK)
    told: Any = seen
    (value, tried), ((kind, both), parts) = told["plain"], told["split"]
    assert sorted(tried) == sorted(parts) == ["A100", "L4"], errors
    assert value == f"after on {tried[1]} 0"
    assert (kind, both) == (parts[1], "both")
    error, all_tried = told["nowhere"]
    assert (error, sorted(all_tried)) == ([True, MESSAGE], ["A100", "L4"]), errors
    assert (told["never"][0], len(told["never"][1])) == ([True, MESSAGE], 1)
    assert (told["wrong"][0], len(told["wrong"][1])) == ([True, "ValueError: a mistake"], 1)
    ends = [one for one in read_run(tmp_path / "log.jsonl").records if isinstance(one, Ended)]
    again = [one.reason for one in ends if one.outcome == "preempted"]
    assert len(again) == 3, ends
    assert all("Tried to allocate 20.00 GiB; tried again on another flavor than" in reason for reason in again), again
    assert "it is tried again on" in errors


@pytest.mark.parametrize(("asked", "gate"), [("off", "local"), ("on", "cluster")])
def test_it_is_tried_again_where_that_was_asked_for(tmp_path: Path, asked: str, gate: str) -> None:
    """Without the variable a script's task ends with its error, as Ray has it; with it, it is tried again also where
    the tasks of all drivers are ordered together."""
    more = {"EGS_RETRY_OUT_OF_MEMORY": asked, "EGS_GATE": gate, "TRIED": "one"}
    seen, errors = outcome_of(SCRIPT_LACKS, tmp_path, **more, **HOOK)
    told: Any = seen
    value, tried = told["plain"]
    assert len(tried) == (2 if asked == "on" else 1), errors
    assert value == (f"after on {tried[1]} 0" if asked == "on" else "lacked")


AT_SERVER = (
    TWO_FLAVORS
    + BEGUN
    + """
@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(name="fit")
def fit():
    kind = begun("fit")
    if len(tries("fit")) == 1:
        lacks()
    return kind

@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(name="nowhere")
def nowhere():
    begun("nowhere")
    lacks()

@ray.remote(num_cpus=0.1)
def after(kind):
    return "after " + kind

@ray.remote(num_gpus=1)
def plain():
    kind = begun("plain")
    if len(tries("plain")) == 1:
        lacks()
    return kind

try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_ray
    from egs_ray.session.api import default_session
    seen["run"] = egs_ray.run(after.bind(fit.bind())).get(150), tries("fit")
    try:
        egs_ray.run(nowhere.bind()).get(150)
    except Exception as error:
        seen["nowhere"] = str(error).splitlines()[-1], tries("nowhere")
    seen["script"] = ray.get(plain.remote(), timeout=150), tries("plain")
    seen["is shared"] = default_session().site.is_shared
finally:
    ray.shutdown()
    cluster.shutdown()
print(json.dumps(seen))
"""
)


def test_it_is_tried_again_at_a_server(tmp_path: Path) -> None:
    """A site server orders: a task of `egs_ray.run` that lacks memory where it was granted a GPU is granted one of the
    other flavor, and what waits for it gets the value; one that lacks memory there, too, ends with its own error after
    both. A task of the script is tried again as without a server."""
    with own_site(tmp_path, 1) as site:
        at = {"EGS_URL": f"unix://{site.ready['socket']}", "EGS_RETRY_OUT_OF_MEMORY": "on"}
        seen, errors = outcome_of(AT_SERVER, tmp_path, **at, **HOOK)
        wait_for(lambda: not site.open(), "the server knows that it has gone")
    told: Any = seen
    (value, tried), (error, all_tried), (kind, parts) = told["run"], told["nowhere"], told["script"]
    assert told["is shared"], errors
    assert sorted(tried) == sorted(all_tried) == sorted(parts) == ["A100", "L4"], errors
    assert (value, kind) == (f"after {tried[1]}", parts[1])
    assert error == MESSAGE
    assert "own work" not in errors
