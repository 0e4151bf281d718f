"""What Python runs first in the process of a command of `egs run --preload`, before anything of the command's own.

    Python starts ─► this file: imports ─► waits for its turn ─► environment, group ─► what Python was called with
                        │                        ▲
                        └─ here, loaded, begun ─►└─ `egs run` (`egs_core.client.hooked`)

One that stands ready for a run that has not come yet (`egs_core.client.keeper`) is told that by a third part of its
configuration, the length of its last argument, which leaves room. At its turn it gets the arguments and streams, too.

Nothing leads out of `_main` but a turn: whatever goes wrong ends the process, and the command is started as ever. What
comes after is Python's own: its arguments, `__main__`, tracebacks, exit code are those of a command without all this.

It runs in the user's interpreter: any Python from 3.7 on, nothing of EGS, and no module that Python has not loaded by
itself, so that the command finds none which it would have found elsewhere.
"""

import os
import sys
import time

FAILED, INTERRUPTED = 120, 130
SIGKILL = 9  # without the module `signal`
EXECS = ("execv", "execve")  # by which `os` has all others
CLOCK_NS = 20000000  # by so much a file's time of change may be earlier than the change
MOST_BYTES = 1 << 20  # of a message
PACKAGES = ("site-packages", "dist-packages")
CACHE = "__pycache__"
CUSTOM = ("sitecustomize.", "usercustomize.")
MODULE_ENDS = (".py", ".pyc", ".so")  # of files; a folder of modules has no dot
TIME_ZONE = "/etc/localtime"  # which Python reads once
NVIDIA = "/dev/nvidia"
DRIVER = b"/libcuda.so"  # CUDA's runtime loads it with its first call
MARK = b"EGS_LEASE="
ARGUMENTS_END, ENV_BEGIN, ENV_END = 46, 47, 48  # in `/proc/PID/stat`, from the state on


class _Unfit(Exception):
    """Why the process is not to become the command's."""


def _main() -> "Exception | None":
    """The error that Python is to tell of, as it would have without this file; None for none."""
    handle = -1
    try:
        parent, _, number = os.environ.pop("EGS_PRELOAD").partition(":")
        if os.getppid() != int(parent):
            os._exit(FAILED)  # a program that is called python has started this one, or `egs run` is gone
        handle = int(number)
        os.set_inheritable(handle, False)
        names, first, own_path, *room = _heard(handle).split(b"\0")
        _hide(own_path)
        _tell(handle, "here")
        if not names:
            os._exit(0)  # that was all that it was started for
        error = _own_sitecustomize()
        _usercustomize()
        _load(handle, os.fsdecode(names).split(","), os.fsdecode(first), int(room[0]) if room else 0)
        return error
    except BaseException as reason:
        _end(handle, reason)
        raise  # not reached


def _heard(handle: int) -> bytes:
    """The next message. Without one nobody is there any more."""
    found = os.read(handle, MOST_BYTES)
    if not found:
        _leave(FAILED)
    return found


def _tell(handle: int, text: str) -> None:
    os.write(handle, (" ".join(text.split()) + "\n").encode("utf-8", "replace"))


def _end(handle: int, reason: BaseException) -> None:
    """Never returns."""
    try:
        words = str(reason) if isinstance(reason, _Unfit) else type(reason).__name__ + ": " + str(reason)
        _tell(handle, "not " + words[:1000])
    finally:
        _leave(INTERRUPTED if isinstance(reason, KeyboardInterrupt) else FAILED)


def _leave(code: int) -> None:
    """End, and with it what imports have started, which is of this process's group. Never returns."""
    try:
        try:  # noqa: SIM105 -- without the module `contextlib`
            os.setpgid(0, os.getpgid(os.getppid()))
        except OSError:
            pass  # `egs run` is gone, and nobody asks for the code
        os.killpg(os.getpid(), SIGKILL)
    except OSError:
        pass  # it has started none
    finally:
        os._exit(code)


