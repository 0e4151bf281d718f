"""The loss that a command logs to MLflow, told as if the command had said it by `egs.progress`: no line of its code
changes, and the server needs no token of MLflow.

    egs run --mlflow-loss val_loss        MLFLOW_RUN_CONTEXT: {"egs.run": a word of this start}
         │                                          └─► the command: mlflow.start_run() takes it as a tag of its run
         └─ each five seconds, as its user: the latest val_loss of runs with this tag ─► the command's folder of
            what it has told ─► the next heartbeat

`MLFLOW_TRACKING_URI` says where: a tracking server (http, https), with MLflow's own variables for who asks, or a
database of SQLite. What is logged between two looks is not seen: only the latest counts.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests

from egs_core.errors import InputError
from egs_core.progressed import Latest

URI, CONTEXT, TAG = "MLFLOW_TRACKING_URI", "MLFLOW_RUN_CONTEXT", "egs.run"
LOOK_S, ANSWER_S = 5.0, 10.0
AGAIN_S = 60.0  # until it is asked anew which experiments there are
SQLITE = "sqlite:///"
QUERY = """select told.step, case when told.is_nan then null else told.value end, told.timestamp
from latest_metrics as told join tags on tags.run_uuid = told.run_uuid
where tags.key = ? and tags.value = ? and told.key = ? order by told.timestamp desc limit 1"""


class Logged(NamedTuple):
    """The latest value of a metric. at: when, as MLflow counts it."""

    step: int
    value: float
    at: int


Reader = Callable[[str, str], Logged | None]
"""The latest value of a metric, the second one, in runs whose tag is the first; None: there is none."""


def reader_of(environment: Mapping[str, str]) -> Reader:
    """Of where `MLFLOW_TRACKING_URI` points. Raises InputError for what is not read."""
    uri = environment.get(URI, "")
    if uri.startswith(SQLITE):
        return _Database(Path(uri.removeprefix(SQLITE)))
    if urlsplit(uri).scheme in ("http", "https"):
        return _Server(uri.rstrip("/"), environment)
    what = f"{URI} is not set" if not uri else f"{URI} names neither a tracking server nor a database of SQLite"
    raise InputError("--mlflow-loss", what, f"{URI}=http://HOST:PORT, or sqlite:///mlflow.db")


def loss_of(metric: str, environment: Mapping[str, str], say: Callable[[str], None]) -> MlflowLoss | None:
    """None where it is not asked for, or cannot be read: then the command runs all the same."""
    try:
        return MlflowLoss(metric, reader_of(environment), say) if metric else None
    except InputError as error:  # of `egs redo`, whose environment is another
        say(str(error))
        return None


class _Database:
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def __call__(self, tag: str, metric: str) -> Logged | None:
        if not self._path.exists():
            return None  # the command is yet to make it
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=ANSWER_S)) as database:
            row = database.execute(QUERY, (TAG, tag, metric)).fetchone()
        return None if row is None else Logged(int(row[0]), math.nan if row[1] is None else float(row[1]), int(row[2]))


class _Server:
    """By MLflow's REST interface, version 2.0."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self._url = f"{url}/api/2.0/mlflow"
        self._session = requests.Session()
        user, token = environment.get("MLFLOW_TRACKING_USERNAME"), environment.get("MLFLOW_TRACKING_TOKEN")
        if user:
            self._session.auth = user, environment.get("MLFLOW_TRACKING_PASSWORD", "")
        elif token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        if environment.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
            self._session.verify = False
        else:
            self._session.verify = environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or True
        self._one = environment.get("MLFLOW_EXPERIMENT_ID", "")
        self._experiments: list[str] = []
        self._asked_at = -math.inf

    def __call__(self, tag: str, metric: str) -> Logged | None:
        if time.monotonic() - self._asked_at >= AGAIN_S:
            self._experiments, self._asked_at = self._all(), time.monotonic()
        ask = {
            "experiment_ids": self._experiments,
            "filter": f"tags.`{TAG}` = '{tag}'",
            "order_by": ["attributes.start_time DESC"],
            "max_results": 100,
        }
        runs = self._post("runs/search", ask).get("runs", ())
        if not runs:
            self._asked_at = -math.inf  # of a run that is not there yet the experiment may be new, too
        told = [one for run in runs for one in run["data"].get("metrics", ()) if one["key"] == metric]
        found = [Logged(int(one.get("step", 0)), float(one["value"]), int(one["timestamp"])) for one in told]
        return max(found, key=lambda one: one.at, default=None)

    def _all(self) -> list[str]:
        """The experiments in which it may be."""
        if self._one:
            return [self._one]
        ask = {"max_results": 1000, "order_by": ["last_update_time DESC"]}
        return [one["experiment_id"] for one in self._post("experiments/search", ask).get("experiments", ())]

    def _post(self, what: str, ask: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._session.post(f"{self._url}/{what}", json=ask, timeout=ANSWER_S)
        if not answer.ok:
            raise requests.HTTPError(f"status {answer.status_code}")  # whose own text has the address
        found: dict[str, Any] = answer.json()
        return found


class MlflowLoss:
    """A thread that tells what one command logs, from its first start on. metric: whose latest value is the loss;
    say: tells the user one line."""

    def __init__(self, metric: str, reader: Reader, say: Callable[[str], None]) -> None:
        self._metric, self._read, self._say = metric, reader, say
        self._start = ("", "", Latest())  # its tag, the folder of what is told, and what was told
        self._last: Logged | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="egs-mlflow", daemon=True)
        self._problem = ""

    def begin(self, folder: str, environment: Mapping[str, str]) -> dict[str, str]:
        """The command starts, for the first time or again: what its environment needs. folder: of what it tells."""
        tag = uuid.uuid4().hex
        self._start = tag, folder, Latest()
        if self._thread.ident is None:  # the first time
            self._thread.start()
        try:
            known = json.loads(environment.get(CONTEXT) or "{}")
        except ValueError:
            known = {}  # MLflow would fail with it
        return {CONTEXT: json.dumps({**(known if isinstance(known, dict) else {}), TAG: tag})}

    def close(self) -> None:
        """The command has ended."""
        self._is_over.set()

    def look(self) -> None:
        """Tell what is new. What goes wrong is said once, until it is something else."""
        (tag, folder, latest), problem = self._start, ""
        try:
            found = self._read(tag, self._metric)
            if found is not None and found != self._last and folder:
                self._last = found
                latest.tell(folder, float(found.step) if found.step >= 0 else None, found.value)
        except Exception as error:  # nothing of this may hurt the command
            text = str(error) if isinstance(error, sqlite3.Error) or type(error) is requests.HTTPError else ""
            problem = f"{type(error).__name__}{': ' + text if text else ''}"  # others' texts have addresses, tokens
        if problem and problem != self._problem:
            self._say(f"what the command logs to MLflow is not read for now: {problem}")
        self._problem = problem

    def _follow(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.look()
