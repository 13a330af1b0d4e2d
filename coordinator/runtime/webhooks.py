"""Deliveries to callbacks: signed JSON posts (Standard Webhooks 1.0), only to hosts that the operator allows."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import orjson
import structlog

from coordinator.engine.entities import Job
from coordinator.engine.messages import SettleDelivery
from coordinator.runtime.callback_secrets import KEY_FILE, CallbackSecrets, SecretUnreadable, is_sealed
from coordinator.runtime.evidence import TROUBLE, described
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.store import callbacks
from coordinator.store.callbacks import DeliveryWithSecret
from coordinator.store.database import Database
from services.core.errors import Rejected
from services.wire.v1.erasure import secret_bytes

log = structlog.get_logger()
TIMEOUT_S: Final = 10.0
SETTING: Final = "LETHE_CALLBACK_HOSTS"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_GONE: Final = 410


class WebhookSender:
    def __init__(self, database: Database, shell: Shell, allowed_hosts: str, keys: SigningKeys) -> None:
        """The key of callbacks' secrets lies beside `keys`."""
        self._database, self._shell, self._keys = database, shell, keys
        self._secrets = CallbackSecrets(keys.directory / KEY_FILE)
        self._allowed = frozenset(host.strip().lower() for host in allowed_hosts.split(",") if host.strip())

    def check_url(self, url: str) -> None:
        """The guard against requests to places that only the coordinator can reach."""
        if not self._allowed:
            raise Rejected("callback-refused", f"callbacks are switched off here: the operator has to set {SETTING}")
        if not self._is_allowed(url):
            raise Rejected("callback-refused", f"the host of a callback is not among those that {SETTING} allows")

    async def sealed(self, erasure_id: UUID, callbacks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """The callbacks as they are stored: {url, secret}, the secret readable by this coordinator alone."""
        return tuple([await self._sealed_one(erasure_id, callback) for callback in callbacks])

    async def seal_old(self) -> int:
        """Seal the secrets that an older release stored as they came; returns of how many requests."""
        async with self._database.read() as connection:
            found = await callbacks.unsealed(connection)
        if not found:
            return 0
        sealed = {erasure_id: await self.sealed(erasure_id, plain) for erasure_id, plain in found.items()}
        async with self._database.write() as connection:
            await callbacks.replace(connection, sealed)
        await self._database.forget_pages()
        return len(found)

    async def _sealed_one(self, erasure_id: UUID, callback: Mapping[str, Any]) -> dict[str, Any]:
        secret = callback["secret"]
        if secret is not None and not is_sealed(secret):
            secret = await asyncio.to_thread(self._secrets.seal, secret, erasure_id, callback["url"])
        return {"url": callback["url"], "secret": secret}

    async def run(self, job: Job, token: str) -> None:
        """Carry one delivery job out: one attempt."""
        delivery_id = UUID(job.params["delivery_id"])
        async with self._database.read() as connection:
            outgoing = await callbacks.delivery(connection, delivery_id)
            now = await self._database.now(connection)
        error, is_final = await self._attempt(outgoing, now) if outgoing.delivery.status == "pending" else (None, True)
        if error is not None:
            log.warning(
                "delivery.failed", delivery=str(delivery_id), attempt=outgoing.delivery.attempts + 1, error=error
            )
        await self._shell.handle(SettleDelivery(delivery_id, job.id, error, is_final))

    async def _attempt(self, outgoing: DeliveryWithSecret, now: datetime) -> tuple[str | None, bool]:
        """(what went wrong, whether it is no use to try again)."""
        if not self._is_allowed(outgoing.delivery.url):
            return f"its host is no longer among those that {SETTING} allows", True
        try:
            headers, body = await self._signed(outgoing, now)
        except TROUBLE as error:
            return described(error), False
        except SecretUnreadable:
            return "the key that its secret was sealed with is lost: restore it, or file again with a callback", False
        trust_env = urlsplit(outgoing.delivery.url).hostname not in _LOOPBACK
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=trust_env) as client,
                client.stream("POST", outgoing.delivery.url, content=body, headers=headers) as response,
            ):
                status = response.status_code  # the answer's body is never read
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:.0f} s", False
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"[:300], False
        return (None, False) if 200 <= status < 300 else (f"answered {status}", status == _GONE)

    async def _signed(self, outgoing: DeliveryWithSecret, now: datetime) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps(outgoing.delivery.payload)
        webhook_id, timestamp = str(outgoing.delivery.id), str(int(now.timestamp()))
        content = f"{webhook_id}.{timestamp}.".encode() + body
        if outgoing.secret is not None:
            about = outgoing.delivery
            secret = await asyncio.to_thread(self._secrets.open, outgoing.secret, about.erasure_id, about.url)
            version, signature = "v1", hmac.digest(secret_bytes(secret), content, hashlib.sha256)
        else:
            key = await asyncio.to_thread(self._keys.load)
            version, signature = "v1a", key.sign(content)
        headers = {
            "content-type": "application/json",
            "user-agent": "lethe",
            "webhook-id": webhook_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"{version},{base64.b64encode(signature).decode()}",
        }
        return headers, body

    def _is_allowed(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or host is None or parts.username is not None:
            return False
        return host in self._allowed or (port is not None and f"{host}:{port}" in self._allowed)
