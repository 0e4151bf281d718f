"""The journal on a disk that crashes and forgets, at every step: what was acknowledged is never gone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from egs_core.driver.journal import Journal, recover
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.testing.fault_sim.disk import Crash, SimulatedDisk

PATH = Path("j")
LAST = 12


def make_disk(seed: int) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), Counter())


def open_journal(disk: SimulatedDisk) -> Journal:
    if disk.is_taken(PATH):
        return Journal.resume(PATH, compact_every=4, sync=True, storage=disk)
    return Journal(PATH, Engine(EngineConfig(record=True)), compact_every=4, sync=True, storage=disk)


def write(disk: SimulatedDisk, first: int) -> int:
    """Open the journal and add node after node from number `first` on; returns the number at which that failed, -1
    when the journal did not get opened."""
    number = -1
    try:
        journal = open_journal(disk)
        for number in range(first, LAST):
            event = m.NodeAdded(f"n{number}", 1.0)
            journal.engine.handle(event, 0.0)
            journal.append(event, 0.0, journal.engine.take_transitions())
    except (Crash, OSError):
        return number
    return LAST


def nodes(disk: SimulatedDisk) -> int:
    return len(recover(PATH, disk).state.nodes)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_outlives_every_power_cut(seed: int) -> None:
    """The process dies at any writing step, a second one goes on and dies at any later one, the machine loses power:
    all that either had acknowledged is there, and at most the entry that was being written besides."""
    reached = 0
    for fuse in range(1, 50):
        disk = make_disk(seed * 1000 + fuse)
        open_journal(disk)
        disk.fuse = fuse
        failed = write(disk, 0)
        reached = max(reached, failed)
        found = nodes(disk)
        assert failed <= found <= failed + 1
        disk.fuse = 1 + fuse % 7
        failed = max(failed, write(disk, found))
        disk.fuse = None
        disk.power_cut()
        assert failed <= nodes(disk) <= max(found, failed + 1)
        assert write(disk, nodes(disk)) == LAST
    assert reached == LAST


@pytest.mark.parametrize("error", range(1, 12))
def test_a_disk_error_leaves_what_was_there(error: int) -> None:
    """The entry that the disk did not take is gone as a whole, and the next process goes on."""
    disk = make_disk(error)
    open_journal(disk)
    disk.error = error
    failed = write(disk, 0)
    assert failed < LAST
    assert failed <= nodes(disk) <= failed + 1
    assert write(disk, nodes(disk)) == LAST
    assert nodes(disk) == LAST


def test_a_power_cut_takes_what_was_not_synced() -> None:
    """The disk is as bad as it says: without sync entries do get lost, so the tests above can fail."""
    lost = 0
    for seed in range(20):
        disk = make_disk(seed)
        journal = Journal(PATH, Engine(EngineConfig(record=True)), storage=disk)
        journal.engine.handle(m.NodeAdded("n0", 1.0), 0.0)
        journal.append(m.NodeAdded("n0", 1.0), 0.0, journal.engine.take_transitions())
        disk.power_cut()
        lost += not nodes(disk)
    assert lost > 5
