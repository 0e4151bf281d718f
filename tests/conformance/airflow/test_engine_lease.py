"""The lease of the agent that hosts the engine, in a real Airflow's metadata: its store's promises; agents at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from egs_airflow.agent.lease import Lease, Record
from egs_airflow.agent.lease_store import ConnectionStore
from egs_airflow.rest import Rest
from egs_core.errors import InputError
from tests.conformance.airflow.live import LiveAirflow

AT_ONCE = 4
TTL_S = 2.0


def test_the_lease_in_airflows_metadata(airflow: LiveAirflow) -> None:
    """Of several that create one record at once exactly one is not refused; agents that tick at once agree on one
    holder; one that is silent loses it within its time to live, and can then write neither record nor order."""
    stores = [ConnectionStore(Rest(airflow.url, airflow.token)) for _ in range(AT_ONCE)]
    for epoch in stores[0].texts():
        stores[0].remove(epoch)
    refused = _at_once([partial(store.create, 1, Record("test").text()) for store in stores])
    assert sum(isinstance(error, InputError) for error in refused) == AT_ONCE - 1, refused
    assert all("409" in str(error) for error in refused if error is not None), refused
    assert stores[1].replace(1, Record("").text())
    now_s = [0.0]  # the agents' clock: what is asked of a busy Airflow may take longer than a lease lives
    leases = [Lease(store, f"agent {number}", TTL_S, lambda: now_s[0]) for number, store in enumerate(stores)]
    assert not any(_at_once([lease.tick for lease in leases]))
    (holder,) = (lease for lease in leases if lease.epoch and lease.holder_seen == lease.holder)
    others = [lease for lease in leases if lease is not holder]
    assert list(stores[0].texts()) == [2]
    assert stores[0].publish(2, '{"v": 1}')

    assert not any(lease.tick() for lease in others)
    now_s[0] = TTL_S
    (after,) = (lease for lease in others if lease.tick())
    assert not holder.tick()
    assert (after.epoch, list(stores[0].texts())) == (3, [3])
    assert not stores[0].replace(2, Record(holder.holder).text())
    assert not stores[0].publish(2, "too late")
    after.release()
    assert Lease(stores[0], "next", TTL_S, lambda: now_s[0]).tick()
    with pytest.raises(InputError, match="refuses"):
        ConnectionStore(Rest(airflow.url, "wrong")).texts()


def _at_once(acts: list[Callable[[], object]]) -> list[Exception | None]:
    """What each of them has raised."""
    barrier, raised = threading.Barrier(len(acts)), dict[int, Exception]()

    def run(number: int) -> None:
        barrier.wait()
        try:
            acts[number]()
        except Exception as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [raised.get(number) for number in range(len(acts))]
