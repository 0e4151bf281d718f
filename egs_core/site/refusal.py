"""What a site that several share refuses."""

from __future__ import annotations


class Refusal(Exception):
    """A request that cannot be met. status: of HTTP; the text says what to change. wait_s: after so long the same
    request may be met; 0: that does not depend on time."""

    def __init__(self, status: int, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.wait_s = wait_s
