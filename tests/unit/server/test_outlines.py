"""What a site tells of its runs to whoever draws them: what has changed since, some at a time, of the asker's teams."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.client.messages import Runs
from egs_core.client.outlines import Outlines
from egs_core.cost.served import uses_of_runs
from egs_core.server import outlines as module
from egs_core.server.outlines import Changes, outlines, outlines_steps
from egs_core.server.principals import Principal
from tests.unit.server.real_app import FILE, Asker, RealApp
from tests.unit.server.site_steps import ANN, behind, end, request, start, three_devices


@pytest.fixture
def app() -> Iterator[RealApp]:
    found = RealApp(FILE)
    yield found
    found.close()


def told(asker: Asker, epoch: str = "", since: int = 0) -> dict[str, object]:
    answer = asker.get(f"/v1/outlines?epoch={epoch}&since={since}")
    assert answer.status == 200, answer.body
    found: dict[str, object] = answer.told
    return found


def names(found: dict[str, object]) -> list[str]:
    runs = found["runs"]
    assert isinstance(runs, list)
    return [run["name"] for run in runs]


def test_a_team_sees_its_own(app: RealApp) -> None:
    """Nothing of another team's runs; an admin sees all, and a token that sees nothing is refused."""
    ann, bob = app.token("submitter", "vision", "ann"), app.token("submitter", "speech", "bob")
    ann.submit("vision-1", name="secret")
    bob.submit("speech-1", name="own")
    answer = bob.get("/v1/outlines")
    assert (names(answer.told), b"secret" in answer.body) == (["own"], False)
    assert names(told(app.admin)) == ["secret", "own"]
    assert app.token("agent").get("/v1/outlines").status == 403
    assert app.over_tcp().get("/v1/outlines").status == 401


def test_only_what_has_changed_is_told_again(app: RealApp) -> None:
    """By number; after another start, of which the epoch tells, all of it."""
    first = app.admin.submit("first-key", name="first", queue="common").told["id"]
    app.admin.submit("other-key", name="second", queue="common")
    before = told(app.admin)
    assert names(before) == ["first", "second"]
    again = told(app.admin, str(before["epoch"]), int(str(before["number"])))
    assert (names(again), again["number"], again["more"]) == ([], before["number"], False)
    app.admin.post(f"/v1/runs/{first}/abort", {"reason": "enough"})
    changed = told(app.admin, str(before["epoch"]), int(str(before["number"])))
    assert names(changed) == ["first"]
    assert int(str(changed["number"])) > int(str(before["number"]))
    assert sorted(names(told(app.admin, "another", int(str(before["number"]))))) == ["first", "second"]


def test_what_a_run_followed_is_told_also_when_that_has_ended() -> None:
    """Of runs that the asker sees alone."""
    site = three_devices()
    first = start(site, 1)
    second = site.submit(ANN, behind(2, first))
    assert {run.id: (run.follows, run.after) for run in outlines(site.book, Changes(site.runs), ANN).runs} == {
        first.id: ((), ()),
        second.id: ((first.id,), (first.id,)),
    }
    end(site, first)
    site.take()
    found = {run.id: run for run in outlines(site.book, site.changes, ANN).runs}
    assert (found[second.id].follows, found[second.id].after) == ((first.id,), ())
    assert (found[first.id].state, found[first.id].outcome) == ("ended", "succeeded")


def test_when_the_time_of_a_run_is_over_is_told() -> None:
    """Once it has its GPUs, and as long as it has them."""
    site = three_devices()
    boxed, free = start(site, 1, 3, for_s=50.0), site.submit(ANN, request(2, for_s=50.0))

    def ends() -> dict[str, float | None]:
        return {run.id: run.ends_at for run in outlines(site.book, Changes(site.runs), ANN).runs}

    began = boxed.started_at
    assert began is not None
    assert ends() == {boxed.id: began + 50.0, free.id: None}
    end(site, boxed)
    assert ends()[boxed.id] is None


