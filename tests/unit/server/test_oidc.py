"""Tokens of an OpenID Connect provider at the real server: who they make somebody, and what does not hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from egs_core.errors import InputError
from egs_core.oidc import OidcFile, load_oidc, who_is
from egs_core.server import oidc
from tests.unit.dashboard.browser import Visitor
from tests.unit.server.provider import RealProvider, real_provider
from tests.unit.server.real_app import FILE, Asker, RealApp
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for

ROLES = {"admin": {"groups": ("gpu-admins",)}, "submitter": {"groups": ("staff",), "realm.roles": ("user",)}}
TEAMS = {"vision": {"groups": ("vision",)}, "speech": {"groups": ("speech",)}}


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    with real_provider() as found:
        yield found


@pytest.fixture(scope="module")
def site(provider: RealProvider) -> Iterator[RealApp]:
    file = OidcFile.model_validate({"issuer": provider.issuer, "audience": "egs", "roles": ROLES, "teams": TEAMS})
    known = oidc.Provider(file)
    known.start()
    app = RealApp(FILE, provider=known)
    yield app
    app.close()
    known.close()


def me(site: RealApp, token: str) -> tuple[int, dict[str, object]]:
    answer = site.over_tcp(token).get("/v1/me")
    return answer.status, answer.told


def refusal(site: RealApp, token: str) -> str:
    answer = site.over_tcp(token).get("/v1/me")
    assert answer.status == 401, answer.body
    assert answer.headers["www-authenticate"] == "Bearer"
    return answer.detail


def test_claims_make_somebody(site: RealApp, provider: RealProvider) -> None:
    """A sound token is its person, with the strongest role that its claims give and the teams that they name."""
    status, told = me(site, provider.token(groups=["staff", "vision", "speech"]))
    assert (status, told["name"], told["role"]) == (200, "ann@example.org", "submitter")
    assert me(site, provider.token(realm={"roles": ["user"]}))[1]["role"] == "submitter"
    status, told = me(site, provider.token(groups=["staff", "gpu-admins"], email="root@example.org"))
    assert (told["name"], told["role"]) == ("root@example.org", "admin")
    assert "give no role" in refusal(site, provider.token(groups=["guests"]))


def test_teams_are_kept_apart(site: RealApp, provider: RealProvider) -> None:
    """What one submits by such a token is of one's team and one's own; another team does not see it; the log names the
    provider."""
    ann = site.over_tcp(provider.token(groups=["staff", "vision"]))
    bob = site.over_tcp(provider.token(groups=["staff", "speech"], email="bob@example.org"))
    made = ann.submit("ann-wants-one", queue="images")
    assert made.status == 200, made.body
    number = made.told["id"]
    assert made.told["user"] == "ann@example.org"
    assert bob.get(f"/v1/runs/{number}").status == 404
    assert bob.post(f"/v1/runs/{number}/abort").status == 404
    assert ann.post(f"/v1/runs/{number}/abort").status == 200
    assert provider.issuer in site.admin.get("/v1/log").told["entries"][-1]["origin"]


def test_what_does_not_hold(site: RealApp, provider: RealProvider) -> None:
    """Another audience, issuer, time or key, no name, no verified address: each is refused with its reason."""
    good: Any = {"groups": ["staff"]}
    assert "Audience" in refusal(site, provider.token(aud="another", **good))
    assert '"aud"' in refusal(site, provider.token(aud=None, **good))
    assert "issuer" in refusal(site, provider.token(iss="http://127.0.0.1:1/realm", **good)).lower()
    assert "expired" in refusal(site, provider.token(exp=time.time() - 60, **good))
    assert '"exp"' in refusal(site, provider.token(exp=None, **good))
    assert "not yet valid" in refusal(site, provider.token(nbf=time.time() + 600, **good))
    assert "no name" in refusal(site, provider.token(email=None, **good))
    assert "no name" in refusal(site, provider.token(email="a\nb", **good))
    assert "verified" in refusal(site, provider.token(email_verified=False, **good))
    assert "too long" in refusal(site, provider.token(more="x" * 9000, **good))


def test_forged(site: RealApp, provider: RealProvider) -> None:
    """No signature, one by another key under a known name, one made with a published key as a secret, and changed
    claims: none is somebody."""
    claims = {"iss": provider.issuer, "aud": "egs", "email": "a@b.c", "exp": time.time() + 60, "groups": ["gpu-admins"]}
    assert "hold" in refusal(site, jwt.encode(claims, "", algorithm="none", headers={"kid": "first"}))
    own = ec.generate_private_key(ec.SECP256R1())
    assert "hold" in refusal(site, jwt.encode(claims, own, algorithm="ES256", headers={"kid": "first"}))
    public = json.loads(provider.page("/realm/keys"))["keys"][0]
    assert "hold" in refusal(site, with_secret(claims, json.dumps(public).encode()))
    head, body, signature = provider.token(groups=["staff"]).split(".")
    changed = {**json.loads(base64.urlsafe_b64decode(body + "==")), "groups": ["gpu-admins"]}
    assert "hold" in refusal(site, f"{head}.{encoded(changed)}.{signature}")
    assert "no such key" in refusal(site, with_secret(claims, b"secret", key="shared"))
    for nonsense in ("..", "a.b.c", "x" * 50 + ".y.z", "é.b.c"):
        assert site.over_tcp(nonsense).get("/v1/me").status == 401


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def with_secret(claims: object, secret: bytes, key: str = "first") -> str:
    """A token of HS256, which PyJWT itself refuses to make with a public key."""
    said = f"{encoded({'alg': 'HS256', 'kid': key})}.{encoded(claims)}"
    digest = hmac.new(secret, said.encode(), hashlib.sha256).digest()
    return f"{said}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def test_the_dashboard(site: RealApp, provider: RealProvider) -> None:
    """One logs in with such a token, of its full length; one that does not hold is refused."""
    visitor = Visitor(site.port)
    assert visitor.log_in(provider.token(groups=["staff"], more="x" * 2000)).status == 200
    assert b"ann@example.org" in visitor.get().body
    assert Visitor(site.port).log_in(provider.token(aud="another")).status == 401


def test_own_tokens_count_as_before(site: RealApp) -> None:
    assert site.admin.get("/v1/me").told["role"] == "admin"
    assert isinstance(site.token("viewer", "vision"), Asker)


def test_keys_change_and_a_provider_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key counts soon after it is asked for; what has failed to be read changes nothing; a key that is gone
    proves nothing more, also for a token that was known."""
    monkeypatch.setattr(oidc, "SOONEST_S", 0.05)
    with real_provider() as real:
        known = oidc.Provider(OidcFile(issuer=real.issuer, audience="egs"))
        known.start()
        try:
            old = real.token()
            assert not isinstance(known.person(old, time.time()), str)
            real.new_key("second")
            new = real.token("second")
            wait_for(lambda: not isinstance(known.person(new, time.time()), str), "the new key")
            real.answers["/realm/keys"] = (500, b"")
            real.new_key("third")
            asked = len(real.asked)
            known.person(real.token("third"), time.time())
            wait_for(lambda: len(real.asked) > asked + 2, "it was asked")
            assert not isinstance(known.person(old, time.time()), str)
            real.answers = {}
            del real.keys["first"]
            wait_for(lambda: isinstance(known.person(old, time.time()), str), "the old key is gone")
        finally:
            known.close()


