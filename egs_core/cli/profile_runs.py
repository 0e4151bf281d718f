"""What `egs profile` has of a site server: the flavors of this host's GPUs, runs on them, and runs before."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from egs_core.cli.starting import say, supervised
from egs_core.client import messages as c
from egs_core.client.http import SiteClient, connected, trusted_owners
from egs_core.client.jobs import Job
from egs_core.client.places import Address
from egs_core.errors import EgsError
from egs_core.profiling.running import NO_GPU, Ran, with_batch
from egs_core.profiling.sampling import Sampler
from egs_core.profiling.tiers import Measured


def site_flavors(address: Address) -> list[str]:
    """Of the GPUs that the server has. Raises EgsError where it has none."""
    with connected(address) as client:
        devices = client.runs().devices
    if not devices:
        raise EgsError("egs profile: the site server has no GPUs")
    return list(dict.fromkeys(_flavor(one) for one in devices))


def _flavor(device: c.Device) -> str:
    return device.flavor or NO_GPU


def run_at_site(address: Address, command: Sequence[str], name: str, gpus: int, flavor: str, batch: int | None) -> Ran:
    """A run of the command with GPUs of this flavor, to its end."""
    fields: dict[str, object] = {"name": name, "gpus": gpus, **({"flavors": [flavor]} if flavor != NO_GPU else {})}
    job = Job(with_batch(command, batch), os.getcwd(), fields)
    found: list[str] = []
    client = SiteClient(address, trusted_owners())

    def devices() -> Sequence[str] | None:
        view = client.view(found[0]) if found else None
        return view.lease.devices if view is not None and view.lease is not None and view.lease.claimed else None

    sampler = Sampler(devices, os.getpid())

    def known(view: c.RunView) -> None:
        found.append(view.id)
        sampler.start()

    code = supervised(address, job)(say, known)
    sampled = sampler.stop()
    with connected(address) as own:
        view = own.view(found[0])
    client.close()
    if code or view.started_at is None or view.ended_at is None:
        return Ran(flavor, batch, code or 1)
    seen = msgspec.structs.asdict(sampled)
    seconds = view.ended_at - view.started_at
    measured = Measured(flavor, seconds, float(gpus), batch=batch, work=view.work, ended_at=view.ended_at, **seen)
    return Ran(flavor, batch, 0, measured)


def past_of_site(address: Address, name: str) -> list[Measured]:
    """Its runs of this name that succeeded, each on GPUs of one flavor. Of their memory nothing is known."""
    with connected(address) as client:
        runs = client.runs(with_ended=True).runs
    return [
        Measured(run.flavor, run.ended_at - run.started_at, run.gpus, work=run.work, ended_at=run.ended_at)
        for run in runs
        if run.name == name and run.outcome == "succeeded" and run.flavor and run.started_at and run.ended_at
    ]
