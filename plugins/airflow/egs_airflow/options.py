"""Every option of `[egs]`: what it takes, what holds without it, and what it is for. The one place where they stand.

From here come what Airflow knows of the section (`provider`), the values that are read (`config`), what
`airflow egs doctor` holds against them (`option_checks`), and the reference page of the documentation. Standard library
only: each process of Airflow reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SECTION = "egs"
MODES = ("off", "observe", "on")
YES = ("yes", "on", "true", "1")
NO = ("no", "off", "false", "0", "never")
"""How an option that can be switched off says so."""

Kind = Literal[
    "mode",
    "yes or no",
    "number",
    "list",
    "modules",
    "pools",
    "flavors",
    "name",
    "classes",
    "seconds",
    "seconds or never",
    "bytes or no",
]
Place = Literal["folder", "file", "file to read", "URL of a database", "URL of a server"]

TAKES: dict[Kind | Place, str] = {
    "mode": "`off`, `observe` or `on`",
    "yes or no": "`yes` or `no`",
    "number": "a whole number, 0 for none",
    "list": "words, separated by commas or spaces",
    "modules": "names of Python modules, separated by commas or spaces",
    "pools": "`name=slots`, separated by commas or spaces",
    "flavors": "`pool=flavor`, separated by commas or spaces",
    "name": "a name",
    "classes": "`name=priority`, separated by commas or spaces",
    "seconds": "a duration: `90s`, `1.5 min`, `2h`; seconds without a unit",
    "seconds or never": "a duration: `90s`, `1.5 min`, `2h`; or `never`",
    "bytes or no": "a size: `512MB`, `16GiB`; or `no`",
    "folder": "a folder; it is made when it is needed",
    "file": "a file; it is made when it is needed",
    "file to read": "a YAML file",
    "URL of a database": "a URL as SQLAlchemy takes them",
    "URL of a server": "`http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`",
}
"""What a user may write, for the reference."""


@dataclass(frozen=True)
class Option:
    """default: the text that holds where nothing is stated; without: what that is, where the text is empty."""

    name: str
    kind: Kind | Place
    default: str
    example: str
    help: str
    without: str = ""

    @property
    def variable(self) -> str:
        """The environment variable, which wins over airflow.cfg."""
        return f"EGS_{self.name.upper()}"


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "mode",
            "mode",
            "observe",
            "on",
            "off: EGS does nothing. observe: it records what happens and changes nothing. on: it orders the tasks of "
            "the DAGs that `dags` and `tags` choose.",
        ),
        Option("dags", "list", "", "train_*, nightly", "Ids of DAGs that mode on is for, with wildcards.", "all DAGs"),
        Option(
            "tags",
            "list",
            "",
            "gpu",
            "Tags of DAGs that mode on is for. With neither dags nor tags, mode on is for all DAGs.",
            "all DAGs",
        ),
        Option(
            "history",
            "URL of a database",
            "",
            "postgresql+psycopg://user@host/egs",
            "Database of learned durations.",
            "an SQLite file in the user's data folder",
        ),
        Option(
            "runlog",
            "folder",
            "",
            "/var/log/egs",
            "Folder of the lines that tasks leave when they end.",
            "`airflow` in the user's data folder",
        ),
        Option(
            "durations",
            "file",
            "",
            "/var/lib/egs/durations.json",
            "File of learned durations, where agents may not write Variables. Scheduler, api-server and agent need the "
            "same.",
            "the Variable `egs_durations` of this Airflow",
        ),
        Option(
            "learn_every",
            "seconds or never",
            "1h",
            "never",
            "How often the agent of a host learns how long tasks take.",
        ),
        Option(
            "limits",
            "file to read",
            "",
            "/etc/egs/limits.yaml",
            "File of limits of tasks and DAG runs, which agents keep in mode on.",
            "the limits of hints only",
        ),
        Option(
            "pools",
            "pools",
            "",
            "gpu=8, gpu_large=4",
            "GPU pools with their slots, a slot a GPU; made in mode on, never guessed. The first one is for tasks that "
            "state GPUs and no pool.",
            "no pool",
        ),
        Option(
            "pool_flavors",
            "flavors",
            "",
            "gpu=T4, gpu_large=A100",
            "Of which flavor the GPUs of a pool are: with it what is learned says how long tasks take on each.",
            "not known",
        ),
        Option(
            "kube_queue",
            "name",
            "",
            "gpu-team",
            "Kueue's LocalQueue for pods of tasks in mode on that name none.",
            "none",
        ),
        Option(
            "kube_priority_classes",
            "classes",
            "",
            "normal=0, urgent=10",
            "Kueue's WorkloadPriorityClasses for these pods, each with the hinted priority from which on it holds.",
            "none",
        ),
        Option(
            "keep_slots",
            "yes or no",
            "yes",
            "no",
            "Whether executors of EGS keep a freed slot for the successor of the task before. "
            "`no` also ends gangs and the engine's live order there.",
        ),
        Option(
            "preload_modules",
            "modules",
            "",
            "pandas, torch",
            "Modules that EgsLocalExecutor imports in mode on before it starts its processes, so that no task has to.",
            "none",
        ),
        Option(
            "ready_processes",
            "number",
            "4",
            "0",
            "The most processes of EgsLocalExecutor that have read their DAG file before their task comes, in mode on.",
        ),
        Option(
            "stage_bytes",
            "bytes or no",
            "16GiB",
            "no",
            "The most that the agent of a host reads ahead at once of files that tasks name.",
        ),
        Option(
            "reserve_after",
            "seconds",
            "30s",
            "2min",
            "How long a task of several slots waits before slots are kept for it.",
        ),
        Option(
            "url",
            "URL of a server",
            "",
            "https://gpus.example:8470",
            "The site server (`egs serve`) whose engine orders this Airflow's tasks; only agents speak to it.",
            "the agent that holds the lease hosts an engine",
        ),
        Option(
            "queue",
            "name",
            "",
            "research",
            "The site server's queue that this Airflow's tasks are in.",
            "that of the agent's team, or the server's only one",
        ),
    )
}
"""By name, in the order in which a user comes to them."""

GONE = {
    "refresh_weights": "has no effect any more: weights are computed when task instances are made, and where an agent "
    "hosts the engine what waits follows its order",
}
"""Options of earlier versions -> what is to be said where one is stated."""
