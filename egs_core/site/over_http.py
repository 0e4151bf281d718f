"""The way to a site server (see `remote`): two kept connections, of the sender and of the poller."""

from __future__ import annotations

import uuid

from egs_core.client import messages as c
from egs_core.client.http import DRIVER_S, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import Address, parse_url
from egs_core.notices import warn
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.holder_thread import HolderThread
from egs_core.site.protocol import Holder
from egs_core.site.remote import RemoteSite

CONNECT_S = 2.0


def join(
    url: str, joining: s.Joining, holder: Holder, own: HolderThread | None = None, *, back: bool = False
) -> RemoteSite:
    """Join the pool at a server. own: see `RemoteSite`; back: the holder was there before. Raises EgsError where there
    is none, or it does not take the holder."""
    address = parse_url(url)
    ask = c.DriverRequest(
        key=uuid.uuid4().hex,
        framework=joining.framework,
        pool=joining.pool,
        name=joining.name[:200],
        queue=joining.queue,
        back=back,
    )
    client = _client(address)
    try:
        driver = client.join(ask)
    except BaseException:
        client.close()
        raise
    if driver.notice and not back:
        warn(driver.notice)
    takes = {"wants_progress": driver.wants_progress, "takes_flavors": driver.takes_flavors}
    joined = wire.Joined(driver.id, driver.epoch, driver.now, driver.queue, **takes)
    return RemoteSite(HttpLine(client, _client(address), joined), joined, holder, own)


def _client(address: Address) -> SiteClient:
    return SiteClient(address, trusted_owners(), CONNECT_S)


class HttpLine:
    """A `Line`."""

    silences: tuple[type[Exception], ...] = (Unreachable,)

    def __init__(self, client: SiteClient, poll_client: SiteClient, driver: wire.Joined) -> None:
        self._client, self._poll_client, self._driver = client, poll_client, driver

    def batch(self, body: bytes) -> bytes:
        return self._client.send("POST", f"/v1/drivers/{self._driver.id}/batch", body, DRIVER_S)

    def poll(self, ack: int, wait_s: float) -> bytes:
        ask = c.Poll(epoch=self._driver.epoch, ack=ack, wait_s=wait_s)
        body = ask.model_dump_json().encode()
        return self._poll_client.send("POST", f"/v1/drivers/{self._driver.id}/poll", body, wait_s + DRIVER_S)

    def leave(self) -> None:
        try:
            self._client.leave(self._driver.id, c.Leave(epoch=self._driver.epoch))
        finally:
            self._client.close()

    def close_poll(self) -> None:
        self._poll_client.close()
