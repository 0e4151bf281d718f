"""Auditing an Airflow from its REST API: only GET, page by page, with each way to log in, and one line for an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_airflow import rest
from egs_airflow.audit import read_history
from egs_core.audit.build import audit as build_audit
from egs_core.audit.observed import AuditRequest, Observed, observed_of
from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.runlog.records import Started, TaskAdded
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow

Out = pytest.CaptureFixture[str]


@pytest.fixture
def airflow() -> Iterator[RecordedAirflow]:
    """An Airflow that answers as recorded."""
    with recorded_airflow() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (rest.TOKEN, rest.USER, rest.PASSWORD, "EGS_POOLS", "AIRFLOW__EGS__POOLS", "EGS_POOL_FLAVORS"):
        monkeypatch.delenv(name, raising=False)


def audited(airflow: RecordedAirflow, *pools: str) -> Observed:
    return observed_of(read_history(AuditRequest(airflow.url, gpu_pools=pools)))


def test_reads_only(airflow: RecordedAirflow) -> None:
    """An audit sends GET requests and nothing else: one a collection, two a DAG, one for each task that was retried."""
    found = audited(airflow, "gpus")
    assert {method for method, _ in airflow.requests} == {"GET"}
    assert len(airflow.requests) == 9
    assert found.edges_known
    assert found.header.driver == "airflow"


def test_flavors_of_pools_are_those_of_the_option(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks in GPU pools started on that flavor, others on none; a text that means nothing is said."""
    monkeypatch.setenv("EGS_POOL_FLAVORS", "gpus=A100, other=T4")
    started = [record for record in audited(airflow, "gpus").records if isinstance(record, Started)]
    assert {(one.flavor, one.gpus > 0) for one in started} == {("A100", True), ("", False)}
    monkeypatch.setenv("EGS_POOL_FLAVORS", "gpus")
    with pytest.raises(InputError, match="pool_flavors: 'gpus' is not a pool with a flavor"):
        audited(airflow, "gpus")


def test_gpu_time_is_slots_by_time(airflow: RecordedAirflow) -> None:
    """What a task held is its slots of a GPU pool times REST's own time; in all, and by task."""
    told = build_audit(audited(airflow, "gpus"), simulated=False)
    rows = [row for row in airflow.data["instances"] if row["pool"] == "gpus"]
    held_s = sum(row["pool_slots"] * row["duration"] for row in rows)
    assert told.total.held_s == pytest.approx(held_s, rel=1e-3)  # `duration` is less exact than start and end
    assert [row.name for row in told.by_task] == ["train.leaf", "train.fit"]
    assert told.unit == "GPU"
    assert told.capacity_gpu_s == pytest.approx(2 * told.window_s)


