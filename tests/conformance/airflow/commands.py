"""Commands of Airflow, each in a process of its own that is forked from one which has imported Airflow already.

    tests ── words, where to print ──► server (Airflow imported once) ── fork ──► `airflow WORDS`
          ◄── exit code ─────────────

A command spends two seconds of a processor on imports alone, and the tests have DAG files read some twenty times.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

IMPORTED = (
    "airflow.cli.commands.dag_command",
    "airflow.dag_processing.dagbag",
    "airflow.dag_processing.collection",
    "airflow.models.serialized_dag",
    "airflow.utils.db",
    "airflow.providers.standard.operators.bash",
    "airflow.providers.standard.operators.python",
)
"""Nothing of EGS, which each command imports anew; what a version of Airflow does not have is left out."""

SERVER = """
import contextlib, importlib, json, os, sys
from airflow.__main__ import main

for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
print("ready", flush=True)
for line in sys.stdin:
    words, output = json.loads(line)
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_WRONLY)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = ["airflow", *words]
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Commands:
    """Commands of the Airflow with this environment, which must not change; one at a time."""

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        self._home = home
        with (home / "commands.txt").open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-c", SERVER, *IMPORTED],
                env=dict(environment),
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code of `airflow WORDS`, and what it printed."""
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        with tempfile.NamedTemporaryFile(dir=self._home) as output:
            stdin.write(json.dumps([words, output.name]) + "\n")
            stdin.flush()
            while not (line := stdout.readline()).lstrip("-").rstrip().isdigit():  # what imports print is no answer
                assert line, f"the server has ended: {(self._home / 'commands.txt').read_text()}"
            return int(line), Path(output.name).read_text()

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(120)


@contextmanager
def commands(environment: Mapping[str, str], home: Path) -> Iterator[Commands]:
    """The server, for as long as a `with` block lasts."""
    made = Commands(environment, home)
    try:
        yield made
    finally:
        made.close()
