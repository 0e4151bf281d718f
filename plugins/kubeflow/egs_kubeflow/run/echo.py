"""What a caller is told while tasks run: what their authors print, without what kfp and EGS say of their own work."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.notices import warn
from egs_kubeflow import compat
from egs_kubeflow.components.recorder import PREFIX

Echo = Callable[[str, str], None]
"""Told each line that a task prints, with the task's id; from any thread."""


class AuthorsLines:
    """Picks the author's part out of the lines of one task; what is not known for somebody else's is the author's."""

    def __init__(self) -> None:
        self._input_may_begin = self._is_input = False

    def part(self, line: str) -> str:
        """The part of a line that is the author's, ended as a line; "" where none is."""
        text = line.rstrip("\n")
        if self._is_input or (self._input_may_begin and text == "{"):
            self._input_may_begin, self._is_input = False, text != "}"
            return ""
        begin, self._input_may_begin = compat.said_by_executor(text)
        if text.startswith(PREFIX) or begin == 0 < len(text):
            return ""
        return f"{text[:begin]}\n"


def harmless(echo: Echo | None) -> Echo:
    """The caller's function, which no run depends on: once it has failed it is not called again."""
    is_over = echo is None

    def told(task: str, line: str) -> None:
        nonlocal is_over
        if echo is None or is_over:
            return
        try:
            echo(task, line)
        except Exception as error:
            is_over = True
            warn(f"what tasks print is shown no more: {error}")

    return told
