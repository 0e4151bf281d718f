"""Who sees and does what at the dashboard: its real process behind a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from egs_core.client.overview import Me
from egs_core.dashboard.app import first_span, make_app
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.sessions import Session
from egs_core.server.forwarding import MOST_BODY_BYTES
from tests.unit.dashboard.browser import Visitor, rows
from tests.unit.server.asgi import Running
from tests.unit.server.real_app import FILE, Answer, Asker, RealApp

EVIL = "<script>alert(1)</script>\"'&"


class Teams:
    """A site with two teams, each with a run that has its lease."""

    def __init__(self) -> None:
        self.app = RealApp(FILE)
        self.vision = self.app.token("submitter", "vision", "ann")
        self.speech = self.app.token("submitter", "speech", "bob")
        self.run = self.vision.submit("vision-key", gpus=1, name="secret project").told["id"]
        self.own = self.speech.submit("speech-key", gpus=1, name="own project").told["id"]

    def visitor(self, asker: Asker) -> Visitor:
        """Logged in with this token."""
        found = Visitor(self.app.port)
        answer = found.log_in(asker.token)
        assert answer.status == 200, answer
        return found

    def is_untouched(self) -> bool:
        return bool(self.vision.get(f"/v1/runs/{self.run}").told["state"] == "granted")


@pytest.fixture(scope="module")
def site() -> Iterator[Teams]:
    found = Teams()
    yield found
    found.app.close()


def is_safe(answer: Answer) -> bool:
    """No inline script or style, no other host, no frame around it, nothing kept."""
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy["script-src"], policy["style-src"], policy["connect-src"], policy["form-action"]} == {"'self'"}
    assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "egs-known" not in answer.headers
    return True


def test_who_is_not_logged_in_gets_the_login_page_and_nothing_else(site: Teams) -> None:
    """200 with a form; no name of a run, no stream, no change."""
    nobody = Visitor(site.app.port)
    for path in ("/dashboard", "/dashboard/", "/dashboard?x=1"):
        answer = nobody.get(path)
        assert (answer.status, b'name="token"' in answer.body, b"secret" in answer.body) == (200, True, False)
        assert is_safe(answer)
    assert nobody.get("/dashboard/events").status == 401
    assert nobody.control(site.run, "abort").status == 401
    nobody.cookie = f"egs_dashboard_{site.app.port}=guessed"
    assert nobody.get("/dashboard/events").status == 401
    assert b'name="token"' in nobody.get().body
    assert site.is_untouched()


@pytest.mark.parametrize("token", ["", " ", "x", "egs_", "uid:0", "root", "a b", "x\r\nEGS-Peer: 0 root", "é" * 9])
def test_a_wrong_token(site: Teams, token: str) -> None:
    """Also none: the dashboard's own process is an admin's at the server's socket, and that counts for nothing."""
    visitor = Visitor(site.app.port)
    answer = visitor.log_in(token)
    assert (answer.status, b'role="alert"' in answer.body) == (401, True)
    assert "set-cookie" not in answer.headers
    assert is_safe(answer)


def test_a_token_that_sees_nothing(site: Teams) -> None:
    answer = Visitor(site.app.port).log_in(site.app.token("agent").token)
    assert (answer.status, "set-cookie" in answer.headers) == (403, False)


def test_the_cookie(site: Teams) -> None:
    """No script reads it, no other site sends it, it is not the token, and another server of this host has its own."""
    answer = Visitor(site.app.port).log_in(site.vision.token)
    parts = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/dashboard"} <= set(parts)
    assert "Secure" not in parts
    assert site.vision.token not in answer.headers["set-cookie"]
    assert parts[0].startswith(f"egs_dashboard_{site.app.port}=")
    assert is_safe(answer)