def _hide(own_path: bytes) -> None:
    """Have all be as it would without this file. own_path: the user's PYTHONPATH behind "="; b"" where none is set."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if one != here]
    sys.path_importer_cache.pop(here, None)
    os.environ.pop("EGS_LEASE", None)
    del os.environ["PYTHONPATH"]
    if own_path:
        os.environb[b"PYTHONPATH"] = own_path[1:]


def _own_sitecustomize() -> "Exception | None":
    """Run the one that Python would have found. The error that it ends with: also that there is none, of which Python
    says nothing, and takes this file from its modules."""
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except Exception as error:
        return error
    finally:
        sys.modules.setdefault("sitecustomize", this)  # the import that runs this file looks for it there
    return None


def _usercustomize() -> None:
    """Python would run it next, before anything is imported."""
    if not sys.modules["site"].ENABLE_USER_SITE:
        return
    try:
        __import__("usercustomize")
    except ImportError as error:
        if error.name != "usercustomize":
            raise


def _load(handle: int, names: "list[str]", first: str, room: int) -> None:
    """Import, wait for the turn, and be the command's process. first: what Python will put in front of `sys.path`;
    room: of the last argument where it stands ready, else 0."""
    began, since_ns, known = time.perf_counter(), time.time_ns() - CLOCK_NS, set(sys.modules)
    stand_ins = [_which(number) for number in range(3)]
    if room:
        del sys.argv[-1]
        getattr(sys, "orig_argv", [""]).pop()
    is_put = not getattr(sys.flags, "safe_path", False)
    if is_put:
        sys.path.insert(0, first)
    _import(handle, names)
    if is_put:
        _check_order(first)
        sys.path.remove(first)
    _check_cuda()
    stamps: dict[str, tuple[int, ...] | None] = dict(_stamps(set() if room else known))
    places: dict[str, list[str]] = {}
    if room:
        stamps.update((name, _stamp(name)) for name in (*_installed(), *_libraries()))
        found = [first, *sys.path] if is_put else sys.path
        stamps.update((name, _stamp(name)) for name in found if os.path.isfile(name))
        places.update((name, _namesakes(name)) for name in found if os.path.basename(name) not in PACKAGES)
    changed = [name for name, stamp in stamps.items() if stamp is not None and stamp[0] >= since_ns]
    if changed:
        raise _Unfit(f"{changed[0]} has changed while it was loaded")
    _tell(handle, f"loaded {time.perf_counter() - began:.3f}")
    arguments: list[bytes] = []
    streams: list[int] = []
    if room:
        group, mark, count, *variables = _heard_with(handle, streams).split(b"\0")
        arguments, variables = variables[: int(count)], variables[int(count) :]
        _check_cuda()
        if [_which(number) for number in range(3)] != stand_ins:
            raise _Unfit("what is imported has put its standard streams elsewhere")
        sys.path_importer_cache.clear()  # what is in folders may have changed
    else:
        group, mark, *variables = _heard(handle).split(b"\0")
    changed = [name for name, stamp in stamps.items() if _stamp(name) != stamp]
    changed += [name for name, namesakes in places.items() if _namesakes(name) != namesakes]
    if changed:
        raise _Unfit(f"{changed[0]} has changed since it was loaded")
    if group:
        os.setpgid(0, int(group))
    _show(mark, arguments, room)
    for variable in variables:
        key, _, value = variable.partition(b"=")
        os.environb[key] = value
    _tell(handle, "begun")  # fails where `egs run` is gone: a server that saw no mark yet may have taken its lease back
    os.close(handle)
    if room:
        words = [os.fsdecode(word) for word in arguments]
        sys.argv += words
        getattr(sys, "orig_argv", []).extend(words)
        _take(streams)


def _import(handle: int, names: "list[str]") -> None:
    """A module that would have another program in this process ends it: as a rule that is this one anew, and its
    command would run before its turn."""
    own, is_over = os.getpid(), False

    def instead(real: "object") -> "object":
        def called(*words: "object") -> None:
            if os.getpid() == own and not is_over:
                _end(handle, _Unfit("what is imported has another program in its process"))
            real(*words)  # type: ignore[operator]

        return called

    kept = [(module, name, getattr(module, name)) for module in (os, sys.modules["posix"]) for name in EXECS]
    for module, name, real in kept:
        setattr(module, name, instead(real))
    for name in names:
        try:
            __import__(name)
        except Exception as error:
            raise _Unfit(f"{name}: {type(error).__name__}: {error}") from None
    is_over = True
    for module, name, real in kept:
        setattr(module, name, real)


def _check_order(first: str) -> None:
    """Python puts the program's own folder in front of what imports have put there. first: that folder."""
    ahead = sys.path[: sys.path.index(first)]
    own = {name.partition(".")[0] for name in _modules_in(first)}
    shared = [name for folder in ahead for name in _modules_in(folder) if name.partition(".")[0] in own]
    if shared or not all(map(os.path.isdir, ahead)) or (ahead and os.path.isfile(first)):
        raise _Unfit(f"what is imported puts {ahead[0]} before the program's own folder")


def _heard_with(handle: int, handles: "list[int]") -> bytes:
    """The next message, and the three streams that come with it, which are added to handles."""
    is_new = "_socket" not in sys.modules
    import _socket

    if is_new:
        del sys.modules["_socket"]
    ours = _socket.socket(-1, -1, -1, os.dup(handle))
    found, more, _, _ = ours.recvmsg(MOST_BYTES, _socket.CMSG_SPACE(12))
    ours.close()
    if not found:
        _leave(FAILED)
    for _, _, data in more:
        handles += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
    if len(handles) != 3:
        raise _Unfit("its standard streams could not be handed over")
    return found


