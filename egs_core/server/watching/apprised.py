"""One alert to one address of Apprise, in a process of its own: it loads a hundred services, of which the server, whose
process holds everybody's leases, has none.

    {"url": …, "title": …, "body": …} on standard input ─► exit code 0; else what went wrong on standard output
"""

from __future__ import annotations

import importlib.util
import json
import sys

MISSING = "Apprise is not installed: `pip install 'egs-core[alerts]'`"


def is_there() -> bool:
    return importlib.util.find_spec("apprise") is not None


def main() -> int:
    """Nothing that it prints has the address, which is a secret."""
    if not is_there():
        print(MISSING)
        return 1
    import apprise

    told = json.load(sys.stdin)
    sender = apprise.Apprise()
    if not sender.add(told["url"]):
        print("it is no address that this version of Apprise knows")
        return 1
    if not sender.notify(title=told["title"], body=told["body"], notify_type=apprise.NotifyType.WARNING):
        print("it could not be sent")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
