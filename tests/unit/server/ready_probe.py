"""What `test_serve_ready_same` has a run's command be: it tells all that it has of its surroundings. `python work.py
FILE` writes it there as JSON, and ends with CODE."""

from __future__ import annotations

CODE = 5

PROBE = """
import sys
import slow, json
modules = sorted(sys.modules)
import locale, os, resource, signal, tempfile, threading, time, warnings
ran = open("ran", "a")
ran.write(".")
ran.close()
me = sys.modules["__main__"]
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
volatile = ("Vm", "Rss", "Hugetlb", "Pid", "PPid", "Tgid", "Ngid", "NS", "State", "nonvol", "vol", "Kthread", "SigQ")
def text(name):
    try:
        with open("/proc/self/" + name) as file:
            return file.read()
    except OSError as error:
        return str(error)
def opened(number):
    info = dict(line.split(":", 1) for line in text(f"fdinfo/{number}").splitlines() if ":" in line)
    link = os.readlink(f"/proc/self/fd/{number}")
    return ["pipe" if link.startswith("pipe") else link, info["pos"].strip(), info["flags"].strip()]
listed = sorted(map(int, os.listdir("/proc/self/fd")))
streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
told = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "flags": list(sys.flags), "path": sys.path, "modules": modules,
    "python": [sys.executable, sys.version, sys.prefix, sys.warnoptions, str(sys._xoptions)],
    "program": os.readlink("/proc/self/exe"),
    "finders": [len(sys.meta_path), len(sys.path_hooks), len(warnings.filters), sys.dont_write_bytecode],
    "main": {name: repr(value) for name, value in vars(me).items() if name[:2] == "__"},
    "environment": dict(os.environ), "words": text("cmdline").rstrip("\\0"), "name": text("comm"),
    "folder": os.getcwd(),
    "status": {name: value.strip() for name, value in status.items() if not name.startswith(volatile)},
    "files": [opened(number) for number in listed if os.path.exists(f"/proc/self/fd/{number}")],
    "others": {name: text(name) for name in ("limits", "cgroup", "oom_score_adj", "coredump_filter", "loginuid",
        "attr/current", "personality", "timerslack_ns")},
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")},
    "schedule": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "group": os.getpgrp() == os.getpid(), "terminal": text("stat").rpartition(")")[2].split()[4],
    "handlers": [str(signal.getsignal(number))[:30] for number in sorted(signal.valid_signals())],
    "streams": {name: [one.encoding, one.errors, one.line_buffering, one.name, one.mode, one.seekable()]
        for name, one in streams.items() if one is not None},
    "places": [tempfile.gettempdir(), os.path.expanduser("~"), time.tzname, locale.setlocale(locale.LC_ALL)],
    "threads": threading.active_count(), "slow": getattr(slow, "TOLD", None), "user": getattr(sys, "user", None),
    "custom": "sitecustomize" in modules, "execs": [os.execv is sys.modules["posix"].execv, str(os.execv)],
}
if sys.stdin is not None:
    if sys.stdin.seekable():
        sys.stdin.seek(0)
    told["input"] = sys.stdin.read()
try:
    import extra
    told["extra"] = extra.__file__
except ImportError:
    pass
with open(sys.argv[1] + ".part", "w") as file:
    json.dump({"pid": os.getpid(), "used_s": resource.getrusage(resource.RUSAGE_SELF).ru_utime, **told}, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
print("out", flush=True)
print("err", file=sys.stderr)
raise SystemExit(5)
"""
