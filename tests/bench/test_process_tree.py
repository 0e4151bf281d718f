"""What a benchmark counts as a program's processes, on processes without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.process_tree import Watched

BURN = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass\n"
PROGRAM = f"""
import subprocess, sys
daemon = "import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\n" + {BURN!r} + "open(sys.argv[1], 'w').close()"
daemon = "import sys\\n" + daemon
subprocess.run([sys.executable, "-c", daemon, sys.argv[1]], check=True)
subprocess.run([sys.executable, "-c", {BURN!r}], check=True, env={{}})
{BURN}
import time, os
until = time.monotonic() + 20
while not os.path.exists(sys.argv[1]) and time.monotonic() < until: time.sleep(0.02)
"""


def test_daemons_and_processes_with_another_environment_count(tmp_path: Path) -> None:
    """A process that left its parent's tree has the variable; a child without it has the parent. Each burns 0.3 s of a
    core, of which the last moments may be missed, and nothing of another process is counted."""
    env, done = {**os.environ, "RUN_OF_A_TEST": str(tmp_path)}, str(tmp_path / "done")
    other = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"])
    try:
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, done], env=env)
        watched = Watched(program.pid, f"RUN_OF_A_TEST={tmp_path}")
        assert program.wait(240) == 0
        used = watched.stop()
    finally:
        other.kill()
        other.wait()
    assert Path(done).exists()
    assert 3 <= used.processes <= 5  # the program, its child, the daemon; perhaps who started that one
    assert 0.5 < used.cpu_s < 3.0
    assert 0.15 < used.driver_cpu_s < used.cpu_s - 0.3
    assert used.workers == 0


def test_it_ends_with_a_program_that_is_not_there(tmp_path: Path) -> None:
    """Nothing was seen, nothing is counted, and `stop` returns at once."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    watched, began = Watched(ended.pid, f"NOT_SET={tmp_path}"), time.monotonic()
    used = watched.stop()
    assert (used.processes, used.cpu_s) == (0, 0.0)
    assert time.monotonic() - began < 5.0
