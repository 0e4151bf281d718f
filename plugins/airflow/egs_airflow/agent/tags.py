"""The mode of a DAG by its id, for whoever has no DAG object: its tags are asked for where the settings need them."""

from __future__ import annotations

import time

from egs_airflow import config
from egs_airflow.rest import Rest, quoted

KEPT_S = 60.0


class Modes:
    """Remembers tags for a minute."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._tags: dict[str, tuple[float, list[str]]] = {}

    def of(self, dag_id: str) -> str:
        """The mode that holds for a DAG. Raises InputError where its tags are needed and Airflow does not tell."""
        settings = config.settings()
        if settings.mode != "on" or not settings.tags:
            return settings.mode_of(dag_id)
        at_s, tags = self._tags.get(dag_id, (0.0, []))
        if time.monotonic() - at_s > KEPT_S or not at_s:
            dag = self._rest.get(f"dags/{quoted(dag_id)}") or {}
            tags = [tag["name"] for tag in dag.get("tags") or ()]
            self._tags[dag_id] = time.monotonic(), tags
        return settings.mode_of(dag_id, tags)
