"""Whenever the webhook dies, on a real API server with its scheduler (`test_real_cluster`): each pod is taken, and each
that it has answered for has its gate."""

from __future__ import annotations

import multiprocessing
import re
import socket
import threading
from pathlib import Path

from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.cluster import WEBHOOKS, Cluster
from egs_core.kubernetes.manifests import objects
from egs_core.kubernetes.webhook import Webhook
from tests.cluster.real import FILE, Site, controlled, until
from tests.cluster.test_real_cluster import pytestmark
from tests.cluster.test_real_faults import KILLS, LONG, SEED, Scene, staged

__all__ = ["pytestmark"]

LIVES_S = (0.0, 1.5)
AMID_S = 0.05
"""So long before a kill pods are added as fast as can be: it comes amid requests, and they stay few enough to run."""
RELEASE_BY_S = 3600.0
FAILED_OPEN = re.compile(r'^apiserver_admission_webhook_fail_open_count\{name="([^"]*)"[^}]*\} (\S+)', re.MULTILINE)


def answer(kubeconfig: Path, port: int) -> None:
    """In a process of its own, until it is killed: a webhook whose controller leads."""
    hook = Webhook(
        Cluster(kubeconfig), Rules(RELEASE_BY_S), ["127.0.0.1"], lambda: True, lambda _: None, ("127.0.0.1", port)
    )
    hook.start()
    threading.Event().wait()


def failed_open(site: Site) -> int:
    """How many calls of our webhook the API server has let pass because nobody answered in time."""
    said = site.admin._send("GET", "/metrics").data.decode()
    return sum(int(float(count)) for name, count in FAILED_OPEN.findall(said) if "egs" in name)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def add(scene: Scene) -> bool:
    """A pod that nobody has gated; whether the webhook has."""
    scene.made += 1
    return scene.site.add(f"p{scene.made}", gate=False, gpus=1, run=f"r{scene.made % 7}").is_gated


def unfinished(scene: Scene) -> int:
    return sum(not one.is_over for one in scene.pods())


@LONG
def test_no_pod_is_refused_or_forgotten_whenever_the_webhook_is_killed(tmp_path: Path) -> None:
    """By SIGKILL at random moments of its life, `EGS_TEST_KILLS` times; the next one has another certificate. The API
    server counts the calls that nobody answered: so many pods have no gate, and no more. All end."""
    with staged(tmp_path, SEED) as scene:
        site, port = scene.site, free_port()
        config = next(one for one in objects(site.of) if one["kind"] == "MutatingWebhookConfiguration")
        config["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/pods"}
        site.admin.delete(WEBHOOKS, names.CONTROLLER)
        site.admin.create(WEBHOOKS, config)
        until(lambda: (before := failed_open(site)) >= 0 and not add(scene) and failed_open(site) > before)
        before, first, gated = failed_open(site), scene.made, 0
        forked = multiprocessing.get_context("forkserver")
        forked.set_forkserver_preload([__name__])
        with controlled(site):
            for number in range(KILLS + 1):
                hook = forked.Process(target=answer, args=(Path(FILE), port), daemon=True)
                hook.start()
                try:
                    if number % 2 or number == KILLS:
                        until(lambda: add(scene))  # it answers; others are killed before, most of them
                        gated += 1
                    life_s = scene.rng.uniform(*LIVES_S)
                    killer = threading.Timer(life_s, hook.kill)
                    killer.start()
                    hook.join(max(0.0, life_s - AMID_S))
                    while hook.is_alive():
                        gated += add(scene)
                    killer.join()
                finally:
                    hook.kill()
                    hook.join()
            made, failed = scene.made - first, failed_open(site) - before
            while left := unfinished(scene):
                until(lambda before=left: unfinished(scene) < before)  # type: ignore[misc]  # one each
        print(f"{KILLS} kills; {made} pods, {gated} gated, {failed} calls that nobody answered")
        assert {one.phase for one in scene.pods()} == {"Succeeded"}
        assert len(scene.pods()) == scene.made
        assert made - gated == failed
        assert len(scene.books.opened) == gated >= KILLS // 2
