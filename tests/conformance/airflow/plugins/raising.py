"""A plugin of the tests' Airflow: while the file `egs_raises` is in its home, every hook of EGS raises SystemExit;
while `gate_raises` is there, the one in the scheduler's pass does."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin

GATE = "egs_airflow.executors.reading"
HOOKS = {
    "egs_airflow.order.strategy": "weight_of",  # where task instances are made
    GATE: "waiting",  # in the scheduler's pass
    "egs_airflow.observe.listener": "line_of",  # in the task
    "egs_airflow.order.policy": "apply_to_task",  # where DAG files are read
}


class Raising(AirflowPlugin):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Registers nothing."""

    name = "raising"

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Put something before each hook."""
        for module, name in HOOKS.items():
            found = import_module(module)
            files = ("egs_raises", "gate_raises") if module == GATE else ("egs_raises",)
            setattr(found, name, _breakable(getattr(found, name), files))


def _breakable(original: Callable[..., Any], files: tuple[str, ...]) -> Callable[..., Any]:
    raises = [Path(os.environ["AIRFLOW_HOME"]) / file for file in files]

    def hook(*args: Any, **kwargs: Any) -> Any:
        if any(file.exists() for file in raises):
            raise SystemExit("injected")
        return original(*args, **kwargs)

    return hook
