"""What `egs kubernetes` refuses to be told: one line, exit code 2, and nothing is printed or connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.cli.kubernetes_names import check_image

MANIFESTS = ("manifests", "--image", "egs:1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("manifests", "--image", ""), "--image: is empty (NAME:TAG, such as registry.example/team/egs:1)"),
        (("manifests", "--image", " "), "--image: is empty ("),
        (("manifests", "--image", "my egs:1"), "--image: 'my egs:1' can be no image ("),
        (("manifests", "--image", "team/EGS:1"), "--image: 'team/EGS:1' can be no image ("),
        (("manifests", "--image", "egs:"), "--image: 'egs:' can be no image ("),
        ((*MANIFESTS, "--namespace", ""), "--namespace: is empty ("),
        ((*MANIFESTS, "--namespace", "Egs_System"), "--namespace: 'Egs_System' can be no namespace ("),
        ((*MANIFESTS, "--serve", "a", "--serve", "b c"), "--serve: 'b c' can be no namespace ("),
        ((*MANIFESTS, "--serve", "a,b"), "--serve: 'a,b' can be no namespace ("),
        ((*MANIFESTS, "--serve", "x" * 64), "can be no namespace ("),
        ((*MANIFESTS, "--argument", ""), "--argument: is empty ("),
        ((*MANIFESTS, "--placeholders", "2", "--placeholder-image", "a b"), "--placeholder-image: 'a b' can be"),
        ((*MANIFESTS, "--egs-url", "https://egs:1", "--token-secret", "My Secret"), "--token-secret: 'My Secret' can"),
        ((*MANIFESTS, "--egs-url", "https://egs:1", "--ca-config-map", "-ca"), "--ca-config-map: '-ca' can"),
        ((*MANIFESTS, "--egs-url", "https://egs:1", "--egs-queue", " q"), "--egs-queue: ' q' has blanks at its ends"),
        (("controller", "--kubeconfig", "{file}", "--serve", ""), "--serve: is empty ("),
        (("controller", "--kubeconfig", "{file}", "--lease-namespace", "A"), "--lease-namespace: 'A' can be no"),
        (("controller", "--kubeconfig", "{file}", "--priority-class", "a b"), "--priority-class: 'a b' can be no"),
        (("controller", "--kubeconfig", "{file}", "--webhook-host", ""), "--webhook-host: is empty ("),
        (("open-overdue", "--kubeconfig", "{file}", "--serve", "a b"), "--serve: 'a b' can be no namespace ("),
        (("leave", "--kubeconfig", "{file}", "--namespace", ""), "--namespace: is empty ("),
        (("leave", "--kubeconfig", "{file}", "--serve", "a b"), "--serve: 'a b' can be no namespace ("),
        (("leave", "--kubeconfig", "{file}", "--json"), "--json: does nothing without --dry-run ("),
    ],
)
def test_what_no_cluster_takes_is_refused(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option, what is wrong with it, and what it may be."""
    file = tmp_path / "none"
    assert run(["kubernetes", *(word.format(file=file) for word in words)]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert says in said


@pytest.mark.parametrize(
    "image",
    [
        "egs",
        "egs:1",
        "team/egs:1.2-rc.1",
        "localhost/egs",
        "registry.example:5000/team/a_b/c--d:v1",
        "Registry.Example/egs",
        "[2001:db8::1]:5000/egs",
        "ghcr.io/team/egs@sha256:" + "0a" * 32,
        "registry.k8s.io/pause:3.10",
    ],
)
def test_images_that_a_kubelet_pulls_are_taken(image: str) -> None:
    """Registries with ports and upper case, digests, one word."""
    check_image("--image", image)
