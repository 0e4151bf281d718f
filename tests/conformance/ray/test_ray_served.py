"""A session cannot tell its own process's site from one at a server: values, order, gangs, aborts and answers there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from egs_core.site.returning import ReturningSite
from egs_ray import Session
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray import test_ray_gang as gang
from tests.conformance.ray import test_ray_preload as preload
from tests.conformance.ray import test_ray_run as run
from tests.unit.server.own_server import OwnServer

pytestmark = [pytest.mark.usefixtures("ray_address"), pytest.mark.slow]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, ray_address: str) -> Iterator[Session]:
    """A session for all tests of this module, whose site is at a server."""
    assert ray_address
    with TemporaryDirectory(prefix="egs-") as folder, pytest.MonkeyPatch.context() as patch:
        server = OwnServer(Path(folder))
        patch.setenv("EGS_URL", server.url)
        with t.session(tmp_path_factory.mktemp("served")) as made:
            assert isinstance(made.site, ReturningSite)
            yield made
            assert made.site.is_alive
        server.close()


def test_values_are_as_native(served: Session) -> None:
    """A graph with phases and fan-in gives what Ray gives."""
    run.test_values_equal_native(served)


def test_errors_are_as_native(served: Session, tmp_path: Path) -> None:
    """A failing task ends its run as Ray has it, and what runs beside it ends well."""
    run.test_errors_are_as_native(served, tmp_path)


@pytest.mark.proves("ray site run", "order")
def test_task_with_dependents_goes_first(served: Session, tmp_path: Path) -> None:
    """The order is the server's."""
    run.test_task_with_dependents_goes_first(served, tmp_path)


def test_why_and_timeouts(served: Session, tmp_path: Path) -> None:
    """The answer to why comes from the server."""
    run.test_why_and_timeouts(served, tmp_path)


@pytest.mark.proves("ray site run", "abort", "split")
def test_abort_between_and_before_phases(served: Session, tmp_path: Path) -> None:
    """What waits is dropped, what is between two phases is stopped, and the run ends."""
    run.test_abort_between_and_before_phases(served, tmp_path)


@pytest.mark.proves("ray site run", "preload")
def test_is_warm_before_its_predecessor_ends(served: Session, tmp_path: Path) -> None:
    """A preload is the server's decision, and a driver's processes its own."""
    preload.test_is_warm_before_its_predecessor_ends(served, tmp_path)


@pytest.mark.proves("ray site run", "gang", "split")
def test_a_mixed_gang_starts_each_phase_together(served: Session, tmp_path: Path) -> None:
    """Grants of a gang come one by one, and it starts when all have."""
    gang.test_a_mixed_gang_starts_each_phase_together(served, tmp_path)


def test_a_killed_member_restarts_its_gang(served: Session, tmp_path: Path) -> None:
    """A stop that starts again comes from the server; a grant of the new attempt may come before the old one's end."""
    gang.test_a_killed_member_restarts_its_gang(served, tmp_path)
