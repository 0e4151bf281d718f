"""Values in the table that Ray's GCS keeps: what has to outlive a node cannot be an object or a file.

Part of `compat` (feature kv): private Ray API.
"""

from __future__ import annotations

from typing import cast

_NAMESPACE = b"egs"


def put(key: bytes, value: bytes) -> None:
    """Write a value into the GCS."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)


def get(key: bytes) -> bytes | None:
    """A value of the GCS, if it is there."""
    from ray.experimental import internal_kv

    return cast("bytes | None", internal_kv._internal_kv_get(key, namespace=_NAMESPACE))


def keys(prefix: bytes) -> list[bytes]:
    """The keys that begin so."""
    from ray.experimental import internal_kv

    return list(internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE))


def delete(key: bytes, *, is_prefix: bool = False) -> None:
    """Remove a value from the GCS, or all whose keys begin so."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(key, del_by_prefix=is_prefix, namespace=_NAMESPACE)
