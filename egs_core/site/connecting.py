"""The site of a holder: the server that `EGS_URL` names, or another, for holders that can share one, else its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from egs_core.engine import EngineConfig
from egs_core.errors import EgsError
from egs_core.notices import warn
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.messages import Joining
from egs_core.site.protocol import Holder, Site

URL = "EGS_URL"
NOT_AGAIN_S = 60.0
_failed: dict[str, float] = {}  # url -> until when (monotonic) that server is not asked again


def connect_server(url: str, holder: Holder, joining: Joining) -> Site:
    """The holder's site at that server, not yet started, and no other. Raises EgsError where there is none, or it does
    not take the holder."""
    from egs_core.site.over_http import join  # brings requests, which only this needs

    return join(url, joining, holder)


def _returning(url: str, config: EngineConfig, holder: Holder, joining: Joining, logs_waits: bool) -> Site:
    """The holder's site at that server, or at home while that is away."""
    from egs_core.site.holder_thread import HolderThread
    from egs_core.site.over_http import join
    from egs_core.site.remote import RemoteSite
    from egs_core.site.returning import ReturningSite

    def rejoin(inner: Holder, own: HolderThread, back: bool) -> RemoteSite:
        return join(url, joining, inner, own, back=back)

    return ReturningSite(rejoin, config, holder, f"the site server at {url}", logs_waits=logs_waits)


def connect(
    config: EngineConfig,
    holder: Holder,
    *,
    logs_waits: bool = True,
    joining: Joining | None = None,
    elsewhere: Callable[[Holder], Site] | None = None,
) -> Site:
    """The holder's site, not yet started: at the server that `EGS_URL` names, where the holder says how it joins and
    that server takes it; where none is named, the one that `elsewhere` joins, if that is given; else in its own
    process; so it is while the server is away. config: of its own engine; others have theirs. logs_waits: whether the
    run log gets a line when a phase becomes ready, and why it waits, also before it is granted."""
    url = os.environ.get(URL, "").strip()
    if joining is not None and url and _failed.get(url, 0.0) <= time.monotonic():
        try:
            return _returning(url, config, holder, joining, logs_waits)
        except Exception as error:  # whatever it is, the pipeline runs
            _failed[url] = time.monotonic() + NOT_AGAIN_S
            _say_alone(error)
    elif elsewhere is not None and not url:
        try:
            return elsewhere(holder)
        except Exception as error:
            _say_alone(error)
    return EmbeddedSite(config, holder, logs_waits=logs_waits)


def _say_alone(error: Exception) -> None:
    said = str(error) if isinstance(error, EgsError) else f"{type(error).__name__}: {error}".splitlines()[0]
    warn(f"{said}: this process orders its own work, without the others of the site")
