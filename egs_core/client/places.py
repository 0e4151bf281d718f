"""Where the server of this user is: `EGS_URL`, else a Unix socket of this host; and the token for it."""

from __future__ import annotations

import os
import socket
import stat
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import Path

from egs_core.errors import EgsError, InputError
from egs_core.places import data_folder

URL, TOKEN, RUNTIME, CA = "EGS_URL", "EGS_TOKEN", "EGS_RUNTIME_DIR", "EGS_CA"
TOKEN_FILE = "EGS_TOKEN_FILE"
SOCKET_NAME = "egs.sock"
SHARED_FOLDER = Path("/run/egs")
DATA_FOLDERS = ("server", "agent")  # of this user's server and agent, where no other place had room for a socket
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """url: http://HOST:PORT, or unix://PATH; socket: that path; token: sent with each request over TCP; others: of
    further servers of the site, to be asked where this one is not the active one."""

    url: str
    socket: Path | None = None
    token: str = ""
    others: tuple[Address, ...] = ()


def find_address() -> Address | None:
    """The server that the environment names, else one whose socket is there; None for neither. Raises InputError."""
    named = os.environ.get(URL, "").strip()
    if named:
        return parse_url(named)
    found = socket_here()
    return Address(f"unix://{found}", found) if found is not None else None


def socket_here() -> Path | None:
    """That clients of this user ask where `EGS_URL` names no server; None where none is there."""
    shared = [path for path in socket_places() if _is_socket(path)]
    own = [data_folder() / name / SOCKET_NAME for name in DATA_FOLDERS]
    found = shared or [path for path in own if _is_socket(path) and has_listener(path)]
    return found[0] if found else None


def none_here() -> str:
    """What is said where `find_address` finds none: where it has looked, and what to do."""
    tried = [*socket_places(), *(data_folder() / name / SOCKET_NAME for name in DATA_FOLDERS)]
    looked = f"{URL} is not set, and no server listens at {' or '.join(map(str, tried))}"
    return f"no EGS server here ({looked}): start `egs serve`, or name one by {URL}"


def trusted_certificates() -> str | bool:
    """The file of certificates that `EGS_CA` names; True: the usual ones. Raises InputError for none there."""
    named = os.environ.get(CA, "").strip()
    if named and not Path(named).is_file():
        raise InputError(CA, f"{named}: there is no such file", "name one with the server's certificate, in PEM")
    return named or True


def socket_places() -> list[Path]:
    """Where a server of this host may have its socket, the one for all users first."""
    own = os.environ.get(RUNTIME)
    if own:
        return [Path(own) / SOCKET_NAME]
    places = [SHARED_FOLDER]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(runtime) / "egs")
    return [folder / SOCKET_NAME for folder in places]


def has_listener(path: Path, kind: int = socket.SOCK_STREAM) -> bool:
    """False for a socket on which nobody listens: its server was killed. True for all that only an answer tells."""
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def parse_url(text: str) -> Address:
    """The address that `EGS_URL` has, or the addresses, with commas between. Raises InputError."""
    first, *others = [_parse_one(one.strip()) for one in text.split(",")]
    return replace(first, others=tuple(others))


def _parse_one(text: str) -> Address:
    hint = "for example http://127.0.0.1:8470 or unix:///run/egs/egs.sock"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(URL, f"{text!r} is no address: {error}", hint) from None
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Address(text, Path(parts.path))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
        raise InputError(URL, f"{text!r} is not the address of a server", hint)
    port = port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = f"{parts.scheme}://{host}:{port}"
    return Address(url, None, os.environ.get(TOKEN) or read_token(url))


def token_file(url: str) -> Path:
    """Where the token of this user for a server is kept: its name is made of the address."""
    parts = urllib.parse.urlsplit(url)
    host = "localhost" if parts.hostname in LOCAL else str(parts.hostname)
    return data_folder() / "tokens" / f"{host.replace(':', '-')}-{parts.port}"


def read_token(url: str) -> str:
    """Of the file that `EGS_TOKEN_FILE` names, which somebody else writes anew before its token ends; else of the one
    that this user's server writes, "" where there is none. Raises EgsError, for one's own also where others may read
    it: its token is no secret."""
    if named := os.environ.get(TOKEN_FILE, "").strip():
        try:
            return Path(named).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise EgsError(f"{TOKEN_FILE}: {named}: {reason}") from None
    path = token_file(url)
    try:
        with path.open() as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise EgsError(f"{path}: must be yours alone: chmod 600 {path}, or start `egs serve` again")
            return file.read().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise EgsError(f"{path}: {error.strerror}") from None


def write_token(url: str, token: str) -> Path:
    """Keep a token where this user's clients find it, for nobody else to read. Raises OSError."""
    path = token_file(url)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # of a server that was killed here and had this number; in a container all have
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(token + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
