"""What a submission costs on Ray: plain, with the hook observing, and with the hook on for tasks that it lets pass.

    python -m benchmarks.submit --tasks 2000 --rounds 3

Each mode runs in a process and on a local Ray of its own, interleaved. Tasks do nothing and are known to be short, so
EGS has no reason to hold them. `tasks_per_s` runs from the first submission to the last result; the latency is that of
the call of `.remote()`. `said` is what EGS told the user: a hook that could not act says so there.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

CPUS = 2
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook"}
MODES: dict[str, dict[str, str]] = {
    "plain": {},
    "observe": {**HOOK, "EGS_MODE": "observe"},
    "on": {**HOOK, "EGS_MODE": "on"},
}
TIMEOUT_S = 300


def measure(mode: str, tasks: int, folder: str) -> dict[str, float]:
    """One mode in this process, which must be a fresh one: a hook stays in place."""
    import numpy as np
    import ray

    import egs_core as egs
    from egs_ray.local import local_ray

    @ray.remote
    @egs.task(expect=0.001)
    def nothing() -> None:
        return None

    own = {"EGS_RUNLOG": f"{folder}/log.jsonl", "EGS_HISTORY": f"sqlite:///{folder}/history.sqlite"}
    with local_ray(CPUS, 0, {**MODES[mode], **own, "XDG_DATA_HOME": folder}):
        ray.get([nothing.remote() for _ in range(100)])  # processes started, function exported
        latencies, refs, began = [], [], time.perf_counter()
        for _ in range(tasks):
            before = time.perf_counter()
            refs.append(nothing.remote())
            latencies.append(time.perf_counter() - before)
        ray.get(refs)
        took = time.perf_counter() - began
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"tasks_per_s": tasks / took, "submit_p50_ms": float(p50) * 1000, "submit_p99_ms": float(p99) * 1000}


def run_mode(mode: str, tasks: int) -> dict[str, Any]:
    """`measure` in a process of its own, and what EGS said."""
    with tempfile.TemporaryDirectory(prefix="egs-submit-") as folder:
        command = [sys.executable, "-m", "benchmarks.submit", "--mode", mode, "--tasks", str(tasks), "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"said": [line for line in done.stderr.splitlines() if line.startswith("egs: off")]}


def run_all(tasks: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, by mode, and each mode's throughput as a share of plain's in the same round."""
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, found in runs.items():
            found.append(run_mode(mode, tasks))
    rows = []
    for mode, found in runs.items():
        row: dict[str, Any] = {"mode": mode}
        for figure in ("tasks_per_s", "submit_p50_ms", "submit_p99_ms"):
            row[figure] = round(statistics.median(run[figure] for run in found), 3)
        shares = [run["tasks_per_s"] / plain["tasks_per_s"] for run, plain in zip(found, runs["plain"], strict=True)]
        rows.append({**row, "of plain": round(statistics.median(shares), 3), "said": "; ".join(found[0]["said"])})
    return {"tasks": tasks, "rounds": rounds, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tasks < 1 or arguments.rounds < 1:
        parser.error("at least one task and one round")
    if arguments.mode:
        print(json.dumps(measure(arguments.mode, arguments.tasks, arguments.folder)))
        return 0
    print(json.dumps(run_all(arguments.tasks, arguments.rounds), indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
