"""Spans in OpenTelemetry's own JSON (OTLP): lines of a file, or requests to a collector.

Written by hand: the format is these few dictionaries, while the SDK's exporters want spans that were begun in this
process, and bring protobuf. https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import requests

from egs_core import __version__
from egs_core.errors import EgsError, InputError
from egs_core.trace.span import Attributes, Event, Span, Value

BATCH = 1000
TIMEOUT_S = 30.0
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""As OpenTelemetry names it: `name=value`, several with commas. A secret belongs there, not into the URL."""
PATH = "/v1/traces"
INTERNAL, ERROR = 1, 2  # SpanKind, StatusCode


def batches(spans: Iterable[Span], size: int = BATCH) -> Iterator[dict[str, Any]]:
    """Requests of at most so many spans each (`ExportTraceServiceRequest`, in a file `TracesData`)."""
    rest = iter(spans)
    while some := list(islice(rest, size)):
        yield _request(some)


def lines(spans: Iterable[Span]) -> Iterator[str]:
    """The same as lines of JSON, as the collector's file receiver reads them."""
    for request in batches(spans):
        yield json.dumps(request, separators=(",", ":"))


def send(spans: Iterable[Span], url: str) -> int:
    """Give them to a collector; how many it has not taken. Raises EgsError where it cannot be reached or refuses."""
    target, refused = endpoint(url), 0
    with requests.Session() as session:
        session.headers.update({"Content-Type": "application/json", **headers(os.environ.get(HEADERS, ""))})
        for line in lines(spans):
            try:
                answer = session.post(target, data=line.encode(), timeout=TIMEOUT_S, allow_redirects=False)
            except requests.RequestException as error:
                raise EgsError(f"{target}: does not answer: {type(error).__name__}") from None
            if answer.status_code != 200:
                raise EgsError(f"{target}: answers {answer.status_code}: {answer.text[:200]!r}")
            refused += _refused(answer)
    return refused


def endpoint(url: str) -> str:
    """Where to post: a URL without a path is a collector's, as with OTEL_EXPORTER_OTLP_ENDPOINT. Raises InputError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--otlp", f"{url!r} is no URL of HTTP", "http://localhost:4318")
    return urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") else url


def headers(text: str) -> dict[str, str]:
    """Of the variable. Raises InputError."""
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, is_there, value = part.partition("=")
        if not is_there or not name.strip():
            raise InputError(HEADERS, "has a part without `=`", "name=value, several with commas")
        found[unquote(name.strip())] = unquote(value.strip())
    return found


def _refused(answer: requests.Response) -> int:
    try:
        return int((answer.json().get("partialSuccess") or {}).get("rejectedSpans") or 0)
    except (ValueError, AttributeError, TypeError):  # an empty answer, or not JSON: it has taken them
        return 0


# --- the format ---


def _request(spans: Sequence[Span]) -> dict[str, Any]:
    scope = {"name": "egs", "version": __version__}
    resource = {"attributes": _attributes({"service.name": "egs", "service.version": __version__})}
    made = {"scope": scope, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [made]}]}


def _span(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.id,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.start_s),
        "endTimeUnixNano": _nanoseconds(span.end_s),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "links": [{"traceId": span.trace, "spanId": link} for link in span.links],
    }
    if span.parent:
        found["parentSpanId"] = span.parent
    if span.error is not None:
        found["status"] = {"code": ERROR, "message": span.error}
    return found


def _event(event: Event) -> dict[str, Any]:
    at = _nanoseconds(event.at_s)
    return {"timeUnixNano": at, "name": event.name, "attributes": _attributes(event.attributes)}


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits, which JavaScript's numbers have not
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(one) for one in value]}}


def _nanoseconds(at_s: float) -> str:
    return str(max(0, round(at_s * 1e6)) * 1000)  # to the microsecond, which a float of such a size still has
