"""What EGS can do with a framework, for each way of using it: one adapter may have several, which differ.

    Surface("script", "EGS_MODE=on python script.py", {"order": "yes", "split": "no: the script's tasks stay whole", …})
    Surface("run", "a call of run(...)", {"order": "yes", "split": "yes", …})

`egs doctor` shows them, and a conformance bench declares the one that it tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CAPABILITIES = ("observe", "order", "split", "preload", "gang", "preempt", "limits", "abort", "audit")
"""What every surface answers for."""

ANSWER = re.compile(r"yes(: .+)?|no: .+")


@dataclass(frozen=True)
class Surface:
    """One way of using EGS. name: script, hook, run, dag, component, cluster or the like; use: how a user gets there.

    can: each of CAPABILITIES with `yes`, `yes: with which limit` or `no: why`. Raises ValueError for anything else.
    """

    name: str
    use: str
    can: Mapping[str, str]

    def __post_init__(self) -> None:
        if missing := [name for name in CAPABILITIES if name not in self.can]:
            raise ValueError(f"surface {self.name}: no answer for {', '.join(missing)}")
        if unknown := sorted(self.can.keys() - set(CAPABILITIES)):
            raise ValueError(f"surface {self.name}: unknown capability {', '.join(unknown)}")
        for name, answer in self.can.items():
            if not ANSWER.fullmatch(answer):
                raise ValueError(f"surface {self.name}: {name}: {answer!r} is neither `yes` nor `no: why`")

    def has(self, capability: str) -> bool:
        """Whether it can, in full or within a limit."""
        return self.can[capability].startswith("yes")


def combined(surfaces: Sequence[Surface]) -> dict[str, str]:
    """One answer for each capability over all surfaces: `yes` only where every surface says so without a limit."""
    return {name: _combined(surfaces, name) for name in CAPABILITIES}


def _combined(surfaces: Sequence[Surface], capability: str) -> str:
    answers = [surface.can[capability] for surface in surfaces]
    if len(set(answers)) == 1:
        return answers[0]
    able = [surface.name for surface in surfaces if surface.has(capability)]
    if not able:
        return "no: " + "; ".join(f"{s.name}: {s.can[capability].removeprefix('no: ')}" for s in surfaces)
    return f"yes: {', '.join(able)}"
