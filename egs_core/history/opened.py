"""Which store a history is in: the user's SQLite file, or whatever a database URL names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from egs_core.history.sqlite import SqliteHistory, plain_path
from egs_core.history.stored import FILE_NAME, StoredHistory
from egs_core.places import data_folder

if TYPE_CHECKING:
    from egs_core.history.sql import SqlHistory


def open_history(url: str | None = None, *, busy_timeout_s: float = 5.0) -> StoredHistory:
    """The history at a URL, else at that of EGS_HISTORY, else in the user's data folder; opened when it is used."""
    url = url or os.environ.get("EGS_HISTORY")
    path = plain_path(url) if url else data_folder() / FILE_NAME
    if path is not None:
        return SqliteHistory(path, busy_timeout_s=busy_timeout_s)
    return _with_sqlalchemy()(url or "", busy_timeout_s=busy_timeout_s)


def _with_sqlalchemy() -> type[SqlHistory]:
    from egs_core.history.sql import SqlHistory  # takes a third of a second to import

    return SqlHistory
