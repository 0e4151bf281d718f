"""Explicit phase functions: the form that every framework can split.

    python examples/03_phases.py

`egs.phases` joins three functions; each is called with the result of the one before. Only `fit` holds a GPU.
"""

import os

import numpy as np
import ray

import egs_core as egs
import egs_ray

ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")


def decode(seed: int) -> np.ndarray:
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == "", "a CPU phase sees no GPU"
    return np.random.default_rng(seed).integers(0, 9, size=(64, 4)).astype(float)


def fit(images: np.ndarray) -> tuple[np.ndarray, str]:
    device = os.environ["CUDA_VISIBLE_DEVICES"]
    return np.linalg.svd(images, compute_uv=False), device


def write(fitted: tuple[np.ndarray, str]) -> str:
    values, device = fitted
    return f"largest singular value {values[0]:.2f}, found on GPU {device}"


train = ray.remote(num_gpus=1)(egs.task(gpu_cpus=0)(egs.phases(decode, egs.on_gpu(fit), write, name="train")))

print(egs_ray.run(train.bind(3)).get())
