"""Five unmodified drivers of two teams on one Ray with two logical GPUs, natively and through a site server.

    python -m benchmarks.ray_site

The case of ray-project/ray#63790: three long jobs of one team, then two short ones of another. Prints what each job
took and how many GPUs were held at once; emulated GPUs, so only waiting is measured. Results must be the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

SCRIPT = """
import sys, time
import ray

log, count, hold_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def fit(x, log, hold_s):
    began = time.time()
    time.sleep(hold_s)
    with open(log, "a") as file:
        file.write(f"{began} {time.time()}\\n")
    return x * 2

ray.init(logging_level="ERROR", log_to_driver=False)
began = time.time()
print(sum(ray.get([fit.remote(x, log, hold_s) for x in range(count)])), time.time() - began)
"""
JOBS = (
    ("long-1", "research", 40),
    ("long-2", "research", 40),
    ("long-3", "research", 40),
    ("short-1", "product", 6),
    ("short-2", "product", 6),
)
HOLD_S, APART_S, LIMIT_S = 0.25, 1.0, 300.0
QUEUES = """
queues:
  - {name: research, cohort: all, nominal: {gpus: 1}}
  - {name: product, cohort: all, nominal: {gpus: 1}}
"""


def run(folder: Path, mode: str, environment: dict[str, str]) -> None:
    """All jobs, one beginning a second after the other; prints a line each."""
    log, script = folder / f"{mode}.log", folder / "script.py"
    script.write_text(SCRIPT)
    begun = []
    for name, queue, count in JOBS:
        own = environment | {"EGS_QUEUE": queue, "EGS_RUNLOG": str(folder / f"{mode}-{name}.jsonl")}
        command = [sys.executable, str(script), str(log), str(count), str(HOLD_S)]
        begun.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
        time.sleep(APART_S)
    for (name, queue, count), one in zip(JOBS, begun, strict=True):
        value, seconds = one.communicate(timeout=LIMIT_S)[0].split()[-2:]
        if one.returncode or int(value) != count * (count - 1):
            raise SystemExit(f"{name}: exit code {one.returncode}, result {value}")
        print(f"{mode:8} {name:8} {queue:8} {float(seconds):6.1f} s", flush=True)
    ends = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    edges = sorted([(begin, 1) for begin, _ in ends] + [(end, -1) for _, end in ends])
    held = [sum(change for _, change in edges[: n + 1]) for n in range(len(edges))]
    print(f"{mode:8} makespan {edges[-1][0] - edges[0][0]:.1f} s, at most {max(held)} GPUs held at once", flush=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="egs-"))
    (folder / "queues.yaml").write_text(QUEUES)
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "PYTHONPATH": os.pathsep.join(sys.path)}
    plain = dict(os.environ) | address | {"XDG_DATA_HOME": str(folder), "EGS_RUNTIME_DIR": str(folder)}
    serve = [sys.executable, "-m", "egs_core.cli.app", "serve", "--emulated-gpus", "0", "--port", "0", "--json"]
    serve += ["--data", str(folder / "data"), "--queues", str(folder / "queues.yaml")]
    server = subprocess.Popen(serve, env=plain, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"unix://{json.loads(server.stdout.readline())['socket']}"
    try:
        run(folder, "native", plain)
        run(folder, "site", plain | {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on", "EGS_URL": url})
    finally:
        server.terminate()
        server.wait(30)
        ray.shutdown()


if __name__ == "__main__":
    main()
