"""The described protocol under made-up requests (schemathesis): no failure, and each refusal says what is wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.unit.server.real_app import FILE, RealApp

schemathesis = pytest.importorskip("schemathesis")  # of `dev`: an older environment has none


@pytest.mark.slow
@pytest.mark.parametrize("role", ["admin", "submitter", "viewer", "agent"])
def test_no_request_is_a_failure(role: str) -> None:
    """Of each route, with values that the description allows and with others, as an admin, who passes, and as others:
    never 5xx; 4xx has a text, or one a field. What the description does not allow is refused before it is asked who
    wants it (422, 400): as an admin there are many such values, as others a few."""
    app = RealApp(FILE)
    try:
        asker = app.admin if role == "admin" else app.token(role, "" if role == "agent" else "vision")
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{app.port}/openapi.json")
        headers = {"Authorization": f"Bearer {asker.token}"}
        asked: dict[int, int] = {}

        def check(case: Any) -> None:
            if case.path == "/v1/tokens/{token}/revoke" and role == "admin":
                return  # its own token is among them
            answer = case.call(headers=headers)
            asked[answer.status_code] = asked.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.content)
            if answer.status_code >= 400 and case.method != "HEAD":
                detail = answer.json()["detail"]
                assert detail, case.as_curl_command()
                assert isinstance(detail, str) or all(one["msg"] and one["loc"] for one in detail)

        modes = schemathesis.GenerationMode
        for operation in (found.ok() for found in schema.get_all_operations()):
            has_any = any(map(list, (operation.path_parameters, operation.query, operation.body)))
            for mode in (modes.POSITIVE, modes.NEGATIVE):
                if mode == modes.NEGATIVE and not has_any:
                    continue  # nothing can be wrong about a route without parameters: none would be found, for seconds
                asks = settings(
                    max_examples=30 if mode == modes.POSITIVE or role == "admin" else 8,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                    derandomize=True,
                )
                with contextlib.suppress(Unsatisfiable):
                    asks(given(operation.as_strategy(generation_mode=mode))(check))()  # type: ignore[no-untyped-call]
        assert max(asked) >= 400
    finally:
        app.close()
