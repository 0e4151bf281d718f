"""A site with two teams, vision and speech, each with a queue and a run: what the tests of attacks attack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.server.real_app import CAN_BE_OTHERS, FILE, Answer, Asker, RealApp

OTHERS = pytest.mark.skipif(not CAN_BE_OTHERS, reason="only root can be another user")
VERBS = ("abort", "pause", "resume", "update")
LEASE_VERBS: dict[str, dict[str, Any]] = {
    "beat": {"token": 0},
    "claim": {"token": 0},
    "end": {"token": 0, "outcome": "succeeded", "exit_code": 0},
}
NOT_THERE = "there is no run"


class Teams:
    """A site with two teams, and a run of each that has its lease."""

    def __init__(self) -> None:
        self.app = RealApp(FILE)
        self.vision = self.app.token("submitter", "vision", "ann")
        self.speech = self.app.token("submitter", "speech", "bob")
        self.seer = self.app.token("viewer", "speech")
        self.operator = self.app.token("operator", "speech")
        self.run = self.vision.submit("vision-key", gpus=1, name="secret project").told
        self.own = self.speech.submit("speech-key", gpus=1).told
        assert (self.run["team"], self.run["queue"]) == ("vision", "images")

    def is_untouched(self) -> bool:
        """Whether vision's run is as it was."""
        return bool(self.vision.get(f"/v1/runs/{self.run['id']}").told["state"] == "granted")

    def everywhere(self) -> list[Asker]:
        """Whoever is of the other team: by its tokens, and over the socket."""
        return [self.speech, self.seer, self.operator] + ([self.app.over_socket(70003)] if CAN_BE_OTHERS else [])


def two_teams() -> Iterator[Teams]:
    """A fixture: the site, for the tests of a file."""
    found = Teams()
    yield found
    found.app.close()


def refused(answer: Answer, status: int, words: str = "") -> None:
    assert (answer.status, words in answer.detail) == (status, True), answer
