"""What MkDocs does not do by itself: pages made from code, the readme as the first page, links out of `docs/`.

The first page is the repository's README. The reference is generated (`scripts.reference`). A page may link to a file
of the repository outside of `docs/`, as it must to be readable without the site: the file is copied into the site.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from scripts.reference import PAGES  # noqa: E402  # found by the line above

COPIES = "repository/"
"""Folder of the site for files from outside of `docs/`."""
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the lists of the navigation that depend on what there is."""
    docs = Path(config.docs_dir)
    decisions = sorted(path.name for path in (docs / "decisions").glob("[0-9]*.md"))
    lists = {"Reference": list(PAGES), "Decisions": [f"decisions/{name}" for name in ("README.md", *decisions)]}
    nav: list[dict[str, Any]] = config.nav or []
    for entry in nav:
        for title in entry.keys() & lists.keys():
            entry[title] = lists[title]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of `docs/`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme_as_page(readme)))
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files


def readme_as_page(text: str) -> str:
    """The readme as a page of `docs/`: links into that folder without it, all others one folder up."""

    def moved(link: re.Match[str]) -> str:
        path = link["path"]
        inside = path.removeprefix("docs/")
        new = "decisions/README.md" if path == "docs/decisions" else inside if inside != path else f"../{path}"
        return new + (link["anchor"] or "")

    return LINK.sub(moved, text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the repository's other files at copies of them in the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link["path"]))
        if target.startswith(("docs/", "..")) or not (ROOT / target).exists():
            return link[0]  # a page of the site, or wrong: MkDocs says so
        if target == "README.md":
            return posixpath.relpath("index.md", folder or ".") + (link["anchor"] or "")
        return posixpath.relpath(copied(target, config, files), folder or ".")

    return LINK.sub(moved, markdown)


def copied(target: str, config: MkDocsConfig, files: Files) -> str:
    """The place in the site of a file of the repository, or of a list of the files of a folder."""
    source = ROOT / target
    if source.is_dir():
        place = f"{COPIES}{target.replace('/', '-')}.html"
        inside = [f"{target}/{path.name}" for path in sorted(source.iterdir()) if path.is_file()]
        names = [posixpath.relpath(copied(path, config, files), COPIES) for path in inside]
        text = "".join(f'<li><a href="{name}">{name}</a></li>\n' for name in names)
        file = File.generated(config, place, content=text)
    else:
        place = COPIES + (f"{target}.txt" if target.endswith(".md") else target)
        file = File.generated(config, place, abs_src_path=str(source))
    if files.get_file_from_path(place) is None:
        files.append(file)
    return place
