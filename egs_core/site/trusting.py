"""Pools of drivers that trust one another: each may join, and use any queue."""

from __future__ import annotations

import msgspec

from egs_core.errors import listed
from egs_core.site import wire
from egs_core.site.pooled import About, SharedPools, batch_of
from egs_core.site.refusal import Refusal


class TrustingPools(SharedPools):
    """See the module."""

    def join(self, about: About) -> wire.Joined:
        """A seat in its pool. Raises Refusal for a queue that there is not."""
        driver = self._known(about.key, about.user)
        if driver is None:
            driver = self._joined(msgspec.structs.replace(about, queue=self._queue_for(about.queue)))
        return wire.Joined(driver.id, self._epoch, self._now, driver.queue, takes_flavors=True)

    def _queue_for(self, asked: str) -> str:
        if not self._names or asked in self._names:
            return asked
        if not asked and len(self._names) == 1:
            return self._names[0]
        said = f"there is no queue {asked!r}" if asked else "none is named"
        raise Refusal(422, f"queue: {said}; there are {listed(self._names)}: choose by EGS_QUEUE")

    def batch(self, driver_id: str, body: bytes) -> bytes:
        """See `SharedPools`. Raises Refusal."""
        batch = batch_of(body)
        return self._answers(self._heard(driver_id, batch.epoch), batch, self._names)

    def poll(self, driver_id: str, epoch: str, ack: int) -> tuple[wire.Message, ...]:
        """What the driver has not got yet; a sign of life. Raises Refusal."""
        return self._heard(driver_id, epoch).fetch(ack)

    def leave(self, driver_id: str) -> None:
        """The driver has gone, or needs the site no more."""
        if (driver := self._drivers.get(driver_id)) is not None:
            self._drop(driver)

    @property
    def is_empty(self) -> bool:
        """Whether nobody has joined."""
        return not self._drivers
