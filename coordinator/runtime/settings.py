"""Settings: read once from `LETHE_…` environment variables at the entry point, then handed down."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="LETHE_", frozen=True, extra="ignore")

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
