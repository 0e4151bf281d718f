"""A task with CPU and GPU phases as Airflow tasks of their own, so that a GPU slot is held in GPU phases only."""

from __future__ import annotations

from egs_airflow.split.group import split

__all__ = ["split"]
