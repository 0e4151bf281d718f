"""Whether a command is idle (`egs run --idle-timeout`): measured, or told; never that nobody told anything.

    it has GPUs that NVML knows     one of them has computed (its utilisation)
    it has none                     its processes together had more than a twentieth of a CPU
    always                          the file of `EGS_ACTIVITY` was touched, or something was typed (`--pty`)

A GPU that is shared in parts is not told apart by its users: the work of any of them counts for all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from egs_core.client.messages import Process

ACTIVITY = "EGS_ACTIVITY"
CPU_SHARE = 0.05
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class IdleWatch:
    """One command's. devices: UUIDs; file: whose change tells of activity; now: seconds of any clock that goes on."""

    def __init__(self, devices: Sequence[str], file: Path, now: float) -> None:
        self._handles = _handles(devices)
        self._file = file
        self._told = _changed_at(file)
        self._cpu_s: dict[Process, float] = {}
        self._looked_at = self._active_at = now

    def idle_s(self, processes: Iterable[Process], now: float) -> float:
        """Look, and say for how long nothing has been seen or told."""
        told = _changed_at(self._file)
        is_told, self._told = told != self._told, told
        if self._has_worked(processes, now - self._looked_at) or is_told:
            self._active_at = now
        self._looked_at = now
        return now - self._active_at

    def _has_worked(self, processes: Iterable[Process], span_s: float) -> bool:
        before, self._cpu_s = self._cpu_s, {one: _cpu_s(one.pid) for one in processes}
        if self._handles:
            return any(map(_computes, self._handles))
        used_s = sum(max(0.0, used - before.get(one, 0.0)) for one, used in self._cpu_s.items())
        return used_s > CPU_SHARE * span_s


def _handles(devices: Sequence[str]) -> list[Any]:
    """NVML's, [] where it is not there, or does not know one of them (emulated GPUs)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(device) for device in devices]
    except Exception:  # no library, no driver, no such device
        return []


def _computes(handle: Any) -> bool:
    """Also where it cannot be told: then nothing is ended for it."""
    import pynvml

    try:
        return bool(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0)
    except pynvml.NVMLError:
        return True


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S
    return 0.0


def _changed_at(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0
