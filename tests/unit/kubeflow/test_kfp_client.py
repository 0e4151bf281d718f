"""Every way to submit a pipeline, against an *emulated* KFP API: a local HTTP server that keeps what is posted."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kfp
import pytest
from kfp import compiler, dsl

from egs_core.errors import InputError
from egs_kubeflow.client import Client

# kfp.Client says so each time that one is made
pytestmark = pytest.mark.filterwarnings("ignore:This client only works with Kubeflow Pipeline v2:FutureWarning")

PROFILE = """
pools:
  - {name: cpu, selector: {pool: cpu}}
  - {name: gpu, selector: {pool: gpu}, accelerator: nvidia.com/gpu}
"""
ANSWERS = {
    "/experiments": {"experiment_id": "e1", "display_name": "Default"},
    "/runs": {"run_id": "r1", "experiment_id": "e1", "display_name": "run"},
    "/recurringruns": {"recurring_run_id": "j1", "experiment_id": "e1"},
    "/pipelines/upload": {"pipeline_id": "p1", "display_name": "training"},
    "/pipelines/upload_version": {"pipeline_id": "p1", "pipeline_version_id": "v1"},
}


@dsl.component(base_image="python:3.12")
def step(n: int) -> int:
    return n


@dsl.pipeline
def training(n: int = 1) -> None:
    first = step(n=n)
    step(n=first.output).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)


class Api:
    """The emulated server: what was posted, by the end of the path."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"experiments": [ANSWERS["/experiments"]], "multi_user": False})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                path = self.path.split("?")[0].split("/v2beta1")[-1]
                api.posted.append((path, body))
                self._answer(ANSWERS[path])

            def _answer(self, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def last(self) -> tuple[str, str]:
        return self.posted[-1]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    """A server, and a home folder of the test's own for what kfp keeps there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Api()
    yield found
    found.close()


@pytest.fixture
def package(tmp_path: Path) -> str:
    path = tmp_path / "training.yaml"
    compiler.Compiler().compile(training, str(path))
    return str(path)


def client_for(api: Api, tmp_path: Path, kind: Any = Client, **options: Any) -> Any:
    site = tmp_path / "site.yaml"
    site.write_text(PROFILE)
    return kind(host=api.url, **({"profile": site} | options if kind is Client else options))


Way = Callable[[Any, str], object]
WAYS: dict[str, tuple[str, Way]] = {
    "run_from_package": ("/runs", lambda c, p: c.create_run_from_pipeline_package(p, {"n": 3})),
    "run_from_function": ("/runs", lambda c, _: c.create_run_from_pipeline_func(training, {"n": 3})),
    "run_pipeline": ("/runs", lambda c, p: c.run_pipeline("e1", "job", p)),
    "recurring": (
        "/recurringruns",
        lambda c, p: c.create_recurring_run("e1", "job", pipeline_package_path=p, interval_second=60),
    ),
    "upload": ("/pipelines/upload", lambda c, p: c.upload_pipeline(p, "training")),
    "upload_function": ("/pipelines/upload", lambda c, _: c.upload_pipeline_from_pipeline_func(training)),
    "upload_version": ("/pipelines/upload_version", lambda c, p: c.upload_pipeline_version(p, "v1", pipeline_id="p1")),
    "upload_version_function": (
        "/pipelines/upload_version",
        lambda c, _: c.upload_pipeline_version_from_pipeline_func(training, "v1", pipeline_id="p1"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_submit_is_rewritten(way: str, api: Api, tmp_path: Path, package: str) -> None:
    """What reaches the server has the site's node selectors and the labels of EGS, and the pipeline's own name."""
    path, submit = WAYS[way]
    submit(client_for(api, tmp_path), package)
    posted, body = api.last()
    assert posted == path
    assert "egs.io/task" in body
    assert "nodeSelector" in body
    assert "training" in body


@pytest.mark.parametrize("way", WAYS)
def test_a_rewrite_that_fails_submits_the_original(
    way: str, api: Api, tmp_path: Path, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same request as kfp's own client, and one warning that says why."""
    path, submit = WAYS[way]
    submit(client_for(api, tmp_path, kfp.Client), package)
    theirs = api.last()
    capsys.readouterr()
    submit(client_for(api, tmp_path, profile=tmp_path / "missing.yaml"), package)
    assert api.last()[0] == path == theirs[0]
    assert "egs.io" not in api.last()[1]
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("egs: ")]) == 1


