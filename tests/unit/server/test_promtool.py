"""What Prometheus's own promtool says of the metrics, the alert rules and the dashboard's queries, and of what rules of
objectives do with a history that is played to them. Debian's package `prometheus` has it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from egs_core.budgets import Budget
from egs_core.engine.specs import QueueSpec
from egs_core.server.metrics import Beside, families, text_of
from egs_core.server.pools import DriverCount
from egs_core.server.tally import Tally
from egs_core.slo import Objectives
from egs_core.slo_rules import rules_of
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.told_metrics import ROOT, site_of, spending_of

MONITORING = Path(__file__).resolve().parents[3] / "examples" / "monitoring"
PROMTOOL = shutil.which("promtool")
HOSTILE = 'a "queue"\\ with {{ $labels }} and é'
OBJECTIVES = Objectives(wait_p95=600, jct_p95=3600, deadline_share=0.95)
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine (Debian's package prometheus)")


def promtool(*arguments: str, given: bytes = b"") -> str:
    """What it says; it must find nothing."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, timeout=240, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_metrics_are_as_they_should_be() -> None:
    """Names, units, help and types by Prometheus's conventions, of all families that there are, with names of queues
    that hold what is special in its format."""
    site = site_of(QueueSpec(HOSTILE, nominal=(-1, 1000, -1)))
    money = Budget(0.0, (HOSTILE,), team="t", cost=5.0, currency="EUR")
    site.views.spending = spending_of(Budget(1.0, (HOSTILE,), queue=HOSTILE), money)
    tally = Tally([HOSTILE])
    tally.slos.objectives = {HOSTILE: OBJECTIVES.slos()}
    end(site, start(site, 1, 1, queue=HOSTILE))
    site.submit(ANN, request(2, 1, queue=HOSTILE))
    tally.committed((), site.take().runs, 0.0, 0.001)
    beside = Beside([DriverCount("ray", HOSTILE, "", 1, 1, 1.0)], steps={("hot", "drain", "done"): 1})
    text = text_of(families(site.book, tally, beside, ROOT))
    assert text.count(b"# TYPE egs_") >= 15
    assert promtool("check", "metrics", given=text) == ""


def test_rules_and_queries_are_read(tmp_path: Path) -> None:
    """The alert rules of the examples, those of objectives, each query of the dashboard; none stands there twice."""
    write(tmp_path / "slo.yaml", rules_of({"q": OBJECTIVES.slos(), HOSTILE: OBJECTIVES.slos()}))
    board = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    plain = [query.replace("$__rate_interval", "5m").replace("$__range", "1h") for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    write(tmp_path / "board.yaml", {"groups": [{"name": "board", "rules": rules}]})
    for file in (MONITORING / "alerts.yaml", tmp_path / "slo.yaml", tmp_path / "board.yaml"):
        assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))


def test_a_queue_that_breaks_its_promise_calls_somebody(tmp_path: Path) -> None:
    """Ten runs a minute, of which five in a hundred may wait too long. Nine in ten that do are a page, two in ten a
    ticket, two in a hundred nothing; the page is over half an hour after all is well again, the ticket is not."""
    write(tmp_path / "slo.yaml", rules_of({"q": Objectives(wait_p95=600).slos()}))
    cases: dict[str, dict[str, set[str]]] = {
        "0+9x240": {"2h": {"page", "ticket"}},
        "0+4x240": {"3h": {"page", "ticket"}},
        "0+2x240": {"3h": {"ticket"}},
        "0+0.2x240": {"3h": set()},
        "0+9x120 1080+0x120": {"2h": {"page", "ticket"}, "2h10m": {"page", "ticket"}, "2h40m": {"ticket"}},
    }
    tests = [_played(errors, due) for errors, due in cases.items()]
    files = [str(tmp_path / "slo.yaml")]
    write(tmp_path / "tests.yaml", {"rule_files": files, "evaluation_interval": "1m", "tests": tests})
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yaml"))


def _played(errors: str, due: dict[str, set[str]]) -> dict[str, Any]:
    """A history, and of each moment the alerts that are due then."""
    of = '{queue="q",slo="wait_p95"}'
    series = [
        {"series": f"egs_slo_events_total{of}", "values": "0+10x241"},
        {"series": f"egs_slo_errors_total{of}", "values": errors},
    ]
    checks = [
        {
            "expr": f'count(ALERTS{{alertname="EgsSloWaitP95",alertstate="firing",sloth_severity="{severity}"}})',
            "eval_time": at,
            "exp_samples": [{"labels": "{}", "value": 1}] if severity in severities else [],
        }
        for at, severities in due.items()
        for severity in ("page", "ticket")
    ]
    return {"interval": "1m", "input_series": series, "promql_expr_test": checks}


def write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, allow_unicode=True))
