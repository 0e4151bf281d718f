"""The packages that a lightweight component wants installed, and an interpreter that has them.

kfp puts `pip install` in front of the component's own command. On a cluster that happens in each container; here it
would change the user's environment under running tasks. So it is left out where this interpreter has them all, and else
done once for each set of packages, in an environment on top of this one that ends with the run.

    sh -c '… python3 -m pip install … "pandas==2.2" && "$0" "$@"'  sh -ec '… executor_main …' CODE --executor_input …
    └───────────────────────── the installation ────────────────┘  └────────── the command of its own ─────────────┘
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import venv
from collections.abc import Sequence
from pathlib import Path

from egs_core.errors import InputError
from egs_kubeflow import compat

_OWN_COMMAND = '"$0" "$@"'
_QUOTED = re.compile(r"'([^']+)'")
_KFP = re.compile(r"'kfp(\[[^']*\])?==[^']*'")
_FOR_KFP = ("kfp", "typing-extensions>=3.7.4,<5", "--no-deps")
"""What kfp installs for itself. The runner's own kfp serves components that were compiled with any version of it."""


class Environments:
    """Interpreters by set of packages; from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pythons: dict[str, str] = {}

    def ready(self, command: Sequence[str], place: str) -> list[str]:
        """The command less its installation, for an interpreter that has the packages. Raises InputError that names
        `place` where they cannot be installed."""
        parts = list(command)
        if not _installs(parts):
            return compat.with_python(parts, sys.executable)
        script = _KFP.sub("'kfp'", parts[2])
        if all(quoted.startswith(_FOR_KFP) for quoted in _QUOTED.findall(script)):
            return compat.with_python(own_command(parts), sys.executable)
        with self._lock:
            if script not in self._pythons:
                self._pythons[script] = sys.executable if _is_here(script) else self._make(script, place)
        return compat.with_python(own_command(parts), self._pythons[script])

    def _make(self, script: str, place: str) -> str:
        folder = self._folder / f"packages-{len(self._pythons)}"
        venv.create(folder, with_pip=True)
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "egs.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
        python = str(folder / "bin" / "python")
        done = _install(script, python)
        if done.returncode:
            problem = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise InputError(place, f"its packages cannot be installed: {problem}", "or install them where EGS runs")
        return python


def own_command(parts: Sequence[str]) -> list[str]:
    """The command less its installation, where it has one."""
    return list(parts[3:] if _installs(parts) else parts)


def _installs(parts: Sequence[str]) -> bool:
    is_shell = list(parts[:2]) == ["sh", "-c"] and len(parts) > 3
    return is_shell and "pip install" in parts[2] and parts[2].rstrip().endswith(_OWN_COMMAND)


def _is_here(script: str) -> bool:
    """Whether an installation would install nothing in this interpreter, by pip's own reports; no where it fails."""
    done = _install(script, sys.executable, PIP_DRY_RUN="1", PIP_NO_INDEX="1", PIP_REPORT="-")
    text, found = done.stdout.strip(), 0 if done.returncode else 1
    while text and found:
        try:
            report, end = json.JSONDecoder().raw_decode(text)
            found, text = not report["install"], text[end:].strip()
        except (ValueError, LookupError, TypeError):
            return False
    return bool(found)


def _install(script: str, python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an installation, and nothing after it."""
    command = compat.with_python(["sh", "-c", script, "true"], python)
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
