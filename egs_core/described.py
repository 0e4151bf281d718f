"""Types that more than one thread may be the first to decode."""

from __future__ import annotations

from typing import Any

import msgspec


def describe(*kinds: Any) -> None:
    """Have msgspec describe these types now, else it does so when it first decodes one: two threads that both begin
    with that end the process (SIGSEGV). To be called where a module is imported, which one thread does for all."""
    for kind in kinds:
        msgspec.json.Decoder(kind)  # `msgspec.convert` uses the same description, which the type keeps
