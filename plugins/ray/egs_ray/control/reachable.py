"""Which of the Rays on this host this user can connect to.

Ray opens files and sockets in the folder of the session that it connects to. In the session of another user it may not,
and then ends the whole process (`abort`, exit code 134) where no `except` helps. So who would connect asks here before.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from egs_core.errors import InputError

PROCESSES = Path("/proc")  # elsewhere than on Linux nothing is found, and Ray is asked as it is
FLAGS = "--gcs-address=", "--session_dir=", "--raylet_socket_name=", "--node_ip_address="


@dataclass(frozen=True)
class Session:
    """Of one Ray node on this host, at the IP node. address: HOST:PORT of its cluster. locked: what this user may not
    write, or ""."""

    address: str
    node: str
    owner: str
    locked: str


def chosen_address(address: str, place: str) -> str:
    """The address to give to Ray for `address` (HOST:PORT, or "auto" for one on this host): the same, or of several the
    one that this user can connect to. Raises InputError where that is none."""
    there = sessions()
    if address != "auto":
        there = [one for one in there if _is_of(one, address)]
    locked, open_ = [one for one in there if one.locked], sorted({one.address for one in there if not one.locked})
    if not locked or (open_ and address != "auto"):
        return address
    if not open_:
        first = locked[0]
        problem = f"the Ray at {first.address} is of user {first.owner}, and {first.locked} is not writable for you"
        raise InputError(place, problem, f"ask as {first.owner}, or share the site by `egs serve`")
    if len(open_) > 1:
        raise InputError(place, f"several clusters: {', '.join(open_)}", "say which with --address, or RAY_ADDRESS")
    return open_[0]


def own_addresses() -> list[str]:
    """HOST:PORT of each cluster with a node on this host that this user has started, and may connect to."""
    user = _user(os.getuid())
    return sorted({one.address for one in sessions() if one.owner == user and not one.locked})


def sessions() -> list[Session]:
    """Of all Ray nodes whose process is seen on this host."""
    found = []
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            owner = folder.stat().st_uid
        except OSError:
            continue  # it has ended
        if Path(words[0]).name == "raylet" and (one := _session(words, owner)) is not None:
            found.append(one)
    return found


def _is_of(session: Session, address: str) -> bool:
    """Whether HOST:PORT, where HOST may be a name or a loopback address, is that of the session's cluster."""
    host, _, port = address.rpartition(":")
    its_host, _, its_port = session.address.rpartition(":")
    if port != its_port:
        return False
    try:
        ips = {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        ips = {host}
    is_here = any(ip.startswith("127.") or ip == "::1" for ip in ips)
    return its_host in ips or (is_here and its_host == session.node)


def _session(words: Sequence[str], owner: int) -> Session | None:
    flags = [next((word[len(flag) :] for word in words if word.startswith(flag)), "") for flag in FLAGS]
    address, folder, door, node = flags
    if not address or not folder:
        return None  # of a Ray whose command line is another: Ray says what it says
    written = [f"{folder}/logs", f"{folder}/logs/events", *([door] if door else [])]
    return Session(address, node, _user(owner), next(filter(_is_locked, written), ""))


def _is_locked(path: str) -> bool:
    """Whether it is there, or may be, and this user may not write it."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False  # not there, or in a container's own files
    return not os.access(path, os.W_OK)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"