def test_a_strict_client_is_not_made_with_a_profile_that_cannot_be_read(api: Api, tmp_path: Path) -> None:
    """Mistyped, or left out: an error that names it, before anything could be submitted."""
    for profile, named in ((tmp_path / "mistyped.yaml", "mistyped.yaml"), (None, "no profile")):
        with pytest.raises(InputError, match=named):
            client_for(api, tmp_path, profile=profile, strict=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_strict_client_submits_nothing_that_is_not_rewritten(
    way: str, api: Api, tmp_path: Path, package: str
) -> None:
    """Also where the profile is gone later."""
    client = client_for(api, tmp_path, strict=True)
    WAYS[way][1](client, package)
    posted = len(api.posted)
    assert "egs.io/task" in api.last()[1]
    (tmp_path / "site.yaml").write_text("pools: 1")
    with pytest.raises(InputError, match=r"site\.yaml"):
        WAYS[way][1](client, package)
    assert len([path for path, _ in api.posted[posted:] if path != "/experiments"]) == 0


def test_a_run_has_its_arguments_and_pipeline(api: Api, tmp_path: Path, package: str) -> None:
    """Only the pipeline differs from what kfp's own client posts."""
    client_for(api, tmp_path, kfp.Client).run_pipeline("e1", "job", package, params={"n": 5})
    theirs = json.loads(api.last()[1])
    client_for(api, tmp_path).run_pipeline("e1", "job", package, params={"n": 5})
    ours = json.loads(api.last()[1])
    assert ours.pop("pipeline_spec") != theirs.pop("pipeline_spec")
    assert ours == theirs


def test_mode_off_changes_nothing(
    api: Api, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """EGS_MODE=off: the original, without a word."""
    client_for(api, tmp_path, kfp.Client).run_pipeline("e1", "job", package)
    theirs = json.loads(api.last()[1])
    monkeypatch.setenv("EGS_MODE", "off")
    client_for(api, tmp_path).run_pipeline("e1", "job", package)
    assert json.loads(api.last()[1]) == theirs
    assert "egs:" not in capsys.readouterr().err


def test_a_run_of_an_uploaded_pipeline_is_left_alone(api: Api, tmp_path: Path) -> None:
    """Without a package there is nothing to rewrite; wrong arguments are kfp's own error."""
    client = client_for(api, tmp_path)
    client.run_pipeline("e1", "job", pipeline_id="p1", version_id="v1")
    assert json.loads(api.last()[1])["pipeline_version_reference"] == {"pipeline_id": "p1", "pipeline_version_id": "v1"}
    with pytest.raises(TypeError, match="nothing_like_it"):
        client.run_pipeline("e1", "job", nothing_like_it=1)


@pytest.mark.parametrize("mode", ["observe", "banana"])
def test_mode_observe_submits_the_original_and_says_what_on_would_do(
    mode: str,
    api: Api,
    tmp_path: Path,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is changed; a mode that does not exist is said once, and observes."""
    client_for(api, tmp_path, kfp.Client).run_pipeline("e1", "job", package)
    theirs = json.loads(api.last()[1])
    monkeypatch.setenv("EGS_MODE", mode)
    client, _ = client_for(api, tmp_path), capsys.readouterr()
    for _ in range(2):
        client.run_pipeline("e1", "job", package)
        assert json.loads(api.last()[1]) == theirs
    said = capsys.readouterr().err
    assert said.count("observing: ") == 2
    assert "is submitted as it is; on, " in said
    assert said.count("EGS_MODE='banana' is none of off, observe, on") == (mode == "banana")
