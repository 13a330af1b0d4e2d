"""Signing in with OpenID Connect: the authorization code flow with PKCE, state and nonce.

A person who signs in has a credential of their own here, in the role and federation that their groups at the provider
stand for (`LETHE_OPENID_ROLES`). No token belongs to it: it is reached by signing in alone.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID

import httpx
import structlog
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
from authlib.oidc.discovery import OpenIDProviderMetadata  # type: ignore[import-untyped]
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.port import CREDENTIALS_DROPPED, Bus
from coordinator.runtime.accounts import hash_of
from coordinator.runtime.acts import Act, Actor, Acts
from coordinator.runtime.settings import Grant, Settings
from coordinator.runtime.transactions import transact
from coordinator.store import accounts
from coordinator.store.database import Database
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.wire.message import Message
from services.wire.v1.acts import ActAbout

log = structlog.get_logger()
CALLBACK: Final = "/v1/openid/callback"
TIMEOUT_S: Final = 10.0
METADATA_S: Final = 300.0
"""How long the provider's description of itself is used again."""
CLOCK_SLACK_S: Final = 120
"""How far the provider's clock and ours may differ."""
MOST_BYTES: Final = 1 << 20
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Algorithms of signatures: only such as nobody can sign with who has the public key alone."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
LONGEST_PATH: Final = 1000
_LONGEST_NAME: Final = 100


class PendingSignIn(Message):
    """What the browser keeps while it is at the provider, so that any replica can finish what another began.
    `federation`: the only one to sign in to, if it said so."""

    state: str
    nonce: str
    verifier: str
    return_to: str
    federation: str | None

    def packed(self) -> str:
        return base64.urlsafe_b64encode(self.model_dump_json().encode()).decode()

    @classmethod
    def unpacked(cls, packed: str) -> PendingSignIn:
        try:
            found = cls.model_validate_json(base64.urlsafe_b64decode(packed))
            check_return_to(found.return_to)
        except (ValueError, Rejected) as error:
            raise _failed("what this browser kept of its attempt to sign in is damaged") from error
        return found


@dataclass(frozen=True, slots=True)
class SignedIn:
    actor: Actor
    federation_id: UUID
    return_to: str


