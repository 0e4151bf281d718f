"""Objectives as rules for Prometheus, in the format that Sloth writes (https://sloth.dev): recordings of the error
ratio in each window, of what is left of the budget, and a page and a ticket by multi-window burn rates. Its dashboards
show them, and Alertmanager needs nothing that is EGS's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from egs_core.slo import ALERTS, PERIOD_S, WINDOWS, Severity, Slo

SERVICE = "egs"
DAYS = round(PERIOD_S / 86400)
SEEN_IN = {
    "wait": "Runs of queue {queue} wait longer than promised. `egs queue` says for what, `egs slo` how much is left.",
    "jct": "Runs of queue {queue} take longer than promised, with their wait. `egs slo` says how much is left.",
    "deadline": "Runs of queue {queue} miss their deadlines. `egs queue` says what they wait for.",
}
Rule = dict[str, Any]


def rules_of(slos: Mapping[str, Iterable[Slo]]) -> dict[str, Any]:
    """The content of a rule file. slos: by queue."""
    groups = [group for queue, ones in slos.items() for one in ones for group in _groups(queue, one)]
    return {"groups": groups}


def _groups(queue: str, slo: Slo) -> list[Rule]:
    name = f"{queue}-{slo.name}"
    labels = {"sloth_id": f"{SERVICE}-{name}", "sloth_service": SERVICE, "sloth_slo": name, "queue": queue}
    return [
        {"name": f"sloth-slo-sli-recordings-{SERVICE}-{name}", "rules": _ratios(queue, slo, labels)},
        {"name": f"sloth-slo-meta-recordings-{SERVICE}-{name}", "rules": _meta(slo, labels)},
        {"name": f"sloth-slo-alerts-{SERVICE}-{name}", "rules": _alerts(queue, slo, labels)},
    ]


def _ratios(queue: str, slo: Slo, labels: dict[str, str]) -> list[Rule]:
    which = f'queue="{_quoted(queue)}",slo="{slo.name}"'
    rules: list[Rule] = [
        {
            "record": f"slo:sli_error:ratio_rate{window}",
            "expr": f"(sum(rate(egs_slo_errors_total{{{which}}}[{window}])))\n/\n"
            f"(sum(rate(egs_slo_events_total{{{which}}}[{window}])))\n",
            "labels": {**labels, "sloth_window": window},
        }
        for window in WINDOWS
    ]
    five = f"slo:sli_error:ratio_rate5m{_selector(labels)}[{DAYS}d]"
    whole = f"sum_over_time({five})\n/ ignoring (sloth_window)\ncount_over_time({five})\n"
    record = f"slo:sli_error:ratio_rate{DAYS}d"
    return [*rules, {"record": record, "expr": whole, "labels": {**labels, "sloth_window": f"{DAYS}d"}}]


def _meta(slo: Slo, labels: dict[str, str]) -> list[Rule]:
    selector = _selector(labels)
    by_budget = f"/ on(sloth_id, sloth_slo, sloth_service) group_left\nslo:error_budget:ratio{selector}\n"
    info = {"sloth_mode": "cli-gen-prom", "sloth_spec": "prometheus/v1", "sloth_version": "egs"}
    expressions = {
        "slo:objective:ratio": f"vector({slo.share!r})",
        "slo:error_budget:ratio": f"vector(1-{slo.share!r})",
        "slo:time_period:days": f"vector({DAYS})",
        "slo:current_burn_rate:ratio": f"slo:sli_error:ratio_rate5m{selector}\n{by_budget}",
        "slo:period_burn_rate:ratio": f"slo:sli_error:ratio_rate{DAYS}d{selector}\n{by_budget}",
        "slo:period_error_budget_remaining:ratio": f"1 - slo:period_burn_rate:ratio{selector}",
    }
    rules: list[Rule] = [{"record": name, "expr": text, "labels": labels} for name, text in expressions.items()]
    return [*rules, {"record": "sloth_slo_info", "expr": "vector(1)", "labels": {**labels, **info}}]


def _alerts(queue: str, slo: Slo, labels: dict[str, str]) -> list[Rule]:
    name = "EgsSlo" + "".join(part.title() for part in re.split(r"[^A-Za-z0-9]+", slo.name))
    return [
        {
            "alert": name,
            "expr": _burns(slo, labels, severity),
            "labels": {"queue": queue, "severity": "critical" if severity == "page" else "warning"}
            | {"sloth_severity": severity},
            "annotations": {
                "summary": SEEN_IN[slo.kind].format(queue=_plain(queue)),
                "title": f"({severity}) {{{{$labels.sloth_service}}}} {{{{$labels.sloth_slo}}}} SLO error budget burn "
                "rate is too fast.",
            },
        }
        for severity in ("page", "ticket")
    ]


def _burns(slo: Slo, labels: dict[str, str], severity: Severity) -> str:
    selector, budget = _selector(labels), f"{1 - slo.share:.6g}"

    def over(window: str, factor: float) -> str:
        return f"    (slo:sli_error:ratio_rate{window}{selector} > ({factor:g} * {budget}))\n"

    return "or ignoring (sloth_window)\n".join(
        f"(\n{over(one.short, one.factor)}    and ignoring (sloth_window)\n{over(one.long, one.factor)})\n"
        for one in ALERTS
        if one.severity == severity
    )


def _selector(labels: dict[str, str]) -> str:
    named = ("sloth_id", "sloth_service", "sloth_slo")
    return "{" + ", ".join(f'{name}="{_quoted(labels[name])}"' for name in named) + "}"


def _quoted(text: str) -> str:
    """In a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _plain(text: str) -> str:
    """In an annotation, which is a template."""
    return text.replace("{{", "{ {")
