"""An ordinary Ray script. It knows nothing of EGS.

python examples/01_hook.py                                # as it is
EGS_HOOK=ray python examples/01_hook.py                   # EGS observes and reports
EGS_HOOK=ray EGS_MODE=on python examples/01_hook.py       # EGS orders its GPU tasks
"""

import numpy as np
import ray

ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")


@ray.remote
def load(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(200, 8))


@ray.remote(num_gpus=1)
def fit(data: np.ndarray) -> np.ndarray:
    target = data @ np.arange(8.0)
    return np.linalg.lstsq(data, target, rcond=None)[0]


@ray.remote
def average(*weights: np.ndarray) -> list[float]:
    return [round(float(w), 3) for w in np.mean(weights, axis=0)]


print(ray.get(average.remote(*[fit.remote(load.remote(seed)) for seed in range(4)])))
