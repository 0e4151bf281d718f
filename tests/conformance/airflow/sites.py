"""A Python environment of a test's own, from which the provider can be uninstalled while Airflow runs.

All that is installed is linked into it, the provider too; to uninstall is to remove what pip would remove.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from tests.conformance.airflow.live import ROOT

PROVIDER = "airflow-provider-egs"
PACKAGES = {"egs_core": ROOT / "egs_core", "egs_airflow": ROOT / "plugins" / "airflow" / "egs_airflow"}


@dataclass(frozen=True)
class Site:
    """python: its interpreter; packages: its site-packages; provider: what the provider has there."""

    python: Path
    packages: Path
    provider: tuple[str, ...]

    def uninstall(self) -> None:
        """Take the provider away; processes that have loaded it go on with what they have loaded."""
        for name in self.provider:
            (self.packages / name).unlink()


def make_site(folder: Path) -> Site:
    """A new environment with links to all that this one has; this checkout's sources before installed ones."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if entry.name not in PACKAGES and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    for name, source in PACKAGES.items():
        (packages / name).symlink_to(source)
    own = {file.parts[0] for file in distribution(PROVIDER).files or ()} - {".."}
    provider = tuple(sorted(name for name in own | {"egs_airflow"} if (packages / name).is_symlink()))
    return Site(folder / "bin" / "python", packages, provider)


def add_module(folder: Path, source: Path) -> None:
    """Put a module into a folder that is on the path of a test's Airflow."""
    folder.mkdir(exist_ok=True)
    shutil.copy(source, folder)
