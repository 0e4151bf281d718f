"""The pages in Airflow's UI: what they say of a run whose tasks wait for different reasons, and who may see them."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import quote

from tests.conformance.airflow import test_order
from tests.conformance.airflow.holding import held_runs
from tests.conformance.airflow.live import LiveAirflow, free_ports, wait_until

AIRFLOW_ENVIRONMENT = test_order.AIRFLOW_ENVIRONMENT

REST = """
    @task
    def after(name):
        pass

    begun >> large() >> after("<b>")
    begun >> small.expand(number=[0, 1])
"""

LEARNED_S = {"holder": 5.0, "first": 1.0, "large": 600.0, "after": 300.0}
USERS = {"vera": "viewer", "nora": ""}
PASSWORD = "secret"


def is_kept(airflow: LiveAirflow, run: str) -> bool:
    """Whether a slot is kept in the run."""
    found = [(ti["task_id"], ti["state"]) for ti in airflow.task_instances("view", run)]
    is_large = ("large", "scheduled") in found and ("small", "scheduled") in found
    return is_large and ("small", "running") not in found and ("small", "queued") not in found


def test_the_page_says_why_each_task_waits(airflow: LiveAirflow) -> None:
    """A pool that is full and who holds it, a slot that is kept and for whom, a dependency; then what was wasted."""
    airflow.tell_durations({"view": LEARNED_S})
    with held_runs(airflow, {"view": REST}, slots=2) as runs:
        run = runs["view"]
        place = f"/egs/dag/view/run/{quote(run, safe='')}"
        wait_until(lambda: is_kept(airflow, run), "a task that waits for a second slot")
        wait_until(lambda: "kept for large" in get(airflow.url, place, airflow.token)[1], "a slot that is kept")
        status, page = get(airflow.url, place, airflow.token)
        rows = rows_of(page)
        assert status == 200
        assert rows["large"][-1] == "pool view: needs 2 of 2 slots, 1 open; held by holder (1)"
        why = r"pool view: 1 open, kept for large, which weighs \d+ and needs 2"
        assert re.fullmatch(why, rows["small[1]"][-1]), rows["small[1]"]
        assert rows["after"][-1] == "dependency: waits for large (scheduled)"
        assert rows["holder"][0] == "running"
        assert re.search(r"slots kept <strong>scheduler \d+ on \S+ works", page), page
        assert rows["large"][2:5] == ["10\xa0min\xa000\xa0s", "15\xa0min\xa000\xa0s", "view (2)"]
        assert get(airflow.url, "/egs/dag/view", airflow.token)[1] == page
        check_access(airflow, run)
    assert airflow.wait_run("view", run) == "success"
    status, page = get(airflow.url, "/egs/wastage", airflow.token)
    assert status == 200
    assert "By task" in page
    assert rows_of(page)  # of which tasks depends on what else ran here, and on whether that had GPUs


def check_access(airflow: LiveAirflow, run: str) -> None:
    """Nobody sees a page without logging in, nor with a login that may not see DAGs; a viewer does."""
    places = (f"/egs/dag/view/run/{quote(run, safe='')}", "/egs/dag/view", "/egs/wastage")
    with strict_server(airflow) as url:
        tokens = {name: log_in(url, name) for name in USERS}
        for place in places:
            assert get(url, place)[0] == 401
            assert get(url, place, "no token")[0] == 403
            assert get(url, place, tokens["nora"])[0] == 403
            assert get(url, place, tokens["vera"])[0] == 200
        assert get(url, "/egs/dag/no_such_dag", tokens["vera"])[0] == 404


@contextmanager
def strict_server(airflow: LiveAirflow) -> Iterator[str]:
    """Another api-server of the same Airflow, which asks everybody who they are."""
    (port,) = free_ports(1)
    passwords = airflow.home / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys(USERS, PASSWORD)))
    core = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER"
    users = {
        f"{core}_ALL_ADMINS": "False",
        f"{core}_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        f"{core}_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "airflow", "api-server", "--workers", "1"]
    with (airflow.home / "strict.log").open("wb") as log:
        server = subprocess.Popen(command, env={**airflow.environment, **users}, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_up(port), "a second api-server")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=120)


def is_up(port: int) -> bool:
    """Whether the server answers."""
    try:
        return get(f"http://127.0.0.1:{port}", "/api/v2/version")[0] == 200
    except OSError:
        return False


def log_in(url: str, name: str) -> str:
    """The token of a user."""
    body = json.dumps({"username": name, "password": PASSWORD})
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=600)) as connection:
        connection.request("POST", "/auth/token", body, {"Content-Type": "application/json"})
        return str(json.load(connection.getresponse())["access_token"])


def get(url: str, place: str, token: str = "") -> tuple[int, str]:
    """Status and text of an answer."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=600)) as connection:
        connection.request("GET", place, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first cell."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    text = re.compile(r"<[^>]+>")
    return {
        text.sub("", name): [html.unescape(text.sub("", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", cells)]
        for name, cells in rows
    }
