"""The Helm chart: with its two words filled in, by hand as Helm would, it is what `egs kubernetes manifests` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from egs_core.cli.app import run

SERVER = ["--egs-url", "https://gpus.example:8470", "--token-secret", "egs-token", "--egs-queue", "rest"]
READS = ["--preload-files", "8GiB", "--preload-volume", "a/models"]
SERVER += ["--ca-config-map", "site-ca"]


def rendered(text: str, values: dict[str, str], namespace: str) -> str:
    """All that the templates may say; what is left over is not for Helm's eyes alone, and an error here."""
    text = text.replace("{{ .Release.Namespace }}", namespace)
    text = re.sub(r"\{\{ \.Values\.(\w+) \}\}", lambda found: values[found[1]], text)
    assert "{{" not in text
    return text


@pytest.mark.parametrize(
    "more",
    [[], ["--serve", "a", "--serve", "b", "--preempt", "--preload", "--argument", "--no-kueue", *READS], SERVER],
    ids=["plain", "all", "server"],
)
def test_the_chart_is_what_the_manifests_are(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Object by object and in any namespace, but for the namespace itself; with other values, what they say. Its values
    have comments, and a schema that refuses a mistyped one."""
    folder = tmp_path / "chart"
    assert run(["kubernetes", "manifests", "--image", "egs:1", "--helm", str(folder), *more]) == 0
    assert not capsys.readouterr().out
    values = yaml.safe_load((folder / "values.yaml").read_text())
    schema = json.loads((folder / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    for wrong in ({**values, "imagee": "x"}, {**values, "image": "a b"}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    for image, namespace in (("egs:1", "egs-system"), (f"registry.example/egs:2@sha256:{'0' * 64}", "elsewhere")):
        files = sorted((folder / "templates").glob("*.yaml"))
        texts = [rendered(file.read_text(), {**values, "image": image}, namespace) for file in files]
        assert run(["kubernetes", "manifests", "--image", image, "--namespace", namespace, *more]) == 0
        wanted = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one["kind"] != "Namespace"]
        assert [yaml.safe_load(text) for text in texts] == wanted
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert about["apiVersion"] == "v2"
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"])
    assert "egs kubernetes leave --namespace elsewhere" in rendered(
        (folder / "templates/NOTES.txt").read_text(), values, "elsewhere"
    )


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--namespace", "other"], "--namespace"),
        (["--argument", "{{x}}"], "{{"),
        (["--serve", "{{ a }}"], "{{"),
    ],
)
def test_what_no_chart_can_say(more: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2, and nothing is written."""
    assert run(["kubernetes", "manifests", "--image", "egs:1", "--helm", str(tmp_path / "chart"), *more]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "chart").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chart that was written before may have been changed by hand."""
    (tmp_path / "mine").write_text("x")
    assert run(["kubernetes", "manifests", "--image", "egs:1", "--helm", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
