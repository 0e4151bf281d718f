"""GPUs of several flavors at a site: what runs learn from those before them, and where they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.flavor_names import flavor_of_product, is_meant
from egs_core.flavors import load_flavors, spec_for
from egs_core.server.book import CONFIG
from egs_core.server.devices import host_offer, with_memory
from egs_core.server.flavors import Learned
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import NOBODY, Device, Offer, Refusal, Run, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_steps import ANN, BOB, end, request, start
from tests.unit.server.site_world import MemoryStore

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
DEVICES = (Device("0", T4, 16 << 30), Device("1", A100, 80 << 30))
MIXED = Offer("host", DEVICES, 8.0, 1 << 40)


@pytest.fixture
def site() -> SiteLogic:
    """A T4 and an A100, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(MIXED)
    return logic


def runs_for(site: SiteLogic, number: int, seconds: float, flavor: str = "", name: str = "train.py") -> None:
    """A run of that name, on that flavor, from start to end."""
    view = start(site, number, name=name, flavors=(flavor,) if flavor else ())
    site.at(site.now + seconds)
    end(site, view)


def device_of(site: SiteLogic, number: int, who: Principal = ANN, **more: object) -> tuple[str, ...] | None:
    """What a new run is granted; None: it waits."""
    lease = site.submit(who, request(number, **more)).lease  # type: ignore[arg-type]  # its fields
    return None if lease is None else lease.devices


def test_what_ran_twice_as_fast_on_one_is_placed_there(site: SiteLogic) -> None:
    """Both are free. Another user's run of this name is other work, of which nothing is known: it takes the first."""
    runs_for(site, 1, 200.0, "t4")
    runs_for(site, 2, 100.0, "a100")
    view = start(site, 3, name="train.py")
    assert view.lease is not None
    assert (view.lease.devices, view.flavor) == (("1",), "A100-SXM4-80GB")
    end(site, view)
    assert device_of(site, 4, BOB, name="train.py") == ("0",)


def test_the_slower_one_is_taken_when_waiting_costs_more_and_else_not(site: SiteLogic) -> None:
    """The A100 is held for another hour: the T4 at once ends sooner. Held for 50 s: waiting ends sooner, and the reason
    says for what, until it is free."""
    runs_for(site, 1, 200.0, "t4")
    runs_for(site, 2, 100.0, "a100")
    held = start(site, 3, name="long", flavors=("a100",), expected_s=3600.0)
    assert device_of(site, 4, name="train.py") == ("0",)
    site.control(ANN, "4", "abort", c.Control())
    end(site, held)
    held = start(site, 5, name="short", flavors=("a100",), expected_s=50.0)
    view = site.submit(ANN, request(6, name="train.py"))
    assert (view.lease, view.kind) == (None, "flavor")
    assert "better off waiting for a device of flavor 'A100-SXM4-80GB'" in view.reason
    assert view.starts_in_s is None
    end(site, held)
    lease = site.view(ANN, view.id).lease
    assert lease is not None
    assert lease.devices == ("1",)


def test_what_waits_learns_from_what_ends(site: SiteLogic) -> None:
    """It waits for any GPU when the first of its kind ends and shows that the A100 is four times as fast."""
    first, second = start(site, 1, name="train.py", flavors=("a100",)), start(site, 2, name="train.py", flavors=("t4",))
    waits = site.submit(ANN, request(3, name="train.py"))
    site.at(site.now + 100.0)
    end(site, first)
    assert site.view(ANN, waits.id).lease is not None
    site.control(ANN, waits.id, "abort", c.Control())
    site.at(site.now + 300.0)
    end(site, second)
    known = site.book.flavors.estimates(site.runs[waits.id])
    assert {flavor: p50 for flavor, (p50, _) in known.items()} == {"T4": 400.0, "A100-SXM4-80GB": 100.0}


