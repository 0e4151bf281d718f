"""Container components, in real containers: of the Docker that answers, else of a daemon that the tests start."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from kfp import dsl
from kfp.dsl import Dataset, Output

from benchmarks.read_ahead import cached_share, drop
from egs_core.kubernetes.readers import COMMAND, MIB, ROOM_BYTES
from egs_kubeflow.run import RunResult, docker, run, start
from tests.conformance.kubeflow import pipelines

IMAGE = "egs-test-busybox:1"
READ_MIB = 64
DEADLINE_S = 150.0
DAEMON = ("--bridge=none", "--iptables=false", "--storage-driver=vfs")
"""It may change nothing of this machine's network, and works on any file system."""

pytestmark = pytest.mark.usefixtures("image")


@pytest.fixture(scope="module")
def image() -> Iterator[None]:
    """An image that holds nothing but busybox; skips where there is no Docker, no way to start one, or no busybox."""
    busybox = shutil.which("busybox")
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    if busybox is None:
        pytest.skip("there is no busybox to make an image of")
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="egs-docker-") as folder:
        daemon = None if _answers() else _daemon(Path(folder), patch)
        docker.why_not.cache_clear()
        try:
            subprocess.run(
                ["docker", "import", "-", IMAGE], input=_root_of(Path(busybox)), check=True, timeout=DEADLINE_S
            )
            yield
        finally:
            docker.why_not.cache_clear()
            subprocess.run(["docker", "rmi", "--force", IMAGE], capture_output=True, check=False, timeout=DEADLINE_S)
            if daemon is not None:
                daemon.terminate()
                daemon.wait(DEADLINE_S)


def _daemon(folder: Path, patch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    """A Docker daemon of the tests' own."""
    if os.getuid() or shutil.which("dockerd") is None:
        pytest.skip("docker's daemon does not answer, and only root can start one, with dockerd")
    address = f"unix://{folder}/docker.sock"
    places = [f"--{name}={folder / name}" for name in ("data-root", "exec-root", "pidfile")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["dockerd", "--host", address, *places, *DAEMON], stdout=log, stderr=log)
    patch.setenv("DOCKER_HOST", address)
    deadline = time.monotonic() + DEADLINE_S
    while not _answers():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            pytest.skip(f"no Docker daemon can be started here: {(folder / 'log').read_text()[-300:]}")
        time.sleep(0.1)
    return process


def _answers() -> bool:
    asked = subprocess.run(["docker", "version"], capture_output=True, check=False, timeout=DEADLINE_S)
    return asked.returncode == 0


def _root_of(busybox: Path) -> bytes:
    """A file system with busybox as its shell and all else."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in (".", "bin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755  # for any user
            archive.addfile(folder)
        archive.add(busybox.resolve(), "bin/busybox")
        for name in ("sh", "cat", "mkdir", "dirname", "sleep", "id", "env", "dd"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return packed.getvalue()


@dsl.container_component
def shout(text: str, said: dsl.OutputPath(str), file: Output[Dataset]):  # type: ignore[no-untyped-def, valid-type]  # kfp's own way to write it
    script = 'mkdir -p "$(dirname $1)" "$(dirname $2)"; echo -n "$0! $MOOD" > $1; id -u > $2; echo "in a container"'
    return dsl.ContainerSpec(image=IMAGE, command=["sh", "-c", script], args=[text, said, file.path])


@dsl.container_component
def exits(code: int):  # type: ignore[no-untyped-def]  # as above
    return dsl.ContainerSpec(image=IMAGE, command=["sh", "-c", 'exit "$0"'], args=[code])


@dsl.container_component
def endless():  # type: ignore[no-untyped-def]  # as above
    return dsl.ContainerSpec(image=IMAGE, command=["sleep"], args=["600"])


@dsl.pipeline
def mixed() -> str:
    """A Python component, a container that gets its result and gives a parameter and a file, and one that reads it."""
    loud = shout(text=pipelines.text(value="a", times=3).output).set_env_variable("MOOD", "glad")
    owner = pipelines.read(file=loud.outputs["file"])
    return pipelines.text(value=f"{loud.outputs['said']} {owner.output}", times=1).output  # type: ignore[no-any-return]  # what it will give


@dsl.pipeline
def failing() -> None:
    exits(code=7)


@dsl.pipeline
def sleeping() -> None:
    endless()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    return {"root": tmp_path / "out", "runlog": str(tmp_path / "run.jsonl")}


def test_a_container_takes_part_in_a_pipeline(places: dict[str, Any]) -> None:
    """Arguments, environment, an output parameter and a file pass; what it writes belongs to the user; its lines are
    the task's."""
    lines: list[str] = []
    result = run(mixed, **places, echo=lambda task, line: lines.append(f"{task} {line}"))
    assert result.outputs == {"Output": f"aaa! glad {os.getuid()}\n"}
    assert "shout in a container\n" in lines


def test_a_containers_exit_code_is_its_tasks(places: dict[str, Any]) -> None:
    """The task has failed with it."""
    result: RunResult = run(failing, **places, raise_on_error=False)
    assert [task.error.partition(";")[0] for task in result.failed] == ["ended with exit code 7"]


def test_an_aborted_run_leaves_no_container(places: dict[str, Any]) -> None:
    """Ending the `docker` command alone would leave it running."""
    begun = start(sleeping, **places)
    _wait_for_containers(1)
    begun.abort()
    assert begun.wait().state == "aborted"
    _wait_for_containers(0)


@pytest.mark.parametrize(("limit_mib", "has_all"), [(READ_MIB // 4, False), (READ_MIB + ROOM_BYTES // MIB, True)])
def test_what_a_container_has_read_ahead_is_in_memory_when_it_is_gone(
    tmp_path: Path, limit_mib: int, has_all: bool
) -> None:
    """As the controller's preloads read: as nobody, who may write nothing. Its limit of memory is what it can read:
    with less, what was read first is gone."""
    file = tmp_path / "m.bin"
    file.write_bytes(os.urandom(READ_MIB * MIB))
    drop(file)
    if cached_share(file) > 0.1:
        pytest.skip("this file system drops no pages")
    confined = ["--user=65534:65534", "--read-only", "--network=none", "--cap-drop=ALL", f"--memory={limit_mib}m"]
    command = ["docker", "run", "--rm", *confined, f"--volume={file}:/models/m.bin:ro", IMAGE, *COMMAND]
    arguments = [str(READ_MIB), "", "/models/m.bin"]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert (cached_share(file) > 0.95) == has_all


def _wait_for_containers(number: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(_containers()) != number:
        assert time.monotonic() < deadline, _containers()
        time.sleep(0.1)


def _containers() -> list[str]:
    asked = ["docker", "ps", "--quiet", "--filter", f"ancestor={IMAGE}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.split()
