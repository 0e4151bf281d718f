"""Where EGS keeps what outlives a run, when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """The user's data folder for EGS, as the XDG rules have it; not created here."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "egs"