def test_what_has_been_learned_outlives_the_server() -> None:
    """Turns over a store, made anew from it: the runs that have ended are the history."""
    store, now = MemoryStore(), [0.0]
    turns = Turns(store, MIXED, clock=lambda: now[0])
    runs_for(turns.logic, 1, 200.0, "t4")
    runs_for(turns.logic, 2, 100.0, "a100")
    store.commit(turns.logic.take())
    again = Turns(store, MIXED, clock=lambda: now[0])
    assert again.logic.book.flavors.estimates(again.logic.runs["2"])["T4"][0] == 200.0


def test_only_flavors_that_were_asked_for(site: SiteLogic) -> None:
    """It waits for the T4 though the A100 is free; what the host does not have, or no GPU, is refused by name."""
    start(site, 1, flavors=("T4",))
    view = site.submit(ANN, request(2, flavors=("t4",)))
    assert (view.lease, view.kind) == (None, "capacity")
    assert "needs 1 GPU of flavor T4" in view.reason
    for fields, text in (
        ({"flavors": ("h100",)}, "no GPU of flavor 'h100' here; there are: T4, A100-SXM4-80GB"),
        ({"flavors": ("t4",), "gpus": 0}, "does nothing without GPUs"),
        ({"flavors": ("t4",), "gpus": 2}, "there is 1 GPU of flavor t4 here, and 2 are needed"),
    ):
        with pytest.raises(Refusal, match=text):
            site.submit(ANN, request(3, **{"gpus": 1, **fields}))  # type: ignore[arg-type]  # its fields
    with pytest.raises(ValidationError):
        request(4, flavors=("",))


def test_memory_is_that_of_each_gpu(site: SiteLogic) -> None:
    """40 GiB fit on the A100 alone, as the part of it that has them; 8 GiB are half of a T4, wherever they are; more
    than any has, or a T4 with 40, is refused."""
    view = start(site, 1, 0, gpu_memory_bytes=40 << 30)
    assert view.lease is not None
    assert (view.lease.devices, view.gpus) == (("1",), 0.5)
    half = start(site, 2, 0, gpu_memory_bytes=8 << 30, flavors=("t4",))
    assert half.lease is not None
    assert (half.lease.devices, half.gpus) == (("0",), 0.5)
    for fields, text in (
        ({"gpu_memory_bytes": 100 << 30}, "GPU memory"),
        ({"gpu_memory_bytes": 40 << 30, "flavors": ("t4",)}, "0 GPUs of flavor t4 with so much memory here"),
        ({"gpu_memory_bytes": 40 << 30, "gpus": 2}, "GPU"),
    ):
        with pytest.raises(Refusal, match=text):
            site.submit(ANN, request(3, **{"gpus": 0, **fields}))  # type: ignore[arg-type]  # its fields


def test_two_gpus_of_a_host_with_one_of_each_are_both(site: SiteLogic) -> None:
    """As on any host; such a run teaches nothing of a flavor."""
    view = start(site, 1, gpus=2)
    assert view.lease is not None
    assert (view.lease.devices, view.flavor) == (("0", "1"), "")


def test_devices_that_are_alike_are_as_without_flavors() -> None:
    """The engine is told of none, and a wish for what all of them are is no restriction."""
    site = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    site.offer(Offer("host", (Device("0", T4), Device("1", T4)), 8.0, 1 << 40))
    runs_for(site, 1, 100.0, "t4")
    node = site.book.engine.state.nodes[0]
    assert (node.flavor, node.device_flavors, site.book.engine.state.flavors) == ("", (), {})
    assert site.runs["1"].flavor == "T4"


