"""The pages and who may see them: Airflow's own dependencies let in, and Airflow's REST API, which is asked in this
process with the rights of whoever looks, gives no more than they may see there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from egs_airflow import compat, config
from egs_airflow.view import page
from egs_airflow.view.own_rest import OwnRest
from egs_airflow.view.run import newest_run, read_run
from egs_airflow.view.wastage import read_wastage
from egs_core.errors import InputError

AT_ONCE = 4
"""So many pages are made at once, in threads that are not those of Airflow's own answers, which they wait for."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
NO_RULES = "EGS shows nothing here: this Airflow has its access rules where EGS does not know them."


def make_app() -> FastAPI:
    """The application; without Airflow's access rules there is no page in it."""
    app = FastAPI(title="EGS", docs_url=None, redoc_url=None, openapi_url=None)
    access = compat.view_access()
    if access is None:
        config.warn(NO_RULES)
        app.add_api_route("/{path:path}", _nothing)
        return app
    of_dag, of_all = [Depends(access.dag)], [Depends(access.dags)]
    limiter = CapacityLimiter(AT_ONCE)

    async def dag_page(request: Request, dag_id: str) -> HTMLResponse:
        return await _answer(request, limiter, lambda rest: _run_page(rest, dag_id, newest_run(rest, dag_id)))

    async def run_page(request: Request, dag_id: str, run_id: str) -> HTMLResponse:
        return await _answer(request, limiter, lambda rest: _run_page(rest, dag_id, run_id))

    async def wastage_page(request: Request) -> HTMLResponse:
        return await _answer(request, limiter, lambda rest: page.wastage_page(read_wastage(rest)))

    app.add_api_route("/dag/{dag_id}", dag_page, dependencies=of_dag, response_class=HTMLResponse)
    app.add_api_route("/dag/{dag_id}/run/{run_id:path}", run_page, dependencies=of_dag, response_class=HTMLResponse)
    app.add_api_route("/wastage", wastage_page, dependencies=of_all, response_class=HTMLResponse)
    return app


def _run_page(rest: OwnRest, dag_id: str, run_id: str) -> str:
    if not run_id:
        return page.message_page(dag_id, "This DAG has not run yet.")
    return page.run_page(read_run(rest, dag_id, run_id))


async def _answer(request: Request, limiter: CapacityLimiter, make: Callable[[OwnRest], str]) -> HTMLResponse:
    """A page; what Airflow refuses or does not have is said on it."""
    rest = OwnRest(request)

    def text() -> tuple[str, int]:
        try:
            return make(rest), 200
        except InputError as error:
            return page.message_page("EGS has nothing to show", str(error)), rest.refused or 502
        except Exception as error:  # Airflow answers in a way that EGS does not know
            config.warn(f"a page cannot be made: {type(error).__name__}: {error}")
            return page.message_page("EGS cannot make this page", f"{type(error).__name__}: {error}"), 500

    content, status = await run_sync(text, limiter=limiter)
    return HTMLResponse(content, status_code=status, headers=HEADERS)


def _nothing(path: str) -> Any:  # noqa: ARG001  # every address gives the same
    return PlainTextResponse(NO_RULES, status_code=404)
