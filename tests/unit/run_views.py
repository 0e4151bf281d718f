"""Runs as a site server tells of them."""

from __future__ import annotations

from typing import Any

from egs_core.client.messages import RunView


def run_view(**stated: Any) -> RunView:
    """A run of one GPU, with what a test states of it."""
    plain = {"id": "1", "name": "train.py", "user": "ann", "version": 1, "cpus": 0.0, "memory_bytes": 0}
    return RunView(**{**plain, "queue": "", "priority": 0, "gpus": 1.0, "submitted_at": 0.0, **stated})
