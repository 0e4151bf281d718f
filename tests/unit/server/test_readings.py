"""What NVML says of devices, as the server reads it. NVML is played; on a real GPU this was not tried."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egs_core.client.watching import DeviceHealth
from egs_core.server.watching import readings
from egs_core.server.watching.readings import Nvml, Readings
from tests.unit.server.real_site import wait_for

PLAYED = Path(__file__).parent / "played_nvml" / "pynvml.py"
Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Says what NVML says from now on."""
    spec = importlib.util.spec_from_file_location("pynvml", PLAYED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    path = tmp_path / "gpus.json"
    monkeypatch.setenv("EGS_PLAYED_NVML", str(path))

    def say(**told: Any) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({name.replace("_", "-"): value for name, value in told.items()}))
        new.replace(path)

    return say


ALL = {"temperature": 61, "memory": 0.25, "busy": 40, "ecc": 3, "throttle": 0x44, "power": 310, "power_limit": 400}


def test_each_figure_and_what_a_device_does_not_tell(play: Play) -> None:
    """Units are watts, shares and degrees; what is not supported is None."""
    play(GPU_a=ALL, GPU_b={"busy": 0})
    nvml = Nvml(["GPU-a", "GPU-b"])
    whole, little = nvml.read()
    assert whole == DeviceHealth(
        device="GPU-a",
        temperature_c=61,
        power_w=310,
        power_limit_w=400,
        memory_used=0.25,
        busy=0.4,
        ecc_errors=3,
        throttled=("power", "heat"),
    )
    assert little == DeviceHealth(device="GPU-b", busy=0.0)
    nvml.close()


def test_errors_are_told_once_also_of_a_device_that_is_gone(play: Play) -> None:
    """An XID comes with the device that fell off the bus, which answers nothing else; others are read as ever."""
    play(GPU_a=ALL, GPU_b=ALL, events=[["GPU-b", 31]])
    nvml = Nvml(["GPU-a", "GPU-b"])
    assert [one.xids for one in nvml.read()] == [(), ()], "what was before is not told"
    play(GPU_a=ALL, GPU_b={"lost": True}, events=[["GPU-b", 31], ["GPU-b", 79], ["GPU-a", 13], ["GPU-b", 79]])
    well, lost = nvml.read()
    assert (well.xids, well.answers, lost.xids, lost.answers) == ((13,), True, (79, 79), False)
    assert [one.xids for one in nvml.read()] == [(), ()]
    play(GPU_a={"lost": True}, GPU_b={"lost": True}, events=[])
    with pytest.raises(Exception, match="GPU is lost"):
        nvml.read()


def test_a_thread_reads_and_nothing_is_lost(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest of each device with all of its errors, also those that were given back; a driver that hangs says
    nothing, and is read again when it answers."""
    monkeypatch.setattr(readings, "LOOK_S", 0.01)
    play(GPU_a=ALL, events=[])
    read = Readings(["GPU-a"])
    read.start()
    got: list[DeviceHealth] = []

    def takes() -> bool:
        got[:] = read.take()
        return bool(got)

    try:
        wait_for(takes, "it is read")
        play(GPU_a=ALL, events=[["GPU-a", 79]])
        wait_for(lambda: takes() and got[0].xids == (79,), "the error comes")
        read.give_back(got)
        play(GPU_a=ALL, events=[["GPU-a", 79], ["GPU-a", 48]])
        found: list[int] = []

        def has_both() -> bool:
            found.extend(number for one in read.take() for number in one.xids)
            return len(found) >= 2

        wait_for(has_both, "both")
        assert found == [79, 48]
        play(GPU_a=ALL, hangs=True)
        wait_for(lambda: not takes() and not takes(), "nothing is said")
        play(GPU_a=ALL | {"temperature": 99}, events=[])
        wait_for(lambda: takes() and got[0].temperature_c == 99, "it answers again")
    finally:
        read.close()
        read._thread.join(60)
    assert not read._thread.is_alive()
