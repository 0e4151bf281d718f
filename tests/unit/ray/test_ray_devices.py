"""Which devices a task has: by the names that no others have, and nothing where that is not sure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_ray.link import Message
from egs_ray.worker import devices
from egs_ray.worker.device_memory import FOLDER

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its driver's folders, as the driver writes them; no GPU yet."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.delenv(devices.ORDER, raising=False)
    devices._by_number.cache_clear()
    yield tmp_path
    devices._by_number.cache_clear()


def add(machine: Path, address: str, uuid: str, model: str = A100) -> None:
    folder = machine / "gpus" / address
    folder.mkdir(parents=True)
    text = (
        f"Model: \t\t {model}\nIRQ:   \t\t 163\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t 0\n"
    )
    (folder / "information").write_text(text)


def test_numbers_are_in_the_order_of_the_bus(machine: Path) -> None:
    """As the driver and CUDA count GPUs of one model; names are what they are; all, or none."""
    add(machine, "0000:c1:00.0", "GPU-c")
    add(machine, "0000:07:00.0", "GPU-a")
    add(machine, "0000:0b:00.0", "GPU-b")
    assert devices.uuids("0") == ("GPU-a",)
    assert devices.uuids(" 2,0 ") == ("GPU-c", "GPU-a")
    assert devices.uuids("GPU-b,1") == ("GPU-b", "GPU-b")
    assert devices.uuids("MIG-1,MIG-2") == ("MIG-1", "MIG-2"), "slices have names of their own"
    for visible in ("", "3", "0,3", "-1", "NoDevFiles", "0,x"):
        assert devices.uuids(visible) == (), visible


def test_of_several_models_nobody_knows_which_is_the_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is stated: CUDA counts the fastest first."""
    add(machine, "0000:07:00.0", "GPU-a", A100)
    add(machine, "0000:0b:00.0", "GPU-h", H100)
    assert devices.uuids("0") == ()
    assert devices.uuids("GPU-h") == ("GPU-h",)
    devices._by_number.cache_clear()
    monkeypatch.setenv(devices.ORDER, devices.BY_ADDRESS)
    assert devices.uuids("1") == ("GPU-h",)


@pytest.mark.usefixtures("machine")
def test_without_a_device_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated GPUs have numbers as well."""
    monkeypatch.setenv(devices.VISIBLE, "0")
    before = threading.active_count()
    with devices.devices_told(lambda _: None):
        assert threading.active_count() == before


def test_a_task_that_takes_long_tells_once_and_a_short_one_never(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread for all tasks of a process."""
    add(machine, "0000:07:00.0", "GPU-a")
    monkeypatch.setattr(devices, "LONG_S", 0.3)
    monkeypatch.setattr(devices, "_watch", devices._Watch())
    monkeypatch.setenv(devices.VISIBLE, "0")
    told: list[tuple[int, Message]] = []
    before = threading.active_count()

    def run(number: int, seconds: float) -> None:
        with devices.devices_told(lambda word: told.append((number, word))):
            assert threading.active_count() == before + 1
            time.sleep(seconds)

    for number in range(5):
        run(number, 0.1)
    began = time.monotonic()
    with devices.devices_told(lambda word: told.append((9, word))):
        while not told:
            assert time.monotonic() < began + 30
            time.sleep(0.01)
        assert time.monotonic() - began >= 0.29
        time.sleep(0.7)  # beyond two more looks
    assert told == [(9, {"m": "devices", "uuids": ("GPU-a",)})]