class OpenId:
    def __init__(self, settings: Settings, database: Database, bus: Bus, acts: Acts) -> None:
        self._settings, self._database, self._bus, self._acts = settings, database, bus, acts
        self._issuer = settings.openid_issuer or ""
        self._metadata: tuple[float, dict[str, Any]] | None = None

    async def start(self, return_to: str, federation: str | None) -> tuple[str, str]:
        """Where to send the browser, and what it has to keep meanwhile."""
        check_return_to(return_to)
        metadata = await self._provider()
        pending = PendingSignIn(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            return_to=return_to,
            federation=federation,
        )
        query = {
            "response_type": "code",
            "client_id": self._settings.openid_client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._settings.openid_scopes,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": create_s256_code_challenge(pending.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = metadata["authorization_endpoint"]
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}", pending.packed()

    async def finish(self, kept: str, answered: Mapping[str, str], address: str) -> SignedIn:
        """Who came back with the provider's answer."""
        pending = PendingSignIn.unpacked(kept)
        metadata = await self._provider()
        if not hmac.compare_digest(answered.get("state", "").encode(), pending.state.encode()):
            raise _failed("the answer belongs to another attempt to sign in, perhaps one in another tab")
        if answered.get("iss", metadata["issuer"]) != metadata["issuer"]:
            raise _failed("another provider than the one that was asked has answered")
        if "error" in answered:
            said = re.sub(r"[^a-z_]", "", answered["error"])[:60]
            raise _failed(f"the provider refused: {said}")
        if not answered.get("code"):
            raise _failed("the provider's answer has no code")
        claims = await self._claims(metadata, pending, answered["code"])
        subject = f"{metadata['issuer']} {claims['sub']}"
        granted = self._granted(claims, pending.federation)
        actor, federation_id = await self._person(subject, _name_of(claims), granted, address)
        return SignedIn(actor, federation_id, pending.return_to)

    # whom the provider knows

    async def _provider(self) -> dict[str, Any]:
        issuer = self._issuer
        if self._metadata is not None and time.monotonic() - self._metadata[0] < METADATA_S:
            return self._metadata[1]
        found = await self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            OpenIDProviderMetadata(found).validate_issuer()
            wanted = [found["authorization_endpoint"], found["token_endpoint"], found["jwks_uri"]]
        except (ValueError, KeyError, AttributeError) as error:
            raise _unusable(f"its configuration is not one of OpenID Connect ({type(error).__name__})") from error
        if found["issuer"].rstrip("/") != issuer.rstrip("/"):
            raise _unusable("it calls itself otherwise than LETHE_OPENID_ISSUER")
        if issuer.startswith("https:") and not all(str(url).startswith("https:") for url in wanted):
            raise _unusable("not all of its addresses are https://")
        self._metadata = time.monotonic(), found
        return found

    async def _claims(self, metadata: Mapping[str, Any], pending: PendingSignIn, code: str) -> dict[str, Any]:
        """The claims of the ID token, with those of the provider's user info where that has the groups."""
        tokens = await self._tokens(metadata, pending, code)
        try:
            keys = KeySet.import_key_set(await self._ask("GET", metadata["jwks_uri"]))  # type: ignore[arg-type]
            known = set(metadata.get("id_token_signing_alg_values_supported") or ["RS256"])
            registry = JWSRegistry(algorithms=sorted(known & ALGORITHMS), strict_check_header=False)
            token = jwt.decode(tokens["id_token"], keys, registry=registry)
            async with self._database.read() as connection:
                now = await self._database.now(connection)
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": metadata["issuer"]},
                    "aud": {"essential": True, "value": self._settings.openid_client_id},
                },
                {
                    "nonce": pending.nonce,
                    "client_id": self._settings.openid_client_id,
                    "access_token": tokens.get("access_token"),
                },
            )
            claims.validate(now=int(now.timestamp()), leeway=CLOCK_SLACK_S)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise _failed(_why(error)) from error
        found = dict(claims)
        if not isinstance(found["sub"], str) or not 1 <= len(found["sub"]) <= 255:
            raise _failed("the provider's ID token names nobody")
        if self._settings.openid_groups_claim not in found and "userinfo_endpoint" in metadata:
            bearer = {"Authorization": f"Bearer {tokens.get('access_token', '')}"}
            info = await self._ask("GET", metadata["userinfo_endpoint"], headers=bearer)
            if info.get("sub") != found["sub"]:
                raise _failed("the provider's user info is about somebody else")
            found = info | found
        return found

    async def _tokens(self, metadata: Mapping[str, Any], pending: PendingSignIn, code: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": pending.verifier,
        }
        client_id, secret = self._settings.openid_client_id or "", await asyncio.to_thread(self._secret)
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if secret is not None and "client_secret_basic" in methods:
            auth = httpx.BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
            return await self._ask("POST", metadata["token_endpoint"], data=form, auth=auth)
        form |= {"client_id": client_id} | ({"client_secret": secret} if secret is not None else {})
        return await self._ask("POST", metadata["token_endpoint"], data=form)

    def _secret(self) -> str | None:
        settings = self._settings
        if settings.openid_client_secret is not None:
            return settings.openid_client_secret.get_secret_value()
        if settings.openid_client_secret_file is None:
            return None
        try:
            return settings.openid_client_secret_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            log.error("openid.secret-unreadable", path=str(settings.openid_client_secret_file), error=str(error))
            raise _unusable("its secret cannot be read here; the coordinator's log says why") from error

    async def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """The provider's answer. What was sent and what came are secrets: no error repeats anything of them."""
        trust_env = urlsplit(url).hostname not in _LOOPBACK
        data = bytearray()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=trust_env) as client,
                client.stream(method, url, **options) as response,
            ):
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MOST_BYTES:
                        raise _unusable("its answer is too long")
                if 400 <= response.status_code < 500 and method == "POST":
                    raise _failed(f"the provider does not take the code ({response.status_code}): it is used up or old")
                if response.status_code != 200:
                    raise _unusable(f"it answered {response.status_code}")
                found = httpx.Response(200, content=bytes(data)).json()
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            raise _unusable(f"it cannot be reached or understood ({type(error).__name__})") from error
        if not isinstance(found, dict):
            raise _unusable("its answer is no JSON object")
        return found

    # who they are here

    def _granted(self, claims: Mapping[str, Any], federation: str | None) -> list[Grant]:
        """What a person may be here, the one that counts first."""
        said = claims.get(self._settings.openid_groups_claim, [])
        groups = {said} if isinstance(said, str) else {one for one in said if isinstance(one, str)} if said else set()
        granted = [grant for grant in self._settings.grants if grant.group in groups]
        chosen = [grant for grant in granted if federation in (None, grant.federation)]
        if not chosen:
            where = "" if federation is None else f" in {federation[:63]}"
            raise Rejected(
                "forbidden", f"none of your groups has a role here{where}: ask the operator (LETHE_OPENID_ROLES)"
            )
        return [*chosen[:1], *(grant for grant in granted if grant != chosen[0])]

    async def _person(self, subject: str, name: str, granted: Sequence[Grant], address: str) -> tuple[Actor, UUID]:
        """The actor that the person is now, and the federation that it acts in. Credentials that the person no longer
        has a group for are revoked."""
        async with self._database.read() as connection:
            ids = {grant: await accounts.federation_named(connection, grant.federation) for grant in granted}
            held = await accounts.persons_credentials(connection, subject)
            now = await self._database.now(connection)
        first = granted[0]
        federation_id = ids[first]
        if federation_id is None:
            raise Rejected("forbidden", f"there is no federation {first.federation} here yet: ask the operator")
        lost = [one for one in held if (one.federation_id, one.role) not in {(ids[g], g.role) for g in granted}]
        for one in lost:  # the provider took the group away
            actor = Actor(one.role, name, one.id, None, address, name)
            about = ActAbout(kind="credential", id=one.id)
            await self._acts.recorded(
                Act("credential.revoked", one.federation_id, actor, about),
                partial(_revoke, one.id),
            )
        if lost:
            self._bus.publish(CREDENTIALS_DROPPED, ",".join(str(one.id) for one in lost))
        own = next((one for one in held if (one.federation_id, one.role) == (federation_id, first.role)), None)
        actor = Actor(first.role, name, own.id if own else uuid7(now, os.urandom(10)), None, address, name)
        if own is None:
            return await self._enrolled(subject, actor, federation_id), federation_id
        if own.label != name:
            await transact(self._database, lambda connection: accounts.relabel_credential(connection, own.id, name))
            self._bus.publish(CREDENTIALS_DROPPED, str(own.id))
        return actor, federation_id

    async def _enrolled(self, subject: str, actor: Actor, federation_id: UUID) -> Actor:
        """With a credential that no token belongs to."""
        about, words = ActAbout(kind="credential", id=actor.credential_id), f"{actor.role} {actor.name}"
        unknown = hash_of(secrets.token_urlsafe(32))

        async def add(connection: AsyncConnection, now: datetime) -> None:
            new = accounts.NewCredential(
                actor.credential_id, actor.role, unknown, now, actor.name, federation_id, subject=subject
            )
            await accounts.add_credential(connection, new)

        try:
            await self._acts.recorded(Act("credential.issued", federation_id, actor, about, words=words), add)
        except IntegrityError:  # they signed in twice at the same moment
            async with self._database.read() as connection:
                held = await accounts.persons_credentials(connection, subject)
            own = [one.id for one in held if (one.federation_id, one.role) == (federation_id, actor.role)]
            return Actor(actor.role, actor.name, own[0], None, actor.address, actor.person)
        log.info("credential.issued", credential=str(actor.credential_id), role=actor.role, by="openid")
        return actor

    @property
    def _redirect_uri(self) -> str:
        return f"{self._settings.public_url}{CALLBACK}"


