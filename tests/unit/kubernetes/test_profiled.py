"""`egs kubernetes controller --profile`: what of a profile it uses, and what it says where the cluster is another."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.adapter import ClusterProfile, ProfiledPool
from egs_core.cli.app import run
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import node_of
from egs_core.kubernetes.profiled import differences
from egs_core.kubernetes.readings import ReadRules
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod

TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
EXISTS = {"key": "nvidia.com/gpu", "operator": "Exists"}
PROFILE = """namespace: team
controller_namespace: ops
pools:
  - {name: cpu, selector: {pool: cpu}}
  - {name: a100, selector: {pool: a100}, accelerator: nvidia.com/gpu, gpus_per_node: 8}
queues: [{name: there, kind: gpu, exists: true}, {name: mistyped, kind: cpu, exists: true}, {name: later}]
"""


def pool(**stated: object) -> ProfiledPool:
    return ProfiledPool("a100", {"pool": "a100"}, **stated)  # type: ignore[arg-type]  # of one test each


def of_gpus(name: str, gpus: int, *taints: dict[str, str]) -> dict[str, object]:
    return node(name, gpus=gpus, labels={"pool": "a100"}, spec={"taints": list(taints)})


def told(made: ProfiledPool, *nodes: dict[str, object]) -> list[str]:
    return differences(ClusterProfile("team", "ops", (made,)), [node_of(one) for one in nodes], None)


def test_what_is_as_the_profile_says_is_not_told() -> None:
    """More GPUs than it says are no difference; nor are nodes of no pool."""
    assert told(pool(has_gpus=True, gpus_per_node=4, tolerations=(EXISTS,)), of_gpus("n1", 8, TAINT), node("n2")) == []


def test_each_difference_is_a_line() -> None:
    """A pool without nodes, nodes without its GPUs, and taints that its pods do not tolerate."""
    assert told(pool(), node("n1")) == ["pool a100: no node has its labels pool=a100: its pods wait until one has"]
    assert told(pool(has_gpus=True), of_gpus("n1", 0)) == ["pool a100: its nodes should offer 1 GPU or more: n1 0"]
    nodes = of_gpus("n1", 4), of_gpus("n2", 8)
    assert told(pool(gpus_per_node=8), *nodes) == ["pool a100: its nodes should offer 8 GPUs or more: n1 4"]
    (line,) = told(pool(tolerations=({**EXISTS, "key": "other"},)), of_gpus("n1", 8, TAINT))
    assert line == "pool a100: its tolerations leave taints that keep its pods off: n1 nvidia.com/gpu:NoSchedule"
    profile = ClusterProfile("team", "ops", queues=("a", "b"))
    (line,) = differences(profile, [], ["a"])
    assert line.startswith("queue b: namespace team has no LocalQueue of that name")
    assert differences(profile, [], None) == []  # of a cluster without Kueue


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """The command's own handlers are not the tests'."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_the_controller_serves_the_profiles_namespace_and_says_what_is_missing(
    api: EmulatedApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Lease is where the profile has the controller; a pod of another namespace keeps its gate. The profile's limit
    of time is the pod's deadline."""
    pytest.importorskip("egs_kubeflow", reason="no adapter that has profiles")
    (tmp_path / "site.yaml").write_text(PROFILE + "time_limits: {cpu: 4h}\n")
    api.add("nodes", node("n1", labels={"pool": "cpu"}))
    api.add("localqueues", {"kind": "LocalQueue", "metadata": {"name": "there", "namespace": "team"}})
    foreign = pod("foreign")
    foreign["metadata"]["namespace"] = "others"
    api.add("pods", foreign)
    api.add("pods", pod("own"))

    def end() -> None:
        try:
            api.until(lambda: api.opened() == ["own"])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    kubeconfig = ["--kubeconfig", str(api.kubeconfig)]
    assert run(["kubernetes", "controller", *kubeconfig, "--profile", str(tmp_path / "site.yaml")]) == 0
    ender.join()
    assert (api.opened(), api.gated()) == (["own"], {"foreign"})
    assert api.all("pods")["own"]["spec"]["activeDeadlineSeconds"] == 4 * 3600
    assert {key[0] for key in api.objects["leases"]} == {"ops"}
    said = capsys.readouterr().err
    assert "egs kubernetes: profile: pool a100: no node has its labels pool=a100" in said
    assert "egs kubernetes: profile: queue mistyped: namespace team has no LocalQueue" in said
    assert said.count("profile: ") == 2


