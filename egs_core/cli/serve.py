"""`egs serve`: the server of a host's GPUs, for all who share them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from egs_core.budgets import Budget
from egs_core.calendar import Reservation, is_over
from egs_core.client.places import TOKEN, URL, parse_url, socket_here
from egs_core.cost.prices import Prices, load_prices
from egs_core.errors import EgsError, InputError, counted, listed
from egs_core.flavors import load_flavors, load_memory
from egs_core.json_log import VARIABLE as EGS_LOG
from egs_core.notices import warn
from egs_core.oidc import load_oidc
from egs_core.places import data_folder
from egs_core.queues import Teams, load_budgets, load_queues, load_reservations, load_teams
from egs_core.units import parse_seconds
from egs_core.watch_rules import Rules, load_rules

if TYPE_CHECKING:
    from egs_core.server import serving
    from egs_core.server.oidc import Provider

DEFAULT_PORT = 8470


def default_data() -> Path:
    """The server's data folder where none is named."""
    return data_folder() / "server"


@contextmanager
def needs_server(command: str) -> Iterator[None]:
    """Around imports of what a server is made of: says what to install where that is not there."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        raise EgsError(f"{command}: needs {missing}: pip install 'egs-core[server]'") from error


SHARED = {"join", "socket", "devices", "emulated_gpus", "log_format", "as_json"}
"""Options that `--join` goes with: all others are the server's own."""


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen at: a loopback one, unless there is TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")] = DEFAULT_PORT,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of its database, and of its socket where no other place has room; default: one of this user's."
        ),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Unix socket to listen at, as of a second server on this host: its clients set EGS_URL=unix://PATH. "
            "Default: /run/egs/egs.sock, or another place where clients look.",
        ),
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            envvar="EGS_DATABASE",
            help="PostgreSQL instead of a database in the folder: postgresql://USER@HOST/NAME. A second server "
            "with the same one stands by. A password belongs into ~/.pgpass, or into the variable.",
        ),
    ] = "",
    devices: Annotated[
        str, typer.Option(help="UUIDs of the GPUs to offer, with commas between; default: all that NVML finds.")
    ] = "",
    emulated_gpus: Annotated[
        str,
        typer.Option(
            help="Offer so many emulated GPUs, by ids from 0 on, or so many of some flavors, as a100=1,t4=2; 0: none, "
            "for work that needs no GPU. Refused where there are real ones."
        ),
    ] = "",
    flavors: Annotated[
        Path | None, typer.Option(help="YAML file of what GPUs of which flavor cost, and how fast they are.")
    ] = None,
    queues: Annotated[Path | None, typer.Option(help="YAML file with queues, their quotas, and teams.")] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="YAML file with the prices of GPUs, for budgets in money (`cost:`) and the dashboard."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(help="YAML file with rules by which it watches devices and runs (`egs watch check` reads it)."),
    ] = None,
    oidc: Annotated[
        Path | None,
        typer.Option(help="YAML file that names an OpenID Connect provider, and what its tokens give whom."),
    ] = None,
    join: Annotated[
        str,
        typer.Option(help="URL of a server that this host joins (several, with commas): it has none of its own then."),
    ] = "",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for TLS over TCP, with its chain, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, in PEM, without a passphrase.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of it adds TLS: any address may be listened at.")
    ] = False,
    rate: Annotated[
        float,
        typer.Option(min=0, help="Requests a second that anybody but an admin may make; 0: no bound."),
    ] = 500.0,
    log_format: Annotated[
        str, typer.Option(help=f"json: its log on standard error is one JSON object a line, as with {EGS_LOG}=json.")
    ] = "",
    gather: Annotated[
        str,
        typer.Option(
            help="So long, after its start, drivers of frameworks that were there before have to come back with what "
            "they run, before anything new is granted beside it."
        ),
    ] = "5s",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")] = False,
) -> None:
    """Share the GPUs of this host among users: `egs run` asks it for leases. Or, with --join, offer them to a server on
    another host, to commands that are started on this one. Ends on SIGINT or SIGTERM."""
    if log_format not in ("", "text", "json"):
        raise InputError("--log-format", f"{log_format!r} is unknown", "text or json")
    if log_format:
        os.environ[EGS_LOG] = log_format  # its dashboard's process has it from there
    chosen = [one.strip() for one in devices.split(",") if one.strip()]
    if join:
        _check_alone(ctx)
        _join(join, emulated_gpus, chosen, as_json, socket)
        return
    with needs_server("egs serve"):
        from egs_core.server.database import parse_database
        from egs_core.server.devices import host_offer, with_memory
        from egs_core.server.doors import Door
        from egs_core.server.serving import serve as begin

    def told(ready: serving.Ready) -> None:
        print(json.dumps(msgspec.to_builtins(ready)) if as_json else first_line(ready), flush=True)
        if not ready.devices:
            others = "runs that ask for none start, and hosts that have some can join (`egs serve --join URL`)"
            _tell_of_none(others, emulated_gpus)

    specs = load_queues(queues, has_prices=False) if queues is not None else ()
    teams = load_teams(queues) if queues is not None else Teams()
    offer = host_offer(emulated_gpus, chosen)
    if flavors is not None:
        stated = with_memory(offer.devices, load_memory(flavors))
        offer = msgspec.structs.replace(offer, devices=stated, flavors=load_flavors(flavors))
    if queues is not None:
        offer = msgspec.structs.replace(offer, reserved=reservations_for(queues, len(offer.devices)))
    budgets = load_budgets(queues) if queues is not None else ()
    known = load_prices(prices).for_all(time.time()) if prices is not None else None
    provider = provider_of(oidc) if oidc is not None else None
    begin(
        data or default_data(),
        Door(host, port, tls_cert, tls_key, behind_proxy),
        offer,
        specs,
        teams,
        told,
        rate,
        parse_database(database) if database else None,
        with_currency(budgets, known, queues),
        parse_seconds(gather, "--gather"),
        rules_for(rules, [spec.name for spec in specs]) if rules is not None else None,
        known,
        provider,
        prices,
        socket,
    )


