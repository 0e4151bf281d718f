"""`python -m egs_core.dashboard HANDLE SOCKET PORT [--secure] [--behind-proxy] [--prices=FILE]`, as `egs serve` starts
it: HANDLE is of the listening socket that it has made, SOCKET the server's own, PORT that of its address. Ends as soon
as its stdin does: then the server is gone."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

import uvicorn

from egs_core.cost.prices import Prices, load_prices
from egs_core.dashboard.app import make_app
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.measured import measured
from egs_core.errors import InputError
from egs_core.json_log import uvicorn_options

PRICES = "--prices="


def main(arguments: list[str]) -> None:
    handle, site, port, *options = arguments
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    is_secure, behind_proxy = "--secure" in options, "--behind-proxy" in options
    prices = next((one.removeprefix(PRICES) for one in options if one.startswith(PRICES)), "")
    app = make_app(
        Asking(Path(site)),
        measured,
        int(port),
        is_secure=is_secure,
        behind_proxy=behind_proxy,
        prices=_prices(Path(prices)) if prices else None,
    )
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        **uvicorn_options(),
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(handle))])


def _prices(path: Path) -> Prices | None:
    """As the server has read them when it started; none where the file is another one by now, and no good."""
    try:
        return load_prices(path).for_all(time.time())
    except InputError as error:
        logging.getLogger("uvicorn.error").warning("the dashboard tells no money: %s", error)
        return None


def _end_with_the_server() -> None:
    """At once: it has nothing to save, and streams that are open would last."""
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
