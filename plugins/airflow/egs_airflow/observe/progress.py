"""What a task tells by `egs.progress`, from its processes to the agent of its host: a folder while it runs.

    task ── egs.progress ─► RUNLOG/progress/ID/…progress ── each look ─► agent that speaks for this Airflow ─► server

ID is the try's own, as Airflow calls it. What the task starts tells as well, as a command's processes do. Where no site
server is named there is no folder; one that its task could not remove, as it was killed, goes when it is old.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from egs_airflow import config

if TYPE_CHECKING:
    from egs_core.progressed import Progressed

PLACE = "progress"
KEPT_S = 30 * 86_400.0
MOST_FOLDERS = 10_000
ID = re.compile(r"[0-9a-f-]{36}")


class Heard:
    """Whether what this try's processes tell is kept, from `begin` to `end`. In its own process, where one runs."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def begin(self, try_id: str, runlog: Path) -> None:
        """The user's code comes next. Raises OSError where no folder can be made: then nothing is kept."""
        from egs_core.worked import FOLDER  # in tasks alone: all of Airflow's processes load this module

        if config.option("url").strip() and ID.fullmatch(try_id) and FOLDER not in os.environ:
            folder = runlog / PLACE / try_id
            folder.mkdir(parents=True, exist_ok=True)
            self._folder, os.environ[FOLDER] = folder, str(folder)

    def end(self) -> None:
        """It is over."""
        folder, self._folder = self._folder, None
        if folder is not None:
            from egs_core.worked import FOLDER

            os.environ.pop(FOLDER, None)
            shutil.rmtree(folder, ignore_errors=True)


class Reader:
    """What tries of this host, or of all hosts whose folder this is, have told since the last `look`."""

    def __init__(self, runlog: Path) -> None:
        self._place = runlog / PLACE
        self._told: dict[str, Progressed] = {}

    def look(self, tries: Iterable[str]) -> dict[str, Progressed]:
        """Of these, which run: what is new. Their folders are listed, and those that tell are read."""
        from egs_core.progressed import progress_in

        found: dict[str, Progressed] = {}
        before, self._told = self._told, {}
        wanted, there = set(tries), set(self._folders())
        for name in wanted & there:
            if (told := progress_in(self._place / name)) is not None:
                self._told[name] = told
                if before.get(name) != told:
                    found[name] = told
        for name in there - wanted:
            self._drop_old(self._place / name)
        return found

    def _folders(self) -> Iterator[str]:
        with contextlib.suppress(OSError), os.scandir(self._place) as entries:
            for number, entry in enumerate(entries):
                if number < MOST_FOLDERS:
                    yield entry.name

    def _drop_old(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)
