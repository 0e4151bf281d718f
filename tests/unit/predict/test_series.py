"""The benchmark's synthetic series: where the predictor must beat plain quantiles, and where it may not lose."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.predictors import METHODS, main, rows_of
from benchmarks.predictors_data import SYNTHETIC

AT_MOST = {  # share of the baseline's loss; measured shares plus about a third of what was gained
    "synthetic stationary": 1.05,
    "synthetic shifts": 0.7,
    "synthetic sizes": 0.4,
    "synthetic runs": 0.5,
}


@pytest.mark.parametrize("name", sorted(SYNTHETIC))
def test_losses_and_coverage_on_synthetic_series(name: str) -> None:
    """Both losses below their limit, and 88 to 92 % of durations are below P90."""
    methods = {method: METHODS[method] for method in ("baseline", "predictor")}
    baseline, _, predictor, _ = rows_of(name, SYNTHETIC[name](), methods)
    assert (baseline["method"], predictor["method"], predictor["part"]) == ("baseline", "predictor", "all")
    for key in ("pinball_0.5", "pinball_0.9"):
        assert predictor[key] <= AT_MOST[name] * baseline[key]
    assert 0.88 <= predictor["coverage_0.9"] <= 0.92


def test_the_benchmark_prints_json_and_draws_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object on stdout with a row for each series, part and method; the plot is well-formed SVG with names."""
    monkeypatch.setattr("sys.argv", ["predictors", "--json", "--plot", str(tmp_path / "plot.svg")])
    monkeypatch.delenv("EGS_DATA", raising=False)
    short = {name: make()[:200] for name, make in SYNTHETIC.items()}
    monkeypatch.setattr("benchmarks.predictors.SYNTHETIC", {name: lambda name=name: short[name] for name in short})
    assert main() == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == len(found["details"]) == len(SYNTHETIC) * len(METHODS) * 2
    assert found["source"].startswith("SYNTHETIC")
    text = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert all(name in text for name in SYNTHETIC)