def test_a_joined_host_has_flavors_of_its_own(site: SiteLogic) -> None:
    """What ran on the server's host counts for the same flavor there, and each run stays on its own host; what holds a
    GPU when the first host joins goes on, with what is known of it."""
    runs_for(site, 1, 200.0, "t4")
    runs_for(site, 2, 100.0, "a100")
    before = start(site, 3, name="train.py")
    agent = Principal("agent", "agent", host="far")
    devices = tuple([h.OfferedDevice(id=one.id, label=one.label, memory_bytes=one.memory_bytes) for one in DEVICES])
    joined = site.join_host(agent, h.HostOffer(host="far", devices=devices, cpus=8, memory_bytes=1 << 40))
    site.report(agent, h.Report(session=joined.session, number=1))
    assert [node.flavors for node in site.book.engine.state.nodes] == [
        ("host/T4", "host/A100-SXM4-80GB"),
        ("far/T4", "far/A100-SXM4-80GB"),
    ]
    far = Principal("ann", "submitter", host="far")
    assert device_of(site, 4, far, name="train.py") == ("1",)
    assert device_of(site, 5, far, name="train.py", flavors=("t4",)) == ("0",)
    lease = site.runs[before.id].lease
    assert lease is not None
    assert site.book.engine.state.flavor_estimates[lease.phase]["host/A100-SXM4-80GB"][0] == 100.0
    site.book.engine.validate_state()


def ended(name: str, flavor: str, seconds: float, **more: object) -> Run:
    fields = {"gpus": 1.0, "started_at": 0.0, "ended_at": seconds, "outcome": "succeeded", "flavor": flavor, **more}
    return Run("1", "key", "ann", name, NOBODY, 0.0, **fields)  # type: ignore[arg-type]  # its fields


SPECS = (FlavorSpec("a", speed=1.0), FlavorSpec("b", speed=0.5))


def test_a_flavor_that_was_never_tried_is_guessed_from_others_and_from_speeds() -> None:
    """By the site's speeds at first, and by what another task took on both once one has; what failed, was lost or ended
    by its time box teaches nothing."""
    learned = Learned()
    assert learned.estimates(ended("new", "", 1.0), SPECS) == {}
    assert learned.see(ended("new", "a", 100.0))
    assert learned.estimates(ended("new", "", 1.0), SPECS)["b"][0] == 200.0
    learned.see(ended("other", "a", 10.0))
    learned.see(ended("other", "b", 70.0))
    assert learned.estimates(ended("new", "", 1.0), SPECS)["b"][0] == 700.0
    for more in ({"outcome": "failed"}, {"is_time_up": True}, {"inside": "4"}):
        assert not learned.see(ended("new", "a", 1.0, **more))
    assert not learned.see(ended("new", "", 1.0))
    assert not learned.see(ended("new", "a", 0.0))


def test_what_its_user_expects_is_how_long_it_takes_on_the_best() -> None:
    learned = Learned()
    learned.see(ended("new", "a", 100.0))
    learned.see(ended("new", "b", 300.0))
    known = learned.estimates(ended("new", "", 1.0, expected_s=1000.0), SPECS)
    assert {flavor: p50 for flavor, (p50, _) in known.items()} == {"a": 1000.0, "b": 3000.0}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.1, 1e6)), min_size=1, max_size=60))
def test_estimates_are_within_what_was_seen(seen: list[tuple[str, float]]) -> None:
    """Of a flavor that was tried the median is between the shortest and the longest of the newest, and not above the
    95th percentile."""
    learned = Learned()
    for flavor, seconds in seen:
        learned.see(ended("task", flavor, seconds))
    for flavor, (p50, p95) in learned.estimates(ended("task", "", 1.0), SPECS).items():
        own = [seconds for one, seconds in seen if one == flavor][-50:]
        assert p50 <= p95
        assert not own or min(own) <= p50 <= max(own)


@given(st.text(max_size=40))
def test_names_of_products_become_names_of_flavors(product: str) -> None:
    """Whatever a driver says; and what a flavor is called means the flavor."""
    flavor = flavor_of_product(product)
    assert flavor_of_product(flavor) == flavor
    assert not flavor or is_meant(flavor.upper(), flavor)


