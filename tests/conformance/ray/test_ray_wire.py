"""A session cannot tell its own process's site from one behind a wire: order, gangs, aborts and answers there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.site import connecting
from egs_core.testing.wire_site import WireSite
from egs_ray import Session
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray import test_ray_gang as gang
from tests.conformance.ray import test_ray_run as run

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory, ray_address: str) -> Iterator[Session]:
    """A session for all tests of this module, on a site behind a wire; its messages were repeated."""
    assert ray_address
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "EmbeddedSite", WireSite)
        with t.session(tmp_path_factory.mktemp("wired")) as made:
            assert isinstance(made.site, WireSite)
            yield made
            assert made.site.repeated
            assert made.site.is_alive


@pytest.mark.slow
def test_values_are_as_native(wired: Session) -> None:
    """A graph with phases and fan-in gives what Ray gives."""
    run.test_values_equal_native(wired)


@pytest.mark.slow
def test_errors_are_as_native(wired: Session, tmp_path: Path) -> None:
    """A failing task ends its run as Ray has it, and what runs beside it ends well."""
    run.test_errors_are_as_native(wired, tmp_path)


def test_task_with_dependents_goes_first(wired: Session, tmp_path: Path) -> None:
    """The order is the site's."""
    run.test_task_with_dependents_goes_first(wired, tmp_path)


@pytest.mark.slow
def test_why_and_timeouts(wired: Session, tmp_path: Path) -> None:
    """The answer to why comes over the wire."""
    run.test_why_and_timeouts(wired, tmp_path)


@pytest.mark.slow
def test_abort_between_and_before_phases(wired: Session, tmp_path: Path) -> None:
    """What waits is dropped, what is between two phases is stopped, and the run ends."""
    run.test_abort_between_and_before_phases(wired, tmp_path)


@pytest.mark.slow
def test_a_mixed_gang_starts_each_phase_together(wired: Session, tmp_path: Path) -> None:
    """Grants of a gang come one by one, and it starts when all have."""
    gang.test_a_mixed_gang_starts_each_phase_together(wired, tmp_path)


def test_a_killed_member_restarts_its_gang(wired: Session, tmp_path: Path) -> None:
    """A stop that starts again crosses the wire; a grant of the new attempt may come before the old one's end."""
    gang.test_a_killed_member_restarts_its_gang(wired, tmp_path)
