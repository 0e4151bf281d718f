"""Modules before the fork: what may be imported into the scheduler, found out where it can do no harm."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from egs_airflow import compat, config
from egs_airflow.adapter import ADAPTER
from egs_airflow.preload import modules
from egs_airflow.preload.modules import has_cuda, preload_modules, why_not

# Python 3.12 and later warn of any fork beside threads, which the process of the tests may have
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

BODIES = {
    "egs_try_good": "VALUE = 7",
    "egs_try_broken": "raise ValueError('no licence')",
    "egs_try_exits": "raise SystemExit(3)",
    "egs_try_dies": "import os; os._exit(5)",
    "egs_try_thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True, name='x').start()"
    ),
}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules on the path, in mode on and all asked for, in a process that forks."""
    for name, body in BODIES.items():
        (tmp_path / f"{name}.py").write_text(body + "\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_PRELOAD_MODULES", ", ".join(BODIES))
    return list(BODIES)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of the process."""
    found: list[str] = []
    monkeypatch.setattr(config, "warn", found.append)
    return found


def test_only_what_can_do_no_harm_is_imported(names: list[str], warned: list[str]) -> None:
    """What raises, exits, dies or starts a thread is one warning each and never in this process."""
    assert preload_modules() == ["egs_try_good"]
    assert sys.modules["egs_try_good"].VALUE == 7
    assert [name for name in names if name in sys.modules] == ["egs_try_good"]
    said = {
        "egs_try_broken": "ValueError: no licence",
        "egs_try_exits": "SystemExit: 3",
        "egs_try_dies": "importing it ends the process",
        "egs_try_thread": "it starts a thread",
    }
    assert warned == [f"[egs] preload_modules: {name} is not preloaded: {text}" for name, text in said.items()]


def test_what_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as long as is allowed."""
    (tmp_path / "egs_try_hangs.py").write_text("import threading; threading.Event().wait()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(modules, "PATIENCE_S", 1.0)
    assert why_not("egs_try_hangs") == "it takes more than 1 s"
    assert "egs_try_hangs" not in sys.modules


def test_what_initialises_cuda_is_refused(names: list[str], tmp_path: Path) -> None:
    """A torch that says that CUDA is initialised: found in the trial, and only there."""
    assert "egs_try_good" in names
    (tmp_path / "torch.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: True)\n")
    (tmp_path / "egs_try_cuda.py").write_text("import torch\n")
    assert why_not("egs_try_cuda") == "it initialises CUDA, which then fails in every task"
    assert "torch" not in sys.modules
    assert not has_cuda()


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_nothing_is_imported_in_other_modes(
    mode: str, names: list[str], warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a process started."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setattr(modules, "why_not", None)  # whoever calls it fails
    assert preload_modules() == []
    assert warned == []
    assert not [name for name in names if name in sys.modules]


def test_where_nothing_is_forked_nothing_is_imported(
    names: list[str], warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that spawns its processes would not hand modules on; that is said."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    assert preload_modules() == []
    assert "by spawn, not by fork" in warned[0]
    assert not [name for name in names if name in sys.modules]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("on", "active: wave, cmd, imported before EgsLocalExecutor starts its processes"),
        ("observe", "off: mode observe"),
    ],
)
def test_doctor_says_what_is_preloaded(mode: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its mode, where modules are named."""
    monkeypatch.setenv("EGS_MODE", mode)
    found = {check.name: check.detail for check in ADAPTER.doctor()}
    assert found["preload"] == "off: [egs] preload_modules names none"
    monkeypatch.setenv("EGS_PRELOAD_MODULES", "wave cmd")
    assert {check.name: check.detail for check in ADAPTER.doctor()}["preload"] == said


def test_forks_have_read_the_certificates(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's client of the api-server finds them read, as it asks for them itself; without that client nothing
    fails."""
    from airflow.sdk.api import client

    assert names
    client.Client._get_ssl_context_cached.cache_clear()
    preload_modules()
    misses = client.Client._get_ssl_context_cached.cache_info().misses
    client.Client(base_url="http://127.0.0.1:9", token="").close()
    found = client.Client._get_ssl_context_cached.cache_info()
    assert (misses, found.misses, found.hits) == (1, 1, 1)
    monkeypatch.delattr(client.Client, "_get_ssl_context_cached")
    compat.load_certificates()