def test_under_tls_the_cookie_is_for_tls_alone(site: Teams) -> None:
    """Nor can a server without TLS on the same host set it: browsers keep that prefix for TLS."""
    with Running(make_app(Asking(site.app.path), dict, 8470, is_secure=True)) as app:
        answer = app.request("", "POST", "/dashboard/login", {}, [f"token={site.vision.token}".encode()])
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 200
    assert cookie.startswith("__Secure-egs_dashboard_8470=")
    assert "; Secure" in cookie


def test_the_cookie_alone_shows_and_changes_nothing(site: Teams) -> None:
    """Whoever else on this host is sent it by a browser: no page tells the secret again, and without that there is no
    stream and no change. The page itself says who is logged in, and no more."""
    operator = site.visitor(site.app.token("operator", "vision", "olga"))
    assert len(operator.csrf) > 20
    for path in ("/dashboard", "/dashboard/", "/dashboard/login"):
        page = operator.get(path).body.decode()
        assert not any(word in page for word in (operator.csrf, "data-csrf", "secret", "ann"))
    for sent in (None, "", "x", operator.cookie.partition("=")[2]):
        answer = operator.get("/dashboard/events", X_EGS_CSRF=sent)
        assert (answer.status, b"data:" in answer.body) == (403, False)
        assert operator.control(site.run, "abort", sent or "").status == 403
    assert operator.post("/dashboard/logout", {}).status == 403
    operator.stream().close()
    assert site.is_untouched()


def test_behind_a_proxy(site: Teams) -> None:
    """One that asks by its own name, as nginx does by itself: what it says of the browser's counts where the server was
    told that there is one, and for no other site's page; without one nobody is believed that."""
    there = {"Host": "127.0.0.1:8470", "X_Forwarded_Host": "egs.example:8443"}
    assert Visitor(site.app.port).log_in(site.vision.token, Origin="https://egs.example:8443", **there).status == 403
    app = RealApp(FILE)
    try:
        app.dashboard._options = ["--secure", "--behind-proxy"]
        token = app.token("viewer", "vision").token
        statuses = [
            Visitor(app.port).log_in(token, Origin=origin, **there).status
            for origin in ("https://egs.example:8443", "https://evil.example", "null")
        ]
        assert statuses == [200, 403, 403]
        told = {"Host": "127.0.0.1:8470", "X_Forwarded_Host": ""}
        assert Visitor(app.port).log_in(token, Origin="null", **told).status == 403
    finally:
        app.close()


def test_a_team_sees_its_own_only(site: Teams) -> None:
    """Of another team's run not even the name is in the page or the stream; that a GPU is held is."""
    for role in ("viewer", "operator"):
        visitor = site.visitor(site.app.token(role, "speech"))
        stream = visitor.stream()
        first = stream.until(lambda kind, _: kind == "change", "a snapshot")
        stream.close()
        assert [row[2] for row in rows(first, "devices").values()][:2] == [
            "another team's",
            f"{site.own} (own project, bob)",
        ]
        assert list(rows(first, "running")) == [site.own]
        assert set(rows(first, "queues")) == {"common", "sounds"}
        told = stream.text + visitor.get().body.decode()
        assert not any(word in told for word in ("secret", "ann", "vision", "images"))


def test_an_admin_sees_all(site: Teams) -> None:
    stream = site.visitor(site.app.admin).stream()
    first = stream.until(lambda kind, _: kind == "change", "a snapshot")
    stream.close()
    assert list(rows(first, "running")) == [site.run, site.own]
    assert set(rows(first, "queues")) == {"common", "images", "sounds"}