def first_line(ready: serving.Ready) -> str:
    """What a server that has begun says, for people: what it offers, and where it is."""
    kind = "emulated GPU" if ready.emulated else "GPU"
    named = f" ({', '.join(ready.devices)})" if ready.devices else ""
    return (
        f"{counted(len(ready.devices), kind)}{named} at {ready.url} "
        f"and unix://{ready.socket}{_to_set(ready.socket)}; dashboard at {ready.url}/dashboard; "
        f"token of this user in {ready.token}; data in {ready.data}"
    )


def _to_set(socket: str) -> str:
    """What clients have to be told of a server's place, "" where they find it: to be written behind it."""
    return "" if socket_here() == Path(socket) else f" (clients need {URL}=unix://{socket})"


def provider_of(file: Path) -> Provider:
    """Of the tokens that count besides the server's own; it has its keys, or asks for them again and again."""
    found = load_oidc(file)
    try:
        from egs_core.server.oidc import Provider
    except ImportError as error:
        raise EgsError(f"egs serve --oidc: needs {error.name}: pip install 'egs-core[server,oidc]'") from error
    provider = Provider(found)
    provider.start()
    return provider


def with_currency(budgets: Sequence[Budget], prices: Prices | None, queues: Path | None) -> tuple[Budget, ...]:
    """The same, those of money in the currency of the prices. Raises InputError where these are not enough."""
    of_money = [budget for budget in budgets if budget.cost is not None]
    if of_money and prices is None:
        hint = "--prices FILE says what a GPU costs, as `egs cost` reads it"
        raise InputError(str(queues), f"the budget of {of_money[0].owner} is of money, and there are no prices", hint)
    if of_money and prices is not None:
        for one in of_money:
            if one.currency not in ("", prices.currency):
                problem = f"the budget of {one.owner} is in {one.currency}, and prices are in {prices.currency or '?'}"
                raise InputError(str(queues), problem, "state both in one currency")
    currency = prices.currency if prices is not None else ""
    return tuple([msgspec.structs.replace(one, currency=currency) if one.cost is not None else one for one in budgets])


def rules_for(file: Path, queues: Sequence[str]) -> Rules:
    """queues: none where any name may be one. Raises InputError, also for a rule of a queue that is not there."""
    found = load_rules(file)
    for rule in found.rules:
        if queues and (unknown := [name for name in rule.queues if name not in queues]):
            problem = f"rule {rule.name!r} is for queue {unknown[0]!r}, which is not there"
            raise InputError(str(file), problem, f"there are {listed(queues)}")
    return found


def reservations_for(queues: Path, gpus: int) -> tuple[Reservation, ...]:
    """Raises InputError, also for more than there are."""
    found = load_reservations(queues)
    if too_many := next((one for one in found if one.gpus > gpus), None):
        kept = counted(too_many.gpus, "GPU")
        problem = f"a reservation of {kept} for queue {too_many.queue!r}, and the host offers {gpus}"
        raise InputError(str(queues), problem, "keep fewer, or offer more by --devices")
    if over := [f"{one.date} ({one.queue})" for one in found if is_over(one, time.time())]:
        warn(f"{queues}: these reservations are over: {listed(over)}; take them out")
    return found


def _check_alone(ctx: typer.Context) -> None:
    """Raises InputError for an option that only a server has."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if parameter.name not in SHARED and source is not None and source.name == "COMMANDLINE":
            problem = "cannot be combined with --join: it is the server's own"
            raise InputError(max(parameter.opts, key=len), problem, "leave it out here")


def _tell_of_none(others: str, emulated: str) -> None:
    """emulated: what was asked for, none."""
    from egs_core.server.devices import why_none

    if emulated:
        warn(f"no GPU is offered here, as --emulated-gpus {emulated} says: {others}")
        return
    to_try = "--emulated-gpus 2 offers some that are made up, to try it"
    warn(f"no GPU is offered here ({why_none()}): {others}; {to_try}")


def _join(urls: str, emulated: str, chosen: list[str], as_json: bool, socket: Path | None) -> None:
    with needs_server("egs serve --join"):
        from egs_core.server.devices import host_offer
        from egs_core.server.joined import Ready, serve_host

    def told(ready: Ready) -> None:
        kind = "emulated GPU" if ready.emulated else "GPU"
        named = f" ({', '.join(ready.devices)})" if ready.devices else ""
        place = f"unix://{ready.socket}{_to_set(ready.socket)}"
        joined = f"host {ready.host} has joined {ready.url} with {counted(len(ready.devices), kind)}{named}"
        line = f"{joined}; users of it ask at {place}"
        print(json.dumps(msgspec.to_builtins(ready)) if as_json else line, flush=True)
        if not ready.devices:
            _tell_of_none("nothing starts on this host that asks for one", emulated)

    try:
        addresses = [parse_url(one.strip()) for one in urls.split(",") if one.strip()]
    except InputError as error:
        raise InputError("--join" if error.place == URL else error.place, error.problem, error.hint) from None
    for address in addresses:
        if address.socket is None and not address.token:
            hint = "an admin makes one: egs token create --role agent --host NAME"
            raise InputError(f"--join {address.url}", f"needs a token of role agent in {TOKEN}", hint)
    serve_host(data_folder() / "agent", addresses, host_offer(emulated, chosen), told, socket)
