"""What `egs profile` has of a site server: the flavors of this host's GPUs, runs on them, and runs before."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec
from pydantic import ValidationError

from egs_core.cli.starting import say, supervised
from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, connected, trusted_owners
from egs_core.client.jobs import Job
from egs_core.client.options import option_error
from egs_core.client.places import URL, Address, find_address, has_listener
from egs_core.client.supervise import request_of
from egs_core.errors import EgsError
from egs_core.profiling.running import NO_GPU, Ran, with_batch
from egs_core.profiling.sampling import Sampler
from egs_core.profiling.tiers import Measured


def site_here() -> Address | None:
    """The server that can be asked; None where none is named, and the socket of one here is what it left."""
    found = find_address()
    is_left = found is not None and found.socket is not None and not os.environ.get(URL)
    return None if found is None or (is_left and found.socket and not has_listener(found.socket)) else found


def site_flavors(address: Address, ask: Mapping[str, object]) -> list[str]:
    """Of those of the server's GPUs that a run of this host may have so many of. ask: its name, GPUs and
    queue. Raises EgsError where it has none."""
    _request(ask, NO_GPU)  # what is wrong with it is said of it, not of its flavors
    with connected(address) as client:
        flavors = dict.fromkeys(_flavor(one) for one in client.runs().devices)
        found, refused = list[str](), "the site server has no GPUs"
        for flavor in flavors:
            try:
                client.check(_request(ask, flavor))
            except Refused as error:  # on another host, or too few
                refused = str(error)
            else:
                found.append(flavor)
    if not found:
        raise EgsError(f"egs profile: {refused}")
    return found


def _request(ask: Mapping[str, object], flavor: str) -> c.RunRequest:
    try:
        return request_of(_fields(ask, flavor))
    except ValidationError as error:
        raise option_error(error) from None


def _fields(ask: Mapping[str, object], flavor: str) -> dict[str, object]:
    return {**ask, **({"flavors": [flavor]} if flavor != NO_GPU else {})}


def _flavor(device: c.Device) -> str:
    return device.flavor or NO_GPU


def run_at_site(
    address: Address, command: Sequence[str], ask: Mapping[str, object], gpus: int, flavor: str, batch: int | None
) -> Ran:
    """A run of the command with GPUs of this flavor, to its end."""
    job = Job(with_batch(command, batch), os.getcwd(), _fields(ask, flavor))
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
