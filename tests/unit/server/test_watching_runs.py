"""What rules make of what runs do and tell: idle GPUs, work, losses, checkpoints, lengths. No clock, no process."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.server.watching.watcher import Watcher
from tests.unit.server.site_steps import ANN, ROOT, end, start
from tests.unit.server.watched_site import WATCHED, Site, ok


def test_a_run_that_holds_gpus_and_does_nothing_is_stopped() -> None:
    """None of its GPUs has computed for so long since it began; one that cannot tell counts as work."""
    site = Site("[{name: idle, when: {idle_for: 60s}, do: [stop]}]")
    idle = [ok("0", busy=0.0), ok("1", busy=0.0), ok("2")]
    site.see(500, idle)
    run = start(site.logic, 1, 2)
    for _ in range(5):
        site.see(10, idle)
    assert site.logic.view(ANN, run.id).state == "running"  # that they did nothing before it is not its fault
    site.see(10, idle)
    told = site.logic.view(ANN, run.id)
    assert told.stop.startswith("aborted by rule idle: run 1 (job1) holds 2 GPUs, of which none has computed for 60 s")
    busy = Site("[{name: idle, when: {idle_for: 60s}, do: [stop]}]")
    start(busy.logic, 1, 2)
    unknown = Site("[{name: idle, when: {idle_for: 60s}, do: [stop]}]")
    start(unknown.logic, 1, 2)
    for _ in range(20):
        busy.see(10, busy=0.0)  # its second one works
        unknown.see(10, [ok("0", busy=0.0), ok("1", busy=None), ok("2")])
    assert (busy.did(), unknown.did()) == ([], [])


def test_a_run_that_told_of_its_work_and_no_longer_does() -> None:
    """One that never told is left alone, and so is a new attempt until it has had its time."""
    site = Site("[{name: stuck, when: {no_progress_for: 60s}, do: [stop]}]")
    silent, stuck = start(site.logic, 1), start(site.logic, 2)
    site.see(10)
    site.rules.health(site.logic.now).told(stuck.id, site.logic.now)
    site.see(59)
    assert site.did() == []
    site.see(1)
    assert site.did() == [("stop", stuck.id, "done")]
    assert site.logic.view(ANN, silent.id).state == "running"


def test_a_run_whose_loss_is_none_or_does_not_fall() -> None:
    """By what its heartbeats say, of the lease that it has; while it has told nothing, or too little, nothing is known.
    Where it is stands in its view until it ends."""
    site = Site(
        "[{name: none, when: {loss: nan}, for: 0, do: [stop]}, "
        "{name: flat, when: {loss_not_falling_for: 60s}, do: [alert]}, "
        "{name: steps, when: {loss_not_falling_steps: 100}, do: [alert]}]"
    )
    watcher = Watcher(site.rules.rules, WATCHED)
    watcher.site_rules = site.rules
    run, silent = start(site.logic, 1), start(site.logic, 2)

    def tells(step: int, loss: float, *, is_nan: bool = False, token: int | None = None) -> None:
        view = site.logic.view(ANN, run.id)
        assert view.lease is not None
        told = c.Progress(
            step=step, loss=loss, is_nan=is_nan, losses=step, total=loss * step, squares=loss * loss * step
        )
        beat = c.Beat(token=view.lease.token if token is None else token, progress=told)
        if site.logic.beat(ANN, run.id, beat).lease is not None and token is None:
            watcher.told(site.logic, run.id, beat)

    def alerts() -> list[str]:
        return [one.rule for one in site.see(6)]

    site.see()
    for n in range(1, 25):
        tells(n, 2.0)
        assert alerts() == (["flat"] if n == 10 else [])
    found = site.logic.view(ANN, run.id).progress
    assert found is not None
    assert found.words == "step 24, loss 2"
    assert found.told_at == pytest.approx(1000.0 + site.logic.now - 6)
    tells(99, 0.5, token=-5)  # of another lease
    assert site.logic.view(ANN, run.id).progress == found
    tells(130, 2.0)
    assert alerts() == []
    tells(200, 2.0)
    assert alerts() == ["steps"]
    tells(201, 2.0, is_nan=True)
    site.see(1)
    told = site.logic.view(ANN, run.id)
    assert told.stop == "aborted by rule none: run 1 (job1) tells a loss that is NaN"
    assert told.progress is not None
    assert told.progress.words == "step 201, loss is NaN"
    end(site.logic, told)
    assert site.logic.view(ANN, run.id).progress is None
    unknown = [rule.unknown for rule in site.rules.view(site.logic.book, ROOT).rules]
    assert (site.logic.view(ANN, silent.id).state, unknown) == ("running", [1, 1, 1])


def test_a_run_is_asked_for_checkpoints() -> None:
    """Again and again, each time after so long, or as long as is worth it; in its view and in the log. It takes nothing
    from the bound of an hour. Who has not said how is left alone, and so is a run that is about to end."""
    head = "dry_run: false\nmost_an_hour: 1\n"
    site = Site("[{name: save, when: {unsaved_for: 5m}, do: [checkpoint]}]", head)
    mute, run = start(site.logic, 1), start(site.logic, 2, saving=c.Saving(signal="USR1"))
    for asked in range(4):
        told = site.logic.view(ANN, run.id)
        assert (told.checkpoints, told.checkpoint_signal) == (asked, "USR1")
        site.see(300)
    assert site.did() == [("checkpoint", run.id, "done")] * 4
    why = "rule save", "checkpoint", run.id
    assert [one for one in site.logged() if one[0] == "rule save"] == [why] * 4
    assert site.rules.view(site.logic.book, ROOT).done[-1].text.endswith("for 300 s, at least 5m")
    assert site.logic.view(ANN, mute.id).checkpoints == 0
    auto = Site("[{name: save, when: {unsaved_for: auto}, do: [checkpoint]}]")
    run = start(auto.logic, 1, saving=c.Saving(signal="HUP", takes_s=50))
    auto.see(2930)  # √(2 · 50 s · a day) is 2,939 s
    assert auto.did() == []
    auto.see(15)
    assert auto.did() == [("checkpoint", run.id, "done")]
    assert (
        "; one takes 50s, a run fails every 24 h: worth it each 2939 s"
        in auto.rules.view(auto.logic.book, ROOT).done[-1].text
    )
    hot = Site("[{name: hot, when: {temperature_above: 60}, for: 0, do: [drain, checkpoint, hook]}]")
    runs = [start(hot.logic, 1, 0.5), start(hot.logic, 2, 0.5, saving=c.Saving(signal="USR2"))]
    hot.see(temperature_c=70)
    assert hot.did() == [
        ("drain", "host/0", "done"),
        ("checkpoint", runs[0].id, "left"),
        ("checkpoint", runs[1].id, "done"),
        ("hook", "host/0", "done"),
    ]
    assert ("rule hot", "hook", "host/0") in hot.logged()


def test_a_run_that_takes_longer_than_it_ever_did() -> None:
    """Of the same user, name and GPUs, also by their flavor, at least 20 have succeeded; the 99th percentile is that of
    their lengths. On a slower GPU nothing is known of it yet."""
    site = Site("[{name: long, when: {over_learned: 2}, do: [alert]}]")
    kinds = zip(WATCHED.devices, ("A100", "A100", "T4"), strict=True)
    unlike = tuple([msgspec.structs.replace(one, flavor=flavor) for one, flavor in kinds])
    site.logic.offer(msgspec.structs.replace(WATCHED, devices=unlike))
    site.logic.occupied({})
    for _ in range(20):
        run = start(site.logic, 7 + len(site.logic.runs), 1, name="fit", flavors=("A100",))
        site.logic.at(site.logic.now + 30)
        end(site.logic, run)
    long = start(site.logic, 900, 1, name="fit", flavors=("A100",))
    new, slow = start(site.logic, 901, 1, name="other"), start(site.logic, 902, 1, name="fit", flavors=("T4",))
    assert (site.see(60), site.see(1)[0].subject) == ([], long.id)
    assert site.see(1000) == []
    assert [site.logic.view(ANN, one.id).state for one in (new, slow)] == ["running", "running"]