def test_a_change_is_the_viewers_own(site: Teams) -> None:
    """It may what its token may, and the log says that token: not the user whose process the dashboard is."""
    assert site.visitor(site.app.token("operator", "speech")).control(site.run, "abort").status == 404
    assert site.visitor(site.app.token("viewer", "vision")).control(site.run, "abort").status == 403
    assert site.is_untouched()
    waits = site.vision.submit("to-be-aborted", gpus=3).told["id"]
    operator = site.visitor(site.app.token("operator", "vision", "olga"))
    for verb, state in (("pause", "paused"), ("resume", "waiting"), ("abort", "ended")):
        answer = operator.control(waits, verb)
        assert (answer.status, answer.told["state"]) == (200, state), answer
    found = [
        one for one in site.app.admin.get("/v1/log").told["entries"] if one["subject"] == waits and one["who"] == "olga"
    ]
    assert [(one["verb"], one["role"], one["text"]) for one in found] == [
        (verb, "operator", "by hand") for verb in ("pause", "resume", "abort")
    ]
    assert all("token" in one["origin"] for one in found)


def test_a_priority_is_changed_by_who_may(site: Teams) -> None:
    """By the viewer's own token, with its session's secret, of what waits; the run then goes first. What is no whole
    number changes nothing, and neither does who has but the cookie, a viewer's role, or another team."""
    waits = [site.vision.submit(name, gpus=3).told["id"] for name in ("first-key", "second-key")]
    operator = site.visitor(site.app.token("operator", "vision", "olga"))
    wrong: list[object] = [{}, [], {"reason": "x"}, *({"priority": n} for n in ("x", 1.5, 10**7, None))]
    for body in wrong:
        assert operator.change_priority(waits[1], body).status == 422, body
    good = {"priority": 7}
    assert operator.change_priority(waits[1], good, "x").status == 403
    assert operator.change_priority(waits[1], good, Origin="https://evil.example").status == 403
    assert site.visitor(site.app.token("viewer", "vision")).change_priority(waits[1], good).status == 403
    assert site.visitor(site.app.token("operator", "speech")).change_priority(waits[1], good).status == 404
    assert operator.change_priority(site.run, good).status == 409  # it runs
    shown = {one["id"]: one["priority"] for one in site.app.admin.get("/v1/runs").told["runs"]}
    assert [shown[run] for run in waits] == [0, 0]
    assert operator.change_priority(waits[1], good).status == 200
    queue = [one["id"] for one in site.app.admin.get("/v1/queue").told["runs"] if one["id"] in waits]
    assert queue == [waits[1], waits[0]]
    for run in waits:
        assert operator.control(run, "abort").status == 200


def test_a_change_needs_the_sessions_own_page(site: Teams) -> None:
    """The cookie alone does not do, nor another session's secret, nor a form of another site."""
    operator = site.visitor(site.app.token("operator", "vision"))
    other = site.visitor(site.app.token("operator", "vision"))
    for csrf in ("", "x", other.csrf, operator.csrf + "x"):
        assert operator.control(site.run, "abort", csrf).status == 403, csrf
    origin = f"http://127.0.0.1:{site.app.port}"
    foreign: tuple[dict[str, Any], ...] = (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": origin},
    )
    for headers in foreign:
        assert operator.control(site.run, "abort", **headers).status == 403, headers
        assert operator.post("/dashboard/logout", {"csrf": operator.csrf}, **headers).status == 403
        assert Visitor(site.app.port).log_in(site.vision.token, **headers).status == 403
    assert operator.post("/dashboard/logout", {"csrf": other.csrf}).status == 403
    assert site.is_untouched()
    assert operator.control("99", "abort", Origin=origin, Sec_Fetch_Site="same-origin").status == 404  # it was asked


