"""The list of scenarios, and whether one applies to a bench."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.testing.conformance import control, faults, graphs, ordering, phases
from egs_core.testing.conformance.bench import BREAKAGES, Bench


class Scenario(msgspec.Struct, frozen=True):
    """needs: capabilities without which it does not apply, and which it proves. breakage: what it breaks, for the
    scenarios of `faults`, which prove none. hints: what it proves besides."""

    name: str
    check: Callable[[Bench], None]
    needs: tuple[str, ...] = ()
    breakage: str = ""
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


SCENARIOS = (
    Scenario("convert", graphs.convert),
    Scenario("observe-changes-nothing", graphs.observe_changes_nothing, ("observe",)),
    Scenario("failures-stay-the-users", graphs.failures_stay_the_users, ("order",)),
    Scenario("off-is-off", faults.off_is_off),
    Scenario("order", ordering.order, ("order",)),
    Scenario("inversion", ordering.inversion, ("order",)),
    Scenario("split", phases.split, ("split",)),
    Scenario("gpu-is-lent-meanwhile", phases.gpu_is_lent_meanwhile, ("split",)),
    Scenario("preload", phases.preload, ("preload",)),
    Scenario("gang-starts-whole", ordering.gang_starts_whole, ("gang",)),
    Scenario("gang-is-not-starved", ordering.gang_is_not_starved, ("gang",)),
    Scenario("limits", control.limits, ("limits",), hints=("max_runtime",)),
    Scenario("abort-all", control.abort_all, ("abort",)),
    Scenario("abort-one", control.abort_one, ("abort",)),
    *(Scenario(f"fail-open-{how}", faults.fail_open(how), ("order",), how) for how in BREAKAGES),
    Scenario("audit", graphs.audit, ("audit",)),
)
"""In the order of the adapters' table of capabilities, faults last but for what reads a history."""


def reason_to_skip(scenario: Scenario, bench: Bench) -> str:
    """Why the scenario does not apply to this way of using the adapter, in the adapter's own words; "" when it does."""
    answers = [(name, bench.capabilities()[name]) for name in scenario.needs]
    if scenario.breakage:
        answers.append((BREAKAGES[scenario.breakage], bench.breakages()[scenario.breakage]))
    return "; ".join(f"{name}: {answer}" for name, answer in answers if not answer.startswith("yes"))
