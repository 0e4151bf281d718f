"""What `egs kubernetes controller` and `manifests` are told of files and modules that are read ahead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from egs_core.adapter import ClusterProfile
from egs_core.errors import InputError
from egs_core.kubernetes.readings import ReadRules
from egs_core.units import parse_bytes

MIB = 1 << 20
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PreloadFiles = Annotated[
    str,
    typer.Option(
        help="With --preload: what tasks' hints name is read ahead, too, of files so much at most, such as 8GiB."
    ),
]
PreloadVolume = Annotated[
    list[str] | None,
    typer.Option(
        help="NAMESPACE/CLAIM: with --preload-files, a volume claim that may be read ahead, of all that many nodes may"
        " have; again for more."
    ),
]


def read_rules(
    files: str,
    volumes: Sequence[str] | None,
    serve: Sequence[str],
    site: ClusterProfile | None = None,
    *,
    preloads: bool,
) -> ReadRules:
    """What is said, else what the profile says. serve: the namespaces that are served; none named: all. Raises
    InputError for what would do nothing."""
    if files and not preloads:
        raise InputError("--preload-files", "does nothing without --preload", "add --preload, or leave it out")
    most = parse_bytes(files, "--preload-files") if files else site.read_bytes if site and preloads else 0
    if files and most < MIB:
        raise InputError("--preload-files", "is less than 1 MiB", "say how much one preload may read, such as 8GiB")
    if volumes and not most:
        raise InputError("--preload-volume", "does nothing without --preload-files", "add it, or leave this out")
    for one in volumes or ():
        if _VOLUME.fullmatch(one) is None:
            raise InputError("--preload-volume", f"{one!r} is no NAMESPACE/CLAIM", "for example team/models")
        if serve and one.partition("/")[0] not in serve:
            raise InputError("--preload-volume", f"{one}: its namespace is not served", "name it with --serve, too")
    named = tuple(volumes) if volumes is not None else site.read_volumes if site else ()
    return ReadRules(most, tuple(dict.fromkeys(named)) if most else ())
