"""Usage limits on real Ray: a task past its limit is cancelled, and whoever waits for it reads why."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import ray

import egs_ray
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.usefixtures("ray_address")


def test_a_task_past_max_runtime_is_cancelled(tmp_path: Path) -> None:
    """Its process ends, its GPU is free, no retry, its child never starts, and the error names the limit."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        made = egs_ray.run(t.endless.bind(folder, "after", t.endless.bind(folder, "first")), session=session)
        written = tmp_path / "first.pid"
        process = psutil.Process(int(t.until(lambda: written.exists() and written.read_text())))
        with pytest.raises(ray.exceptions.TaskCancelledError, match=r"endless-0 over its limit of 1 s"):
            made.get(t.LIMIT_S)
        assert made.why("endless-0").text == "ended: failed: over its limit of 1 s"
        t.until(lambda: t.is_gone(process))
        t.until(t.is_idle)
        assert not (tmp_path / "after.pid").exists()
