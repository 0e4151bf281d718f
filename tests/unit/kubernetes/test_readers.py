"""What a pod says that its task reads, the container that reads it ahead, and that it really does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.read_ahead import cached_share, drop, read_through
from egs_core.kubernetes.preloads import CONFINED
from egs_core.kubernetes.readers import COMMAND, MIB, MODULES_BYTES, ROOM_BYTES, made, pod_with_reading, reading_in
from egs_core.kubernetes.readings import Mount, Reading, readable
from egs_core.kubernetes.volumes import why_not
from tests.unit.kubernetes.made_pods import pod

IMAGE = "docker.io/library/image:1"
LIMIT_S = 60.0
MODELS = {"name": "m", "persistentVolumeClaim": {"claimName": "models"}}


def reading_of(preload: object, volumes: list[dict[str, Any]] | None = None, **container: Any) -> Reading | None:
    """Of a pod with that hint, whose main container is not its first one."""
    spec = {"containers": [{"name": "wait", "image": "w"}, {"name": "main", "image": "image:1", **container}]}
    raw = pod("p", hints={"preload": preload}, spec=spec | ({"volumes": volumes} if volumes else {}))
    return pod_with_reading(raw).reading


# --- what is read ---


def test_a_pod_says_what_its_task_reads() -> None:
    """Files of its volumes and its image, and modules, in its main container; only mounts that a file needs."""
    mounts = [{"name": "m", "mountPath": "/models", "subPath": "v1"}, {"name": "m", "mountPath": "/rest"}]
    found = reading_of({"files": ["/models/a.bin", "/opt/b"], "modules": ["torch"]}, [MODELS], volumeMounts=mounts)
    mount = Mount("models", "/models", "v1")
    assert found == Reading("team", IMAGE, ("/models/a.bin", "/opt/b"), ("torch",), (mount,))
    assert found.key.startswith("/models/a.bin, /opt/b, torch of docker.io/library/image:1 (")


@pytest.mark.parametrize(
    ("path", "folder", "on"),
    [
        ("a.bin", "/models/x", "/models"),
        ("a.bin", "", None),
        ("/models/../etc/a", "", None),
        ("//models/a", "", None),
        ("/models", "", "/models"),
        ("/models/inner/a", "", "/models/inner"),
        ("/modelsx/a", "", None),
    ],
)
def test_a_file_is_on_the_innermost_mount(path: str, folder: str, on: str | None) -> None:
    """A relative path is below the container's working folder, where it names one."""
    mounts = [{"name": "m", "mountPath": "/models/"}, {"name": "m", "mountPath": "/models/inner"}]
    found = reading_of({"files": [path]}, [MODELS], volumeMounts=mounts, **({"workingDir": folder} if folder else {}))
    assert found is not None
    assert [one.path.rstrip("/") for one in found.mounts] == ([] if on is None else [on])


@pytest.mark.parametrize(
    "preload", [None, "torch", {"files": "a"}, {"files": [1, "", "a\n"]}, {"modules": ["a b", "1"]}]
)
def test_what_cannot_be_read_is_not_stated(preload: object) -> None:
    """Whoever may make a pod may write anything."""
    assert reading_of(preload) is None


def test_volumes_of_other_kinds_and_those_that_are_not_allowed_are_left_out() -> None:
    """With their files; nothing is read where nothing is left."""
    mounts = [{"name": "m", "mountPath": "/models"}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes = [MODELS, {"name": "tmp", "emptyDir": {}}]
    found = reading_of({"files": ["/models/a", "/tmp/b", "/opt/c"]}, volumes, volumeMounts=mounts)
    assert found is not None
    allowed = readable(found, lambda claim: claim == "models")
    assert allowed == Reading("team", IMAGE, ("/models/a", "/opt/c"), (), (Mount("models", "/models"),))
    alone = readable(found, lambda _: False)
    assert alone == Reading("team", IMAGE, ("/opt/c",))
    expression = [{"name": "m", "mountPath": "/models", "subPathExpr": "$(A)"}]
    only = reading_of({"files": ["/models/a"]}, [MODELS], volumeMounts=expression)
    assert only is not None
    assert readable(only, lambda _: True) is None


@pytest.mark.parametrize(
    ("modes", "more", "problem"),
    [
        (["ReadWriteMany"], {}, ""),
        (["ReadOnlyMany", "ReadWriteMany"], {}, ""),
        (["ReadWriteOnce"], {}, "ReadWriteOnce"),
        (["ReadWriteOnce", "ReadOnlyMany"], {}, "not all of many nodes"),
        ([], {}, "not all of many nodes"),
        (["ReadWriteMany"], {"phase": "Pending"}, "not bound"),
        (["ReadWriteMany"], {"volumeMode": "Block"}, "a device"),
    ],
)
def test_a_volume_of_one_node_at_a_time_is_not_mounted(modes: list[str], more: dict[str, str], problem: str) -> None:
    """It would keep its task waiting; an unbound one would be made where the preload is."""
    status = {"phase": more.get("phase", "Bound"), "accessModes": modes}
    found = why_not({"spec": {"volumeMode": more.get("volumeMode", "Filesystem")}, "status": status})
    assert problem in found
    assert bool(found) == bool(problem)


# --- the container ---


def test_what_a_container_reads_is_known_from_it() -> None:
    """Whatever its paths are: a dollar would be a variable for Kubernetes. Its limit is what it may read."""
    mounts = (Mount("models", "/models", "v1"), Mount("models", "/more"), Mount("data", "/data"))
    files = ("/models/$(HOME) a", "/data/$$b,c", "/opt/-d")
    for modules, room in ((("torch", "a.b"), MODULES_BYTES), ((), ROOM_BYTES)):
        one = Reading("team", IMAGE, files, modules, mounts)
        spec = made(one, 8 << 30, CONFINED)
        assert reading_in({"metadata": {"namespace": "team"}, "spec": spec}) == one
        (container,) = spec["containers"]
        assert container["resources"]["limits"]["memory"] == str((8 << 30) + room)
        assert container["args"][0] == "8192"
        assert "$(HOME)" not in container["args"][2].replace("$$", "")
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]] == ["models", "data"]
    assert "volumes" not in made(Reading("team", IMAGE, ("/a",)), MIB, CONFINED)
    assert reading_in({"spec": {"containers": [{"command": ["true"]}]}}) is None
    assert reading_in({"spec": {"containers": [{"command": COMMAND}]}}) == Reading("", "")


