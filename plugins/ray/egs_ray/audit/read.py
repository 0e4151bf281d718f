"""`egs audit` on Ray: a running cluster's state API over HTTP, or the events that a cluster left in files. Read-only.

Only GET requests to the dashboard: no driver connects, so no job, no worker and no key appears on the audited cluster.
Tasks are asked for job by job, because one answer has 10,000 rows at most.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.runlog.past import Past
from egs_core.web import PATIENCE_S, Api, Refused, parse_address
from egs_ray.audit.exported import take_event, take_rows
from egs_ray.audit.records import past_of
from egs_ray.audit.seen import Seen

PORT = 8265
MOST_ROWS = 10_000
INSIDE = "a GPU task counts as using its GPU from start to end: Ray does not tell what happens inside a task"
BUNDLES = "what a placement group reserves beyond its tasks is in no figure: Ray does not tell for how long"
NO_STARTS = "how long processes took to start is not in these events: cold starts count from a task's own start"
LOST = "Ray keeps as many tasks as RAY_task_events_max_num_task_in_gcs says, and shows 10,000 of a job"
UNDESCRIBED = "tasks are in no figure: their submitters did not report (a driver needs the settings of egs collect too)"


def read_history(request: AuditRequest) -> Past:
    """The history as Ray tells it. Raises InputError for what cannot be reached or read."""
    if request.events is not None:
        return past_with_notes(read_events(request.events), str(request.events))
    url = dashboard_url(request.address)
    return past_with_notes(read_cluster(url), url, time.time())


def past_with_notes(seen: Seen, label: str, now_s: float | None = None) -> Past:
    """What was seen, and what a reader must know of it; now_s: of a cluster that still runs."""
    past = past_of(seen, now_s=now_s, label=label)
    past.notes.append(INSIDE)
    if any(task.in_bundle for task in seen.tasks.values()):
        past.notes.append(BUNDLES)
    if not any(worker.launched_s for worker in seen.workers.values()):
        past.notes.append(NO_STARTS)
    if seen.lost:
        past.notes.append(LOST)
    if seen.undescribed:
        past.notes.append(f"{seen.undescribed} {UNDESCRIBED}")
    return past


# --- a running cluster ------------------------------------------------------------------------------------------------


def dashboard_url(address: str) -> str:
    """The dashboard's URL from what a user may write: a URL, host:port or host. InputError for another kind."""
    return parse_address("--ray", address, PORT, "a Ray dashboard")[0]


def read_cluster(url: str) -> Seen:
    """All that the dashboard at `url` knows. Raises InputError where it does not answer as Ray's does."""
    version = _get(url, "/api/version")
    if not isinstance(version, dict) or "ray_version" not in version:
        raise InputError(url, "answers, but is no Ray dashboard")
    seen = Seen()
    try:
        for what in ("nodes", "workers", "jobs"):
            take_rows(seen, what, _rows(url, what)[0])
        take_rows(seen, "actors", _actors(url))
        jobs = sorted(seen.jobs)
        rows, total = _rows(url, "tasks")
        if total > len(rows) and len(rows) >= MOST_ROWS:
            rows = [row for job in jobs for row in _rows(url, "tasks", job)[0]]
        seen.lost = max(0, total - len(rows))
        take_rows(seen, "tasks", rows)
    except ValueError as error:
        raise InputError(url, f"Ray {version['ray_version']} answers in a way that is not known: {error}") from None
    return seen


def _rows(url: str, what: str, job: str = "") -> tuple[list[dict[str, Any]], int]:
    """Rows of one table, of one job where named, and how many there would be."""
    query = {"detail": "true", "limit": str(MOST_ROWS), "timeout": str(int(PATIENCE_S))}
    if job:
        query |= {"filter_keys": "job_id", "filter_predicates": "=", "filter_values": job}
    answer = _get(url, f"/api/v0/{what}?{urllib.parse.urlencode(query)}")
    try:
        result = answer["data"]["result"]
        return list(result["result"]), int(result["total"])
    except (KeyError, TypeError):
        raise ValueError(f"{what} without a result") from None


def _actors(url: str) -> list[dict[str, Any]]:
    """The dashboard's own list: the state API does not tell when an actor died."""
    try:
        return list(_get(url, "/logical/actors")["data"]["actors"].values())
    except (InputError, KeyError, TypeError, AttributeError):
        return []  # then an actor counts as alive until its job ends


def _get(url: str, path: str) -> Any:
    hint = f"the dashboard's address, for example http://127.0.0.1:{PORT}; it needs ray[default]"
    try:
        return Api(url, "a Ray dashboard", hint).ask(path, token=_token())
    except Refused as error:
        if error.status in (401, 403):
            hint = "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as for Ray's own commands"
            raise InputError(url, f"refuses the request ({error})", hint) from None
        raise InputError(url + path.partition("?")[0], f"answers {error}") from None


def _token() -> str:
    """As Ray's own clients take it from their environment."""
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("RAY_AUTH_TOKEN_PATH", f"{path} cannot be read: {error}") from None
    return os.environ.get("RAY_AUTH_TOKEN", "")


# --- files ------------------------------------------------------------------------------------------------------------


def read_events(path: Path) -> Seen:
    """What the event files in a folder (also below it), or one file, say. Raises InputError naming file and line."""
    if not path.exists():
        raise InputError(str(path), "no such file or folder")
    files = sorted(event_files(path)) if path.is_dir() else [path]
    if not files:
        hint = "Ray's export events are in <session>/logs/export_events, egs collect's in its folder"
        raise InputError(str(path), "has no event files (*.log, *.jsonl)", hint)
    seen, understood = Seen(), 0
    for file in files:
        for place, event in events_in(file):
            try:
                understood += take_event(seen, event)
            except ValueError as error:
                raise InputError(place, str(error)) from None
    if not understood:
        raise InputError(str(path), "has no event of Ray in it")
    return seen


def event_files(folder: Path) -> Iterator[Path]:
    """Ray's export files and those of `egs collect` in a folder, and below it."""
    for file in folder.rglob("*"):
        if file.is_file() and (file.name.startswith("event_EXPORT_") or file.name.endswith(".events.jsonl")):
            yield file


def events_in(file: Path) -> Iterator[tuple[str, Any]]:
    """Each event with the place it was read from. A half line at the end is what a writer that died left."""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip() and (event := _event(line, f"{file}:{number}")) is not None:
                    yield from ((f"{file}:{number}", one) for one in (event if isinstance(event, list) else [event]))
    except OSError as error:
        raise InputError(str(file), f"cannot be read: {error.strerror}") from None


def _event(line: bytes, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return None
        raise InputError(place, f"is not JSON: {error}") from None
