"""The page of all modules, each with its own first sentence."""

from __future__ import annotations

from scripts.modules import first_sentence, modules_of, packages
from scripts.reference.markdown import MissingText, code, table

INTRO = """# Modules

For who changes EGS: every module in one sentence, its own. How the packages work together is in
[architecture](../architecture.md); `python -m scripts.modules FOLDER` prints the modules of one folder.

"""


def modules_page() -> str:
    """A table for each package. Raises MissingText for a module that does not say what it is."""
    return INTRO + "\n".join(_section(package) for package in packages())


def _section(package: str) -> str:
    rows = [(code(path), _told(path)) for path in modules_of(package)]
    modules = table(("module", "what it is"), rows) if rows else ""
    return f"## `{package}`\n\n{_told(f'{package}/__init__.py')}\n\n{modules}"


def _told(path: str) -> str:
    if not (sentence := first_sentence(path)):
        raise MissingText(f"{path} has no docstring: say in its first line what it is")
    return sentence
