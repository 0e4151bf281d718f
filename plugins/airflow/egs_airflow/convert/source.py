"""A DAG from a file that a user named: a DAG file, which is run, or a stored DAG as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from egs_airflow import compat
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.source import read_bytes


def load(path: Path, select: str = "") -> LoadedWorkload:
    """The DAG `select` of a file, or its only one, as a workload. Raises InputError that names the file."""
    with _some_home(), redirect_stdout(sys.stderr):  # Airflow logs to stdout, and a DAG file may print
        dags = _stored(path) if path.suffix == ".json" else _written(path)
        return workload_of(_chosen(dags, select, str(path)))


def workload_of(dag: Any) -> LoadedWorkload:
    """A DAG object as a workload."""
    from egs_airflow.convert.dag import convert

    converted = convert(dag)
    return LoadedWorkload(converted.dag_id, converted.dag_id, "", "", 0.0, converted.graph)


def _written(path: Path) -> dict[str, Any]:
    place = str(path)
    if not path.exists():
        raise InputError(place, "there is no such file")
    if not compat.available("dag_file"):
        raise InputError(place, f"Airflow {compat.airflow_version()} cannot be asked to read a DAG file")
    dags, errors = compat.read_dag_file(path)
    if errors:
        file, error = next(iter(errors.items()))
        raise InputError(file, f"is not a DAG file: {error.strip().splitlines()[-1]}")
    return dags


def _stored(path: Path) -> dict[str, Any]:
    place = str(path)
    if not compat.available("serialized"):
        raise InputError(place, f"Airflow {compat.airflow_version()} cannot be asked to read a stored DAG")
    try:
        dag = compat.deserialize(json.loads(read_bytes(path)))
    except InputError:
        raise
    except Exception as error:  # whatever Airflow's own reader raises for what is not a stored DAG
        raise InputError(place, f"is not a stored DAG: {type(error).__name__}: {error}") from None
    return {str(dag.dag_id): dag}


def _chosen(dags: dict[str, Any], select: str, place: str) -> Any:
    known = ", ".join(sorted(dags)) or "none"
    if select and select not in dags:
        raise InputError(place, f"has no DAG {select!r}", f"it has: {known}")
    if not select and len(dags) != 1:
        raise InputError(place, f"has {len(dags)} DAGs", f"choose one with --select: {known}")
    return dags[select] if select else next(iter(dags.values()))


@contextmanager
def _some_home() -> Iterator[None]:
    """Importing Airflow writes a configuration into its home: where none is set up, one that is gone afterwards."""
    if compat.has_home():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="egs-airflow-") as home:
        os.environ["AIRFLOW_HOME"] = home
        try:
            yield
        finally:
            del os.environ["AIRFLOW_HOME"]
