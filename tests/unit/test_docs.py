"""The documentation site builds without a network and without a broken link, and its reference knows every key."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from egs_airflow.options import OPTIONS
from egs_core import hints
from egs_core.cli.app import COMMANDS
from egs_core.cluster_file import Nodes
from egs_core.cost.prices import Price, PricedFlavor, PricedNodes, PriceFile
from egs_core.flavors import Flavor
from egs_core.model.instance import Device, Devices
from egs_core.queues import Queue, Quota, TaskLimits
from egs_core.yaml_file import FileModel
from egs_kubeflow.rewrite import profile
from egs_ray import Options
from scripts import modules
from scripts.reference import PAGES
from scripts.reference.environment import INTERNAL, VARIABLES, variables_in_code
from scripts.reference.files import models_below, rows_of
from scripts.reference.markdown import MissingText

ROOT = Path(__file__).resolve().parents[2]
OTHER_HOST = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//[^">]+')
FOR_WHO_CHANGES_EGS = (
    "architecture",
    "testing",
    "adding-a-framework",
    "adding-a-hint",
    "how-why-is-answered",
    "what-tasks-tell",
)
FOLDERS = ("benchmarks", "egs_core", "examples", "plugins", "scripts", "tests")
PLACE = re.compile(r"`([\w/]+\.py)(?::(\w+))?`")
CODE = ("egs_core", "plugins/*/egs_*", "benchmarks")
MODULES = [
    str(path.relative_to(ROOT)) for folder in CODE for path in ROOT.glob(f"{folder}/**/*.py") if path.stem[0] != "_"
]
PROFILE = [model for model in vars(profile).values() if isinstance(model, type) and issubclass(model, FileModel)]


def build(repository: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=repository, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    """Strict: a link to a page, anchor or file that is not there ends the build. Pages load nothing from elsewhere."""
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert {path.name: found for path, text in pages.items() if (found := OTHER_HOST.findall(text))} == {}
    assert {Path(name).with_suffix(".html").name for name in PAGES} <= {path.name for path in pages}


@pytest.mark.slow
def test_broken_links_end_the_build(tmp_path: Path) -> None:
    """The build notices a page, an anchor and a file of the repository that are not there, and names each."""
    copy, links = tmp_path / "repository", ("nowhere.md", "glossary.md#no-such-word", "../examples/no_such_file.py")
    copy.mkdir()
    for name in ("examples", "scripts", "egs_core", "plugins", "README.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml"):
        (copy / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", copy / "docs")
    with (copy / "docs" / "ray.md").open("a") as page:
        page.writelines(f"\n[a link]({link})\n" for link in links)
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    assert [link for link in links if link not in done.stderr] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("hints", list(hints.HINTS)),
        ("commands", [f"\n## egs {name}" for name in COMMANDS]),
        ("commands", ["## egs kubeflow compile\n", "## airflow egs agent\n", "`--emulate-gpus`", "`-o, --output`"]),
        ("airflow-options", list(OPTIONS)),
        ("ray-options", list(Options.__struct_fields__)),
        ("environment", list(VARIABLES)),
        ("queues-file", [key for model in (Queue, Quota, TaskLimits) for key in model.model_fields]),
        ("cluster-file", [key for model in (Nodes, Flavor) for key in model.model_fields]),
        ("devices-file", [key for model in (Devices, Device) for key in model.model_fields]),
        ("prices-file", [key for model in (PriceFile, PricedFlavor, Price, PricedNodes) for key in model.model_fields]),
        ("modules", MODULES),
        ("kubeflow-profile", [key for model in PROFILE for key in model.model_fields]),
    ],
)
def test_a_reference_page_has_every_name(page: str, names: list[str]) -> None:
    """Each key, option, hint and command of the code is on its page."""
    text = PAGES[f"reference/{page}.md"]()
    assert [name for name in names if (name if " " in name or "`" in name else f"| `{name}` |") not in text] == []


def test_a_key_without_a_description_is_an_error() -> None:
    """Who adds a key must say what it means: the build ends with its name."""

    class Undescribed(FileModel):
        count: int = 1

    with pytest.raises(MissingText, match="count has no description"):
        list(rows_of(Undescribed))


def test_nested_models_are_found() -> None:
    """Lists, mappings and optional values of models have tables of their own."""
    found: list[type[BaseModel]] = list(models_below(profile.Profile))
    assert set(found) == {model for model in PROFILE if model is not FileModel and not model.__name__.startswith("_")}


def test_every_environment_variable_is_described() -> None:
    """What the code names is in the table, or listed as internal; and nothing else is."""
    assert set(variables_in_code()) == VARIABLES.keys() | INTERNAL.keys()


@pytest.mark.parametrize("page", FOR_WHO_CHANGES_EGS)
def test_a_page_names_code_that_is_there(page: str) -> None:
    """Each `file.py` on a page for who changes EGS ends the path of a file here, which has what `file.py:name` names: a
    function, class or method."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert missing(text) == []


def missing(text: str) -> list[str]:
    """The places that a text names and that are not there."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = []
    for file, name in PLACE.findall(text):
        stated = re.compile(rf"^\s*(?:async )?(?:def|class) {name}\b", re.MULTILINE) if name else re.compile("")
        meant = [path for path in paths if path.as_posix().endswith(f"/{file}")]
        if not any(stated.search(path.read_text(encoding="utf-8")) for path in meant):
            found.append(f"{file}:{name}" if name else file)
    return found


def test_what_is_not_there_is_found() -> None:
    """A file that is gone, a function that another file has, and none of what is there."""
    text = "`engine/explain.py:explain` `explain.py`, `nowhere.py` and `engine/explain.py:why_words` are there"
    assert missing(text) == ["nowhere.py", "engine/explain.py:why_words"]


def test_each_module_beside_the_packages_is_explained() -> None:
    """`egs_core` has some forty modules at its top: architecture.md says of each what it is for."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "egs_core").glob("[a-z]*.py") if f"`{path.name}`" not in text] == []


def test_a_folders_modules_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each in a line with what it says of itself first; a folder without any is one line on stderr."""
    assert modules.main("egs_core/site/") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "protocol.py: The protocol between a site and a holder of work (an adapter's session, an agent, `egs run`)."
        in lines
    )
    assert len(lines) == len(list((ROOT / "egs_core" / "site").glob("[a-z]*.py")))
    assert modules.main("nowhere") == 2
    assert capsys.readouterr().err == "no modules in nowhere: name one, as egs_core/server\n"


def test_decisions_name_modules_that_there_are() -> None:
    """A module that a record names by its folder is there, but for those of which it says that they have gone."""
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    lost = missing("\n".join(record.read_text(encoding="utf-8") for record in records))
    assert [name for name in lost if "/" in name] == ["gate/local.py", "gate/operations.py"]
