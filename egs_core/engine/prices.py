"""What hardware costs: prices per hour and flavor, in one currency that nobody here needs to name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from egs_core.engine.columns import Columns

HOUR_S = 3600.0


class PriceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The price of one GPU and of one CPU for an hour, on nodes of a flavor; flavor "": on all that name none."""

    flavor: str = ""
    gpu_hour: float = 0.0
    cpu_hour: float = 0.0


def price_of(state: Columns, phase: int) -> float:
    """What a phase costs a second, by what it holds now; 0 where no price is known. Raises KeyError without lease."""
    lease, flavor = state.leases[phase], ""  # nodes name no flavor yet
    spec = next((spec for spec in state.prices if spec.flavor == flavor), None)
    if spec is None:
        return 0.0
    gpus = lease.gpu_milli * len(lease.devices) / 1000
    return (spec.gpu_hour * gpus + spec.cpu_hour * lease.cpu_milli / 1000) / HOUR_S
