"""Which images pods are made of, and which ones nodes have: each under one name, however it is written.

A node lists no more than the 50 largest of its images (the kubelet's `nodeStatusMaxImages`), so what it does not list
may be there all the same: then a preload finds it there and costs nothing.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from egs_core.kubernetes.objects import Object, items, part, text
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of

PULL_S = 120.0
"""How long an image takes to be pulled, where nothing else is known."""
HUB = "docker.io"
"""Where an image is that names no registry."""


@lru_cache(maxsize=16384)
def full_name(image: str) -> str:
    """The name under which a node lists an image. A digest says more than a tag beside it.

    >>> full_name("python"), full_name("team/app:2"), full_name("localhost:5000/app:2@sha256:1f")
    ('docker.io/library/python:latest', 'docker.io/team/app:2', 'localhost:5000/app@sha256:1f')
    """
    named, _, digest = image.strip().partition("@")
    first, slash, rest = named.partition("/")
    if not slash:
        first, rest = HUB, f"library/{named}"
    elif not ("." in first or ":" in first or first == "localhost"):
        first, rest = HUB, named
    path, _, tag = rest.partition(":")
    return f"{first}/{path}@{digest}" if digest else f"{first}/{path}:{tag or 'latest'}"


def images_of(spec: Object) -> tuple[str, ...]:
    """Of all containers of a pod, each once, in the order in which a kubelet pulls them; and those that are volumes."""
    found = [text(one, "image") for kind in ("initContainers", "containers") for one in items(spec, kind)]
    found += [text(part(one, "image"), "reference") for one in items(spec, "volumes")]
    return tuple(dict.fromkeys(full_name(image) for image in found if image))


def pod_with_images(raw: Object) -> Pod:
    """As `pod_of`, and what it is made of."""
    spec = part(raw, "spec")
    secrets = tuple(text(one, "name") for one in items(spec, "imagePullSecrets"))
    return msgspec.structs.replace(pod_of(raw), images=images_of(spec), pull_secrets=secrets)


def node_with_images(raw: Object) -> Node:
    """As `node_of`, and what it has."""
    listed = items(part(raw, "status"), "images")
    found = (str(name) for one in listed for name in one.get("names") or ())
    return msgspec.structs.replace(node_of(raw), images=frozenset(map(full_name, found)))
