"""What Airflow asks of a provider (entry point `apache_airflow_provider`): the section `[egs]` and `airflow egs …`.

No plugin is named here: those of a provider load only where `[core] lazy_discover_providers` is off, and one that is
named twice is refused. Ours has an entry point of its own.
"""

from __future__ import annotations

from typing import Any

from egs_airflow import __version__

DISTRIBUTION = "airflow-provider-egs"

OPTIONS: dict[str, tuple[str, str, str]] = {
    "mode": (
        "observe",
        "on",
        "off: EGS does nothing. observe: it records what happens and changes nothing. on: it orders the tasks of the "
        "DAGs that `dags` and `tags` choose.",
    ),
    "dags": ("", "train_*, nightly", "Ids of DAGs that mode on is for, with wildcards."),
    "tags": ("", "gpu", "Tags of DAGs that mode on is for. With neither dags nor tags, mode on is for all DAGs."),
    "history": (
        "",
        "postgresql+psycopg://user@host/egs",
        "URL of the database of learned durations; by default an SQLite file in the user's data folder.",
    ),
    "runlog": ("", "/var/log/egs", "Folder of the lines that tasks leave; by default in the user's data folder."),
    "durations": (
        "",
        "/var/lib/egs/durations.json",
        "File of learned durations that weights are computed from; by default in the user's data folder.",
    ),
    "learn_every": ("1h", "never", "How often the agent of a host learns how long tasks take."),
    "limits": ("", "/etc/egs/limits.yaml", "File of limits of tasks and DAG runs, which agents keep in mode on."),
    "pools": ("", "gpu=8, gpu_large=4", "GPU pools with their slots, a slot a GPU; made in mode on, never guessed."),
    "keep_slots": ("yes", "no", "Whether executors of EGS keep a freed slot for the successor of the task before."),
    "preload_modules": (
        "",
        "pandas, torch",
        "Modules that EgsLocalExecutor imports in mode on before it starts its processes, so that no task has to.",
    ),
    "refresh_weights": (
        "",
        "1min",
        "How often EgsLocalExecutor brings the weights of waiting task instances up to date, in Airflow's own table; "
        "by default never.",
    ),
    "stage_bytes": ("16GiB", "no", "The most that the agent of a host reads ahead at once of files that tasks name."),
    "reserve_after": ("", "2min", "How long a task of several slots waits before slots are kept for it."),
}
"""Option -> default, example, description. Each can also be set as EGS_<OPTION> in the environment, which wins."""


def get_provider_info() -> dict[str, Any]:
    """See `airflow/provider_info.schema.json`."""
    return {
        "package-name": DISTRIBUTION,
        "name": "EGS",
        "description": "Makes Airflow stop wasting GPUs: what others wait for runs first.",
        "versions": [__version__],
        "cli": ["egs_airflow.cli.get_cli_commands"],
        "config": {"egs": {"description": "EGS, see `airflow egs doctor`.", "options": _options()}},
    }


def _options() -> dict[str, dict[str, Any]]:
    return {
        name: {
            "description": description,
            "version_added": "0.1.0",
            "type": "string",
            "example": example,
            "default": default,
        }
        for name, (default, example, description) in OPTIONS.items()
    }
