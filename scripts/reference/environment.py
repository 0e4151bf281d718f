"""The page of environment variables. A test holds this table against the variables that the code names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.reference.markdown import code, table

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("egs_core", "plugins/ray/egs_ray", "plugins/airflow/egs_airflow", "plugins/kubeflow/egs_kubeflow")

VARIABLES: dict[str, tuple[str, str, str]] = {
    "EGS_MODE": (
        "all",
        "`observe`",
        "For hooks on unmodified code. `off`: EGS does nothing. `observe`: it records, changes nothing. `on`: it acts.",
    ),
    "EGS_HISTORY": (
        "all",
        "SQLite file in the user's data folder",
        "URL of the database in which durations of past runs are kept.",
    ),
    "EGS_RUNLOG": (
        "all",
        "a new file in the user's data folder",
        "Where the run log is written: a file (Ray, Kubeflow's local runner) or a folder (Airflow).",
    ),
    "EGS_KEEP_DAYS": (
        "all",
        "`30`",
        "Run logs that EGS named itself are removed so many days after their last record; `0`: never for their age.",
    ),
    "EGS_KEEP_MB": (
        "all",
        "`1000`",
        "The oldest of them are removed where all together are larger; `0`: never for their size. Never one of the "
        "last day, or of a process that runs.",
    ),
    "EGS_URL": (
        "clients of the site server",
        "",
        "`http://HOST:PORT` or `unix:///PATH` of the server, or of several servers of one site, with commas between; "
        "left out: a socket of this host, if one is there. A Ray "
        "driver in mode `on` shares the server's order only where this is set, and so does an agent of Airflow.",
    ),
    "EGS_TOKEN": (
        "clients of the site server",
        "",
        "The token for it over TCP; left out: the one that `egs serve` has written for this user. No command gets it.",
    ),
    "EGS_TOKEN_FILE": (
        "clients of the site server",
        "",
        "A file with that token, which is read again when the server refuses it: for tokens that somebody renews, as a "
        "pod's or a login's. `EGS_TOKEN` goes before it. No command gets it.",
    ),
    "EGS_CA": (
        "clients of the site server",
        "the usual certificates",
        "File with the certificate of the server, or of who has signed it, in PEM, for `https://`.",
    ),
    "EGS_HOST": (
        "`egs serve`",
        "the host's own name",
        "What the host is called at the site; with `--join` the one that its token names.",
    ),
    "EGS_DATABASE": (
        "`egs serve`, `egs server`",
        "SQLite in the folder",
        "URL of the PostgreSQL that the site is in, as `--database`: `postgresql://USER@HOST/NAME`.",
    ),
    "EGS_QUEUE": (
        "Ray drivers that share a site server, or an actor's order",
        "the first of the user's team, or the only one",
        "Queue of the server's `--queues` file, or of `EGS_QUEUES`, whose quota the driver's tasks use.",
    ),
    "EGS_RUNTIME_DIR": (
        "the site server and its clients",
        "`/run/egs`, or below `XDG_RUNTIME_DIR`",
        "Folder of the server's Unix socket, and of its locks on GPUs.",
    ),
    "EGS_LOG": (
        "all",
        "`text`",
        "`json`: EGS's warnings, and the log of `egs serve`, are one JSON object a line.",
    ),
    "EGS_DEBUG": ("all", "", "`1`: commands print a traceback for an error, and warnings that hide one show it."),
    "EGS_HOOK": (
        "Ray",
        "",
        "`ray`: sets Ray's RAY_RUNTIME_ENV_HOOK in every Python of an environment that has egs-ray, and only there.",
    ),
    "EGS_GATE": (
        "Ray",
        "`local`",
        "`local`: a driver orders its own GPU tasks. `cluster`: one actor orders those of all drivers of a Ray, "
        "unless `EGS_URL` names a server.",
    ),
    "EGS_QUEUES": (
        "Ray, with `EGS_GATE=cluster`",
        "",
        "YAML file of queues and quotas for the actor, read by the driver that starts it.",
    ),
    "EGS_PRIORITY": (
        "Ray",
        "0",
        "Under the hook, in mode `on`: the priority of all that a driver submits and no hint says another, trials of "
        "Ray Tune and placement groups too. Of two the higher one goes first.",
    ),
    "EGS_SPLIT": (
        "Ray",
        "`hints`",
        "Under the hook, in mode `on`. `hints`: tasks are split whose functions have `@egs.task`. `auto`: all whose "
        "code says `with egs.gpu():` or `egs.phases`.",
    ),
    "EGS_RETRY_OUT_OF_MEMORY": (
        "Ray",
        "`off`",
        "`on`: a task that ends for lack of a GPU's memory is tried again on another flavor, each once; of "
        "`egs_ray.run`, and under the hook, in mode `on`, of a script's GPU tasks.",
    ),
    "EGS_CONTROL": ("Ray, Kubeflow", "", "`off`: `egs ps` and `egs abort` cannot reach the driver, or the local run."),
    "EGS_SCALING": (
        "Ray",
        "found out",
        "`off`: EGS asks the autoscaler for nothing, and gates nothing where there is one. `on`: there is one, even if "
        "EGS cannot see it.",
    ),
    "EGS_AIRFLOW_USER": ("Airflow", "", "User that logs in to Airflow's REST API, where no `--user` is given."),
    "EGS_AIRFLOW_PASSWORD": ("Airflow", "", "The password for that; `AIRFLOW_CLI_TOKEN` replaces both."),
    "EGS_RAY_WITHOUT": ("Ray", "", "Names of features whose private API EGS must not use, separated by commas."),
    "EGS_AIRFLOW_WITHOUT": ("Airflow", "", "The same for Airflow."),
    "EGS_KUBEFLOW_WITHOUT": ("Kubeflow", "", "The same for kfp."),
}
"""Variable -> where it is read, default, meaning."""

INTERNAL = {
    "EGS_DEMO_FACTOR": "set by the demo for its own processes",
    "EGS_DEVICE_FOLDER": "set for workers, where GPUs are emulated",
    "EGS_DURATIONS": "the Airflow option `durations`",
    "EGS_GANG_HOSTS": "set for a command of `egs run --gang`: on which host each of the gang is, by rank, with commas",
    "EGS_GANG_RANK": "set for a command of `egs run --gang`: which of the gang it is, from 0",
    "EGS_GANG_SIZE": "set for a command of `egs run --gang`: how many the gang has",
    "EGS_ARRAY_INDEX": "set for a command of `egs run --array N`: which of the N it is, from 0",
    "EGS_ARRAY_SIZE": "set for a command of `egs run --array N`: N",
    "EGS_TRY": "set for a command of `egs run --retries N`: which try it is, from 1",
    "EGS_GPU_REQUEST": "set for a command of `egs run --split`: what `with egs.gpu():` asks the site server for",
    "EGS_ACTIVITY": "set for a command of `egs run --idle-timeout`: a file; to touch it tells that somebody is at work",
    "EGS_WORK": "set for commands of `egs run` and tasks of Kubeflow's local runner: folder of what they told",
    "EGS_WATCH_RULE": "set for a command of `egs watch follow`: the rule that has fired",
    "EGS_WATCH_SUBJECT": "set for a command of `egs watch follow`: the GPU, as HOST/DEVICE, or the run's number",
    "EGS_WATCH_TEXT": "set for a command of `egs watch follow`: why the rule has fired, with the numbers",
    "EGS_LEASE": "set for a command that has a lease of the site server: its processes are found by it",
    "EGS_PRELOAD": "set for what `egs run --preload` starts before its turn: by whom, and where to hear of that",
    "EGS_POOLS": "the Airflow option `pools`",
    "EGS_PRELOAD_MODULES": "the Airflow option `preload_modules`",
    "EGS_REPLAY_NOTES": "set by a replay for its own processes",
    "EGS_ROLE": "set for processes that EGS starts",
    "EGS_RUNLOG_OWNER": "set for processes that a driver starts",
}
"""Variables that the code names and users do not set, or that are described elsewhere."""

INTRO = """# Environment variables

Every option of Airflow's section `[egs]` is a variable `EGS_<OPTION>` as well: [its options](airflow-options.md).
"""


def environment_page() -> str:
    """The variables that users may set."""
    rows = [(code(name), where, default, meaning) for name, (where, default, meaning) in VARIABLES.items()]
    return f"{INTRO}\n{table(('variable', 'used by', 'default', 'meaning'), rows)}"


def variables_in_code() -> Iterator[str]:
    """The names EGS_… that stand as whole strings in the packages."""
    texts = (
        path.read_text(encoding="utf-8") for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    )
    for text in texts:
        for node in ast.walk(ast.parse(text)) if "EGS_" in text else ():
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(r"EGS_[A-Z_]+", value):
                yield value
