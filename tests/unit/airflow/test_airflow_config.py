"""The mode and the DAGs it is for: what the user set, and what holds when that means nothing."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

pytest.importorskip("airflow", reason="apache-airflow is not installed")

from egs_airflow import compat, config

ROOT = Path(__file__).resolve().parents[3]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What EGS has said in the log."""
    return [record.getMessage() for record in caplog.records if record.name == "egs_airflow"]


def test_observe_is_the_default() -> None:
    """Just installed, EGS observes every DAG."""
    assert config.settings() == config.Settings(mode="observe", source=config.settings().source)
    assert config.mode_of("any", ["gpu"]) == "observe"


def test_airflow_cfg_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`[egs]` of Airflow's configuration, in all the ways in which Airflow itself reads an option."""
    monkeypatch.setenv("AIRFLOW__EGS__MODE", "on")
    monkeypatch.setenv("AIRFLOW__EGS__TAGS", "gpu, big")
    assert config.settings().mode == "on"
    assert config.settings().tags == {"gpu", "big"}


def test_environment_goes_before_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """EGS_MODE wins over Airflow's configuration."""
    monkeypatch.setenv("AIRFLOW__EGS__MODE", "on")
    monkeypatch.setenv("EGS_MODE", " OFF ")
    assert config.settings().mode == "off"
    assert "EGS_MODE" in config.settings().source


@pytest.mark.parametrize(
    ("dag_id", "tags", "mode"),
    [
        ("train_small", (), "on"),
        ("nightly", (), "on"),
        ("nightly_2", (), "observe"),
        ("other", ("gpu",), "on"),
        ("other", ("cpu",), "observe"),
        ("Train_small", (), "observe"),
    ],
)
def test_on_is_for_chosen_dags(monkeypatch: pytest.MonkeyPatch, dag_id: str, tags: tuple[str, ...], mode: str) -> None:
    """Mode on reaches DAGs by id, with wildcards, or by tag; all others are observed."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_DAGS", "train_*, nightly")
    monkeypatch.setenv("EGS_TAGS", "gpu")
    assert config.mode_of(dag_id, tags) == mode


def test_on_without_a_choice_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither ids nor tags, mode on is for the whole site."""
    monkeypatch.setenv("EGS_MODE", "on")
    assert config.mode_of("anything") == "on"


def test_a_choice_does_not_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming DAGs alone changes no mode."""
    monkeypatch.setenv("EGS_DAGS", "anything")
    assert config.mode_of("anything") == "observe"


def test_a_bad_mode_observes_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistyped mode is said once and is never on."""
    monkeypatch.setenv("EGS_MODE", "onn")
    with caplog.at_level(logging.WARNING):
        assert [config.mode_of("a"), config.mode_of("b")] == ["observe", "observe"]
        config.settings.cache_clear()
        config.settings()
    assert said(caplog) == ["egs: EGS_MODE in the environment: mode 'onn' is none of off, observe, on: observing"]


@pytest.mark.parametrize("mode", ["on", "observe"])
def test_an_unknown_airflow_observes_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """An Airflow that EGS was not tried with is observed, whatever is configured."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setenv(compat.WITHOUT, "version")
    with caplog.at_level(logging.WARNING):
        assert [config.mode_of("a"), config.mode_of("b")] == ["observe", "observe"]
    assert len(said(caplog)) == 1
    assert "is not a version EGS knows (3.3, 3.2)" in said(caplog)[0]


@pytest.mark.parametrize(
    ("found", "known"),
    [
        ("3.3.2", True),
        ("3.3.0", True),
        ("3.3", True),
        ("3.30.1", False),
        ("3.2.2", True),
        ("3.20.0", False),
        ("3.1.8", False),
        ("4.0.0", False),
        ("", False),
    ],
)
def test_supported_versions(found: str, known: bool) -> None:
    """Exactly the minor versions that were tried count as known."""
    assert compat.supported(found) is known


def test_a_broken_configuration_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow's configuration may fail to answer (a secrets backend that is down): EGS observes."""
    from airflow.configuration import conf

    def broken(*_: object, **__: object) -> str:
        raise OSError("no answer")

    monkeypatch.setattr(conf, "get", broken)
    with caplog.at_level(logging.WARNING):
        assert config.mode_of("a") == "observe"
    assert said(caplog)[0] == "egs: [egs] mode cannot be read: OSError: no answer"


def test_probes_find_this_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every API that EGS uses is there in the installed Airflow, and EGS_AIRFLOW_WITHOUT takes one away."""
    assert [feature.name for feature in compat.FEATURES if not compat.available(feature.name)] == []
    monkeypatch.setenv(compat.WITHOUT, "dag_file, serialized")
    assert not compat.available("dag_file")
    assert not compat.available("serialized")


def test_a_home_is_seen_without_importing_airflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no Airflow is set up, nothing of it is imported that would set one up."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONFIG", raising=False)
    assert not compat.has_home()
    (tmp_path / "airflow.cfg").write_text("")
    assert compat.has_home()


def test_versions_that_are_tested() -> None:
    """`make test` and `make test-versions` run on exactly the minor versions that EGS says it knows."""
    pinned = re.findall(r"^apache-airflow==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    others = re.findall(r"^OTHER_AIRFLOWS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert sorted(version.rpartition(".")[0] for version in [*pinned, *others]) == sorted(compat.KNOWN_VERSIONS)
