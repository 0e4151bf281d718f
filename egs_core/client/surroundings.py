"""What a command has of the process that starts it, beside its words: limits, rights, groups, folder, environment,
streams. A process that stands ready (`keeper`) has these of an earlier `egs run`; it serves one of which all is equal.
They are compared, not set: what is not known here is not made equal either."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

FIELDS = (
    "Uid",
    "Gid",
    "Groups",
    "Umask",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Cpus_allowed",
    "Mems_allowed",
    "THP_enabled",
)
"""Of `/proc/PID/status`."""
FILES = ("limits", "cgroup", "oom_score_adj", "coredump_filter", "loginuid", "attr/current")
OWN_FILES = ("personality", "timerslack_ns")
"""Which cannot be read of every process of the same user."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts")
NICE, REALTIME, POLICY = 16, 37, 38  # in `stat`, from the state on
FOLDER = "cwd"
GROUP, TERMINAL, FOREGROUND = 2, 4, 5  # there
PER_RUN = frozenset(
    (
        "_",
        "CUDA_VISIBLE_DEVICES",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "OLDPWD",
        "SYSTEMD_EXEC_PID",
        "TRACEPARENT",
        "TRACESTATE",
        "XDG_SESSION_ID",
    )
)
"""Variables that are others at each start, and that no import goes by. `CUDA_VISIBLE_DEVICES` is the lease's."""
PER_TASK = "AIRFLOW_CTX_"
"""What the names of those begin with that a workflow system sets for each task."""


def surroundings(pid: int | None = None) -> dict[str, str]:
    """Of a process, of this one by default, which tells more. What cannot be read is ""."""
    place = f"/proc/{'self' if pid is None else pid}"
    status = dict(line.partition(":")[::2] for line in _text(f"{place}/status").splitlines())
    found = {name: status.get(name, "").strip() for name in FIELDS}
    found |= {name: _text(f"{place}/{name}") for name in (*FILES, *(OWN_FILES if pid is None else ()))}
    found |= {f"namespace {name}": _link(f"{place}/ns/{name}") for name in NAMESPACES}
    found |= {name: _file(f"{place}/{name}") for name in (FOLDER, "root")}
    fields = _stat(place)
    found["schedule"] = " ".join(fields[at] for at in (NICE, REALTIME, POLICY)) if fields else ""
    found["memory"] = " ".join(_text(f"{place}/numa_maps", 256).split()[1:2])
    return found


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have to be the same: Python, the loader and imports may have gone by them."""
    return {name: value for name, value in environment.items() if not is_per_run(name)}


def is_per_run(name: str) -> bool:
    return name in PER_RUN or name.startswith(PER_TASK)


def streams() -> list[str] | None:
    """Of which kind standard input, output and error are, for which Python makes its objects when it starts; None where
    they are of a kind for which nothing stands in: a terminal, a socket, a device."""
    found = []
    for number in range(3):
        try:
            told = os.fstat(number)
        except OSError:
            return None
        if stat.S_ISFIFO(told.st_mode):
            kind = "pipe"
        elif stat.S_ISREG(told.st_mode):
            kind = "file"
        elif stat.S_ISCHR(told.st_mode) and told.st_rdev == os.stat(os.devnull).st_rdev:
            kind = "null"
        else:
            return None
        found.append(f"{kind} {told.st_blksize}")
    return found


def handed_down() -> dict[int, str]:
    """What is started here inherits beside the standard streams, as make's or flock's: what it is, by number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found[int(name)] = _what(int(name))
        except OSError:  # that of the folder
            continue
    return dict(sorted(found.items()))


def _what(number: int) -> str:
    """That is open under this number."""
    mode = os.fstat(number).st_mode
    place = "".join([one if one.isprintable() else "?" for one in _link(f"/proc/self/fd/{number}")])
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return f"the pipe {place}" if place.startswith("/") else "a pipe"
    if not place.startswith("/"):
        return place
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISCHR, "device"))
    return f"the {next((kind for is_it, kind in kinds if is_it(mode)), 'file')} {place}"


def is_in_foreground() -> bool:
    """Of a terminal: there keys reach it, and what it starts could ask its user."""
    fields = _stat("/proc/self")
    return not fields or (fields[TERMINAL] != "0" and fields[FOREGROUND] == fields[GROUP])


def _stat(place: str) -> list[str]:
    return _text(f"{place}/stat").rpartition(")")[2].split()


def _text(path: str, most: int = 1 << 16) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _file(path: str) -> str:
    """Which one it is, whatever it is called."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"
