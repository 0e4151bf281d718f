"""`airflow egs doctor`: one line a feature, whether it is active and why."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

pytest.importorskip("airflow", reason="apache-airflow is not installed")

from egs_airflow import cli, compat
from egs_airflow.agent.lock import take_lock
from egs_airflow.features import FEATURES, feature_checks
from egs_airflow.order import pools
from egs_airflow.order.durations import packed, write_durations
from egs_airflow.shared import DURATIONS, POOLS, Reader, Shared
from egs_core.adapter import Check, private_api_checks
from tests.unit.airflow.metadata import add_pool, put


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User folders of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:1234")


def told() -> dict[str, Check]:
    """The lines by name."""
    return {check.name: check for check in feature_checks()}


def test_observing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What mode on is for is off, and that is in order; in mode off all is."""
    found = told()
    assert tuple(found) == tuple(FEATURES)
    assert all(check.ok for check in found.values()), found
    active = [name for name, check in found.items() if check.detail.startswith("active")]
    assert active == ["observe", "view"]
    assert found["order"].detail == "off: mode observe"
    monkeypatch.setenv("EGS_MODE", "off")
    assert not [check for check in told().values() if check.detail.startswith("active")]


def test_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each feature that is configured is active, with what it is about; an agent is the process that holds the lock."""
    settings = {
        "EGS_MODE": "on",
        "EGS_PRELOAD_MODULES": "wave",
        "EGS_POOLS": "gpu=3",
        "EGS_DURATIONS": str(tmp_path / "durations.json"),
        "EGS_LIMITS": str(tmp_path / "limits.yaml"),
        "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "limits.yaml").write_text("limits: [{dag: a, limits: {max_runtime: 2h}}]\n")
    path = Path(settings["EGS_DURATIONS"])
    assert told()["learned durations"].detail.startswith("none yet: ")
    write_durations(path, {"dag": {"one": 1.0, "two": 2.0}})
    assert told()["agent"].detail == "off: no `airflow egs agent` on this host for this Airflow"
    lock = take_lock("http://127.0.0.1:1234")
    try:
        found = {name: check.detail for name, check in told().items()}
    finally:
        os.close(lock)
    assert found["order"] == "active: weights by longest remaining path"
    unknown = "no scheduler has said whether it works (not started, or with another home and without a fault)"
    assert found["slots kept"] == f"active: egs_airflow.executors.EgsLocalExecutor; {unknown}"
    assert found["GPU pools"] == "not made yet: gpu=3; `airflow egs pools` makes them"
    assert found["preload"] == "active: wave, imported before EgsLocalExecutor starts its processes"
    assert found["agent"] == f"active: process {os.getpid()}"
    assert found["limits"] == f"kept by an agent: those of hints, and 1 rules of {tmp_path / 'limits.yaml'}"
    assert found["staging"] == "done by an agent: at most 16 GiB at once"
    assert found["learned durations"].startswith("active: 2 tasks of 1 DAGs, read 0.0 h ago, ")


def test_durations_of_airflows_metadata(metadata: Connection) -> None:
    """Where option `durations` names no file: how many, who has learned them, and that they are in a Variable."""
    assert told()["learned durations"].detail.startswith("none yet: there are none in Variable egs_durations of")
    put(metadata, DURATIONS, packed({"dag": {"one": 1.0, "two": 2.0}}), "EGS: learned on host")
    detail = told()["learned durations"].detail
    assert detail == "active: 2 tasks of 1 DAGs, Variable egs_durations of this Airflow; EGS: learned on host"


def test_pools_of_airflows_metadata(metadata: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether those that are wanted were made, and whether Airflow still has those that were."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_POOLS", "gpu=3")
    monkeypatch.setattr(pools, "_made", Shared[list[pools.GpuPool]](Reader(POOLS), pools.parse_pools, [], 0.0))
    put(metadata, POOLS, "old=2", "")
    gone = "Variable egs_pools has old, and Airflow no such pool: `airflow egs pools` makes it"
    assert told()["GPU pools"] == Check("GPU pools", False, gone)
    add_pool(metadata, "old")
    until = "; until then tasks that state GPUs go into old"
    assert told()["GPU pools"].detail == f"not made yet: gpu=3; `airflow egs pools` makes them{until}"
    put(metadata, POOLS, "gpu=3, big=1", "")
    add_pool(metadata, "gpu")
    add_pool(metadata, "big")
    assert told()["GPU pools"].detail == "active: gpu=3, by Variable egs_pools of this Airflow"


def test_what_cannot_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each API that is missing is a line of its own and of the feature that needs it; so is what the user can mend. The
    command prints them as a table, and exits with 1."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_AIRFLOW_WITHOUT", ",".join(feature.name for feature in compat.FEATURES))
    monkeypatch.setenv("EGS_POOLS", "gpu=none")
    monkeypatch.setenv("EGS_DURATIONS", str(tmp_path / "durations.json"))
    (tmp_path / "durations.json").write_text("{")
    assert len(private_api_checks(compat.FEATURES)) == len(compat.FEATURES)
    bad = [name for name, check in told().items() if not check.ok]
    assert bad == ["learned durations", "order", "GPU pools", "view"]
    with pytest.raises(SystemExit, match="1"):
        cli.run_doctor(Namespace(json=False))
    lines = capsys.readouterr().out.splitlines()
    assert len({line.index(line[4:].split("  ")[0]) for line in lines}) == 1
    assert "no  view" in "\n".join(lines)
