"""Every module in one sentence, its own: where something is, for who does not know the code. The standard library only.

python -m scripts.modules egs_core/server
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("egs_core", "plugins/*/egs_*", "benchmarks")
DOCSTRING = re.compile(r'"""(.*?)(?:\n\s*\n|""")', re.DOTALL)
SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z`])")


def packages() -> list[str]:
    """Folders with modules, relative to the repository."""
    found = [init.parent for folder in FOLDERS for init in sorted(ROOT.glob(f"{folder}/**/__init__.py"))]
    return [str(folder.relative_to(ROOT)) for folder in found]


def modules_of(package: str) -> list[str]:
    """The files of a package but its face, relative to the repository."""
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / package).glob("*.py")) if path.stem != "__init__"]


def first_sentence(path: str) -> str:
    """What a file says of itself first; "" where it says nothing."""
    found = DOCSTRING.match((ROOT / path).read_text(encoding="utf-8"))
    return SENTENCE.split(" ".join(found[1].split()))[0] if found is not None else ""


def main(folder: str) -> int:
    place = folder.strip("/")
    found = [one for package in packages() if f"{package}/".startswith(f"{place}/") for one in modules_of(package)]
    for path in found:
        print(f"{path.removeprefix(f'{place}/')}: {first_sentence(path)}")
    if not found:
        print(f"no modules in {folder or 'no folder'}: name one, as egs_core/server", file=sys.stderr)
    return 0 if found else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else ""))