def test_how_a_run_has_to_end_for_what_follows_is_told() -> None:
    """Where it need not succeed; also when it has ended, and of what an older server has kept."""
    site = three_devices()
    first, second = start(site, 1), start(site, 2)
    after = [c.After(run=first.id, when="failed"), c.After(run=second.id, when="any")]
    third = site.submit(ANN, request(3).model_copy(update={"after": after}))

    def when() -> dict[str, str]:
        return {run.id: run.when for run in outlines(site.book, Changes(site.runs), ANN).runs}[third.id]

    assert when() == {first.id: "failed", second.id: "any"}
    site.runs[third.id].follows_when = {}
    assert when() == {first.id: "failed", second.id: "any"}
    site.runs[third.id].follows_when = {first.id: "failed", second.id: "any"}
    end(site, second)
    site.take()
    assert (len(site.runs[third.id].after), when()) == (1, {first.id: "failed", second.id: "any"})
    site.runs[first.id].team, site.runs[second.id].team = "vision", "speech"
    of_speech = Principal("", "viewer", ("speech",))
    assert [(run.id, run.follows) for run in outlines(site.book, site.changes, of_speech).runs] == [(second.id, ())]


def test_many_are_told_in_parts_and_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer and no step has more than so many; asked again and again all come, once."""
    monkeypatch.setattr(module, "MOST_TOLD", 20)
    monkeypatch.setattr(module, "MOST_IN_A_STEP", 8)
    site = three_devices()
    for number in range(1, 51):
        site.submit(ANN, request(number))
    site.take()
    seen: list[str] = []
    epoch, since, more = "", 0, True
    while more:
        steps = outlines_steps(site.book, site.changes, ANN, epoch, since)
        count = 0
        while True:
            try:
                next(steps)
                count += 1
            except StopIteration as stop:
                found = stop.value
                break
        assert count <= 2
        assert len(found.runs) <= 24
        seen += [run.id for run in found.runs]
        epoch, since, more = found.epoch, found.number, found.more
    assert seen == [str(number) for number in range(1, 51)]
    site.changes.forget(["50"])
    assert site.changes.after(49) == []


def test_what_was_held_is_reckoned_the_same_from_outlines(app: RealApp) -> None:
    """As `egs cost` reckons from the runs themselves: of a run, one that waits, a GPU request and a command in it; and
    of a run that was evicted, and waits again, what it held before."""
    ann = app.token("submitter", "vision", "ann")
    view = ann.submit("held-run", gpus=1).told
    ann.post(f"/v1/runs/{view['id']}/claim", {"token": view["lease"]["token"]})
    ann.submit("waits", gpus=3)
    asked = ann.post("/v1/requests", {"key": "request-key", "gpus": 1, "for_s": 600})
    assert asked.status == 200, asked.body
    command = ann.submit("command-key", inside=asked.told["id"]).told
    ann.post(f"/v1/runs/{command['id']}/claim", {"token": command["lease"]["token"]})
    low = ann.submit("evicted-run", gpus=1, requeue=True).told
    token = low["lease"]["token"]
    ann.post(f"/v1/runs/{low['id']}/claim", {"token": token})
    high = ann.submit("goes-first", gpus=1, priority=9).told
    ann.post(f"/v1/runs/{low['id']}/end", {"token": token, "outcome": "evicted", "exit_code": 143})
    high = ann.get(f"/v1/runs/{high['id']}").told
    ann.post(f"/v1/runs/{high['id']}/claim", {"token": high["lease"]["token"]})
    runs = Runs.model_validate(ann.get("/v1/runs?ended=true").told)
    outlines = msgspec.json.decode(ann.get("/v1/outlines").body, type=Outlines)
    found = list(uses_of_runs(outlines.runs, outlines.now, runs.devices))
    assert found == list(uses_of_runs(runs.runs, outlines.now, runs.devices))
    assert [(use.gpus, use.team, len(use.used)) for use in found] == [(1.0, "vision", 1)] * 4
