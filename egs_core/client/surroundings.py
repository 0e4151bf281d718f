"""What a command has of the process that starts it, beside its words: limits, rights, groups, folder, environment,
streams. A process that stands ready (`keeper`) has these of an earlier `egs run`; it serves one of which all is equal.
They are compared, not set: what is not known here is not made equal either."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
from collections.abc import Iterable, Mapping

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
    "Speculation_Store_Bypass",
    "SpeculationIndirectBranch",
    "Cpus_allowed",
    "Mems_allowed",
    "THP_enabled",
)
"""Of `/proc/PID/status`."""
FILES = ("limits", "cgroup", "oom_score_adj", "coredump_filter", "loginuid", "attr/current")
OWN_FILES = ("personality", "timerslack_ns")
"""Which cannot be read of every process of the same user."""
IGNORED = "SigIgn"
"""Of `/proc/PID/status`, but of a process that has imported nothing: an import may ignore a signal."""
C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, as bits of it."""
CALLS = {"x86_64": (252, 250), "aarch64": (31, 219)}
"""Of Linux, for which there is no function: `ioprio_get` and `keyctl`, by the processor's kind."""
ONE_PROCESS, GET_KEYRING, SESSION_KEYRING = 1, 0, -3
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
    found["priority of disks"] = _called(0, ONE_PROCESS, pid or 0)
    if pid is None:
        found["keyring"] = _called(1, GET_KEYRING, SESSION_KEYRING, 0)
    return found


def ignored(pid: int | None = None) -> str:
    """Which signals a process ignores: of two of the C library's own it goes by how the process was begun."""
    lines = _text(f"/proc/{'self' if pid is None else pid}/status").splitlines()
    found = next((line.split()[1] for line in lines if line.startswith(IGNORED)), "")
    return f"{int(found, 16) & ~C_LIBRARY:x}" if found else ""


def is_executed(pid: int, program: str, path: str) -> bool:
    """Whether a process executes the file that this word names, found by this PATH: not what that has executed."""
    found = shutil.which(program, path=path)
    return found is not None and _file(found) == _file(f"/proc/{pid}/exe") != ""


def has_kept_streams(pid: int, others: Iterable[int]) -> bool:
    """Whether a process has its standard streams by other numbers, too, or other processes have them: what is there
    then stays where it is when the streams are others. Not `/dev/null`."""
    kept = {_file(f"/proc/{pid}/fd/{number}") for number in range(3)} - {_file(os.devnull), ""}
    for one in (pid, *others):
        place = f"/proc/{one}/fd"
        try:
            numbers = os.listdir(place)
        except OSError:  # it cannot be known, or it has ended
            if os.path.isdir(f"/proc/{one}"):
                return True
            continue
        if any(_file(f"{place}/{number}") in kept for number in numbers if one != pid or int(number) > 2):
            return True
    return False


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


def _called(which: int, *words: int) -> str:
    """What this call of Linux says; "" where it is not known, or not allowed."""
    numbers = CALLS.get(platform.machine())
    if numbers is None:
        return ""
    said = ctypes.CDLL(None).syscall(ctypes.c_long(numbers[which]), *map(ctypes.c_long, words))
    return str(said) if said >= 0 else ""


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
