"""Tests on other versions of the frameworks, beside each other: each in its environment over `.venv`.

    .venv/bin/python scripts/test_versions.py --on ray 2.59.0 "tests/unit/ray -x" --on kfp 2.17.3 tests/unit/kubeflow

What each prints comes whole, when it has ended. The cache is for failed tests, which are those of `make test`: there is
none here. Exit code 1 where one has failed, 130 after Ctrl-C, which reaches all of them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN = """
"$0" scripts/setup_version.py "$1" "$2" || exit 1
venv="$PWD/.venv-$1-$2"
shift 2
PATH="$venv/bin:$PATH" exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
"""


def main(words: list[str]) -> int:
    """Run all, and tell of each as it ends."""
    parser = argparse.ArgumentParser(description="Tests on other versions of the frameworks, beside each other.")
    parser.add_argument("--on", nargs=3, action="append", metavar=("FRAMEWORK", "VERSION", "ARGUMENTS"), required=True)
    running = {f"{one[0]} {one[1]}": _started(*one) for one in parser.parse_args(words).on}
    failed = []
    try:
        while running:
            for name in [name for name, process in running.items() if _has_ended(process)]:
                process = running.pop(name)
                print(f"--- on {name}", (ROOT / "build" / _log(*name.split())).read_text(), sep="\n", flush=True)
                failed += [name] * (process.returncode != 0)
            time.sleep(0.2)
    except KeyboardInterrupt:
        for process in running.values():
            process.wait()
        return 130
    if failed:
        print(f"failed on: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _started(framework: str, version: str, arguments: str) -> subprocess.Popen[bytes]:
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / _log(framework, version)).open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", RUN, sys.executable, framework, version, *shlex.split(arguments)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def _log(framework: str, version: str) -> str:
    return f"tests-{framework}-{version}.txt"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
