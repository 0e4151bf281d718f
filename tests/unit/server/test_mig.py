"""Slices of a GPU that MIG splits, at a site server: devices of their own. NVML is played; on a real GPU this was not
tried."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.client.gpu_users import users_of
from egs_core.engine import Engine
from egs_core.errors import InputError
from egs_core.flavor_names import meant
from egs_core.server import requests
from egs_core.server.book import CONFIG
from egs_core.server.devices import DeviceLocks, host_offer, why_none, working
from egs_core.server.logic import SiteLogic
from egs_core.server.runs import Device, Offer, Refusal, SiteFacts
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import UNTIL, content
from tests.unit.server.site_steps import ANN, end, request
from tests.unit.server.site_world import GIB

PLAYED = Path(__file__).parent / "played_nvml"
SMALL = {"profile": "1g.10gb", "gib": 10}
HOST = {
    "GPU-a": {"name": "NVIDIA A100-SXM4-80GB", "memory": 0.0, "busy": 0},
    "GPU-b": {
        "name": "NVIDIA A100-SXM4-80GB",
        "mig": {
            "0": SMALL | {"id": "MIG-x"},
            "2": SMALL | {"id": "MIG-y"},
            "3": {"id": "MIG-z", "profile": "3g.40gb", "gib": 40},
        },
    },
}


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What NVML says, in this process: a file."""
    spec = importlib.util.spec_from_file_location("pynvml", PLAYED / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(HOST))
    monkeypatch.setenv("EGS_PLAYED_NVML", str(path))
    return path


@pytest.mark.usefixtures("nvml")
def test_a_split_gpu_is_offered_as_its_slices() -> None:
    """Each with its UUID, its memory and a flavor of its own kind, numbers with gaps or not; the GPU itself is not
    offered, the one beside it is. A wish for the GPU's flavor means no slice. NVML's other answers go by the UUID, too:
    of whether a slice works it says nothing, so it counts as working."""
    devices = host_offer("", ()).devices
    assert [(one.id, one.kind, one.memory_bytes >> 30) for one in devices] == [
        ("GPU-a", "A100-SXM4-80GB", 80),
        ("MIG-x", "MIG-1g.10gb-A100-SXM4-80GB", 10),
        ("MIG-y", "MIG-1g.10gb-A100-SXM4-80GB", 10),
        ("MIG-z", "MIG-3g.40gb-A100-SXM4-80GB", 40),
    ]
    kinds = list(dict.fromkeys(one.kind for one in devices))
    assert [meant([wish], kinds) for wish in ("a100", "mig-1g.10gb", "mig")] == [
        (kinds[0],),
        (kinds[1],),
        tuple(kinds[1:]),
    ]
    assert users_of(["MIG-x", "GPU-a"]) == {"MIG-x": (), "GPU-a": ()}
    assert working(["GPU-a", "MIG-x"]) == ["MIG-x"]


