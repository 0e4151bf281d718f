"""The site of a holder."""

from __future__ import annotations

from egs_core.engine import EngineConfig
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.protocol import Holder, Site


def connect(config: EngineConfig, holder: Holder, *, logs_waits: bool = True) -> Site:
    """The holder's site, not yet started: for now always one in its own process. config: of its engine. logs_waits:
    whether the run log gets a line when a phase becomes ready, and why it waits, also before it is granted."""
    return EmbeddedSite(config, holder, logs_waits=logs_waits)
