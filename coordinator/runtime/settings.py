"""Settings: read once from `LETHE_…` environment variables at the entry point, then handed down.

This module needs pydantic alone, so that every host, a worker's too, knows the names of all settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from services.models.spec import MAX_PARAMETERS

PREFIX: Final = "LETHE_"
_ROLES: Final = ("viewer", "operator", "compliance", "admin")
_MAY_BE_EMPTY: Final = frozenset({"callback_hosts", "trusted_proxies"})


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


@dataclass(frozen=True, slots=True)
class Grant:
    """What people of a group at the OpenID Connect provider are here: a role in one federation, given by its name."""

    group: str
    role: str
    federation: str


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    home: Path = Field(default=Path("lethe-data"), description="Where the embedded database, blobs and tokens live.")
    database_url: str | None = Field(
        default=None, description="postgresql+asyncpg://…; a SQLite file in `home` when absent."
    )
    redis_url: str | None = Field(default=None, description="redis://…; an in-process bus when absent.")
    blobs: Literal["file", "postgres"] = Field(default="file", description="Where models and updates are stored.")
    blob_dir: Path | None = Field(
        default=None, description="Directory of the file blob store; `home`/blobs when absent."
    )
    evidence_dir: Path | None = Field(
        default=None,
        description="Tombstones and the signing key, outside the database and its backups; `home`/evidence if absent.",
    )
    blob_reserve_bytes: int = Field(default=64 << 20, ge=0, description="Disk space that is never filled with blobs.")
    max_blob_bytes: int = Field(default=64 << 30, ge=1, description="The largest upload taken.")
    client_quota_bytes: int | None = Field(
        default=None, ge=0, description="What a client may store; half of the blobs' disk when absent."
    )
    federation_quota_bytes: int | None = Field(
        default=None, ge=0, description="What a federation may store; three quarters of the blobs' disk when absent."
    )
    admin_token: SecretStr | None = Field(
        default=None, description="The first admin's token; made and written to `home` when absent."
    )
    admin_token_file: Path | None = Field(default=None, description="A file that holds it.")
    acts_days: int | None = Field(
        default=None, ge=1, description="How long entries of the log of acts are kept; for ever when absent."
    )
    host: str = "127.0.0.1"
    port: int = Field(default=8440, ge=0, le=65535)
    compute: Literal["threads", "none"] = Field(
        default="threads", description="Run kernels inside serve, or leave them to `lethe compute` processes."
    )
    kernel_lease_s: float = Field(
        default=30.0, gt=0, description="After this silence another process takes a kernel or a chore over."
    )
    max_wait_s: float = Field(default=25.0, gt=0, le=300, description="The longest long poll.")
    callback_hosts: str = Field(
        default="",
        description="Hosts that callbacks of erasure requests may go to: names or name:port, comma-separated; none.",
    )
    log_json: bool = False

    # Signing in with a browser.
    public_url: str | None = Field(
        default=None, description="The address that people's browsers know, like https://lethe.example.org."
    )
    session_idle_s: float = Field(default=3600.0, gt=0, description="A browser's session that idles for so long ends.")
    session_longest_s: float = Field(default=43200.0, gt=0, description="The longest that it lasts.")
    openid_issuer: str | None = Field(
        default=None, description="The address of the OpenID Connect provider; people sign in with tokens when absent."
    )
    openid_name: str = Field(default="OpenID Connect", max_length=100, description="What people call it.")
    openid_client_id: str | None = Field(default=None, description="As whom the coordinator is known to it.")
    openid_client_secret: SecretStr | None = Field(default=None, description="Its secret there; none when absent.")
    openid_client_secret_file: Path | None = Field(default=None, description="A file that holds it.")
    openid_scopes: str = Field(default="openid profile", description="What is asked of the provider.")
    openid_groups_claim: str = Field(default="groups", description="Where it says what groups a person is in.")
    openid_roles: str = Field(
        default="",
        description="Who may do what: GROUP=ROLE@FEDERATION, comma-separated; of several that fit a person the first.",
    )

    # How much one client, federation or address may take of what all share.
    max_uploads_per_client: int = Field(default=8, ge=1, description="Uploads of one credential at the same time.")
    max_uploads_per_federation: int = Field(
        default=256, ge=1, description="Uploads of one federation at the same time; beyond, each client has one."
    )
    max_requests_per_client: float = Field(
        default=200.0, gt=0, description="Requests of one credential a second, on average over ten seconds."
    )
    max_requests_per_federation: float = Field(
        default=2000.0,
        gt=0,
        description="Of one federation; beyond, only its clients that ask for more than half of their own wait.",
    )
    max_failed_logins_per_peer: float = Field(
        default=20.0, gt=0, description="Requests without a valid credential from one address a second, likewise."
    )
    max_connections_per_peer: int = Field(default=4096, ge=1, description="Connections from one address.")
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of proxies, comma-separated: X-Forwarded-For of these is believed, and "
        "their connections are not counted; none.",
    )
    header_timeout_s: float = Field(default=10.0, gt=0, description="How long a request's line and headers may take.")
    max_header_bytes: int = Field(default=32_768, ge=1024, description="Their size together.")
    body_timeout_s: float = Field(
        default=30.0, gt=0, description="A body, in either direction, that is slower than the minimum for so long ends."
    )
    min_body_rate: int = Field(default=1024, ge=1, description="That minimum, in bytes a second.")
    keep_alive_s: float = Field(default=120.0, gt=0, description="How long a connection may idle between two requests.")
    max_model_parameters: int = Field(
        default=2**28, ge=1, le=MAX_PARAMETERS, description="The largest built-in model that a run may ask for."
    )

    @classmethod
    def read(cls, environment: Mapping[str, str], **given: Any) -> Self:
        """What is given, over `LETHE_…` variables, over defaults."""
        found = {name: environment[variable_of(name)] for name in cls.model_fields if variable_of(name) in environment}
        return cls.model_validate(found | given)

    @model_validator(mode="before")
    @classmethod
    def _refuse_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An address that a template left empty must not start another installation, on SQLite, in silence."""
        for name, value in values.items():
            if value == "" and name not in _MAY_BE_EMPTY:
                raise ValueError(f"{variable_of(name)} is empty: give it a value, or unset it")
        return values

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("write redis://HOST:6379/0, rediss://… or unix://PATH")
        return url

    @model_validator(mode="after")
    def _has_place_for_blobs(self) -> Self:
        if self.blobs == "postgres" and self.is_embedded:
            raise ValueError("blobs can be kept in Postgres only if LETHE_DATABASE_URL names one: use LETHE_BLOBS=file")
        return self

    @field_validator("public_url", "openid_issuer")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        """Without TLS only on this machine: what goes there are secrets."""
        if url is None:
            return None
        parts = urlsplit(url)
        is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.hostname is None or (parts.scheme != "https" and not (parts.scheme == "http" and is_local)):
            raise ValueError("write https://HOST (http:// only of this machine itself)")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError("write it without a query, a fragment or a user")
        return url

    @field_validator("public_url")
    @classmethod
    def _has_no_path(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).path.strip("/"):
            raise ValueError("write it without a path")
        return url and url.rstrip("/")

    @field_validator("openid_roles")
    @classmethod
    def _are_grants(cls, roles: str) -> str:
        _grants(roles)
        return roles

    @model_validator(mode="after")
    def _can_sign_in(self) -> Self:
        if self.openid_issuer is not None:
            for name in ("public_url", "openid_client_id", "openid_roles"):
                if not getattr(self, name):
                    raise ValueError(f"with LETHE_OPENID_ISSUER, {variable_of(name)} has to be set as well")
            if "openid" not in self.openid_scopes.split():
                raise ValueError("LETHE_OPENID_SCOPES has to have openid among them")
        return self

    @cached_property
    def grants(self) -> tuple[Grant, ...]:
        return _grants(self.openid_roles)

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: str) -> str:
        _networks(proxies)
        return proxies

    @cached_property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return _networks(self.trusted_proxies)

    @property
    def url(self) -> str:
        return self.database_url or f"sqlite:///{self.home.absolute() / 'lethe.db'}"

    @property
    def is_embedded(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def evidence_path(self) -> Path:
        return self.evidence_dir or self.home / "evidence"

    @property
    def blob_path(self) -> Path:
        return self.blob_dir or self.home / "blobs"


def _grants(roles: str) -> tuple[Grant, ...]:
    """The group may be written with `=` in it, like `cn=officers`."""
    found = []
    for one in filter(None, (one.strip() for one in roles.split(","))):
        group, _, granted = one.rpartition("=")
        role, _, federation = granted.strip().partition("@")
        if not group.strip() or role not in _ROLES or not federation:
            raise ValueError(f"{one!r} is not GROUP=ROLE@FEDERATION; ROLE is one of {', '.join(_ROLES)}")
        found.append(Grant(group.strip(), role, federation))
    return tuple(found)


def _networks(proxies: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(one.strip()) for one in proxies.split(",") if one.strip())