def _which(number: int) -> "tuple[int, int] | None":
    """The file that is open as this."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _take(streams: "list[int]") -> None:
    """Have these as standard input, output and error. What imports have written comes first."""
    for number, handle in enumerate(streams):
        written = _written(number) if number else b""
        os.dup2(handle, number)
        os.close(handle)
        try:
            while written:
                written = written[os.write(number, written) :]
        except OSError:
            pass  # nobody reads it
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        try:  # noqa: SIM105 -- without the module `contextlib`
            stream.buffer.tell()  # it knows where it was in what stood for it
        except Exception:
            pass  # a pipe, or what an import has put there instead


def _written(number: int) -> bytes:
    """To the pipe or file that stands for a standard stream so far."""
    found, handle = b"", os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            piece = os.read(handle, MOST_BYTES)
            if not piece:
                break
            found += piece
    except BlockingIOError:
        pass
    finally:
        os.close(handle)
    return found


def _installed() -> "list[str]":
    """What a Python that starts later may find otherwise: itself, its environment, what is installed there, also where
    nothing was installed yet."""
    found = [sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"), TIME_ZONE]
    site = sys.modules["site"]
    found += getattr(site, "getsitepackages", list)()  # not in some old virtual environments
    if site.ENABLE_USER_SITE:
        found.append(site.USER_SITE)
    for folder in sys.path:
        if os.path.basename(folder) in PACKAGES and os.path.isdir(folder):
            found.append(folder)
            found += [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth")]
    return found


def _libraries() -> "set[str]":
    """All that are in this process."""
    with open("/proc/self/maps", "rb") as file:
        found = {line.split(None, 5)[-1].rstrip() for line in file if b".so" in line}
    return {os.fsdecode(name) for name in found if name.startswith(b"/")}


def _namesakes(place: str) -> "list[str]":
    """What is in a folder where modules are looked for, and is called as one of those that are loaded, or that Python
    looks for at its start."""
    return [name for name in _modules_in(place) if name.partition(".")[0] in sys.modules or name.startswith(CUSTOM)]


def _modules_in(place: str) -> "list[str]":
    """Files and folders by their names; none where it is no folder."""
    try:
        found = sorted(os.listdir(place or "."))
    except OSError:
        return []
    return [name for name in found if name.endswith(MODULE_ENDS) or ("." not in name and name != CACHE)]


def _stamps(known: "set[str]") -> "dict[str, tuple[int, ...]]":
    """Of the files of all modules but those known: see `_stamp`, of each that is there."""
    modules = [module for name, module in list(sys.modules.items()) if name not in known]
    files = [getattr(module, "__dict__", {}).get("__file__") for module in modules]
    found = {name: _stamp(name) for name in files if isinstance(name, str)}
    return {name: stamp for name, stamp in found.items() if stamp is not None}


def _stamp(name: str) -> "tuple[int, ...] | None":
    """When it has changed, its size, and which file it is: what is put in its place may have its time and size."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino


def _check_cuda() -> None:
    if _has_cuda():
        raise _Unfit("what is imported initialises CUDA, or asks it for GPUs, and would see no GPU later either")


def _has_cuda() -> bool:
    """Also where that was tried in vain, as `torch.cuda.is_available()` does: it would not be tried again."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    with open("/proc/self/maps", "rb") as file:
        if DRIVER in file.read():
            return True
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + number).startswith(NVIDIA):
                return True
        except OSError:  # closed meanwhile, as the folder's own is
            pass
    return False


def _show(mark: bytes, arguments: "list[bytes]", words_room: int) -> None:
    """Write the lease's mark where the kernel shows with which environment this process was started: by that a server
    finds it, and what is forked from it. Room was left for it there, and for arguments, which `ps` shows."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[ENV_BEGIN]), int(fields[ENV_END])
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        if words_room:
            shown_words = b"".join(word + b"\0" for word in arguments)[:words_room].ljust(words_room, b"\0")
            os.pwrite(memory, shown_words, int(fields[ARGUMENTS_END]) - words_room - 1)
        shown = b"\0" + os.pread(memory, end - begin, begin)
        at = shown.index(b"\0" + MARK) + len(MARK)
        room = shown.index(b"\0", at + 1) - at - 1
        if len(mark) > room:
            raise _Unfit("the lease's mark is longer than it may be")
        os.pwrite(memory, mark.ljust(room, b"\0"), begin + at)
    finally:
        os.close(memory)


if "EGS_PRELOAD" in os.environ:
    _error = _main()
    if _error is not None:
        raise _error
