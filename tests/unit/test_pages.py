"""What the readme and the tutorials show is what is recorded, what the tests run, and what the commands take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.picture import PICTURE, RECORD, draw, summary
from scripts.reference.commands import commands_page

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *TUTORIALS]
FENCE = re.compile(r"^``` ?\{?\.?(\w+)\}?\n(.*?)^```$", re.M | re.S)  # `{.python}`: ruff leaves includes alone there


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The text of the page's code blocks in these languages."""
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def test_the_readme_is_short() -> None:
    """What is longer goes into docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_picture_is_what_is_recorded() -> None:
    """`make picture` draws this file from this record."""
    recorded = json.loads(RECORD.read_text())
    assert PICTURE.read_text() == draw(recorded)
    assert f"{recorded['runs']['egs']['makespan_s']:.1f} s with EGS" in summary(recorded)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_show_files_that_the_tests_run(page: Path) -> None:
    """Code and outputs are included from examples/, whole, so they cannot differ from what runs."""
    included = [re.fullmatch(r'--8<-- "(examples/[^":]+)"\n', text) for text in blocks(page, "python", "yaml", "text")]
    assert included
    assert [match for match in included if match is None or not (ROOT / match[1]).is_file()] == []


def test_every_example_is_in_a_tutorial() -> None:
    """A new example is shown, or left out by a decision that changes this test; the adapter and the split model have
    pages of their own."""
    pages = [*TUTORIALS, *(ROOT / "docs" / name for name in ("adding-a-framework.md", "model-split.md"))]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    scripts = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.py"))]
    assert [name for name in scripts if name not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_the_page_exist(page: Path) -> None:
    """Each `egs …` and `airflow egs …` is a command with these options, and each script a file."""
    sections = dict(re.findall(r"^## ((?:airflow )?egs [^\n]+)\n(.*?)(?=^## |\Z)", commands_page(), re.M | re.S))
    wrong = []
    for line in "".join(blocks(page, "sh")).splitlines():
        words = line.partition("#")[0].split()
        while words and "=" in words[0]:
            words.pop(0)  # variables of the environment
        named = [name for name in sections if words[: len(name.split())] == name.split()]
        title = max(named, key=len, default=None)
        if title is None and ("egs" in words[:2]):
            wrong.append(line)
        options = {word for word in words if word.startswith("-")} if title else set()
        wrong += [
            f"{line}: {option}"
            for option in sorted(options)
            if option not in re.findall(r"-[-\w]+", sections[title or ""])
        ]
        wrong += [line for word in words if word.startswith("examples/") and not (ROOT / word).is_file()]
    assert wrong == []
