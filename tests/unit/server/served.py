"""Programs that tests give to `egs run`, and a site that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.server.real_site import RealSite

HOLDS = "import os, sys, time\nopen(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
UNTIL = HOLDS + "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\nsys.exit(int(sys.argv[3]))\n"


def shared_site(tmp_path_factory: pytest.TempPathFactory, *, as_programs: bool = False) -> Iterator[RealSite]:
    """A fixture: a server of two devices."""
    found = RealSite(tmp_path_factory.mktemp("site"), as_programs=as_programs)
    try:
        found.start()
        yield found
    finally:
        found.close()


@contextmanager
def own_site(folder: Path, gpus: int, **files: str) -> Iterator[RealSite]:
    """A server of one test. files: texts of the files that options name, as `queues=…` for `--queues`."""
    arguments = []
    for option, text in files.items():
        path = folder / f"{option}.yaml"
        path.write_text(text)
        arguments += [f"--{option}", str(path)]
    found = RealSite(folder / "site", gpus)
    try:
        found.start(*arguments)
        yield found
    except Exception as error:
        error.add_note(found.standing())
        raise
    finally:
        found.close()


def content(path: Path) -> str:
    """Of a file that somebody writes, "" before it is there."""
    return path.read_text() if path.exists() else ""
