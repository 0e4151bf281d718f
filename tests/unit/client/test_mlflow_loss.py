"""The loss that a command logs to MLflow, heard by `egs run`. The answers of a tracking server, and the tables of its
database, are recorded ones of MLflow 3.17.2; a small server gives them out."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.client.mlflow_loss import CONTEXT, TAG, URI, Logged, MlflowLoss, reader_of
from egs_core.errors import InputError
from egs_core.progressed import progress_in
from tests.unit.server.real_site import RealSite, wait_for

RECORDED = Path(__file__).parents[2] / "fixtures" / "mlflow"


class Tracking(ThreadingHTTPServer):
    """Answers what was recorded, for the tag under which it was; fails with `status` where that is not 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.status = 200
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, ask: dict[str, Any]) -> bytes:
        if path.endswith("/experiments/search"):
            return (RECORDED / "experiments.json").read_bytes()
        known = {f"tags.`{TAG}` = 'abc123'": "runs.json", f"tags.`{TAG}` = 'nan1'": "nan.json"}
        file = known.get(ask["filter"], "") if "1" in ask["experiment_ids"] else ""
        return (RECORDED / file).read_bytes() if file else b"{}"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Tracking)
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, ask, self.headers.get("Authorization", "")))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer(self.path, ask))

    def log_message(self, *_: object) -> None:
        """Not to the test's output."""


@pytest.fixture
def tracking() -> Iterator[Tracking]:
    found = Tracking()
    yield found
    found.shutdown()
    found.server_close()


def test_a_tracking_server_tells_the_latest_value_of_the_runs_with_the_tag(tracking: Tracking) -> None:
    """In any of its experiments, NaN as it writes it; other metrics, other tags and no run at all are nothing."""
    read = reader_of({URI: f"{tracking.url}/"})
    assert read("abc123", "loss") == Logged(2, 0.6666666666666666, 1795772525787)
    assert read("abc123", "accuracy") is None
    found = read("nan1", "loss")
    assert found is not None
    assert (found.step, math.isnan(found.value)) == (9, True)
    assert read("of another", "loss") is None
    (path, ask, who), *_ = [one for one in tracking.asked if one[0].endswith("runs/search")]
    assert path == "/api/2.0/mlflow/runs/search"
    assert (ask["experiment_ids"], who) == (["1", "0"], "")


def test_the_experiments_are_asked_for_until_the_run_is_there(tracking: Tracking) -> None:
    """The command may make a new one; afterwards one request a look is enough. A stated one needs no asking."""
    read = reader_of({URI: tracking.url})
    for tag in ("of another", "of another", "abc123", "abc123", "abc123"):
        read(tag, "loss")
    assert sum(path.endswith("experiments/search") for path, *_ in tracking.asked) == 3
    tracking.asked.clear()
    one = reader_of({URI: tracking.url, "MLFLOW_EXPERIMENT_ID": "1"})
    assert one("abc123", "loss") is not None
    assert [ask["experiment_ids"] for _, ask, _ in tracking.asked] == [["1"]]


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"MLFLOW_TRACKING_TOKEN": "t"}, "Bearer t"),
        ({"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "p"}, "Basic YW5uOnA="),
    ],
)
def test_it_asks_as_its_user(tracking: Tracking, variables: dict[str, str], sent: str) -> None:
    """By the variables that MLflow itself reads."""
    reader_of({URI: tracking.url, **variables})("abc123", "loss")
    assert {who for *_, who in tracking.asked} == {sent}


def database(path: Path, tag: str, *told: tuple[str, float, int, int]) -> None:
    """One run with the tag. told: key, value (NaN as MLflow keeps it), step, time."""
    with closing(sqlite3.connect(path)) as made, made:
        if not made.execute("select 1 from sqlite_master where name = 'tags'").fetchone():
            made.executescript((RECORDED / "tables.sql").read_text())
        made.execute("insert or replace into tags values (?, ?, 'r1')", (TAG, tag))
        for key, value, step, at in told:
            row = (key, 0.0 if math.isnan(value) else value, at, step, math.isnan(value), "r1")
            made.execute("insert or replace into latest_metrics values (?, ?, ?, ?, ?, ?)", row)


def test_a_database_of_sqlite_is_read(tmp_path: Path) -> None:
    """One that the command has not made yet has nothing; it is only read."""
    read = reader_of({URI: f"sqlite:///{tmp_path}/a b.db"})
    assert read("abc", "loss") is None
    assert not list(tmp_path.iterdir())
    database(tmp_path / "a b.db", "abc", ("loss", 0.5, 3, 10), ("other", 9.0, 4, 11))
    assert read("abc", "loss") == Logged(3, 0.5, 10)
    assert read("of another", "loss") is None
    database(tmp_path / "a b.db", "abc", ("loss", math.nan, 4, 12))
    found = read("abc", "loss")
    assert found is not None
    assert math.isnan(found.value)


