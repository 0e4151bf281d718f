"""Why a task waits, in words; pages that no text can break; no page without Airflow's access rules. No server."""

from __future__ import annotations

import anyio
import httpx
import pytest

from egs_airflow.view.app import View, external_views, fastapi_apps
from egs_airflow.view.page import message_page, run_page
from egs_airflow.view.routes import NO_RULES
from egs_airflow.view.run import Row, RunView
from egs_airflow.view.waits import Dag, Pool, Task, why

DAG = Dag("d", False, 16, "running", {"after": ["large"]}, keeps=True)
LARGE = Task("d", "r", "large", state="scheduled", pool="gpu", slots=2, weight=90)
SMALL = Task("d", "r", "small", 1, state="scheduled", pool="gpu", weight=11)
HOLDER = Task("other", "r", "fit", state="running", pool="gpu")
POOLS = {"gpu": Pool("gpu", 2, 1)}


@pytest.mark.parametrize(
    ("task", "dag", "said"),
    [
        (HOLDER, DAG, ""),
        (LARGE, DAG, "pool gpu: needs 2 of 2 slots, 1 open; held by other.fit (1)"),
        (SMALL, DAG, "pool gpu: 1 open, kept for large, which weighs 90 and needs 2"),
        (SMALL, Dag("d", False, 16, "running", {}), "order: 1 heavier in its pool, large"),
        (SMALL, Dag("d", True, 16, "running", {}), "the DAG is paused"),
        (SMALL, Dag("d", False, 1, "running", {}), "limit: 1 tasks of this run are active, max_active_tasks is 1"),
        (Task("d", "r", "huge", state="scheduled", pool="gpu", slots=3), DAG, "it will never start: it needs 3 slots"),
        (Task("d", "r", "after"), DAG, "dependency: waits for large (scheduled)"),
        (Task("d", "r", "first"), DAG, "nothing stands before it"),
        (Task("d", "r", "first"), Dag("d", False, 1, "queued", {}), "the run has not begun: limit of active runs"),
        (Task("d", "r", "first", state="queued"), DAG, "has its slots, and waits for its executor"),
        (Task("d", "r", "lone", state="scheduled", pool="default_pool"), DAG, "has room in its pool"),
    ],
)
def test_why(task: Task, dag: Dag, said: str) -> None:
    """Each reason, with who stands in the way."""
    own = [LARGE, SMALL, Task("d", "r", "running", state="running")]
    assert why(task, dag, own, POOLS, [HOLDER, LARGE, SMALL]).startswith(said)
    assert bool(why(task, dag, own, POOLS, [HOLDER, LARGE, SMALL])) == bool(said)


def test_holders_that_the_asker_may_not_see_are_not_named() -> None:
    """A full pool whose holders the REST API has not told of."""
    assert "held by tasks that you may not see" in why(LARGE, DAG, [LARGE], POOLS, [])


def test_texts_cannot_break_a_page() -> None:
    """Names of tasks and runs are text, whatever is in them."""
    row = Row(Task("d", "r", "<script>alert(1)</script>"), 1.0, 2.0, False, 11, "<b>&")
    page = run_page(RunView("<d>", "r&", "running", "observe", {"none": 1}, [row], [], 0, 1))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "EGS&#x27;s weight" in page
    assert "<i>" not in message_page("<i>", "<i>")


def test_no_page_without_access_rules(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An Airflow that keeps its access rules elsewhere: every address is 404, with one warning."""
    monkeypatch.setenv("EGS_AIRFLOW_WITHOUT", "view")

    async def ask() -> list[tuple[int, str]]:
        transport = httpx.ASGITransport(app=View())
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            answers = [await client.get(place) for place in ("/wastage", "/dag/d", "/dag/d/run/r")]
        return [(answer.status_code, answer.text) for answer in answers]

    assert anyio.run(ask) == [(404, NO_RULES)] * 3
    assert [record.getMessage() for record in caplog.records] == [f"egs: {NO_RULES}"]


def test_tabs_lead_to_the_application() -> None:
    """Each tab's address is below the application's, relative to where Airflow lives."""
    (app,) = fastapi_apps()
    assert all(f"/{view['href']}".startswith(f"{app['url_prefix']}/") for view in external_views())
    assert len({view["url_route"] for view in external_views()}) == 3