def test_strangers_do_not_make_it_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tokens of keys that are not there: the provider is read once, as at the start."""
    monkeypatch.setattr(oidc, "SOONEST_S", 3600.0)
    with real_provider() as real:
        known = oidc.Provider(OidcFile(issuer=real.issuer, audience="egs"))
        known.start()
        real.new_key("second")
        token = real.token("second")
        assert all(isinstance(known.person(token, time.time()), str) for _ in range(1000))
        assert len(real.asked) == 2
        known.close()


def test_a_provider_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts nevertheless, and nobody is known by its tokens; what it answers wrongly is no key."""
    monkeypatch.setattr(oidc, "FIRST_S", 0.01)
    with real_provider() as real:
        token = real.token()
        real.answers["/realm/.well-known/openid-configuration"] = (200, b'{"issuer": "https://evil.example"}')
        with pytest.raises(ValueError, match=r"says that it is 'https://evil\.example'"):
            oidc.read_keys(real.issuer)
        real.answers["/realm/.well-known/openid-configuration"] = (
            200,
            json.dumps({"issuer": real.issuer, "jwks_uri": "http://evil.example/keys"}).encode(),
        )
        with pytest.raises(ValueError, match="no https:// address"):
            oidc.read_keys(real.issuer)
        real.answers = {"/realm/keys": (200, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')}
        with pytest.raises(ValueError, match="no key"):
            oidc.read_keys(real.issuer)
        real.answers = {"/realm/keys": (302, b"")}
        known = oidc.Provider(OidcFile(issuer=real.issuer, audience="egs"))
        known.start()
        assert "no such key" in str(known.person(token, time.time()))
        known.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "needs an issuer"),
        ("issuer: http://sso.example.org\naudience: egs\n", "line 1"),
        ("issuer: https://sso.example.org\n", "audience"),
        ("issuer: https://a.b\naudience: egs\nroles:\n  agent: {groups: x}\n", "line 4"),
        ("issuer: https://a.b\naudience: egs\nroles:\n  admin: {}\n", "line 4"),
        ("issuer: https://a.b\naudience: egs\nteams: {vision: {groups: []}}\n", "line 3"),
        ("issuer: https://a.b\naudience: egs\nclaim: x\n", "line 3"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, said: str) -> None:
    """Each error names the file and the line."""
    path = tmp_path / "oidc.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        load_oidc(path)
    assert str(path) in str(found.value)
    assert said in str(found.value)


def test_a_server_and_a_client_whose_token_is_renewed(tmp_path: Path, provider: RealProvider) -> None:
    """`egs serve --oidc`, and commands with `EGS_TOKEN_FILE`: one whose token has ended while it runs takes the new
    one; a token that does not hold is one line that says why; no command has either variable."""
    file, token = tmp_path / "oidc.yaml", tmp_path / "token"
    file.write_text(f"issuer: {provider.issuer}\naudience: egs\nname: sub\n")
    site = RealSite(tmp_path / "site")
    try:
        began = time.monotonic()
        site.start("--oidc", str(file))
        starts_s = time.monotonic() - began  # a command starts sooner
        token.write_text(provider.token(exp=time.time() - oidc.LEEWAY_S + 1 + 2 * starts_s))
        there = {"EGS_URL": site.ready["url"], "EGS_TOKEN_FILE": str(token)}
        program = (
            "import os, time\nprint(os.environ.get('EGS_TOKEN_FILE'), flush=True)\n"
            "while not os.path.exists('go'): time.sleep(0.05)"
        )
        run = site.run("--gpus", "1", "--", sys.executable, "-c", program, folder=tmp_path, **there)
        assert run.stdout is not None
        assert run.stdout.readline() == "None\n"
        wait_for(lambda: "expired" in site.egs("ps", **there).stderr, "the token has ended")
        token.write_text(provider.token())
        assert [one["user"] for one in json.loads(site.egs("ps", "--json", **there).stdout)["runs"]] == ["4711"]
        (tmp_path / "go").touch()
        assert run.wait(PATIENCE_S) == 0
        wait_for(lambda: site.client.runs().runs == (), "its end is told")
        bad = site.egs("ps", EGS_URL=site.ready["url"], EGS_TOKEN=provider.token(aud="another"))
        assert (bad.returncode, len(bad.stderr.splitlines())) == (2, 1)
        assert "the token in EGS_TOKEN is not known there, or no longer good (" in bad.stderr
    finally:
        site.close()


def test_without_roles_and_teams() -> None:
    """Everybody is a submitter, of the teams that the file of queues says."""
    found = who_is(OidcFile(issuer="https://a.b", audience="egs", name="sub"), {"sub": "4711"})
    assert not isinstance(found, str)
    assert (found.name, found.role, found.teams) == ("4711", "submitter", None)


def test_teams_by_claims() -> None:
    """All that the claims name, in the file's order; somebody of none is in the team without a name; an admin is of
    the whole site."""
    file = OidcFile.model_validate({"issuer": "https://a.b", "audience": "egs", "roles": ROLES, "teams": TEAMS})
    of = {name: who_is(file, {"email": "a@b.c", "groups": name.split()}) for name in ("staff speech vision", "staff")}
    assert [one.teams for one in of.values() if not isinstance(one, str)] == [("vision", "speech"), ("",)]
    admin = who_is(file, {"email": "a@b.c", "groups": ["gpu-admins", "vision"]})
    assert not isinstance(admin, str)
    assert (admin.role, admin.teams) == ("admin", None)
