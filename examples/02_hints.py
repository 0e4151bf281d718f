"""Hints on the tasks, and `egs_ray.run` instead of `.remote()`: EGS splits, preloads and orders.

    python examples/02_hints.py

`train` holds a GPU only inside `with egs.gpu():`. Its modules and its model are loaded into its process while `load`
still runs, without holding a GPU. Without EGS, `train.remote(…)` holds its GPU from start to end.
"""

import numpy as np
import ray

import egs_core as egs
import egs_ray

ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")


def load_model() -> np.ndarray:
    """Slow in a real pipeline; loaded once a process, ahead of need."""
    return np.linspace(0.0, 1.0, 8)


@ray.remote
def load(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(200, 8))


@ray.remote(num_gpus=1)
@egs.task(preload=[egs.modules("numpy.linalg"), egs.call(load_model)], gpu_cpus=0)
def train(data: np.ndarray, rate: float) -> float:
    batch = (data - data.mean(axis=0)) / data.std(axis=0)  # CPU: no GPU is held
    with egs.gpu():  # from here …
        weights = egs.loaded(load_model).copy()
        for _ in range(50):
            weights -= rate * batch.T @ (batch @ weights - batch.sum(axis=1)) / len(batch)
    return round(float(np.abs(weights - 1).max()), 4)  # … to here


@ray.remote
def best(*errors: float) -> str:
    return f"errors {list(errors)}, best is number {int(np.argmin(errors))}"


data = load.bind(7)
run = egs_ray.run(best.bind(*[train.bind(data, rate) for rate in (0.01, 0.1, 0.3)]), name="example")
print(run.get())