def test_pages(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of many pages is the same as one of a single page, by cursor as by offset."""
    whole = audited(airflow, "gpus").records
    monkeypatch.setattr(rest, "PAGE", 3)
    assert audited(airflow, "gpus").records == whole
    assert len(airflow.requests) > 16
    airflow.has_cursors = False
    assert audited(airflow, "gpus").records == whole


def test_which_pools_are_gpus(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named on the command line, else as `[egs] pools` names them, else as EGS made them; else none is guessed."""

    def gpus() -> float:
        return build_audit(audited(airflow), simulated=False).capacity_gpu_s

    assert gpus() == 0
    airflow.data["pools"][1]["description"] = "GPUs, one slot each; size from [egs] pools"
    assert gpus() > 0
    airflow.data["pools"][1]["description"] = None
    monkeypatch.setenv("AIRFLOW__EGS__POOLS", "gpus=2")
    assert gpus() > 0
    with pytest.raises(InputError, match="no pool 'gpu'"):
        audited(airflow, "gpu")


def test_what_is_not_known_is_said(airflow: RecordedAirflow) -> None:
    """No GPU pool, a DAG that is gone, a newer version of it: each has its sentence."""
    airflow.data["details"]["train"]["latest_dag_version"]["version_number"] = 2
    notes = " ".join(audited(airflow).notes)
    assert "GPU time is not known" in notes
    assert "1 runs are of an older version" in notes
    airflow.data["tasks"] = {}
    found = audited(airflow)
    assert not found.edges_known
    assert "no longer has these DAGs" in " ".join(found.notes)


def test_token_user_or_nobody(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token, a user with a password (also in the address), and an Airflow in which all are admins."""
    airflow.token, airflow.users = "secret", {"me": "pass word"}
    monkeypatch.setenv(rest.TOKEN, "secret")
    assert audited(airflow).records
    monkeypatch.delenv(rest.TOKEN)
    monkeypatch.setenv(rest.PASSWORD, "pass word")
    assert read_history(AuditRequest(airflow.url, user="me")).records()
    monkeypatch.delenv(rest.PASSWORD)
    assert read_history(AuditRequest(airflow.url.replace("//", "//me:pass%20word@"))).records()
    airflow.gives_token_to_all = True
    assert audited(airflow).records
    assert {path for method, path in airflow.requests if method != "GET"} == {"/auth/token"}


def test_refused(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token, with a wrong one, with a wrong password: said with what to set, and no secret is shown."""
    airflow.token = "secret"
    with pytest.raises(InputError, match="requires a login") as caught:
        audited(airflow)
    assert "AIRFLOW_CLI_TOKEN" in caught.value.hint
    monkeypatch.setenv(rest.PASSWORD, "hidden")
    with pytest.raises(InputError, match="refuses user 'me'") as caught:
        read_history(AuditRequest(airflow.url, user="me"))
    monkeypatch.setenv(rest.TOKEN, "hidden")
    with pytest.raises(InputError, match="refuses the request"):
        audited(airflow)
    with pytest.raises(InputError) as caught:
        read_history(AuditRequest("ftp://me:hidden@host"))
    assert "hidden" not in str(caught.value)


def broken(what: str, value: Any) -> Any:
    """An answer in which one recorded collection is something else."""

    def answer(airflow: RecordedAirflow) -> None:
        ends = {"instances": "taskInstances", "runs": "dagRuns"}.get(what, what)
        recorded = airflow.recorded

        def instead(path: str, query: dict[str, str]) -> tuple[int, Any]:
            return (200, value) if path.endswith(f"/{ends}") else recorded(path, query)

        airflow.answer = instead

    return answer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (broken("version", {"version": "2.10.1"}), "no Airflow 3"),
        (broken("version", {"hello": 1}), "no Airflow 3"),
        (broken("version", b"<html>"), "no answer from an Airflow 3"),
        (broken("pools", {"hello": 1}), "answers without 'pools'"),
        (broken("pools", []), "answers without 'pools'"),
        (broken("runs", {"dag_runs": [{"dag_id": "train"}], "total_entries": 1}), "not known: KeyError"),
        (broken("instances", {"task_instances": [7], "total_entries": 1}), "not known: TypeError"),
        (broken("tasks", {"tasks": None}), "not known: TypeError"),
    ],
)
def test_other_servers(airflow: RecordedAirflow, change: Any, said: str, capsys: Out) -> None:
    """What is no Airflow, or answers in another way, is one line and exit code 2."""
    change(airflow)
    assert run(["audit", "--airflow", airflow.url]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--airflow", "http://127.0.0.1:1"], "no answer from an Airflow 3"),
        (["--airflow", "http://127.0.0.1:99999"], "is no address"),
        (["--airflow", "{url}", "--ray", "http://127.0.0.1:1"], "needs one source"),
        (["--airflow", "{url}", "--days", "0"], "--days"),
        (["--airflow", "{url}", "--days", "0.0001"], "no task of any job is known there"),
        (["--airflow", "{url}", "--job", "train"], "no job 'train'"),
        (["--airflow", "{url}", "--events", "{url}"], "no such file"),
    ],
)
def test_bad_input(airflow: RecordedAirflow, arguments: list[str], said: str, capsys: Out) -> None:
    """Each kind of bad input is one line and exit code 2."""
    assert run(["audit", *(argument.format(url=airflow.url) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def test_tables(airflow: RecordedAirflow, capsys: Out) -> None:
    """What is printed: GPU time where a pool is one of GPUs, else slot time, waits with reasons, and the forecast."""
    assert run(["audit", "--airflow", airflow.url, "--gpu-pool", "gpus"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("1 job, 10 tasks", "GPU time by task", "train.leaf", "no free GPU while train.", "band"):
        assert part in shown, part
    assert run(["audit", "--airflow", airflow.url]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("slot time by task", "wastage ratio of slots", "no free slot", "GPU time is not known"):
        assert part in shown, part
    assert run(["audit", "--airflow", airflow.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "slot"


def test_a_kept_run_log_says_the_same(airflow: RecordedAirflow, tmp_path: Path, capsys: Out) -> None:
    """The history as a run log can be audited again, without Airflow, and says what was said of Airflow."""
    log = str(tmp_path / "run.jsonl")
    assert run(["audit", "--airflow", airflow.url, "--runlog", log, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["audit", log, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for part in ("unit", "total", "by_task", "waits", "forecast"):
        assert again[part] == told[part], part


def test_instances_of_a_mapped_task_are_tasks(airflow: RecordedAirflow) -> None:
    """Each instance is a task of its own; what follows waits for all of them, also through what had no slot."""
    added = {r.task: r for r in audited(airflow).records if isinstance(r, TaskAdded)}
    assert {name for name in added if name.startswith("leaf")} == {"leaf[0]", "leaf[1]", "leaf[2]"}
    assert set(added["join"].parents) >= {"leaf[0]", "leaf[1]", "leaf[2]", "fit", "kept"}
    assert set(added["flaky"].parents) >= {"join", "leaf[0]", "fit", "kept"}
    assert added["join"].phases == (("cpu", 0.0, 0.0, 0),)
