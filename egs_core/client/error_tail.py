"""Standard error of a command on its way to this process's own, and the last of it, in which it may say why it failed.

command ─► pipe ─► one thread ─► standard error
                        └──────► the last KEPT bytes
"""

from __future__ import annotations

import contextlib
import os
import threading

KEPT, CHUNK = 8192, 1 << 16
LAST_S = 5.0


class ErrorTail:
    """One command's. writing: what it is to have as its standard error."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._kept = b""
        self._thread = threading.Thread(target=self._copy, name="egs-stderr", daemon=True)

    def start(self) -> None:
        """Once the command has been started, or could not be."""
        os.close(self.writing)
        self._thread.start()

    def text(self) -> str:
        """After the end of all that could write."""
        self._thread.join(LAST_S)
        return self._kept.decode(errors="replace")

    def _copy(self) -> None:
        with os.fdopen(self._reading, "rb", buffering=0) as stream:
            while content := stream.read(CHUNK):
                self._kept = (self._kept + content)[-KEPT:]
                with contextlib.suppress(OSError):  # nobody reads it any more: the command goes on
                    while content:
                        content = content[os.write(2, content) :]
