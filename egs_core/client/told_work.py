"""Where the processes of a command of `egs run` tell of their work (`egs.work`) and how far they are
(`egs.progress`): a folder of its own, as long as it runs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from egs_core.client.messages import Progress
from egs_core.progressed import SUFFIX, progress_in
from egs_core.worked import FOLDER, told_in


class WorkFolder:
    """One command's, in all its starts. Made at the first; where it cannot be made nothing is told."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._is_tried = False
        self._started_at = 0.0

    def variables(self) -> dict[str, str]:
        """For the environment of the command, which starts now."""
        self._started_at = time.time()
        if not self._is_tried:
            self._is_tried = True
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="egs-work-", ignore_cleanup_errors=True)
            except OSError:  # no folder for temporary files, or a full disk: the command runs all the same
                self._folder = None
        return {} if self._folder is None else {FOLDER: self._folder.name}

    def told_s(self, now: float) -> float | None:
        """How long ago any process has told anything last; None: never. now: seconds since 1970. Any thread."""
        folder = self._folder
        if folder is None:
            return None
        with contextlib.suppress(OSError):  # the command ends, and its folder goes
            files = Path(folder.name).iterdir()
            times = [path.stat().st_mtime for path in files if path.suffix in (".json", SUFFIX)]
            return max(0.0, now - max(times)) if times else None
        return None

    def progress(self, now: float) -> Progress | None:
        """How far the command has come since it was started last; None: it has not said. Any thread."""
        folder = self._folder
        found = None if folder is None else progress_in(folder.name, self._started_at)
        if found is None:
            return None
        told = found._asdict() | {"ago_s": max(0.0, now - found.at)}
        del told["at"]
        return Progress.model_validate(told)

    def told(self) -> dict[str, float]:
        """All that was told, by unit, when no process of the command is left; the folder is gone then."""
        if self._folder is None:
            return {}
        found = told_in(self._folder.name)
        self._folder.cleanup()
        self._folder = None
        return found