def test_what_is_no_change_is_refused(site: Teams) -> None:
    """Verbs and runs that are none, bodies that are no reason, too long ones, other methods: 4xx."""
    admin = site.visitor(site.app.admin)
    ask = admin._asker.ask
    sent = {"Cookie": admin.cookie, "X_EGS_CSRF": admin.csrf}
    for path in ("release", "update", "..%2f..%2fv1%2ftokens"):
        assert admin.control(site.run, path).status == 404
    for run in ("..", "..%2f1", "1%3fx", "-", "x" * 33):
        assert admin.control(run, "abort").status == 404, run
    for body in (b"", b"x", b"[]", b'{"reason": "\x1b[2J"}', b'{"reason": "' + b"x" * 201 + b'"}', b"[" * 9000):
        assert ask("POST", f"/dashboard/runs/{site.run}/abort", None, body, **sent).status == 422, body[:20]
    long = ask("POST", f"/dashboard/runs/{site.run}/abort", None, b"x" * (MOST_BODY_BYTES + 1), **sent)
    assert long.status == 413
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(method, "/dashboard", None, None, **sent).status == 405
    assert admin.get("/dashboard/assets/..%2fapp.py").status == 404
    assert admin.get("/dashboardx").status == 404
    assert site.is_untouched()


def test_logging_out_ends_the_session(site: Teams) -> None:
    """Its stream too, and the cookie is worth nothing any more."""
    visitor = site.visitor(site.vision)
    stream = visitor.stream()
    stream.until(lambda kind, _: kind == "change", "a snapshot")
    assert visitor.post("/dashboard/logout", {"csrf": visitor.csrf}).status == 303
    assert visitor.get("/dashboard/events").status == 401
    site.vision.submit("news-for-the-stream", gpus=0)
    stream.until(lambda kind, _: kind == "ended", "the stream ends")
    stream.close()


def test_a_revoked_token_ends_its_session(site: Teams) -> None:
    """Within a second, where nobody else looks on; nothing is shown any more."""
    visitor = site.visitor(site.app.token("viewer", "vision", "gone"))
    stream = visitor.stream()
    stream.until(lambda kind, _: kind == "change", "a snapshot")
    token = next(one["id"] for one in site.app.admin.get("/v1/tokens").told["tokens"] if one["name"] == "gone")
    assert site.app.admin.post(f"/v1/tokens/{token}/revoke").status == 200
    stream.until(lambda kind, _: kind == "ended", "the session ends")
    stream.close()
    assert b'name="token"' in visitor.get().body


def test_names_are_text(site: Teams) -> None:
    """Of a token, in the page that the server writes; those of runs come as data."""
    visitor = site.visitor(site.app.token("viewer", "", EVIL))
    page = visitor.get().body.decode()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;, viewer, all teams" in page
    assert page.count("<script") == 1


def test_a_page_of_a_workload_is_its_teams(site: Teams) -> None:
    """Its frame has nothing but who is logged in; its stream needs the session's secret, and tells of the team's runs
    alone, hostile names as texts. Of another team's run it says what it says of none."""
    after = site.vision.submit("after-key", gpus=0, name=EVIL, after=[{"run": site.run}]).told["id"]
    viewer = site.visitor(site.app.token("viewer", "vision", "vera"))
    for path in ("/dashboard/workloads", f"/dashboard/workloads/{after}", f"/dashboard/workloads/{site.own}"):
        answer = viewer.get(path)
        assert (answer.status, is_safe(answer), b"project" in answer.body) == (200, True, False)
        assert Visitor(site.app.port).get(path).body.count(b'name="token"') == 1
    query = f"?view=workload&of={after}"
    for sent in ("", "x"):
        assert viewer.get(f"/dashboard/events{query}", X_EGS_CSRF=sent).status == 403
    stream = viewer.stream(query)
    parts = stream.until(lambda kind, _: kind == "change", "the workload")["parts"]
    stream.close()
    assert set(parts) == {"title", "graph", "path", "runs"}
    assert "secret project" in stream.text
    assert EVIL.replace('"', '\\"') in stream.text
    listed = viewer.stream("?view=workloads")
    listed.until(lambda kind, data: kind == "change" and f"/dashboard/workloads/{after}" in str(data), "the list")
    listed.close()
    assert "own project" not in stream.text + listed.text
    for run in (site.own, "999"):
        other = viewer.stream(f"?view=workload&of={run}")
        problem = other.until(lambda kind, _: kind == "problem", "there is none")
        other.close()
        assert "there is no such run" in problem
        assert "own project" not in other.text
    for query in ("?view=x", "?view=workload&of=..%2f1", "?view=workload&of=" + "1" * 40, "?view=__class__"):
        assert viewer.get(f"/dashboard/events{query}", X_EGS_CSRF=viewer.csrf).status == 404
    assert viewer.get("/dashboard/workloads/..%2fx").status == 404
    assert viewer.get(f"/dashboard/workloads/{'1' * 40}").status == 404
    assert site.vision.post(f"/v1/runs/{after}/abort", {"reason": "over"}).status == 200


