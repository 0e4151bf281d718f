"""Who may see a run, change it, or speak for it: asked before anything is done to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from egs_core.errors import listed
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, Run


class Seat(Protocol):
    """A driver of a framework at the server."""

    @property
    def id(self) -> str: ...

    @property
    def user(self) -> str: ...


class Rights:
    """runs: all that a site knows, by number. name_of: a host's name, by its id."""

    def __init__(self, runs: Mapping[str, Run], name_of: Callable[[str], str]) -> None:
        self._runs, self._name_of = runs, name_of

    def visible(self, who: Principal, run_id: str) -> Run:
        """Raises Refusal (404), the same for a run of another team and for none."""
        run = self._runs.get(run_id)
        if run is None or not who.sees(run):
            raise Refusal(404, self.missing(who, run_id))
        return run

    def called(self, who: Principal, word: str, drivers: Sequence[Seat] = ()) -> str:
        """The number of what people call by a name: of the only open run, or driver of these, that has it and that it
        sees; else of the run that has ended latest. A number is its own. Raises Refusal: 404 for none, 409 where
        several are open."""
        if word.isdecimal():
            return word
        same = {run.whole: run for run in self._runs.values() if run.name == word and who.sees(run)}
        alive = {number: run.user for number, run in same.items() if run.is_open}
        alive |= {one.id: one.user for one in drivers}
        if len(alive) > 1:
            them = listed([f"{number} ({user})" for number, user in alive.items()], 8)
            raise Refusal(409, f"{word!r} is the name of {len(alive)} open runs: say which by its number: {them}")
        if not alive and not same:
            self._check_array(who, word)
            raise Refusal(404, self.missing(who, word))
        return next(iter(alive)) if alive else max(same.values(), key=lambda run: (run.ended_at or 0.0, int(run.id))).id

    def _check_array(self, who: Principal, word: str) -> None:
        """Raises Refusal (404), with their numbers, where open runs are of an array of that name."""
        every = [run for run in self._runs.values() if run.name.startswith(f"{word}[") and run.is_open]
        if them := [f"{run.name} ({run.id})" for run in every if who.sees(run)]:
            raise Refusal(
                404, f"{word!r} is the name of an array, and one of its runs is meant here: {listed(them, 8)}"
            )

    def missing(self, who: Principal, run_id: str) -> str:
        """What is said of a run that is not there for who asks; where its name was given, which ones have it."""
        runs = () if run_id.isdecimal() else self._runs.values()
        same = [run.id for run in runs if run.name == run_id and who.sees(run)][::-1]
        if not same:
            return f"there is no run {run_id!r}: `egs ps` lists those that are open, with --all also what has ended"
        return f"{run_id!r} is a name, and a run is meant by its number here: {listed(same, 3)}"

    def changeable(self, who: Principal, run_id: str) -> Run:
        """Its user's, or an operator's; from its own host, where a host asks. Raises Refusal (403, 404)."""
        run = self.visible(who, run_id)
        if not who.may_change(run):
            whose = f"run {run_id} is of {run.user}" + (f", team {run.team}" if run.team else "")
            raise Refusal(403, f"{whose}: only that user and operators may change it")
        if who.host and run.host != who.host:
            raise Refusal(403, f"run {run_id} is on host {self._name_of(run.host)}: change it there")
        return run

    def check_whole(self, who: Principal, run: Run) -> None:
        """Raises Refusal (403) where a host that has joined would change what others have a part of."""
        if who.host and run.is_request and run.gang:
            raise Refusal(403, f"request {run.whole} is over several hosts: change it on host {self._name_of('')}")

    def held(self, who: Principal, run_id: str) -> Run:
        """For whom it was submitted: its supervisor, on its host. Raises Refusal (403, 404, 409)."""
        run = self.visible(who, run_id)
        if not who.may_hold(run):
            raise Refusal(403, f"run {run_id} is of {run.user}: only its own supervisor speaks for it")
        if run.is_request:
            raise Refusal(409, f"run {run_id} is a GPU request, and has no supervisor: `egs run --in {run_id}`")
        if run.host != who.host:
            raise Refusal(403, f"run {run_id} is on host {self._name_of(run.host)}: its supervisor is there")
        return run
