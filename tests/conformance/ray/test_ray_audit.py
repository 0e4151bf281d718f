"""On a real cluster that never heard of EGS: audited, forecast, and its history kept after its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from egs_core.history.sql import SqlHistory
from egs_core.predict import Predictor
from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from tests.conformance.ray import live

pytestmark = pytest.mark.long


def egs(*arguments: object) -> dict[str, Any]:
    """What an `egs … --json` prints."""
    command = [sys.executable, "-m", "egs_core.cli.app", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def train(folder: Path, address: str, **variables: str) -> None:
    """Run the contended script as a driver of its own; the hook only where the variables name it."""
    (folder / "train.py").write_text(live.CONTENDED)
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **variables}
    done = subprocess.run([sys.executable, "train.py"], env=environment, cwd=folder, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()


def what_is_there(dashboard: str) -> dict[str, list[str]]:
    """Ids of all jobs, actors, workers and placement groups that the cluster knows."""
    found = {}
    for what, key in (("jobs", "job_id"), ("actors", "actor_id"), ("workers", "worker_id")):
        with urllib.request.urlopen(f"{dashboard}/api/v0/{what}?limit=10000", timeout=150) as answer:
            found[what] = sorted(str(row[key]) for row in json.load(answer)["data"]["result"]["result"])
    return found


def test_forecast_and_history_that_outlives_the_cluster(tmp_path: Path) -> None:
    """A native run audited over HTTP leaves the cluster as it was; the same with EGS is held against the forecast; and
    when the cluster is gone, what it pushed says the same and predicts the next run."""
    kept, forecast, log = tmp_path / "kept", tmp_path / "forecast.json", tmp_path / "on.jsonl"
    store = f"sqlite:///{tmp_path}/history.sqlite"
    with live.collector(kept, store) as (url, process):
        with live.ray_head(push_to=url) as (address, dashboard):
            train(tmp_path, address, **live.PUSH)
            live.wait_for(lambda: bool(ended_jobs(dashboard)), "the job has ended")
            before = what_is_there(dashboard)
            audited = egs("audit", "--ray", dashboard, "--job", "train-01000000", "--forecast-out", forecast)
            assert what_is_there(dashboard) == before
            hook = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on", "EGS_RUNLOG": str(log)}
            train(tmp_path, address, **hook, EGS_HISTORY=f"sqlite:///{tmp_path}/hook.sqlite")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=150) == 0

    assert {row["name"] for row in audited["by_task"]} == {"leaf", "step"}
    assert audited["total"]["runs"] == 9
    assert audited["total"]["held_s"] == pytest.approx(audited["total"]["used_s"] + audited["total"]["wasted_s"])
    assert any(wait["reason"].startswith("no free GPU while") for wait in audited["waits"])
    compared = {row["figure"]: row for row in egs("audit", "--compare", forecast, log)["figures"]}
    for name, row in compared.items():  # how close it comes depends on how busy the machine is
        assert row["band"] == {key: audited["forecast"][name][key] for key in row["band"]}
        assert row["in_band"] == (row["band"]["low"] <= row["achieved"] <= row["band"]["high"])
    assert compared["gpu_held_s"]["achieved"] >= 18  # nine tasks of two seconds
    assert compared["makespan_s"]["achieved"] >= 18

    after = egs("audit", "--events", kept, "--job", "train-01000000")
    assert after["total"]["runs"] == 9
    assert after["window_s"] == pytest.approx(audited["window_s"], abs=0.1)
    (run_log,) = kept.glob("*/train-01000000.jsonl")
    assert summarise(read_run(run_log).records).phases == 10
    history = SqlHistory(store)
    step = next(signature for signature in history.signatures("train") if signature.task == "step")
    estimate = Predictor.from_history(history, ["train"]).estimate(step)
    history.close()
    assert (estimate.source, estimate.n >= 3) == ("history", True)
    assert 2.0 <= estimate.p50_s <= compared["makespan_s"]["achieved"]


def ended_jobs(dashboard: str) -> list[str]:
    """Jobs that have ended."""
    with urllib.request.urlopen(f"{dashboard}/api/v0/jobs?detail=true", timeout=150) as answer:
        rows = json.load(answer)["data"]["result"]["result"]
    return [row["job_id"] for row in rows if row["end_time"]]


def test_refused_without_the_token(tmp_path: Path) -> None:
    """A cluster that asks for a token: without it one line and exit code 2, with it an answer."""
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test-only-0123456789")
    guarded = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    with live.ray_head(**guarded) as (_, dashboard):
        command = [sys.executable, "-m", "egs_core.cli.app", "audit", "--ray", dashboard]
        said = []
        for variables in ({}, guarded):
            environment = {**os.environ, **variables}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
            said.append(done)
    refused, empty = said
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "refuses the request" in refused.stderr
    assert "no task of any job is known there" in empty.stderr
