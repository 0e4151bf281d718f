"""What a GPU costs, from one YAML file; every error names the file and the line.

currency: EUR
flavors:
  - name: a100
    prices:                        # for a GPU and an hour, from that day on, 0:00 UTC
      - {since: 2026-01-01, on_demand: 3.20, reserved: 1.90, spot: 1.10}
      - {since: 2026-07-01, on_demand: 2.90, reserved: 1.90, spot: 1.05}
  - name: l4
    prices: [{since: 2026-01-01, on_demand: 0.80}]
nodes:                             # the first whose name fits; left out: all are of the one flavor
  - {name: "fast-*", flavor: a100, bought: reserved, provider: our own}
  - {name: "*", flavor: l4}
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from egs_core.errors import InputError
from egs_core.graph.places import did_you_mean
from egs_core.runlog.steps import Interval
from egs_core.yaml_file import FileModel, has_entry_with, input_error, line_of, read_text, read_yaml

HOUR_S = 3600.0
EXAMPLE = "flavors: [{name: a100, prices: [{since: 2026-01-01, on_demand: 3.2}]}]"
Bought = Literal["on_demand", "reserved", "spot"]
Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


def _date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise ValueError("must be a date, as 2026-01-31")
    try:
        return value if isinstance(value, date) else date.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a date, as 2026-01-31") from None


class Price(FileModel):
    """What a GPU of a flavor costs for an hour, from a day on."""

    since: Annotated[date, BeforeValidator(_date)]
    """From this day on, 0:00 UTC, until the next entry."""
    on_demand: Amount | None = None
    """Price of a GPU for an hour, bought by the hour."""
    reserved: Amount | None = None
    """The same of one that is reserved for longer."""
    spot: Amount | None = None
    """The same of one that the provider may take away."""


class PricedFlavor(FileModel):
    """A kind of hardware and its prices."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the kind of hardware."""
    prices: Annotated[tuple[Price, ...], Field(min_length=1)]
    """Its prices, in the order of their days."""


class PricedNodes(FileModel):
    """Which nodes are of a flavor, and how they were bought."""

    name: Annotated[str, Field(min_length=1)]
    """Name of a node, or of the flavor that it is of by its framework, or by its driver where a host has unlike GPUs;
    `*` stands for anything. The first entry that fits counts."""
    flavor: str
    """Kind of hardware, one of `flavors`."""
    bought: Bought = "on_demand"
    """Which of the flavor's prices is paid."""
    provider: Annotated[str, Field(max_length=100)] = ""
    """Whose they are: a name, by which `egs cost` rates hardware apart."""


class PriceFile(FileModel):
    """The whole file."""

    currency: Annotated[str, Field(max_length=20)] = ""
    """What the prices are in."""
    flavors: Annotated[tuple[PricedFlavor, ...], Field(min_length=1)]
    """The kinds of hardware."""
    nodes: tuple[PricedNodes, ...] = ()
    """Which nodes are of which; left out: all are of the only flavor."""


