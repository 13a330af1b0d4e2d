"""Signing in with OpenID Connect at a certified provider; then at one that does everything wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from coordinator.runtime.openid import OpenId
from coordinator.store import tables
from tests.integration.api.site import Site, code_of, opened
from tests.integration.api.test_acts_over_http import acts, said
from tests.support.openid import CLIENT_ID, CLIENT_SECRET, Running, running_provider, settings_of, signed_in

pytestmark = pytest.mark.anyio
SESSION, START = "/v1/browser-session", "/v1/openid/start?return_to=/requests%3Fstatus%3Dfenced"
ROLES = "officers=compliance@cardiology, cn=staff=viewer@cardiology, heads=admin@cardiology, abroad=operator@oncology"
PEOPLE = {
    "anna": {"name": "Anna <b>Arzt</b>", "groups": ["everybody", "officers"]},
    "ben": {"name": "Ben", "groups": ["officers", "cn=staff"]},
    "carla": {"name": "Carla", "groups": ["everybody"]},
    "dora": {"name": "Dora", "groups": "cn=staff"},
    "emil": {"name": "Emil", "groups": ["abroad"]},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Running]:
    with running_provider(PEOPLE) as running:
        yield running


@pytest.fixture
async def site(tmp_path: Path, database_url: str | None, provider: Running) -> AsyncIterator[Site]:
    async with opened(tmp_path / "home", database_url, **settings_of(provider, ROLES)) as site:
        yield site


@asynccontextmanager
async def browser(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """Reaches the provider by its port, and the coordinator under its public address."""
    public_url = site.coordinator.settings.public_url or "http://127.0.0.1:1"
    mounts = {public_url: httpx.ASGITransport(site.app)}
    async with httpx.AsyncClient(mounts=mounts, base_url=public_url, trust_env=False) as http:
        yield http


def csrf(http: httpx.AsyncClient) -> dict[str, str]:
    return {"X-CSRF-Token": http.cookies["lethe-csrf"]}


async def test_a_person_signs_in_with_the_role_of_a_group(site: Site) -> None:
    assert (await site.http.get("/v1/openid")).json() == {"enabled": True, "name": "Hospital login"}
    async with browser(site) as http:
        back = await signed_in(http, START, "anna")
        assert back.status_code == 303, back.text
        assert back.headers["location"] == "/requests?status=fenced" and back.headers["cache-control"] == "no-store"
        me = (await http.get(SESSION)).json()
        assert (me["role"], me["person"], me["session"]) == ("compliance", PEOPLE["anna"]["name"], True)
        assert me["federation_id"] == site.federation_id and me["expires_at"] is not None
        path = f"/v1/federations/{site.federation_id}/acts"
        assert (await http.get(path)).status_code == 200
        assert code_of(await http.delete(SESSION)) == "csrf-failed"
        assert (await http.delete(SESSION, headers=csrf(http))).status_code == 204
    found = [one for one in await acts(site, 4) if one["entry"]["act"] in ("credential.issued", "session.begun")]
    assert [one["entry"]["act"] for one in found] == ["credential.issued", "session.begun"]
    for one in found:
        (who,) = said(one, "who")
        assert who is not None and who["person"] == PEOPLE["anna"]["name"] and who["credential"] == me["credential_id"]


async def test_a_person_has_one_credential_however_often_they_sign_in_and_others_have_others(site: Site) -> None:
    whose: dict[str, set[str]] = {"anna": set(), "ben": set()}
    for login in ("anna", "anna", "ben"):
        async with browser(site) as http:
            await signed_in(http, START, login)
            whose[login].add((await http.get(SESSION)).json()["credential_id"])
    assert [len(ids) for ids in whose.values()] == [1, 1] and whose["anna"] != whose["ben"]
    c = tables.credentials.c
    async with site.coordinator.database.read() as connection:
        rows = (await connection.execute(sa.select(c.subject, c.id).where(c.subject.is_not(None)))).all()
    issuer = site.coordinator.settings.openid_issuer
    assert {row.subject for row in rows} == {f"{issuer} anna", f"{issuer} ben"}
    shown = await site.app.state.context.authenticator._credential(UUID(next(iter(whose["anna"]))))
    assert shown is not None and shown.subject == f"{issuer} anna"


async def test_a_persons_session_ends_with_the_credential_and_the_provider_may_let_them_in_again(site: Site) -> None:
    async with browser(site) as http:
        await signed_in(http, START, "ben")
        first = (await http.get(SESSION)).json()
        await site.admin.call("DELETE", f"/v1/credentials/{first['credential_id']}")
        assert code_of(await http.get(SESSION)) == "session-ended"
        await signed_in(http, START, "ben")
        assert (await http.get(SESSION)).json()["credential_id"] != first["credential_id"]


async def test_who_has_no_role_here_is_told_so(site: Site) -> None:
    async with browser(site) as http:
        refused = await signed_in(http, START, "carla")
        assert code_of(refused) == "forbidden" and "LETHE_OPENID_ROLES" in refused.json()["detail"]
        assert "lethe" not in http.cookies
    async with browser(site) as http:
        refused = await signed_in(http, START, "emil")
        assert code_of(refused) == "forbidden" and "oncology" in refused.json()["detail"]
    async with browser(site) as http:
        await signed_in(http, START, "dora")
        assert (await http.get(SESSION)).json()["role"] == "viewer"


async def test_the_one_of_several_federations_that_is_asked_for_counts(site: Site) -> None:
    async with browser(site) as http:
        refused = await signed_in(http, f"{START}&federation=oncology", "anna")
        assert code_of(refused) == "forbidden" and "oncology" in refused.json()["detail"]
        back = await signed_in(http, f"{START}&federation=cardiology", "anna")
        assert back.status_code == 303


async def test_what_a_person_lost_at_the_provider_is_revoked_when_they_sign_in(site: Site) -> None:
    openid = site.coordinator.openid
    assert openid is not None
    async with browser(site) as http, browser(site) as later:
        await signed_in(http, START, "ben")
        assert (await http.get(SESSION)).json()["role"] == "compliance"
        grants = site.coordinator.settings.grants
        lowered = site.coordinator.settings.model_copy(update={"openid_roles": "cn=staff=viewer@cardiology"})
        assert len(grants) == 4 and len(lowered.model_copy().grants) >= 1
        lowered.__dict__.pop("grants", None)
        openid._settings = lowered
        await signed_in(later, START, "ben")
        assert (await later.get(SESSION)).json()["role"] == "viewer"
        assert code_of(await http.get(SESSION)) == "session-ended"


@pytest.mark.parametrize(
    "return_to", ["https://evil.example", "//evil.example", "/\\evil.example", "evil", "/a\r\nb", "/" + "a" * 1001]
)
async def test_nobody_is_sent_to_another_site(site: Site, return_to: str) -> None:
    async with browser(site) as http:
        refused = await http.get("/v1/openid/start", params={"return_to": return_to})
        assert code_of(refused) == "invalid-request"


async def test_an_answer_to_another_attempt_is_refused(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    async with browser(site) as http, browser(site) as another:
        assert code_of(await http.get("/v1/openid/callback?code=x&state=y")) == "sign-in-failed"
        await http.get(START)
        assert code_of(await http.get("/v1/openid/callback?code=a-code&state=y")) == "sign-in-failed"
        assert code_of(await http.get("/v1/openid/callback")) == "sign-in-failed"
        begun = await another.get(START)
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        denied = await another.get(f"/v1/openid/callback?error=access_denied&state={state}")
        assert code_of(denied) == "sign-in-failed" and "access_denied" in denied.json()["detail"]
        spent = await another.get(f"/v1/openid/callback?code=a-code&state={state}")
        assert code_of(spent) == "sign-in-failed" and "code" in spent.json()["detail"]
        strange = f"/v1/openid/callback?code=a-code&state={state}&iss=https://evil.example"
        assert code_of(await another.get(strange)) == "sign-in-failed"
        another.cookies.set("lethe-openid", "nonsense", domain="127.0.0.1", path="/")
        assert "lethe" not in http.cookies and "lethe" not in another.cookies
    printed = "".join(capfd.readouterr())
    assert "a-code" not in printed and state not in printed and CLIENT_SECRET not in printed


async def test_without_a_provider_people_sign_in_with_tokens(small_site: Site) -> None:
    assert (await small_site.http.get("/v1/openid")).json() == {"enabled": False, "name": None}
    assert code_of(await small_site.http.get("/v1/openid/start")) == "not-found"
    assert code_of(await small_site.http.get("/v1/openid/callback?code=x&state=y")) == "not-found"


# --- a provider that does everything wrong --------------------------------------------------------------------------

ISSUER = "https://login.example"
KEY = RSAKey.generate_key(2048, {"kid": "one"})


class Scripted:
    """Answers for the provider; `claims` and `key` change what it signs."""

    def __init__(self, now: float) -> None:
        self.now, self.nonce = now, ""
        self.claims: dict[str, Any] = {}
        self.key: Any = KEY
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "one"}
        self.metadata: dict[str, Any] = {}
        self.info: dict[str, Any] = {"sub": "anna", "groups": ["officers"], "name": "Anna"}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        self.asked.append((url, options))
        match url.removeprefix(ISSUER):
            case "/.well-known/openid-configuration":
                ends = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/jwks"}
                found = {name: ISSUER + path for name, path in ends.items()} | {"userinfo_endpoint": f"{ISSUER}/me"}
                return {"issuer": ISSUER, **found, **self.metadata}
            case "/jwks":
                return {"keys": [KEY.as_dict(private=False)]}
            case "/me":
                return self.info
        now = int(self.now)
        claims = {"iss": ISSUER, "sub": "anna", "aud": CLIENT_ID, "iat": now, "exp": now + 60, "nonce": self.nonce}
        token = jwt.encode(self.header, claims | self.claims, self.key, algorithms=[self.header["alg"]])
        return {"id_token": token, "access_token": "an access token", "token_type": "Bearer"}


@pytest.fixture
async def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Site, Scripted]]:
    settings = {
        "public_url": "https://lethe.example",
        "openid_issuer": ISSUER,
        "openid_client_id": CLIENT_ID,
        "openid_roles": ROLES,
    }
    async with opened(tmp_path / "home", None, **settings) as site:
        async with site.coordinator.database.read() as connection:
            now = await site.coordinator.database.now(connection)
        provider = Scripted(now.timestamp())
        monkeypatch.setattr(OpenId, "_ask", lambda self, *args, **options: provider.ask(*args, **options))
        yield site, provider


async def attempt(site: Site, provider: Scripted) -> httpx.Response:
    async with browser(site) as http:
        begun = await http.get("/v1/openid/start")
        if begun.status_code != 303:
            return begun
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"] and asked["redirect_uri"] == [
            "https://lethe.example/v1/openid/callback"
        ]
        assert "__Host-lethe-openid" in http.cookies
        provider.nonce = provider.nonce or asked["nonce"][0]
        return await http.get("/v1/openid/callback", params={"code": "c", "state": asked["state"][0]})


async def test_a_scripted_provider_that_does_everything_right_lets_people_in(scripted: tuple[Site, Scripted]) -> None:
    site, provider = scripted
    back = await attempt(site, provider)
    assert back.status_code == 303 and back.headers["location"] == "/"
    session, csrf_cookie, gone = back.headers.get_list("set-cookie")
    assert session.startswith("__Host-lethe=") and "Secure" in session and "SameSite=strict" in session
    assert csrf_cookie.startswith("lethe-csrf=") and gone.startswith('__Host-lethe-openid=""')
    (form,) = [options["data"] for url, options in provider.asked if url.endswith("/token")]
    assert form["client_id"] == CLIENT_ID and len(form["code_verifier"]) >= 43 and "client_secret" not in form


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "somebody else"}, "does not hold"),
        ({"iss": "https://evil.example"}, "does not hold"),
        ({"nonce": "of another attempt"}, "does not hold"),
        ({"azp": "somebody else"}, "does not hold"),
        ({"at_hash": "of another access token"}, "does not hold"),
        ({"sub": "x" * 256}, "names nobody"),
        ({"sub": "ben"}, "somebody else"),
    ],
)
async def test_an_id_token_that_is_not_for_this_attempt_is_refused(
    scripted: tuple[Site, Scripted], claims: dict[str, Any], why: str
) -> None:
    site, provider = scripted
    provider.claims = claims
    refused = await attempt(site, provider)
    assert code_of(refused) == "sign-in-failed" and why in refused.json()["detail"]


@pytest.mark.parametrize("off", [timedelta(minutes=-10), timedelta(minutes=10)])
async def test_clocks_that_differ_by_much_are_named(scripted: tuple[Site, Scripted], off: timedelta) -> None:
    site, provider = scripted
    provider.now += off.total_seconds()
    refused = await attempt(site, provider)
    assert code_of(refused) == "sign-in-failed" and "clocks differ" in refused.json()["detail"]


async def test_clocks_that_differ_by_a_little_do_not_matter(scripted: tuple[Site, Scripted]) -> None:
    site, provider = scripted
    for off_s in (90, -180):
        provider.now, provider.nonce = provider.now + off_s, ""
        assert (await attempt(site, provider)).status_code == 303


async def test_a_signature_that_anybody_could_have_made_is_refused(scripted: tuple[Site, Scripted]) -> None:
    site, provider = scripted
    provider.metadata = {"id_token_signing_alg_values_supported": ["RS256", "HS256", "none"]}
    provider.key, provider.header = OctKey.import_key(KEY.as_pem(private=False)), {"alg": "HS256", "kid": "one"}
    assert code_of(await attempt(site, provider)) == "sign-in-failed"
    provider.key, provider.header = RSAKey.generate_key(2048), {"alg": "RS256", "kid": "one"}
    assert code_of(await attempt(site, provider)) == "sign-in-failed"


@pytest.mark.parametrize(
    "metadata",
    [{"issuer": "https://evil.example"}, {"token_endpoint": "http://login.example/token"}, {"jwks_uri": None}],
)
async def test_a_provider_that_is_not_the_one_that_was_configured_is_not_used(
    scripted: tuple[Site, Scripted], metadata: dict[str, Any]
) -> None:
    site, provider = scripted
    provider.metadata = metadata
    refused = await attempt(site, provider)
    assert code_of(refused) == "unavailable" and "OpenID Connect provider" in refused.json()["detail"]


async def test_a_provider_that_is_away_is_a_clear_answer(tmp_path: Path) -> None:
    settings = {
        "public_url": "http://127.0.0.1:1",
        "openid_issuer": "http://127.0.0.1:1",
        "openid_client_id": CLIENT_ID,
        "openid_roles": ROLES,
    }
    async with opened(tmp_path / "home", None, **settings) as site:
        refused = await site.http.get("/v1/openid/start")
        assert code_of(refused) == "unavailable" and "cannot be reached" in refused.json()["detail"]
