"""What the hook's mode observe adds to a script's end: seconds from its last result to its exit, and its peak memory.

    python -m benchmarks.observe_end --tasks 8000 --rounds 3

Each run is a driver of its own on one Ray, natively and observed by turns. `end_s`: from the last line of the script to
the moment at which the process is gone; `peak_mb`: the driver's largest resident memory. Tasks do nothing.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

BATCH = 2000
WAYS: dict[str, dict[str, str]] = {
    "native": {},
    "observe": {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "observe"},
}
SCRIPT = f"""
import sys, time
import ray

@ray.remote(num_cpus=0.5)
def task():
    return None

ray.init(log_to_driver=False, logging_level="ERROR")
left = int(sys.argv[1])
while left > 0:
    ray.get([task.remote() for _ in range(min(left, {BATCH}))])
    left -= {BATCH}
print(time.time(), flush=True)
"""


def run_once(way: str, tasks: int, address: str) -> dict[str, float]:
    """One driver process; how long it took to end, and its peak memory."""
    with tempfile.TemporaryDirectory(prefix="egs-observe-") as folder:
        path = os.path.join(folder, "script.py")
        with open(path, "w") as file:
            file.write(SCRIPT)
        own = {"RAY_ADDRESS": address, "XDG_DATA_HOME": folder, **WAYS[way]}
        driver = subprocess.Popen(
            [sys.executable, path, str(tasks)], env={**os.environ, **own}, stdout=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None
        last_line = driver.stdout.readline()
        _, status, used = os.wait4(driver.pid, 0)
        ended = time.time()
        driver.stdout.close()
    if status:
        raise SystemExit(f"the script ended with {os.waitstatus_to_exitcode(status)}")
    return {"end_s": ended - float(last_line), "peak_mb": used.ru_maxrss / 1024}


def measure(tasks: int, rounds: int) -> dict[str, Any]:
    """Medians of the rounds, and all of them."""
    import ray

    from egs_ray.local import local_ray

    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with local_ray(2, 0):
        address = ray.get_runtime_context().gcs_address
        for _ in range(rounds):
            for way in WAYS:
                runs[way].append(run_once(way, tasks, address))
    rows = [
        {"way": way, **{name: round(statistics.median(run[name] for run in found), 2) for name in found[0]}}
        for way, found in runs.items()
    ]
    return {"tasks": tasks, "rounds": rounds, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.observe_end", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--tasks", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.tasks, arguments.rounds), indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
