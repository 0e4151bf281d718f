"""What the user has set: the mode, and for which DAGs, from `[egs]` in airflow.cfg or from EGS_ variables, which win.

    mode   off · observe (the default) · on
    dags   ids of DAGs that mode on is for, with wildcards: "train_*, nightly"
    tags   tags of such DAGs; with neither dags nor tags, mode on is for all DAGs

Read in all processes of Airflow, so standard library only. A value that means nothing is one warning, and EGS observes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

Mode = Literal["off", "observe", "on"]
MODES: tuple[Mode, ...] = ("off", "observe", "on")
SECTION = "egs"

log = logging.getLogger("egs_airflow")


@dataclass(frozen=True)
class Settings:
    """The user's choice. mode: what holds for the DAGs chosen by `dags` and `tags`; a bad value is in `problem`."""

    mode: Mode = "observe"
    dags: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    source: str = "the default"
    problem: str = ""

    def mode_of(self, dag_id: str, tags: Iterable[str] = ()) -> Mode:
        """The mode of one DAG: what is not chosen for `on` is observed."""
        return self.mode if self.mode != "on" or self.chooses(dag_id, tags) else "observe"

    def chooses(self, dag_id: str, tags: Iterable[str] = ()) -> bool:
        """Whether mode on is for that DAG."""
        if not self.dags and not self.tags:
            return True
        return any(fnmatchcase(dag_id, pattern) for pattern in self.dags) or not self.tags.isdisjoint(tags)


@cache
def settings() -> Settings:
    """The settings of this process, read once; `settings.cache_clear()` reads them again. Never raises."""
    read = read_settings()
    if read.problem:
        warn(read.problem)
    return read


def mode_of(dag_id: str, tags: Iterable[str] = ()) -> Mode:
    """The mode that holds for a DAG in this process. Never raises."""
    return settings().mode_of(dag_id, tags)


def read_settings() -> Settings:
    """The settings as they are now, and what is wrong with them, which leaves `observe`."""
    stated, source = stated_option("mode")
    mode = stated.strip().lower() or "observe"
    if mode not in MODES:
        problem = f"{source}: mode {stated!r} is none of {', '.join(MODES)}: observing"
        return Settings(source=source, problem=problem)
    problem = "" if mode == "off" else unknown_version()
    return Settings(
        mode="observe" if problem else mode,
        dags=words("dags"),
        tags=frozenset(words("tags")),
        source=source,
        problem=problem,
    )


def unknown_version() -> str:
    """What is to be said where EGS was not tried with this Airflow; else nothing."""
    from egs_airflow import compat

    found = compat.airflow_version()
    if compat.supported(found):
        return ""
    return f"Airflow {found} is not a version EGS knows ({', '.join(compat.KNOWN_VERSIONS)}): observing only"


def option(name: str, default: str = "") -> str:
    """The text of an option: EGS_<NAME> in the environment, else `[egs] <name>` of Airflow, else the default."""
    return stated_option(name)[0] or default


def words(name: str) -> tuple[str, ...]:
    """An option that is a list, separated by commas or white space."""
    return tuple(option(name).replace(",", " ").split())


def stated_option(name: str) -> tuple[str, str]:
    """The text of an option and where it was stated; empty text where it was not."""
    variable = f"EGS_{name.upper()}"
    if text := os.environ.get(variable, ""):
        return text, f"{variable} in the environment"
    try:
        from airflow.configuration import conf

        text = conf.get(SECTION, name, fallback="") or ""
    except Exception as error:  # a broken airflow.cfg, or a secrets backend that does not answer
        warn(f"[{SECTION}] {name} cannot be read: {type(error).__name__}: {error}")
        text = ""
    return text, f"[{SECTION}] {name} of Airflow, or its default" if text else "the default"


@cache
def warn(problem: str) -> None:
    """One line in the log of this process, however often the problem is met."""
    log.warning("egs: %s", problem)
