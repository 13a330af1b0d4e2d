"""Settings: read once from `LETHE_…` environment variables at the entry point, then handed down.

This module needs pydantic alone, so that every host, a worker's too, knows the names of all settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

PREFIX: Final = "LETHE_"
_MAY_BE_EMPTY: Final = frozenset({"callback_hosts"})


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


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
