"""`egs trace`: what a collector gets is what OpenTelemetry's own messages say, by its own package; over real HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.runlog.io import write_run
from egs_core.trace.otlp import HEADERS, batches, endpoint, headers
from egs_core.trace.span import Event, Span, span_id, trace_id
from tests.unit.trace.test_spans import HEADER, LOG

Out = pytest.CaptureFixture[str]


class Collector:
    """A little receiver of OTLP over HTTP. answer: status and body of what it says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answer: tuple[int, bytes] = (200, b"{}")
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, told, json.loads(body)))
                status, text = collector.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", HEADERS):
        monkeypatch.delenv(name, raising=False)
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> str:
    write_run(tmp_path / "run.jsonl", HEADER, LOG)
    return str(tmp_path / "run.jsonl")


def messages(request: Any) -> list[Any]:
    """Its spans, as OpenTelemetry's own package reads them: every field must be one of its messages'. In OTLP's JSON
    ids are hexadecimal, where protobuf's own JSON has base64: that alone is changed."""

    def mapped(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: mapped(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [mapped(one) for one in value]
        return (
            base64.b64encode(bytes.fromhex(value)).decode() if key in ("traceId", "spanId", "parentSpanId") else value
        )

    parsed = json_format.ParseDict(mapped(request), ExportTraceServiceRequest(), ignore_unknown_fields=False)
    return [span for one in parsed.resource_spans for scope in one.scope_spans for span in scope.spans]


def test_a_collector_gets_what_opentelemetry_says_it_should(log: str, collector: Collector, capsys: Out) -> None:
    """All spans of a log, in one request: names, times, links and errors, by the official messages."""
    assert run(["trace", log, "--otlp", collector.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"traces": 1, "spans": 6, "refused": 0}
    ((path, told, request),) = collector.requests
    assert (path, told["content-type"]) == ("/v1/traces", "application/json")
    (resource,) = request["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "egs"}} in resource["resource"]["attributes"]
    spans = {span.name: span for span in messages(request)}
    root, decode, fit = spans["train"], spans["decode"], spans["fit gpu"]
    assert (len(root.trace_id), len(root.span_id), root.parent_span_id) == (16, 8, b"")
    assert fit.parent_span_id == root.span_id
    assert (fit.start_time_unix_nano, fit.end_time_unix_nano) == (1_007_000_000_000, 1_008_000_000_000)
    assert (fit.status.code, fit.status.message) == (2, "out of memory")
    assert [event.name for event in fit.events] == ["ready", "waits"]
    assert decode.span_id in {link.span_id for span in messages(request) for link in span.links}
    values = {one.key: one.value for one in fit.attributes}
    assert (values["egs.gpus"].double_value, values["egs.phase"].int_value, values["egs.warm"].bool_value) == (
        1.0,
        1,
        True,
    )
    assert [one.int_value for one in values["egs.devices"].array_value.values] == [0]


def test_a_file_has_a_line_a_request(log: str, tmp_path: Path, capsys: Out) -> None:
    """Which the collector's file receiver reads; many spans are several, none is lost; text stays text."""
    out = tmp_path / "trace.jsonl"
    assert run(["trace", log, "--out", str(out)]) == 0
    assert capsys.readouterr().out == "6 spans of 1 traces\n"
    (line,) = out.read_text().splitlines()
    assert len(messages(json.loads(line))) == 6
    assert run(["trace", log, "--out", "-"]) == 0
    assert capsys.readouterr().out.strip() == line
    odd = Span(trace_id(1), span_id(1), "", "ü\n\x00", 1.0, 2.0, events=(Event("é", 1.5),))
    made = list(batches([odd] * 25, 10))
    assert [len(messages(one)) for one in made] == [10, 10, 5]
    assert messages(made[0])[0].name == "ü\n\x00"


def test_what_a_collector_refuses_is_told(log: str, collector: Collector, capsys: Out) -> None:
    """Some of the spans: exit code 1. All of a request, or nobody there: one line and 2."""
    collector.answer = 200, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'
    assert run(["trace", log, "--otlp", collector.url]) == 1
    assert "2 of them were refused" in capsys.readouterr().out
    collector.answer = 401, b"who are you?"
    assert run(["trace", log, "--otlp", collector.url]) == 2
    assert "answers 401" in capsys.readouterr().err
    gone = collector.url
    collector.close()
    assert run(["trace", log, "--otlp", gone]) == 2
    shown = capsys.readouterr().err
    assert "does not answer" in shown
    assert shown.count("\n") == 1


def test_headers_come_from_opentelemetrys_variable(
    log: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret is neither in an argument nor in the URL."""
    monkeypatch.setenv(HEADERS, "authorization=Bearer%20secret, x-team = a=b")
    assert run(["trace", log, "--otlp", f"{collector.url}/own/path"]) == 0
    path, told, _ = collector.requests[0]
    assert (path, told["authorization"], told["x-team"]) == ("/own/path", "Bearer secret", "a=b")
    with pytest.raises(InputError, match="without `=`"):
        headers("token")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://c.example/", "https://c.example/v1/traces"),
        ("http://c/otlp/v1/traces", "http://c/otlp/v1/traces"),
    ],
)
def test_a_url_without_a_path_is_a_collectors(url: str, target: str) -> None:
    assert endpoint(url) == target


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{log}"], "needs --otlp URL or --out FILE"),
        (["{log}", "--otlp", "http://c", "--out", "f"], "needs --otlp URL or --out FILE"),
        (["--out", "f"], "no run log is named"),
        (["{log}", "--otlp", "localhost:4318"], "is no URL of HTTP"),
        (["{log}", "--out", "-", "--json"], "both go to standard output"),
        (["nowhere.jsonl", "--out", "f"], "nowhere.jsonl: no such file"),
        (["{log}", "--out", "{folder}/none/f"], "No such file"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], problem: str, log: str, tmp_path: Path, capsys: Out) -> None:
    """Exit code 2 and the place."""
    assert run(["trace", *[word.format(log=log, folder=tmp_path) for word in arguments]]) == 2
    shown = capsys.readouterr()
    assert problem in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
