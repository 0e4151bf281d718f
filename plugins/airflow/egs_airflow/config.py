"""What the user has set: the mode, and for which DAGs, from `[egs]` in airflow.cfg or from EGS_ variables, which win.

    mode   off · observe (the default) · on
    dags   ids of DAGs that mode on is for, with wildcards: "train_*, nightly"
    tags   tags of such DAGs; with neither dags nor tags, mode on is for all DAGs

The table of all options is `options`. Read in all processes of Airflow, so standard library only. A value that means
nothing is one warning: EGS observes, where it is the mode, and else the default holds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from egs_airflow.options import NO, OPTIONS, SECTION, YES

if TYPE_CHECKING:
    from egs_core.mode import Mode

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
    from egs_core.mode import parse_mode

    stated, source = stated_option("mode")
    mode, problem = parse_mode(stated, "observe", f"{source}: mode ")
    if problem:
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


def option(name: str) -> str:
    """The text of an option: EGS_<NAME> in the environment, else `[egs] <name>` of Airflow, else the default."""
    return stated_option(name)[0] or OPTIONS[name].default


def words(name: str) -> tuple[str, ...]:
    """An option that is a list."""
    return split(option(name))


def split(text: str) -> tuple[str, ...]:
    """What commas or white space separate."""
    return tuple(text.replace(",", " ").split())


def is_yes(name: str) -> bool:
    """An option that is yes or no; a text that means nothing is one warning, and the default."""
    text = option(name).strip().lower()
    if text not in (*YES, *NO):
        warn(f"[{SECTION}] {name}: {text!r} is neither yes nor no: {OPTIONS[name].default}, as by default")
        text = OPTIONS[name].default
    return text in YES


def number_of(name: str) -> int:
    """An option that is a whole number; a text that is none is one warning, and the default."""
    text = option(name).strip()
    if not (text.isascii() and text.isdigit()):
        warn(f"[{SECTION}] {name}: {text!r} is no whole number: {OPTIONS[name].default}, as by default")
        text = OPTIONS[name].default
    return int(text)


def seconds_of(name: str) -> float:
    """An option that is a span of time, 0 for never; a text that means nothing is one warning, and the default."""
    from egs_core.errors import InputError
    from egs_core.units import parse_seconds

    place, default = f"[{SECTION}] {name}", OPTIONS[name].default
    text = option(name)
    try:
        return 0.0 if text.strip().lower() in NO else parse_seconds(text, place)
    except InputError as error:
        warn(f"{error}: {default}, as by default")
        return 0.0 if default in NO else parse_seconds(default, place)


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


def ends_process(error: BaseException) -> bool:
    """Whether what was raised is to end this process, and must not be caught: Ctrl-C, and the exit with code 0 that the
    scheduler's handler of SIGTERM raises wherever it is. An exit with another code is a fault of whoever raised it."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)