async def _revoke(credential_id: UUID, connection: AsyncConnection, now: datetime) -> None:
    await accounts.revoke_credentials(connection, [credential_id], now)


def check_return_to(path: str) -> None:
    """Only to a page of this installation."""
    if not re.fullmatch(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*", path) or len(path) > LONGEST_PATH:
        raise Rejected("invalid-request", "return_to must be a path of this installation, like /requests")


def _name_of(claims: Mapping[str, Any]) -> str:
    said = (claims.get(one) for one in ("name", "preferred_username", "email", "sub"))
    name = next(one for one in said if isinstance(one, str) and one.strip())
    return "".join(one if one.isprintable() else " " for one in name).strip()[:_LONGEST_NAME]


def _why(error: Exception) -> str:
    if isinstance(error, ExpiredTokenError) or (
        isinstance(error, InvalidClaimError) and error.claim in ("iat", "nbf", "exp")
    ):
        return f"its ID token is not of this time: the clocks differ by more than {CLOCK_SLACK_S} s"
    return f"the provider's ID token does not hold ({type(error).__name__})"


def _failed(why: str) -> Rejected:
    return Rejected("sign-in-failed", f"{why}; begin again")


def _unusable(why: str) -> Rejected:
    return Rejected("unavailable", f"the OpenID Connect provider cannot be used now: {why}")
