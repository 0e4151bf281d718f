"""The container that reads ahead, and what of a pod says what its task will read.

What was read stays in the node's memory as page cache, and is there for whoever reads it next: layers of an image and
volumes are the same files for all pods of a node. It is charged to the pod that has read it first, so that pod's limit
is what it may read; when it ends the pages stay, and are the first to go when anything needs the memory.
"""

from __future__ import annotations

import posixpath
from typing import Any

import msgspec

from egs_core.kubernetes.images import full_name, pod_with_images
from egs_core.kubernetes.objects import Object, items, part, text
from egs_core.kubernetes.pods import Pod, hints_of
from egs_core.kubernetes.readings import Mount, Reading, reading

MIB = 1 << 20
READ_S = 30.0
"""How long a reading takes, until one was seen."""
SHARE = 4
"""Of a node's memory one preload reads no more than this part."""
ROOM_BYTES, MODULES_BYTES = 64 * MIB, 2048 * MIB
"""Of memory beside the files: for the shell, and where modules are imported for these and what they read."""
CPUS = "1"
_IMPORT = """
import importlib, os, sys
failed = 0
for name in sys.argv[1].split(","):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed = 1
        print(f"{name}: {error}", flush=True)
os._exit(failed)
"""
SCRIPT = f"""left=$1 modules=$2 failed=0
shift 2
for file do
  [ "$left" -gt 0 ] || {{ echo "$file: is beyond what may be read"; break; }}
  if said=$(dd if="$file" of=/dev/null bs={MIB} count="$left" 2>&1)
  then left=$((left - ${{said%%+*}} - 1))
  else echo "$said"; failed=1
  fi
done
[ -z "$modules" ] && exit $failed
python=$(command -v python3 || command -v python) || {{ echo "no Python for $modules"; exit 1; }}
CUDA_VISIBLE_DEVICES= "$python" -c '{_IMPORT}' "$modules" || failed=1
exit $failed
"""
"""Reads so many MiB of files to their end, and imports modules, without a GPU. What fails keeps nothing else from being
read, and is said at the end."""
COMMAND = ["sh", "-c", SCRIPT, "egs-reader"]


def pod_with_reading(raw: Object) -> Pod:
    """As `pod_with_images`, and what its task reads when it begins."""
    return msgspec.structs.replace(pod_with_images(raw), reading=reading_of(raw))


def reading_of(raw: Object) -> Reading | None:
    """By a pod's hints, which are of its main container."""
    meta, spec = part(raw, "metadata"), part(raw, "spec")
    containers = items(spec, "containers")
    hints = hints_of(part(meta, "annotations"))
    if "preload" not in hints or not containers:
        return None
    main = next((one for one in containers if text(one, "name") == "main"), containers[0])
    mounts = _mounts(spec, main)
    found = reading(text(meta, "namespace"), full_name(text(main, "image")), hints, mounts)
    folder = text(main, "workingDir")
    if found is None or not folder:
        return found
    files = [posixpath.join(folder, path) for path in found.files]
    return reading(found.namespace, found.image, {"preload": {"files": files, "modules": [*found.modules]}}, mounts)


def reading_in(raw: Object) -> Reading | None:
    """What a pod of the controller's reads; None: it is none that reads."""
    meta, spec = part(raw, "metadata"), part(raw, "spec")
    containers = items(spec, "containers")
    if not containers or containers[0].get("command") != COMMAND:
        return None
    stated = [str(one).replace("$$", "$") for one in containers[0].get("args") or ()]
    modules, files = tuple(filter(None, "".join(stated[1:2]).split(","))), tuple(stated[2:])
    mounts = _mounts(spec, containers[0])
    return Reading(text(meta, "namespace"), text(containers[0], "image"), files, modules, mounts)


def made(one: Reading, most_bytes: int, confined: Object) -> dict[str, Any]:
    """Of the pod's spec. most_bytes: of files that it may read. confined: the container's security context."""
    arguments = [str(max(1, most_bytes // MIB)), ",".join(one.modules), *one.files]
    claims = list(dict.fromkeys(mount.claim for mount in one.mounts))
    limit = most_bytes + (MODULES_BYTES if one.modules else ROOM_BYTES)
    container: dict[str, Any] = {
        "name": "preload-0",
        "image": one.image,
        "imagePullPolicy": "IfNotPresent",
        "command": COMMAND,
        "args": [argument.replace("$", "$$") for argument in arguments],  # Kubernetes would read $(NAME) as a variable
        "resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": CPUS, "memory": str(limit)}},
        "securityContext": confined,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if not one.mounts:
        return {"containers": [container]}
    container["volumeMounts"] = [
        {"name": f"v{claims.index(mount.claim)}", "mountPath": mount.path, "readOnly": True}
        | ({"subPath": mount.part} if mount.part else {})
        for mount in one.mounts
    ]
    # read-only as a volume, too: then a kubelet changes neither owners nor labels of its files
    volumes = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for number, claim in enumerate(claims)
    ]
    return {"containers": [container], "volumes": volumes}


def _mounts(spec: Object, container: Object) -> tuple[Mount, ...]:
    claims = {
        text(one, "name"): text(part(one, "persistentVolumeClaim"), "claimName") for one in items(spec, "volumes")
    }
    found = []
    for one in items(container, "volumeMounts"):
        claim = "" if one.get("subPathExpr") else claims.get(text(one, "name"), "")
        found.append(Mount(claim, text(one, "mountPath"), text(one, "subPath")))
    return tuple(found)