@pytest.mark.usefixtures("nvml")
def test_slices_are_chosen_bounded_and_locked_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GPUs are: `--devices`, `CUDA_VISIBLE_DEVICES`, and one server for each."""
    assert [one.id for one in host_offer("", ["MIG-y"]).devices] == ["MIG-y"]
    with pytest.raises(InputError, match="no GPU 'GPU-b' here"):
        host_offer("", ["GPU-b"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x,GPU-a")
    offered = host_offer("", ()).devices
    assert [one.id for one in offered] == ["GPU-a", "MIG-x"]
    first, second = DeviceLocks(), DeviceLocks()
    first.take(offered)
    with pytest.raises(InputError, match="another server offers the GPU MIG-x"):
        second.take(offered[1:])
    second.close()
    first.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="names GPUs by number"):
        host_offer("", ())


def test_a_gpu_that_is_split_into_nothing_is_said(nvml: Path) -> None:
    nvml.write_text(json.dumps({"GPU-b": {"mig": {}}}))
    assert host_offer("", ()).devices == ()
    assert why_none().startswith("all its GPUs are split by MIG, and none has a slice")


def site_of(offer: Offer) -> SiteLogic:
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(offer)
    return logic


@pytest.mark.usefixtures("nvml")
def test_several_slices_are_refused_and_several_whole_gpus_are_none() -> None:
    """A CUDA process sees one slice only (NVIDIA's MIG user guide, CUDA device enumeration): who asks for more GPUs
    than there are whole ones is told so, with what to do, by every way to ask; one slice, and part of one, is given.
    On a host with two whole GPUs beside slices that are free, too, two are the whole ones, now and when they come free.
    """
    slices = [device for device in host_offer("", ()).devices if device.is_slice]
    whole = Device("GPU-a", "NVIDIA A100-SXM4-80GB", 80 * GIB)
    site = site_of(Offer("host", (whole, *slices), 8.0, 1 << 40))
    text = (
        "^gpus: 2 are needed; there is 1 whole GPU here for that, and 3 MIG slices, of which a CUDA process sees one "
        "only: ask for --gpus 1, and add --array 2 for as many processes$"
    )
    for refused in (
        lambda: site.submit(ANN, request(1, 2)),
        lambda: site.check(ANN, request(1, 2)),
        lambda: requests.ask_for(site.book, ANN, q.GpuRequest(key="key-0001", gpus=2, for_s=60.0)),
    ):
        with pytest.raises(Refusal, match=text):
            refused()
    with pytest.raises(Refusal, match="there are 0 whole GPUs here for that, and 2 MIG slices"):
        site.submit(ANN, request(1, 2, flavors=("mig-1g.10gb",)))
    one = site.submit(ANN, request(2, 1, flavors=("mig",)))
    assert one.lease is not None
    with pytest.raises(Refusal, match="sees one only"):
        site.update(ANN, site.submit(ANN, request(3, 1, hold=True)).id, c.Change(gpus=2))
    assert site.submit(ANN, request(4, 0.5, flavors=("mig-3g.40gb",))).lease is not None

    site = site_of(
        Offer("host", (slices[0], whole, slices[1], Device("GPU-c", whole.label, whole.memory_bytes)), 8.0, 1)
    )
    first, second = site.submit(ANN, request(1, 2)), site.submit(ANN, request(2, 2))
    assert first.lease is not None
    assert first.lease.devices == ("GPU-a", "GPU-c")
    assert (second.state, "0 of 2 GPUs wholly free" in second.reason) == ("waiting", True)
    site.claim(ANN, first.id, c.Claim(token=first.lease.token))
    end(site, first)
    lease = site.view(ANN, second.id).lease
    assert lease is not None
    assert lease.devices == first.lease.devices
    site.validate()


def test_commands_run_on_slices(tmp_path: Path) -> None:
    """Of a real server: one that names the small slices has one, by its UUID, another
    beside it the second one, and a third the larger slice. Two slices are refused before anything starts, also for
    code that would ask for them later."""
    (tmp_path / "gpus.json").write_text(json.dumps({"GPU-b": HOST["GPU-b"]}))
    site = RealSite(tmp_path / "site", gpus=None)
    site.environment |= {"PYTHONPATH": str(PLAYED), "EGS_PLAYED_NVML": str(tmp_path / "gpus.json")}
    site.environment.pop("CUDA_VISIBLE_DEVICES", None)

    def begin(name: str, *more: str) -> None:
        words = "--", sys.executable, "-c", UNTIL, str(tmp_path / name), str(tmp_path / "go"), "0"
        begun.append(site.run("--gpus", "1", *more, *words))
        wait_for(lambda: content(tmp_path / name), "it runs")

    begun = list[subprocess.Popen[str]]()
    try:
        site.start()
        begin("first", "--flavor", "mig-1g.10gb")
        begin("second", "--flavor", "mig-1g.10gb")
        begin("third", "--flavor", "mig-3g.40gb")
        had = [content(tmp_path / name) for name in ("first", "second", "third")]
        assert sorted(had[:2]) == ["MIG-x", "MIG-y"]
        assert had[2] == "MIG-z"
        (tmp_path / "go").touch()
        assert [one.wait(120) for one in begun] == [0, 0, 0]
        for more in ((), ("--check",), ("--split",), ("--detach",), ("--array", "2")):
            refused = site.egs("run", "--gpus", "2", *more, "--", "touch", str(tmp_path / "started"))
            assert (refused.returncode, refused.stdout) == (2, ""), more
            assert refused.stderr.startswith("error: --gpus: 2 are needed; there are 0 whole GPUs here"), refused.stderr
            assert refused.stderr.count("\n") == 1
        assert not (tmp_path / "started").exists()
    finally:
        site.close()
