"""What `airflow egs doctor` holds against the options of `[egs]` that are stated. Changes nothing.

A file or folder that is not there yet is tried where it would be made: an unnamed file in the nearest folder that is
there, for permissions say nothing of /proc, of a full disk or of one that is read-only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from egs_airflow import config
from egs_airflow.options import GONE, MODES, NO, OPTIONS, SECTION, YES, Option
from egs_core.adapter import Check
from egs_core.errors import InputError
from egs_core.units import parse_bytes, parse_seconds

CONNECT_S = 5


def option_checks() -> list[Check]:
    """A line for each option that cannot work, and for each name in the section that is none; else one for all."""
    stated = {name: config.stated_option(name) for name in OPTIONS if name != "mode"}  # which has a line of its own
    bad = [
        Check(f"[{SECTION}] {name}", False, f"{source}: {problem}")
        for name, (text, source) in stated.items()
        if text and (problem := problem_of(OPTIONS[name], text))
    ]
    others = {*_names_in_section(), *(name for name in GONE if config.stated_option(name)[0])} - OPTIONS.keys()
    bad += [Check(f"[{SECTION}] {name}", False, _unknown(name)) for name in sorted(others)]
    return bad or [Check("options", True, "what is stated can work")]


def problem_of(option: Option, text: str) -> str:
    """What is wrong with a value; empty where it can work."""
    try:
        return CHECKS[option.kind](text)
    except InputError as error:
        return error.problem if not error.hint else f"{error.problem} ({error.hint})"
    except OSError as error:
        return f"{text}: {error.strerror or error}"


def _names_in_section() -> list[str]:
    """What airflow.cfg and AIRFLOW__EGS__ variables state; the variables alone where airflow.cfg cannot be read, or has
    no such section: Airflow 3.2 then does not look for them."""
    prefix = f"AIRFLOW__{SECTION.upper()}__"
    stated = {name.removeprefix(prefix).removesuffix("_CMD").lower() for name in os.environ if name.startswith(prefix)}
    try:
        from airflow.configuration import conf

        return sorted({*stated, *(conf.getsection(SECTION) or ())})
    except Exception:  # `config` warns of a broken airflow.cfg
        return sorted(stated)


def _unknown(name: str) -> str:
    if name in GONE:
        return GONE[name]
    near = get_close_matches(name, OPTIONS, 1)
    return "there is no such option" + (f": did you mean {near[0]}?" if near else "")


# --- by kind ----------------------------------------------------------------------------------------------------------


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        return "" if text.strip().lower() in words else f"{text!r} is none of {', '.join(words)}"

    return check


def _seconds(text: str) -> str:
    parse_seconds(text, SECTION)
    return ""


def _seconds_or_never(text: str) -> str:
    return "" if text.strip().lower() in NO else _seconds(text)


def _bytes_or_no(text: str) -> str:
    if text.strip().lower() not in NO:
        parse_bytes(text, SECTION)
    return ""


def _number(text: str) -> str:
    is_number = text.strip().isascii() and text.strip().isdigit()
    return "" if is_number else f"{text!r} is no whole number"


def _modules(text: str) -> str:
    bad = [name for name in config.split(text) if not all(part.isidentifier() for part in name.split("."))]
    return f"{', '.join(map(repr, bad))}: not the name of a module" if bad else ""


def _pools(text: str) -> str:
    from egs_airflow.order.pools import parse_pools

    parse_pools(text)
    return ""


def _flavors(text: str) -> str:
    from egs_airflow.order.pools import parse_flavors

    parse_flavors(text)
    return ""


def _name(text: str) -> str:
    return "" if len(config.split(text)) == 1 else f"{text!r} is not one name"


def _classes(text: str) -> str:
    from egs_airflow.pods import priority_classes

    priority_classes(text)
    return ""


def _limits(text: str) -> str:
    from egs_airflow.agent.limits import load_rules

    try:
        load_rules(Path(text))
    except InputError as error:  # its place is the file, with the line
        return str(error)
    return ""


def _folder(text: str) -> str:
    path = Path(text)
    if not path.is_absolute():
        return f"{text!r} is relative: each process of Airflow would take another folder"
    if path.exists() and not path.is_dir():
        return f"{text} is no folder"
    return _cannot_write(path)


def _file(text: str) -> str:
    path = Path(text)
    if not path.is_absolute():
        return f"{text!r} is relative: each process of Airflow would take another file"
    if path.is_file():
        path.open("rb").close()
        return ""
    return f"{text} is no file" if path.exists() else _cannot_write(path.parent)


def _cannot_write(folder: Path) -> str:
    """Why nothing can be written into a folder, which may have to be made first; raises OSError."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        return f"{there} is no folder"
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return f"nothing can be written into {there}: {error.strerror or error}"
    return ""


def _database(text: str) -> str:
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(text)
        if url.get_backend_name() == "sqlite":
            return _file(url.database) if url.database and not url.database.startswith("file:") else ""
        wait = {"connect_timeout": CONNECT_S} if url.get_backend_name() in ("postgresql", "mysql", "mariadb") else {}
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, connect_args=wait)
        engine.connect().close()
    except Exception as error:  # of whichever driver the URL names
        return f"no database there: {type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def _server(text: str) -> str:
    from egs_core.client.places import parse_url

    parse_url(text)
    return ""


def _any(text: str) -> str:  # noqa: ARG001  # a pattern or a tag may be whatever it is
    return ""


CHECKS: dict[str, Callable[[str], str]] = {
    "mode": _one_of(*MODES),
    "yes or no": _one_of(*YES, *NO),
    "number": _number,
    "list": _any,
    "modules": _modules,
    "pools": _pools,
    "flavors": _flavors,
    "name": _name,
    "classes": _classes,
    "seconds": _seconds,
    "seconds or never": _seconds_or_never,
    "bytes or no": _bytes_or_no,
    "folder": _folder,
    "file": _file,
    "file to read": _limits,
    "URL of a database": _database,
    "URL of a server": _server,
}
"""Kind -> what is wrong with a text; raises InputError or OSError."""