@pytest.mark.parametrize(
    ("words", "site", "settings"),
    [
        ([], "", PlaceholderSettings()),
        (
            [],
            "capacity: {placeholders: 4, node_takes: 5m, image: mirror/pause}\n",
            PlaceholderSettings(4, 300.0, "mirror/pause"),
        ),
        (["--placeholders", "2", "--node-time", "1m"], "capacity: {placeholders: 4}\n", PlaceholderSettings(2, 60.0)),
        (["--placeholders", "0"], "capacity: {placeholders: 4}\n", PlaceholderSettings()),
    ],
)
def test_nodes_are_asked_for_as_the_profile_says_unless_it_is_said(
    words: list[str],
    site: str,
    settings: PlaceholderSettings,
    api: EmulatedApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How many placeholders, how long a node takes and what they run; none where nobody says so."""
    assert _settings(words, site, api, tmp_path, monkeypatch).placeholders == settings


@pytest.mark.parametrize(
    ("words", "site", "pull_s"),
    [([], "", 120.0), ([], "preload: {takes: 7s}\n", 7.0), (["--pull-time", "5m"], "preload: {takes: 7s}\n", 300.0)],
)
def test_how_long_a_pull_takes_is_the_profiles_unless_it_is_said(
    words: list[str], site: str, pull_s: float, api: EmulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an image that has not been pulled yet."""
    found = _settings(["--preload", *words], site, api, tmp_path, monkeypatch)
    assert (found.preloads, found.pull_s) == (True, pull_s)


@pytest.mark.parametrize(
    ("words", "site", "reads"),
    [
        ([], "preload: {files: 8GiB, volumes: [models]}\n", ReadRules()),
        (["--preload"], "", ReadRules()),
        (["--preload"], "preload: {volumes: [models]}\n", ReadRules()),
        (["--preload"], "preload: {files: 8GiB, volumes: [models]}\n", ReadRules(8 << 30, ("team/models",))),
        (
            ["--preload", "--preload-files", "1GiB", "--preload-volume", "team/data"],
            "preload: {files: 8GiB, volumes: [models]}\n",
            ReadRules(1 << 30, ("team/data",)),
        ),
    ],
)
def test_what_is_read_ahead_is_as_the_profile_says_unless_it_is_said(
    words: list[str], site: str, reads: ReadRules, api: EmulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing where nobody says so, nor without --preload."""
    assert _settings(words, site, api, tmp_path, monkeypatch).reads == reads


def _settings(
    words: list[str], site: str, api: EmulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """What a controller is given, with these options and this more in its profile."""
    pytest.importorskip("egs_kubeflow", reason="no adapter that has profiles")
    (tmp_path / "site.yaml").write_text(PROFILE + site)
    seen: list[Settings] = []

    class Ends(Controller):
        def __init__(self, cluster: Cluster, settings: Settings, say: Callable[[str], None], **_: object) -> None:
            seen.append(settings)
            super().__init__(cluster, settings, say)
            self.stop()

    monkeypatch.setattr("egs_core.kubernetes.controller.Controller", Ends)
    given = ["--kubeconfig", str(api.kubeconfig), "--profile", str(tmp_path / "site.yaml"), *words]
    assert run(["kubernetes", "controller", *given]) == 0
    (found,) = seen
    return found


def test_a_mistyped_profile_is_an_error(api: EmulatedApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2; the cluster is not asked, and nothing is opened."""
    pytest.importorskip("egs_kubeflow", reason="no adapter that has profiles")
    api.add("pods", pod("own"))
    (tmp_path / "bad.yaml").write_text("pools: []\nqueus: []")
    for name, problem in (("none.yaml", "cannot be read: No such file"), ("bad.yaml", "line 2: queus: unknown field")):
        path = tmp_path / name
        assert run(["kubernetes", "controller", "--kubeconfig", str(api.kubeconfig), "--profile", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(path) in line
        assert problem in line
    assert api.gated() == {"own"}