def test_logging_out_ends_the_streams_of_all_pages(site: Teams) -> None:
    visitor = site.visitor(site.vision)
    stream = visitor.stream("?view=workloads")
    stream.until(lambda kind, _: kind == "change", "the list")
    assert visitor.post("/dashboard/logout", {"csrf": visitor.csrf}).status == 303
    stream.until(lambda kind, _: kind == "ended", "the stream ends")
    stream.close()


def test_the_usage_opens_with_as_much_as_there_is(site: Teams) -> None:
    """Of a site that is minutes old an hour, else a day; of an older server's, whose age is not known, too."""
    page = site.visitor(site.app.token("viewer", "vision"))

    def opened() -> str:
        body = page.get("/dashboard/usage").body.decode()
        return str(re.findall(r'data-of="(\w+)"', body)[0])

    assert opened() == "1h"
    session = Session("k", "t", Me(name="ann", role="viewer", since=1000.0), "c", 0.0)
    spans = [first_span(session, 1000.0 + age_s) for age_s in (-5.0, 600.0, 3700.0, 90_000.0)]
    assert spans == ["1h", "1h", "24h", "24h"]
    assert first_span(Session("k", "t", Me(name="ann", role="viewer"), "c", 0.0), 2000.0) == "24h"


def test_the_usage_page_is_a_teams_own(site: Teams) -> None:
    """Its frame has no figure; a team is told of its own GPU time, an admin also of all GPUs and teams."""
    page = site.visitor(site.app.token("viewer", "vision"))
    assert (page.get("/dashboard/usage").status, page.get("/dashboard/usage/7d").status) == (200, 200)
    assert page.get("/dashboard/usage/9d").status == 404
    for query in ("?view=usage", "?view=usage&of=9d"):
        assert page.get(f"/dashboard/events{query}", X_EGS_CSRF=page.csrf).status == 404
    texts = []
    for asker in (site.app.token("viewer", "vision"), site.app.admin):
        stream = site.visitor(asker).stream("?view=usage&of=24h")
        stream.until(lambda kind, _: kind == "change", "the figures")
        texts.append(stream.text)
        stream.close()
    assert ["Used of all GPUs" in text for text in texts] == [False, True]
    assert not any("speech" in text for text in texts[:1])


def test_pages_of_drivers_and_of_the_plan(site: Teams) -> None:
    """Their frames are for whoever is logged in, what is in them for whoever has the session's secret; of a driver that
    is not there it says so."""
    viewer = site.visitor(site.app.token("viewer", "vision"))
    for path in ("/dashboard/plan", "/dashboard/workloads/r1"):
        assert (viewer.get(path).status, b'name="token"' in Visitor(site.app.port).get(path).body) == (200, True)
    for query in ("?view=plan", "?view=tasks&of=r1"):
        assert viewer.get(f"/dashboard/events{query}", X_EGS_CSRF="").status == 403
    plan = viewer.stream("?view=plan")
    assert "Nothing is loaded ahead" in str(plan.until(lambda kind, _: kind == "change", "the plan")["parts"]["loaded"])
    plan.close()
    tasks = viewer.stream("?view=tasks&of=r1")
    assert "there is no driver" in tasks.until(lambda kind, _: kind == "problem", "there is none")
    tasks.close()
