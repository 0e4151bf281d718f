"""What EGS says to people who read logs by machine: with EGS_LOG=json each line on stderr is one JSON object.

    {"time": "2026-11-25T01:09:00.123Z", "level": "warning", "logger": "egs", "message": "no run log: disk full"}

time: RFC 3339, UTC. level: info, warning or error. logger: `egs`, `uvicorn.error` (the server), `egs.events` (what
somebody changed there, with fields of its own). exception: the traceback, where there is one. Standard library only, as
workers use it too.
"""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from typing import Any

VARIABLE = "EGS_LOG"
FIELDS = "egs_fields"
"""Attribute of a log record with more fields."""


def is_json() -> bool:
    """Whether that is wanted."""
    return os.environ.get(VARIABLE, "").lower() == "json"


def json_line(level: str, message: str, logger: str = "egs", at: float | None = None, /, **fields: Any) -> str:
    """One event. at: second since 1970, now where it is None."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat(timespec="milliseconds")
    told = {"time": moment.replace("+00:00", "Z"), "level": level, "logger": logger, "message": message, **fields}
    return json.dumps(told, default=str)


class JsonFormatter(logging.Formatter):
    """A log record as such a line, whatever stands in it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, FIELDS, {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(record.levelname.lower(), record.getMessage(), record.name, record.created, **fields)


def uvicorn_options() -> dict[str, Any]:
    """For `uvicorn.Config`: its own way, unless JSON is wanted; then what is changed on the server is told, too."""
    if not is_json():
        return {}
    loud = {"handlers": ["egs"], "level": "INFO", "propagate": False}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"egs": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "handlers": {"egs": {"class": "logging.StreamHandler", "formatter": "egs", "stream": "ext://sys.stderr"}},
        "loggers": {"uvicorn": loud, "egs.events": loud},
    }
    return {"log_config": config}