def test_a_kubelet_changes_neither_the_command_nor_its_paths() -> None:
    """It puts variables of the container into both, `$(NAME)`, and takes `$$` for a dollar (k8s.io/kubernetes,
    third_party/forked/golang/expansion, written anew here)."""

    def expanded(text: str) -> str:
        known = {"HOME": "/somewhere", "KUBERNETES_SERVICE_PORT": "443"}
        return re.sub(r"\$(\$|\([^)]*\))", lambda one: "$" if one[1] == "$" else known.get(one[1][1:-1], one[0]), text)

    files = ("/models/$(HOME)", "/a$$b", "/$", "/$(unknown)", "/$(", "/$$$(HOME)$")
    (container,) = made(Reading("team", IMAGE, files), MIB, CONFINED)["containers"]
    assert [expanded(one) for one in container["command"]] == COMMAND
    assert [expanded(one) for one in container["args"]] == ["1", "", *files]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One of 32 MiB that is not in memory; skips where a file system keeps all of its files there."""
    found = tmp_path / "model $HOME 'x'.bin"
    found.write_bytes(os.urandom(32 * MIB))
    drop(found)
    if cached_share(found) > 0.1:
        pytest.skip("this file system drops no pages")
    return found


def reads(most_mib: int, modules: str, *files: Path | str, shell: str = "", **more: Any) -> tuple[int, str]:
    """As a kubelet would run it: its exit code, and what it says."""
    command = [*([shell, *COMMAND[1:]] if shell else COMMAND), str(most_mib), modules, *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **more)
    assert not ended.stderr
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_a_file_is_in_memory_when_it_was_read_ahead(file: Path, shell: str) -> None:
    """All of its pages, so that nobody waits for the disk again; none without. Whatever shell the image has."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell}")
    began = time.perf_counter()
    read_through(file)
    cold_s = time.perf_counter() - began
    drop(file)
    assert cached_share(file) < 0.1
    command = [path, *(["sh"] if shell == "busybox" else []), *COMMAND[1:], "100", "", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert cached_share(file) > 0.95  # of a machine that lacks memory some may be gone again
    began = time.perf_counter()
    read_through(file)
    print(f"first read: {cold_s:.3f} s; read ahead: {time.perf_counter() - began:.3f} s")


def test_no_more_is_read_than_is_allowed(file: Path, tmp_path: Path) -> None:
    """The rest of a file, and what comes after it, is left; that is no error."""
    second = tmp_path / "second"
    second.write_bytes(b"x" * MIB)
    drop(second)
    code, said = reads(4, "", file, second)
    assert (code, said) == (0, f"{second}: is beyond what may be read\n")
    assert 0.1 < cached_share(file) < 1.0  # the kernel reads some MiB ahead itself
    assert cached_share(second) == 0.0


def test_what_cannot_be_read_is_said_and_keeps_nothing_else(file: Path, tmp_path: Path) -> None:
    """A file that is not there, a folder, a module that fails and one that ends Python: the others are read."""
    (tmp_path / "egs_test_fails.py").write_text("raise ValueError('no luck')")
    (tmp_path / "egs_test_ends.py").write_text("raise SystemExit(0)")
    (tmp_path / "egs_test_loads.py").write_text(
        "import os\nopen('seen', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    modules = "egs_test_fails,egs_test_ends,egs_test_loads"
    code, said = reads(100, modules, "/no/such", tmp_path, file, cwd=tmp_path, env=there)
    assert code == 1
    for part in ("/no/such", str(tmp_path), "egs_test_fails: no luck", "egs_test_ends: 0"):
        assert part in said
    assert cached_share(file) > 0.95
    assert (tmp_path / "seen").read_text() == ""


def test_an_image_without_python_says_so(tmp_path: Path) -> None:
    """Its files are read all the same."""
    for name in ("sh", "dd"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    assert reads(1, "torch", shell="/bin/sh", env={"PATH": str(tmp_path)}) == (1, "no Python for torch\n")
