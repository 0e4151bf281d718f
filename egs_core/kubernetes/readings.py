"""What a task reads when it begins: files and modules that its hints name, of its image and of volumes that it mounts.

egs.io/hints: {"preload": {"files": ["/models/m.bin"], "modules": ["torch"]}}
volumeMounts: /models, of the volume claim `models`     ──►  m.bin is read of that claim, torch of the image
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping

import msgspec

from egs_core.kubernetes.texts import kept_within, length_of

MOST_NAMES = 100
"""So many files, and modules, of one task; the first of them."""
SHOWN = 80
MOST_LETTERS = 4 << 20
"""Of all that is read whose names are kept."""


class ReadRules(msgspec.Struct, frozen=True):
    """What may be read ahead. most_bytes: of files, by one preload; 0: nothing is read. volumes: `NAMESPACE/CLAIM` of
    the volume claims that may be mounted for it, read-only."""

    most_bytes: int = 0
    volumes: tuple[str, ...] = ()


NO_READS = ReadRules()


class Mount(msgspec.Struct, frozen=True):
    """Where a container has a volume. claim: the volume's, "" of another kind; part: of the volume, "" for all of
    it (`subPath`)."""

    claim: str
    path: str
    part: str = ""


class Reading(msgspec.Struct, frozen=True):
    """What is read, in a container of this image. mounts: those that the files need. Equal ones need to be read once on
    a node."""

    namespace: str
    image: str
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def key(self) -> str:
        """A name for it, for people too."""
        return _key(self)


def _length(one: Reading) -> int:
    parts = (part for mount in one.mounts for part in (mount.claim, mount.path, mount.part))
    return length_of((one.namespace, one.image, *one.files, *one.modules, *parts))


@kept_within(4096, MOST_LETTERS, _length)
def _key(one: Reading) -> str:
    named = ", ".join((*one.files, *one.modules))
    shown = named if len(named) <= SHOWN else f"{named[:SHOWN]}…"
    digest = hashlib.sha256(msgspec.json.encode(one)).hexdigest()
    return f"{shown} of {one.image} ({digest[:8]})"


def reading(namespace: str, image: str, hints: Mapping[str, object], mounts: tuple[Mount, ...]) -> Reading | None:
    """What these hints name, for a container that has these mounts; None: nothing. Relative paths are looked for where
    the image starts."""
    stated = hints.get("preload")
    if not isinstance(stated, Mapping):
        return None
    files = _texts(stated.get("files"), lambda path: path.isprintable() and len(path) < 4096)
    modules = _texts(stated.get("modules"), lambda name: all(part.isidentifier() for part in name.split(".")))
    if not (files or modules):
        return None
    needed = {mount for path in files if (mount := _mount_of(path, mounts)) is not None}
    return Reading(namespace, image, files, modules, tuple(one for one in mounts if one in needed))


def readable(one: Reading, may_mount: Callable[[str], bool]) -> Reading | None:
    """What of it can be read where of its volume claims these may be mounted, and no volume of another kind."""
    mounts = tuple(mount for mount in one.mounts if mount.claim and may_mount(mount.claim))
    files = tuple(path for path in one.files if _mount_of(path, one.mounts) in (None, *mounts))
    if not (files or one.modules):
        return None
    return msgspec.structs.replace(one, files=files, mounts=mounts)


def _mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that a file is on, the innermost one; None: it is the image's."""
    found = [one for one in mounts if f"{posixpath.normpath(path)}/".startswith(f"{one.path.rstrip('/')}/")]
    return max(found, key=lambda one: len(one.path), default=None)


def _texts(stated: object, is_one: Callable[[str], bool]) -> tuple[str, ...]:
    found = stated if isinstance(stated, list) else []
    return tuple(dict.fromkeys(one for one in found if isinstance(one, str) and one and is_one(one)))[:MOST_NAMES]
