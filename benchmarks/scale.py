"""How long a large WfFormat file takes to become a ranked plan, and how much memory.

    python benchmarks/scale.py --tasks 1000000

Writes a seeded layered workflow (about 3 parents a task, one file written by each task and read by its children) into
a temporary folder, then measures in a fresh process: load (read, decode, validate), upward ranks, ranked plan. Prints
one JSON object: seconds of each step, of the whole process and its peak resident memory. Targets: 100,000 tasks in
3 s; 1,000,000 tasks in 40 s and 3 GiB. With --check the exit code is 1 when the target of that size is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEED = 1
LAYERS = 100
PROGRAMS = ("decode", "clean", "train", "evaluate", "pack")
TARGETS = {100_000: (3.0, 3.0), 1_000_000: (40.0, 3.0)}  # tasks: (seconds, GiB)


def random_parents(tasks: int, rng: random.Random) -> list[list[int]]:
    """Up to three distinct parents for each task, all in the layer before its own."""
    width = max(1, -(-tasks // LAYERS))
    parents: list[list[int]] = []
    for task in range(tasks):
        start = (task // width - 1) * width
        parents.append(sorted({start + rng.randrange(width) for _ in range(3)}) if start >= 0 else [])
    return parents


def write_workflow(path: Path, tasks: int) -> None:
    """A WfFormat 1.6 file of that many tasks, the same for the same number."""
    rng = random.Random(SEED)
    parents = random_parents(tasks, rng)
    children: list[list[int]] = [[] for _ in range(tasks)]
    for task, above in enumerate(parents):
        for parent in above:
            children[parent].append(task)
    with path.open("w") as out:
        out.write('{"name": "layered", "schemaVersion": "1.6", "workflow": {"specification": {"tasks": [')
        out.writelines(_joined(_task_json(task, parents[task], children[task]) for task in range(tasks)))
        out.write('], "files": [')
        out.writelines(
            _joined(f'{{"id": "file_{t:08d}", "sizeInBytes": {rng.randrange(10**9)}}}' for t in range(tasks))
        )
        out.write(']}, "execution": {"makespanInSeconds": 0, "executedAt": "2026-01-01", "tasks": [')
        out.writelines(_joined(_run_json(task, rng) for task in range(tasks)))
        out.write("]}}}\n")


def _joined(entries: Iterator[str]) -> Iterator[str]:
    for number, entry in enumerate(entries):
        yield (", " if number else "") + entry


def _task_json(task: int, parents: list[int], children: list[int]) -> str:
    entry = {
        "name": _task_id(task),
        "id": _task_id(task),
        "parents": [_task_id(p) for p in parents],
        "children": [_task_id(c) for c in children],
        "inputFiles": [f"file_{p:08d}" for p in parents],
        "outputFiles": [f"file_{task:08d}"],
    }
    return json.dumps(entry)


def _run_json(task: int, rng: random.Random) -> str:
    seconds, memory = round(rng.lognormvariate(2.0, 1.0), 3), rng.randrange(1, 64) * 2**26
    program = PROGRAMS[task % len(PROGRAMS)]
    return (
        f'{{"id": "{_task_id(task)}", "runtimeInSeconds": {seconds}, "coreCount": {rng.choice((1, 1, 2, 4))}, '
        f'"memoryInBytes": {memory}, "command": {{"program": "{program}"}}}}'
    )


def _task_id(task: int) -> str:
    return f"task_ID{task:08d}"


def measure(path: Path) -> dict[str, float]:
    """Seconds by step in this process, and its peak resident memory; run it in a fresh one."""
    began = time.perf_counter()
    from egs_core.graph.analysis import critical_path, ranked_plan, topological_order, upward_rank
    from egs_core.graph.load import load_workload

    imported = time.perf_counter()
    graph = load_workload(path).graph
    loaded = time.perf_counter()
    rank = upward_rank(graph, order=topological_order(graph))
    ranked = time.perf_counter()
    plan = ranked_plan(rank)
    planned = time.perf_counter()
    if rank[plan[0]] < critical_path(graph)[0] * (1 - 1e-9) or len(plan) != graph.n_tasks:
        raise SystemExit("the plan does not begin with the critical path")
    return {
        "tasks": graph.n_tasks,
        "edges": sum(map(len, graph.parents)),
        "import_s": imported - began,
        "load_and_validate_s": loaded - imported,
        "upward_rank_s": ranked - loaded,
        "ranked_plan_s": planned - ranked,
        "total_s": planned - began,
        "peak_rss_gib": peak_rss_bytes() / 2**30,
    }


def peak_rss_bytes() -> int:
    """Peak resident memory of this process; Linux counts kibibytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run(tasks: int) -> dict[str, float]:
    """Write the workflow, then measure it; each in a fresh process, as a child inherits its parent's peak memory."""
    script = [sys.executable, str(Path(__file__).resolve()), "--tasks", str(tasks)]
    with tempfile.TemporaryDirectory(prefix="egs-scale-") as folder:
        path = Path(folder) / "layered.json"
        subprocess.run([*script, "--write", str(path)], check=True)
        size = path.stat().st_size
        output = subprocess.run([*script, "--measure", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(output)
    return {**result, "file_bytes": size}


def missed(result: dict[str, float]) -> list[str]:
    """Which targets of this size were missed; none are stated for other sizes."""
    seconds, gib = TARGETS.get(int(result["tasks"]), (float("inf"), float("inf")))
    checks = {"total_s": seconds, "peak_rss_gib": gib}
    return [f"{name} {result[name]:.2f} > {limit:g}" for name, limit in checks.items() if result[name] > limit]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--check", action="store_true", help="exit code 1 when the target of this size is missed")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_workflow(arguments.write, arguments.tasks)
        return 0
    if arguments.measure:
        sys.path.insert(0, str(ROOT))
        print(json.dumps(measure(arguments.measure)))
        return 0
    result = run(arguments.tasks)
    print(json.dumps({k: round(v, 3) for k, v in result.items()} | {"missed": missed(result)}))
    return 1 if arguments.check and missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
