"""Who is logged in to the dashboard, and for how long."""

from __future__ import annotations

from egs_core.client.overview import Me
from egs_core.dashboard.sessions import LASTS_S, Sessions

ANN = Me(name="ann", role="viewer", team="vision")
ROOT = Me(name="root", role="admin", every_team=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_cookie_is_known_until_its_session_ends() -> None:
    """By itself after its time, or by its user; another cookie, or none, is nobody's."""
    clock = Clock()
    found = Sessions(clock)
    cookie, session = found.begin("token", ANN)
    assert found.of(cookie) == session
    assert [found.of(other) for other in ("", cookie[:-1], cookie + "x", session.key, "\udc80")] == [None] * 5
    clock.now = LASTS_S
    assert found.of(cookie) is None
    cookie, session = found.begin("token", ANN)
    found.end(session)
    assert (found.of(cookie), found.lasts(session)) == (None, False)


def test_each_session_has_its_own_secrets() -> None:
    found = Sessions(Clock())
    (one, first), (two, second) = found.begin("token", ANN), found.begin("token", ANN)
    assert len({one, two, first.csrf, second.csrf}) == 4
    assert first.allows(first.csrf)
    assert not any(first.allows(other) for other in ("", second.csrf, "é", first.csrf + "x"))


def test_of_too_many_sessions_of_a_token_its_oldest_ends() -> None:
    """However often somebody logs in, nobody with another token is logged out by that."""
    found = Sessions(Clock())
    other = found.begin("root's", ROOT)[0]
    cookies = [found.begin("token", ANN)[0] for _ in range(2000)]
    assert [found.of(cookie) is not None for cookie in cookies] == [False] * 1990 + [True] * 10
    assert found.of(other) is not None


def test_who_sees_the_same() -> None:
    """Those of one team do; no team is not all teams."""
    found = Sessions(Clock())
    sees = [found.begin("t", me)[1].sees for me in (ANN, ANN.model_copy(update={"name": "bo", "role": "operator"}))]
    nobody = found.begin("t", Me(name="x", role="viewer"))[1].sees
    everybody = found.begin("t", ROOT)[1].sees
    assert sees == ["vision", "vision"]
    assert (nobody, everybody) == ("", None)