def test_the_sites_file(tmp_path: Path) -> None:
    """The longest name that means a flavor counts; what is wrong is named with its line."""
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors:\n  - {name: a100, gpu_hour: 2.5}\n  - {name: a100-pcie, gpu_hour: 2, speed: 0.9}\n")
    specs = load_flavors(file)
    assert spec_for("A100-SXM4-80GB", specs) == FlavorSpec("A100-SXM4-80GB", 2.5)
    assert spec_for("A100-PCIE-40GB", specs) == FlavorSpec("A100-PCIE-40GB", 2.0, speed=0.9)
    assert spec_for("T4", specs) == FlavorSpec("T4")
    for text, problem in (
        ("flavors:\n  - {name: a100}\n  - {name: A100}\n", "line 3: a second flavor 'A100'"),
        ("flavors:\n  - {name: a100, mig: 40GiB}\n", "line 2: mig: a server gives out whole GPUs"),
        ("flavors:\n  - {name: a100, speed: 0}\n", "line 2"),
        ("[]", "needs a list of flavors"),
        ("flavors: []", "flavors"),
        ("flavors: [{name: a, prices: []}]", "says what is paid from when on, as `--prices` reads it"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as raised:
            load_flavors(file)
        assert problem in str(raised.value)


@pytest.mark.parametrize(
    "text", ["a100", "=1", "a100=x", "a100=1,", "a b=1", "1,2", "-1", "1025", "a=600,b=600", "9" * 5000, "\uff12"]
)
def test_emulated_gpus_that_nobody_can_have(text: str) -> None:
    with pytest.raises(InputError, match="--emulated-gpus"):
        host_offer(text, ())


def test_emulated_gpus_of_flavors() -> None:
    offer = host_offer("a100=1,t4=2", ())
    assert [(one.id, one.label, one.kind) for one in offer.devices] == [
        ("0", "emulated", "a100"),
        ("1", "emulated", "t4"),
        ("2", "emulated", "t4"),
    ]
    assert [one.kind for one in host_offer("2", ()).devices] == ["", ""]
    assert host_offer("0", ()).devices == ()


def test_an_emulated_gpu_has_the_memory_that_the_file_says_of_its_flavor() -> None:
    """Of two names that mean it the longest one's; without a word of it 80 GiB. A driver that tells it counts."""
    memory = {"t4": 16 << 30, "a100": 40 << 30, "a100-sxm4": 80 << 30, "l4": 24 << 30}
    offered = host_offer("A100-SXM4-80GB=1,t4=1,v100=1", ()).devices
    assert [one.memory_bytes >> 30 for one in with_memory(offered, memory)] == [80, 16, 80]
    assert with_memory(DEVICES, {"t4": 1, "a100": 1}) == DEVICES


def test_why_a_host_offers_no_gpu(tmp_path: Path) -> None:
    """`egs serve` says it, with what to do, and goes on: as a server of hosts that join it may. In processes of their
    own, with NVML's library as a host without a driver has it, and as one whose GPUs an inherited variable hides."""
    program = (
        "from egs_core.cli import serve; from egs_core.server.devices import host_offer;"
        "assert not host_offer('', ()).devices; serve._tell_of_none('others', '')"
    )

    def said(**more: str) -> str:
        env = {**os.environ, **more}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stderr

    missing = said(CUDA_VISIBLE_DEVICES="GPU-none")
    assert any(why in missing for why in ("(NVIDIA's driver does not answer: ", "leaves none of")), missing
    assert "--emulated-gpus 2" in missing
    played = tmp_path / "played.json"
    played.write_text('{"GPU-a": {}}')
    folder = Path(__file__).parent / "played_nvml"
    hidden = said(CUDA_VISIBLE_DEVICES="GPU-b", EGS_PLAYED_NVML=str(played), PYTHONPATH=str(folder))
    assert "(CUDA_VISIBLE_DEVICES=GPU-b leaves none of 1 to see)" in hidden
