"""Logs for machines: one JSON object a line with documented fields, and nothing of it where nobody asks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from egs_core.json_log import FIELDS, VARIABLE, JsonFormatter, json_line, uvicorn_options
from egs_core.notices import warn


def test_a_warning_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one of several lines; a moment as RFC 3339 has it."""
    monkeypatch.setenv(VARIABLE, "JSON")
    warn('a disk\nis "full" ü')
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.keys() == {"time", "level", "logger", "message"}
    assert (told["level"], told["logger"], told["message"]) == ("warning", "egs", 'a disk\nis "full" ü')
    assert abs((datetime.now(UTC) - datetime.fromisoformat(told["time"])).total_seconds()) < 3600
    assert told["time"].endswith("Z")


def test_without_it_all_is_as_before(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    warn("a disk is full")
    assert capsys.readouterr().err == "egs: a disk is full\n"
    assert uvicorn_options() == {}


def test_a_records_fields_and_traceback_are_in_its_line() -> None:
    """Whatever the values are."""
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        record = logging.getLogger("egs.events").makeRecord(
            "egs.events",
            logging.ERROR,
            "f",
            1,
            "%s of %s",
            ("end", object),
            sys.exc_info(),
            extra={FIELDS: {"run": {1}}},
        )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    told = json.loads(text)
    assert (told["level"], told["logger"], told["run"]) == ("error", "egs.events", "{1}")
    assert "ValueError: broken" in told["exception"]


def test_a_moment_is_told_as_it_is() -> None:
    assert json.loads(json_line("info", "", "egs", 1_793_491_200.25))["time"] == "2026-11-01T00:00:00.250Z"


def test_the_configuration_is_one_that_logging_takes() -> None:
    """In a process of its own, as it changes all loggers: the server's own words and what it tells of changes."""
    code = (
        "import logging, logging.config; from egs_core.json_log import uvicorn_options\n"
        "logging.config.dictConfig(uvicorn_options()['log_config'])\n"
        "logging.getLogger('uvicorn.error').warning('it waits for %s', 'disk')\n"
        "logging.getLogger('egs.events').info('end 1')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={VARIABLE: "json"}, capture_output=True, text=True, timeout=240, check=True
    )
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(one["logger"], one["message"]) for one in told] == [
        ("uvicorn.error", "it waits for disk"),
        ("egs.events", "end 1"),
    ]
