"""What Airflow loads in each of its processes: the parts of EGS that it may call. Nothing here can stop Airflow.

A part is a function of its module that gives the objects of one list of `AirflowPlugin`. A module that is absent,
broken or ends with SystemExit is one warning; Airflow goes on with the other parts, or with none.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from egs_airflow import config

PARTS = {
    "priority_weight_strategies": "egs_airflow.order.strategy:priority_weight_strategies",
    "listeners": "egs_airflow.observe.listener:listeners",
    "fastapi_apps": "egs_airflow.view.app:fastapi_apps",
    "external_views": "egs_airflow.view.app:external_views",
}
"""Attribute of AirflowPlugin -> `module:function`, which takes nothing and returns a list."""


def load_part(attribute: str) -> list[Any]:
    """What one part registers with Airflow; [] in mode off, and where it cannot be loaded."""
    try:
        return [] if config.settings().mode == "off" else import_part(PARTS[attribute])
    except BaseException as error:  # also SystemExit: this runs while Airflow's own processes start
        if isinstance(error, KeyboardInterrupt):
            raise
        config.warn(f"{PARTS[attribute]} is off, Airflow runs without it: {type(error).__name__}: {error}")
        return []


def import_part(source: str) -> list[Any]:
    """What the function of a part gives; raises whatever is wrong with it."""
    module, _, function = source.partition(":")
    return list(getattr(import_module(module), function)())


class EgsPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Loaded through the entry point `airflow.plugins`; see PARTS for what it brings."""

    name = "egs"
    priority_weight_strategies: ClassVar[list[Any]] = load_part("priority_weight_strategies")
    listeners: ClassVar[list[Any]] = load_part("listeners")
    fastapi_apps: ClassVar[list[Any]] = load_part("fastapi_apps")
    external_views: ClassVar[list[Any]] = load_part("external_views")