class Prices:
    """Prices of the GPUs of nodes, at any time. place: for errors; is_open: the first price counts for before, too."""

    def __init__(self, file: PriceFile, place: str = "prices", *, is_open: bool = False) -> None:
        self.currency, self._place = file.currency, place
        self._file, self._is_open = file, is_open
        self._flavors = {flavor.name: flavor for flavor in file.flavors}
        self._nodes = file.nodes or (PricedNodes(name="*", flavor=file.flavors[0].name),)
        self._known: dict[str, tuple[str, list[float], list[float]]] = {}  # by node: flavor, from when on, how much

    def of(self, node: str, times: Iterable[Interval], *, is_dated: bool = True) -> float:
        """What one GPU of the node costs in these stretches, in seconds since 1970. is_dated: else the latest price
        counts. Raises InputError where no price is known."""
        flavor, since, amounts = self._of_node(node)
        if not is_dated:
            return amounts[-1] * sum(end - start for start, end in times) / HOUR_S
        return sum(self._between(flavor, since, amounts, *one) for one in times) / HOUR_S

    def changes_after(self, node: str, at: float) -> float:
        """When the price of a node is another one next, in seconds since 1970; infinity for never."""
        _, since, _ = self._of_node(node)
        number = bisect_right(since, at)
        return since[number] if number < len(since) else math.inf

    def for_all(self, at: float) -> Prices:
        """The same for whoever has to have a price of any node from this moment on, and before. Raises InputError where
        there can be one without."""
        if self._nodes[-1].name != "*":
            problem = "the last entry has to be for all other nodes, so that each has a price"
            raise InputError(f"{self._place}: nodes", problem, '{name: "*", flavor: …}')
        for entry in self._nodes:
            first = datetime(*self._flavors[entry.flavor].prices[0].since.timetuple()[:3], tzinfo=UTC).timestamp()
            if first > at:
                problem = f"flavor {entry.flavor!r} has no price on {_day(at)}"
                raise InputError(self._place, problem, f"its first is of {_day(first)}")
        return Prices(self._file, self._place, is_open=True)

    def hardware_of(self, node: str) -> tuple[str, str, str]:
        """Flavor and provider of a node, and how it was bought. Raises InputError where no entry names it."""
        entry = self._entry_of(node)
        return entry.flavor, entry.provider, entry.bought

    def _entry_of(self, node: str) -> PricedNodes:
        names = {node, *node.split("/", 1)}  # of NODE/FLAVOR each part, too
        entry = next((one for one in self._nodes if any(fnmatchcase(name, one.name) for name in names)), None)
        if entry is None:
            raise InputError(f"{self._place}: nodes", f"has no entry for node {node!r}", 'the last may be name: "*"')
        return entry

    def _between(
        self, flavor: str, since: Sequence[float], amounts: Sequence[float], start: float, end: float
    ) -> float:
        number = bisect_right(since, start) - 1
        if number < 0:
            problem = f"flavor {flavor!r} has no price on {_day(start)}, when a GPU was held"
            raise InputError(self._place, problem, f"its first is of {_day(since[0])}")
        total = 0.0
        while start < end:
            until = min(end, since[number + 1]) if number + 1 < len(since) else end
            total += (until - start) * amounts[number]
            start, number = until, number + 1
        return total

    def _of_node(self, node: str) -> tuple[str, list[float], list[float]]:
        if node not in self._known:
            entry = self._entry_of(node)
            prices = self._flavors[entry.flavor].prices
            since = [datetime(*one.since.timetuple()[:3], tzinfo=UTC).timestamp() for one in prices]
            if self._is_open:
                since[0] = -math.inf
            self._known[node] = entry.flavor, since, [float(getattr(one, entry.bought)) for one in prices]
        return self._known[node]


def load_prices(path: Path) -> Prices:
    """The prices of a file. Raises InputError that names file and line."""
    return parse_prices(read_text(path, "prices"), str(path))


def parse_prices(text: str, place: str = "prices") -> Prices:
    """The prices of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of flavors under `flavors:`", EXAMPLE)
    try:
        file = PriceFile.model_validate(data)
    except ValidationError as error:
        if has_entry_with(data, "flavors", "gpu_hour"):
            problem = (
                "says what runs are placed by, as `egs serve --flavors` reads it, and not what is paid from when on"
            )
            raise InputError(place, problem, EXAMPLE) from None
        models = (PriceFile, PricedFlavor, Price, PricedNodes)
        raise input_error(error, lines, place, [name for model in models for name in model.model_fields]) from None
    _check(file, lines, place)
    return Prices(file, place)


def _check(file: PriceFile, lines: dict[tuple[str | int, ...], int], place: str) -> None:
    def where(*path: str | int) -> str:
        return f"{place} line {line_of(path, lines)}"

    names: list[str] = []
    for number, flavor in enumerate(file.flavors):
        if flavor.name in names:
            raise InputError(where("flavors", number, "name"), f"a second flavor {flavor.name!r}", "keep one of them")
        names.append(flavor.name)
        days = [price.since for price in flavor.prices]
        for at, (before, after) in enumerate(pairwise(days), 1):
            if after <= before:
                problem = f"{after} is not after {before}, which stands before it"
                hint = "write them in the order of their days, each day once"
                raise InputError(where("flavors", number, "prices", at, "since"), problem, hint)
    if not file.nodes and len(names) > 1:
        raise InputError(f"{place}: nodes", "is missing: which nodes are of which flavor?", 'nodes: [{name: "*", …}]')
    entries = file.nodes or (PricedNodes(name="*", flavor=names[0]),)
    for number, entry in enumerate(entries):
        if entry.flavor not in names:
            hint = did_you_mean(entry.flavor, names)
            raise InputError(where("nodes", number, "flavor"), f"unknown flavor {entry.flavor!r}", hint)
        flavor_at = names.index(entry.flavor)
        for at, price in enumerate(file.flavors[flavor_at].prices):
            if getattr(price, entry.bought) is None:
                problem = f"has no {entry.bought} price, which nodes {entry.name!r} are bought at"
                hint = f"add {entry.bought}: …, or say how they are bought by `bought`"
                raise InputError(where("flavors", flavor_at, "prices", at), problem, hint)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
