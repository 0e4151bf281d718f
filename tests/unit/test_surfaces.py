"""Capabilities declared for each way of using EGS, and how `egs doctor` shows ways that differ."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from egs_core import adapter as adapters
from egs_core.adapter import Check, DemoOutcome, DemoRequest, ReplayRequest, RunOutcome
from egs_core.cli import app
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload
from egs_core.surfaces import CAPABILITIES, Surface, combined

ALL = dict.fromkeys(CAPABILITIES, "yes")
NO_SPLIT = "no: the script's tasks stay whole"
HOOK = Surface("hook", "EGS_MODE=on python script.py", {**ALL, "split": NO_SPLIT, "preempt": "no: Ray cannot"})
RUN = Surface("run", "framework.run(...)", {**ALL, "limits": "yes: of time", "preempt": "no: not built"})


class TwoWays:
    """An adapter that can be used in two ways."""

    name = "framework"

    def surfaces(self) -> tuple[Surface, ...]:
        return HOOK, RUN

    def convert(self, source: object, select: str = "") -> LoadedWorkload:
        raise InputError(str(source), f"is no pipeline {select}")

    def doctor(self) -> list[Check]:
        return []

    def replay(self, request: ReplayRequest) -> RunOutcome:
        return RunOutcome({}, request.runlog_path)

    def demo(self, request: DemoRequest) -> DemoOutcome:
        return DemoOutcome(float(len(request.variants)), True, {})


ADAPTER = TwoWays()


@pytest.mark.parametrize(
    ("can", "problem"),
    [
        ({**ALL, "split": "maybe"}, "neither `yes` nor `no: why`"),
        ({**ALL, "split": "no"}, "neither `yes` nor `no: why`"),
        ({**ALL, "fly": "yes"}, "unknown capability fly"),
        ({"observe": "yes"}, "no answer for order, split"),
    ],
)
def test_a_surface_answers_for_every_capability(can: dict[str, str], problem: str) -> None:
    """Each of the capabilities, with yes or with why not; nothing else."""
    with pytest.raises(ValueError, match=problem):
        Surface("hook", "", can)


def test_what_one_surface_cannot_do_is_no_plain_yes() -> None:
    """The answer for all surfaces names those that can; where none can it has the reason of each."""
    answers = combined([HOOK, RUN])
    assert answers["order"] == "yes"
    assert answers["split"] == "yes: run"
    assert answers["limits"] == "yes: hook, run"
    assert answers["preempt"] == "no: hook: Ray cannot; run: not built"


def test_doctor_shows_what_each_surface_can_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the surfaces differ each has its line, where they agree there is one answer; JSON has them all."""
    monkeypatch.setattr(adapters, "entry_points", lambda group: [EntryPoint("framework", f"{__name__}:ADAPTER", group)])
    monkeypatch.setenv("COLUMNS", "140")
    assert app.run(["doctor", "--all"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "framework: hook is EGS_MODE=on python script.py" in shown
    assert "framework: can order yes" in shown
    at = shown.index(f"framework: can split hook: {NO_SPLIT}")
    assert shown[at + 1] == "run: yes"
    assert app.run(["doctor", "--json"]) == 0
    (adapter,) = json.loads(capsys.readouterr().out)["adapters"]
    assert adapter["capabilities"]["split"] == "yes: run"
    assert [surface["can"]["split"] for surface in adapter["surfaces"]] == [NO_SPLIT, "yes"]