def test_what_is_new_is_told_as_by_progress(tmp_path: Path) -> None:
    """Once: what is read again is no sign of life. Started anew the command has another tag, and begins anew."""
    answers: list[Logged | None] = [None, Logged(1, 2.0, 10), Logged(1, 2.0, 10), Logged(2, 1.0, 11)]
    tags: list[str] = []

    def read(tag: str, metric: str) -> Logged | None:
        assert metric == "loss"
        tags.append(tag)
        return answers.pop(0)

    loss = MlflowLoss("loss", read, lambda _: None)
    told = json.loads(loss.begin(str(tmp_path), {CONTEXT: '{"team": "vision"}'})[CONTEXT])
    loss.close()
    assert told.pop("team") == "vision"
    loss.look()
    assert progress_in(tmp_path) is None
    loss.look()
    loss.look()
    found = progress_in(tmp_path)
    assert found is not None
    assert (found.step, found.loss, found.losses) == (1.0, 2.0, 1)
    loss.look()
    found = progress_in(tmp_path)
    assert found is not None
    assert (found.step, found.loss, found.losses, found.total) == (2.0, 1.0, 2, 3.0)
    assert set(tags) == {told[TAG]}
    assert json.loads(loss.begin(str(tmp_path), {CONTEXT: "no json"})[CONTEXT])[TAG] not in tags


def test_what_goes_wrong_is_said_once_and_shows_no_secret(tracking: Tracking) -> None:
    """A server that is away, refuses, or is none: the command is not its business."""
    said: list[str] = []
    address = tracking.url.replace("127.0.0.1", "ann:secret@127.0.0.1")
    loss = MlflowLoss("loss", reader_of({URI: address}), said.append)
    tracking.status = 403
    loss.look()
    loss.look()
    tracking.status = 200
    loss.look()
    tracking.shutdown()
    tracking.server_close()
    loss.look()
    assert said == [
        "what the command logs to MLflow is not read for now: HTTPError: status 403",
        "what the command logs to MLflow is not read for now: ConnectionError",
    ]


@pytest.mark.parametrize(
    ("uri", "problem"),
    [("", "is not set"), ("databricks", "names neither"), ("./mlruns", "names neither")],
)
def test_a_place_that_is_not_read_is_refused(
    uri: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is asked for: exit code 2, and which ones are."""
    with pytest.raises(InputError, match=problem):
        reader_of({URI: uri})
    monkeypatch.setenv(URI, uri)
    assert run(["run", "--mlflow-loss", "loss", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "sqlite:///mlflow.db" in said


LOGS = """
import json, math, os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.unit.client.test_mlflow_loss import database
database(Path("mlflow.db"), json.loads(os.environ["MLFLOW_RUN_CONTEXT"])["egs.run"], ("val", float(sys.argv[2]), 7, 1))
time.sleep(600)
"""


@pytest.mark.slow
def test_a_rule_stops_a_run_whose_loss_in_mlflow_is_nan(tmp_path: Path) -> None:
    """`egs serve --rules`, and two commands that log by the tag that they find, as MLflow does: `egs ps` shows where
    one is, the other, whose loss is NaN, is stopped."""
    (tmp_path / "watch.yaml").write_text(
        "dry_run: false\nrules: [{name: diverged, when: {loss: nan}, for: 0s, do: [stop]}]"
    )
    root = str(Path(__file__).parents[3])
    site = RealSite(tmp_path / "site", gpus=2)
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"))

        def begin(value: str) -> Any:
            (folder := tmp_path / f"of {value}").mkdir()
            command = ("--mlflow-loss", "val", "--gpus", "1", "--", sys.executable, "-c", LOGS, root, value)
            return site.run(*command, folder=folder, **{URI: "sqlite:///mlflow.db"})

        good, bad = begin("0.25"), begin("nan")
        wait_for(lambda: bad.poll() is not None, "it is stopped")
        assert bad.returncode == 143
        (view,) = wait_for(lambda: [one for one in site.told("ps")["runs"] if one.get("progress")], "it is told")
        assert (view["progress"]["step"], view["progress"]["loss"]) == (7.0, 0.25)
        assert good.poll() is None
        done = site.told("watch")["done"]
        assert [(one["action"], one["outcome"]) for one in done] == [("stop", "done")]
        assert "tells a loss that is NaN" in done[0]["text"]
    finally:
        site.close()
