"""Uses of a framework's API that the framework does not promise to keep: each with its probe and its fallback, as data.

    FEATURES = Features(
        "EGS_NAME_WITHOUT",
        Feature("ready", "Reference._on_ready", has_on_ready, "polling", "ends of tasks are polled for"),
    )
    if FEATURES.has("ready"): …

A feature is probed where it is used, never at import: a framework may change between two releases, or be patched by
somebody else. Standard library only: adapters need this in workers too.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One such use. api: the names that are used; probe: whether they are there in the form that EGS knows; fallback:
    what is done instead; lost: what a user misses then."""

    name: str
    api: str
    probe: Callable[[], bool]
    fallback: str
    lost: str


class Features:
    """The features of one adapter. variable: names an environment variable; a feature that is listed there (comma
    separated) counts as missing, for tests and for users of a broken build."""

    def __init__(self, variable: str, *features: Feature) -> None:
        self.variable = variable
        self._features = {feature.name: feature for feature in features}
        if len(self._features) != len(features):
            raise ValueError("two features of one name")

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def has(self, name: str) -> bool:
        """Whether the API is there, and not left out by the environment variable. A probe that fails means no; one that
        only warns, where warnings are errors, does not."""
        if name in left_out(self.variable):
            return False
        probe = self._features[name].probe
        try:
            return probe()
        except Warning:  # only then: filters belong to all threads
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _answers(probe)
        except Exception:  # a probe looks into modules that may have moved or changed shape
            return False

    def knows(self, found: str, known: tuple[str, ...]) -> bool:
        """Whether EGS was tried with this minor version; `version` in the environment variable makes it unknown."""
        return is_known_version(found, known) and "version" not in left_out(self.variable)

    def missing(self) -> list[Feature]:
        """The features that are not available here, in their order."""
        return [feature for feature in self if not self.has(feature.name)]


def _answers(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except Exception:
        return False


def left_out(variable: str) -> list[str]:
    """The names that an environment variable lists."""
    return [name for name in os.environ.get(variable, "").replace(" ", "").split(",") if name]


def installed_version(*names: str) -> str:
    """The version of the first of these distributions that is installed, without importing it; "" where none is."""
    from importlib.metadata import PackageNotFoundError, version  # not in every worker

    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def is_known_version(found: str, known: tuple[str, ...]) -> bool:
    """Whether the minor version of `found` is one of `known`.

    >>> is_known_version("2.60.1", ("2.59", "2.60")), is_known_version("2.6", ("2.60",))
    (True, False)
    """
    return re.match(r"\d+\.\d+(?=\D|$)", found) is not None and ".".join(found.split(".")[:2]) in known
