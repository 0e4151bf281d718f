"""What EGS can do with a framework, for each way of using it: one adapter may have several, which differ.

    Surface("script", "EGS_MODE=on python script.py", {"order": "yes", "split": "no: the script's tasks stay whole", …})
    Surface("run", "a call of run(...)", {"order": "yes", "split": "yes", …})

`egs doctor` shows them, and a conformance bench declares the one that it tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from egs_core.hints import HINTS

CAPABILITIES = ("observe", "order", "split", "preload", "gang", "preempt", "limits", "abort", "audit")
"""What every surface answers for."""

HINT_ROWS = (*(name for name in HINTS if name not in CAPABILITIES), "checkpoint")
"""What a surface on which functions may have hints answers for besides: the hints, and `egs.checkpoint`. `split`,
`preload` and `gang` are capabilities by themselves."""

ANSWER = re.compile(r"yes(: .+)?|no: .+")


@dataclass(frozen=True)
class Surface:
    """One way of using EGS. name: script, hook, run, dag, component, cluster or the like; use: how a user gets there.

    can: each of CAPABILITIES with `yes`, `yes: with which limit` or `no: why`. hints: the same for each of
    HINT_ROWS, or nothing where functions have no hints. Raises ValueError for anything else.
    """

    name: str
    use: str
    can: Mapping[str, str]
    hints: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check("capability", CAPABILITIES, self.can)
        self._check("hint", HINT_ROWS if self.hints else (), self.hints)

    def _check(self, kind: str, asked: Iterable[str], answers: Mapping[str, str]) -> None:
        if missing := [name for name in asked if name not in answers]:
            raise ValueError(f"surface {self.name}: no answer for {', '.join(missing)}")
        if unknown := sorted(answers.keys() - set(asked)):
            raise ValueError(f"surface {self.name}: unknown {kind} {', '.join(unknown)}")
        for name, answer in answers.items():
            if not ANSWER.fullmatch(answer):
                raise ValueError(f"surface {self.name}: {name}: {answer!r} is neither `yes` nor `no: why`")

    @property
    def answers(self) -> dict[str, str]:
        """To all that it answers for."""
        return {**self.can, **self.hints}

    def has(self, name: str) -> bool:
        """Whether it can, or keeps that hint, in full or within a limit."""
        return self.answers[name].startswith("yes")


def hint_answers(kept: Mapping[str, str], lost: Mapping[str, str], otherwise: str = "") -> dict[str, str]:
    """The answers of a surface to HINT_ROWS. kept: hint -> within which limit, "" for none; lost: hint -> why not;
    otherwise: why not, for all others."""
    found = {name: "yes" + (f": {limit}" if limit else "") for name, limit in kept.items()}
    found |= {name: f"no: {why}" for name, why in lost.items()}
    return {name: found.get(name, f"no: {otherwise}") for name in HINT_ROWS} | found


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


OF_EGS = "egs"
"""The name under which `OWN` is shown, as those of an adapter under its own."""
OWN = (
    Surface(
        "run",
        "egs run -- CMD, at a site server (`egs serve`)",
        {
            "observe": "no: what starts with it has its turn, and of the rest nothing is seen",
            "order": "yes",
            "split": "yes: with --split, at `with egs.gpu():` in the command's own Python code",
            "preload": "yes: modules, of a command that is Python: while it waits, and between runs (--keep-ready)",
            "gang": "yes: of runs with one name (--gang)",
            "preempt": "yes: where it was started with --requeue or --suspend",
            "limits": "yes: a time box (--for), and idle time (--idle-timeout)",
            "abort": "yes",
            "audit": "no: nothing audits a site server",
        },
    ),
)
"""What needs no framework and no adapter."""
