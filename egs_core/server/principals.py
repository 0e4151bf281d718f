"""Who asks, and what they may: roles, bound to teams. Pure; every right that the server gives is decided here.

    role        sees             submits   changes
    viewer      its teams        no        nothing
    submitter   its teams        yes       its own runs
    operator    its teams        yes       all runs of its teams
    admin       everything       yes       everything; makes and revokes tokens
    agent       nothing          no        nothing: it speaks for the host that its token is bound to, see `joining`

A principal that is bound to no team is of all of them. Its own runs a principal sees always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from egs_core.client.tokens import Role
from egs_core.errors import listed
from egs_core.server.runs import Refusal

SUBMITTING: tuple[Role, ...] = ("submitter", "operator", "admin")
OPERATING: tuple[Role, ...] = ("operator", "admin")


class Owned(Protocol):
    """What somebody submitted: a run, and whatever else a site will have. team: "" for that of no team."""

    user: str
    team: str


class Principal(msgspec.Struct, frozen=True):
    """Who asks. teams: that it is bound to, the first one its own; None: bound to none. origin: for the log: the
    address that the request came from, and by what it was known. host: that it is bound to: of an agent, and of a
    user for whom an agent asks; "" for everybody else. home: the own team of an admin, whom it does not bind."""

    name: str
    role: Role = "submitter"
    teams: tuple[str, ...] | None = None
    origin: str = ""
    host: str = ""
    home: str = ""

    @property
    def team(self) -> str:
        """Of what it submits, where the queue is of no team."""
        return self.teams[0] if self.teams else self.home

    def is_of(self, team: str) -> bool:
        return self.teams is None or team in self.teams

    def sees(self, owned: Owned) -> bool:
        return self.role != "agent" and (self.is_of(owned.team) or owned.user == self.name)

    def may_change(self, owned: Owned) -> bool:
        if self.role in OPERATING:
            return self.sees(owned)
        return self.role in SUBMITTING and owned.user == self.name

    def may_hold(self, owned: Owned) -> bool:
        """Whether it may speak for the process that the lease was given to: nobody else may, whatever the role."""
        return self.role in SUBMITTING and owned.user == self.name

    def need(self, roles: tuple[Role, ...], what: str) -> None:
        """Raises Refusal (403) where its role is none of these."""
        if self.role not in roles:
            needed = " or ".join(roles)
            raise Refusal(
                403, f"{what} needs the role {needed}, and {self.name} is {self.role}: ask an admin for a token"
            )

    def need_to_see(self) -> None:
        """Raises Refusal (403) for the one role that sees nothing."""
        if self.role == "agent":
            raise Refusal(403, "a token of role agent reads nothing: use one of role viewer")


def queues_of(who: Principal, queues: Sequence[str], team_of_queue: Mapping[str, str]) -> list[str]:
    """Those that it may use: of its teams, and of none."""
    return [name for name in queues if not (team := team_of_queue.get(name)) or who.is_of(team)]


def queue_for(who: Principal, asked: str, queues: Sequence[str], team_of_queue: Mapping[str, str], option: str) -> str:
    """The queue that is asked for; where none is, the first of its team's own, or the only one that it may use; an
    admin's without either the first that is for all; "" at a site without queues for whoever names none. option: by
    which a queue is named. Raises Refusal (422) for one that is not there, or of another team."""
    allowed = queues_of(who, queues, team_of_queue)
    if not queues or asked in allowed:
        return asked
    own = [name for name in allowed if who.team and team_of_queue.get(name) == who.team]
    if who.role == "admin" and not own:
        own = [name for name in allowed if not team_of_queue.get(name)]
    if not asked and (own or len(allowed) == 1):
        return (own or allowed)[0]
    said = f"there is no queue {asked!r}" if asked else "none is named"
    raise Refusal(422, f"queue: {said}; there are {listed(allowed) or 'none'}: choose by {option}")
