"""What the plugin registers: tabs in Airflow's UI, and the application that answers them.

All processes of Airflow load the plugin, and only the api-server is ever asked for a page: the application is made when
the first one is.
"""

from __future__ import annotations

from typing import Any

from egs_airflow.view import OUTER

PREFIX = "/egs"


class View:
    """The ASGI application below PREFIX."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, with the rights of whoever asks."""
        if self._app is None:
            from anyio.to_thread import run_sync

            self._app = await run_sync(_make)
        await self._app({**scope, OUTER: scope.get("app")}, receive, send)


def _make() -> Any:
    from egs_airflow.view.routes import make_app

    return make_app()


def fastapi_apps() -> list[Any]:
    """What the plugin registers: one application."""
    return [{"app": View(), "url_prefix": PREFIX, "name": "EGS"}]


def external_views() -> list[Any]:
    """What the plugin registers: a tab for each DAG and each DAG run, and a page of its own."""
    base = PREFIX.lstrip("/")  # relative, as Airflow may live below a path
    return [
        {"name": "EGS", "href": f"{base}/wastage", "destination": "nav", "category": "browse", "url_route": "egs"},
        {"name": "EGS", "href": f"{base}/dag/{{DAG_ID}}", "destination": "dag", "url_route": "egs_dag"},
        {
            "name": "EGS",
            "href": f"{base}/dag/{{DAG_ID}}/run/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "egs_run",
        },
    ]
