"""`make check-dist` refuses distributions that lack a file, hold another package's, or do not show their readme."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import check_dist
from scripts.check_dist import CheckFailed, Product, check_contents, requirements_of

PACKAGE = {"__init__.py": "", "py.typed": "", "page.js": "let a"}
META = "demo_pkg-1.0.dist-info"
ABOUT = "Metadata-Version: 2.4\nName: demo-pkg\nDescription-Content-Type: text/markdown\n\n" + "What it does. " * 50
WHEEL = {f"demo/{name}": text for name, text in PACKAGE.items()} | {
    f"{META}/METADATA": ABOUT,
    f"{META}/licenses/LICENSE": "",
}
SDIST = {f"demo/{name}": text for name, text in PACKAGE.items()} | {"LICENSE": "", "README.md": "", "PKG-INFO": ABOUT}


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Product:
    """A small package in a project of its own; dist/ is empty."""
    monkeypatch.setattr(check_dist, "DIST", tmp_path / "dist")
    (tmp_path / "dist").mkdir()
    (tmp_path / "demo").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "demo" / name).write_text(text)
    return Product("demo-pkg", tmp_path, "demo", ())


def build(tmp_path: Path, wheel: dict[str, str], sdist: dict[str, str]) -> None:
    with zipfile.ZipFile(tmp_path / "dist" / "demo_pkg-1.0-py3-none-any.whl", "w") as archive:
        for name, text in wheel.items():
            archive.writestr(name, text)
    source = tmp_path / "source"
    with tarfile.open(tmp_path / "dist" / "demo_pkg-1.0.tar.gz", "w:gz") as archive:
        for name, text in sdist.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
            archive.add(source / name, f"demo_pkg-1.0/{name}")


def without(files: dict[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in files.items() if key != name}


def test_complete_distributions_pass(product: Product, tmp_path: Path) -> None:
    """All files, readme, licence, types."""
    build(tmp_path, WHEEL, SDIST)
    check_contents(product)


@pytest.mark.parametrize(
    ("wheel", "sdist", "problem"),
    [
        (without(WHEEL, "demo/page.js"), SDIST, "the wheel lacks demo/page.js"),
        (WHEEL, without(SDIST, "demo/page.js"), "the source distribution lacks demo/page.js"),
        ({**WHEEL, "other/a.py": ""}, SDIST, "the wheel holds what is not of the package: other/a.py"),
        (WHEEL, {**SDIST, "plugins/x/README.md": ""}, "holds what is not of the package: plugins/x/README.md"),
        (without(WHEEL, f"{META}/licenses/LICENSE"), SDIST, "the licence or the readme"),
        ({**WHEEL, f"{META}/METADATA": "Name: demo-pkg\n\n"}, SDIST, "the readme is not in the metadata"),
    ],
)
def test_what_is_missing_or_too_much_is_named(
    wheel: dict[str, str], sdist: dict[str, str], problem: str, product: Product, tmp_path: Path
) -> None:
    """One sentence says which file of which archive."""
    build(tmp_path, wheel, sdist)
    with pytest.raises(CheckFailed, match=problem):
        check_contents(product)


def test_an_empty_dist_is_named(product: Product) -> None:
    """It says what to run."""
    with pytest.raises(CheckFailed, match="run `make dist`"):
        check_contents(product)


def test_requirements_are_those_of_the_metadata() -> None:
    """A distribution gets what it asks for, also through extras of others, and no other framework."""
    ray = next(one for one in check_dist.PRODUCTS if one.name == "egs-ray")
    found = {one.name.lower() for one in requirements_of(ray)}
    assert {"ray", "aiohttp", "msgspec", "numpy"} <= found  # ray[default] asks for aiohttp, egs-core for msgspec
    assert not found & {"apache-airflow", "kfp", "pytest", "egs-core"}
