"""Who changed what, as lines of the server's log once it is durable: with EGS_LOG=json. Else nothing is made of them;
`egs server log` has them in any case."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from egs_core.json_log import FIELDS
from egs_core.server.book import LogLine

EVENTS = logging.getLogger("egs.events")


def tell(lines: Iterable[LogLine], epoch: float) -> None:
    """epoch: second since 1970 at which the site's clock is 0."""
    if EVENTS.isEnabledFor(logging.INFO):
        for line in lines:
            fields = {
                "event": line.verb,
                "run": line.run,
                "user": line.who.name,
                "role": line.who.role,
                "team": line.team,
                "detail": line.text,
                "at": round(epoch + line.at, 3),
            }
            EVENTS.info("%s %s", line.verb, line.run, extra={FIELDS: fields})
