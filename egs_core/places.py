"""Where EGS keeps what outlives a run, when nobody says otherwise, and how a small file of it is replaced."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """The user's data folder for EGS, as the XDG rules have it; not created here."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "egs"


def replace_file(path: Path, content: bytes) -> None:
    """Write the file as a whole, with its folder: whoever reads it sees the old one or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
