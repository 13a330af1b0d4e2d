"""What a worker is told at its start: by the command line, or by a fleet file for several clients in one process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError

from services.audit.spec import Canary
from services.data.data_folders import folders_of
from services.wire.message import Message


class OptionsUnusable(Exception):
    """The options contradict each other or name things that are not there."""


def default_cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lethe" / "models"


def default_ledger_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lethe" / "ledgers"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of `lethe worker`. Either one client (coordinator, token or token_file, task, data) or a `fleet` file."""

    coordinator: str | None = None
    """Address of the coordinator, like https://lethe.example.org; overrides the fleet file's."""
    token: str | None = field(default=None, repr=False)
    """The client's credential. Prefer `token_file`: command lines are visible to other users of a machine."""
    token_file: Path | None = None
    """A file that holds the credential and nothing else."""
    task: str = "builtin:classifier"
    """builtin:[image-|tabular-]classifier, path/to/file.py:Class or package.module:Class."""
    data: str | None = None
    """Data source, like npz:scans.npz or csv:patients.csv?label=outcome; handed as text to an own task class."""
    canary: Canary | None = None
    """A backdoor to carry in the data, so that audits can see whether the client was forgotten."""
    data_folders: tuple[Path, ...] = field(default_factory=lambda: folders_of(os.environ))
    """Where the data's file is looked for, after the working directory."""
    fleet: Path | None = None
    """A YAML file that lists several clients to serve from this process."""
    jobs: int = 1
    """How many tasks train at the same time in this process."""
    device: str = "auto"
    """auto: CUDA when present, else CPU; or cpu, cuda, cuda:1 …"""
    once: bool = False
    """Carry out what one claim brings, then exit: 0 done, 3 nothing to do within `wait_s`."""
    wait_s: float = 25.0
    """How long to wait for work with `once`."""
    grace_s: float = 20.0
    """How long a task may take to finish after SIGTERM before it is handed back."""
    ca_file: Path | None = None
    """More certificate authorities (PEM) to trust. Proxies and SSL_CERT_FILE are taken from the environment."""
    cache_dir: Path = field(default_factory=default_cache_dir)
    """Where downloaded models are kept."""
    cache_bytes: int = 2 << 30
    """The most that kept models may occupy."""
    ledger_dir: Path = field(default_factory=default_ledger_dir)
    """Where it is written down which samples are left out for good: not a cache, keep it with the data."""
    display: Literal["auto", "live", "log"] = "auto"
    """Live lines, log lines, or live when standard error is a terminal."""
    log_json: bool = False
    """Log lines as JSON objects."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One client to serve."""

    label: str
    coordinator: str
    token: str = field(repr=False)
    task: str
    data: str | None
    canary: Canary | None = None


class FleetDefaults(Message):
    task: str = "builtin:classifier"
    data: str | None = None


class FleetClient(Message):
    token: str | None = None
    token_file: str | None = None
    task: str | None = None
    data: str | None = None
    canary: Canary | None = None


class FleetFile(Message):
    """Paths in the file are relative to the working directory, like those on a command line."""

    coordinator: str | None = None
    defaults: FleetDefaults = FleetDefaults()
    clients: Annotated[list[FleetClient], Field(min_length=1, max_length=10_000)]


def load_fleet(path: Path) -> FleetFile:
    try:
        return FleetFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise OptionsUnusable(f"cannot read the fleet file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionsUnusable(f"{path} is not valid YAML: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)
        )
        raise OptionsUnusable(f"{path}: {wrong}") from error


def members_of(options: WorkerOptions) -> list[Member | OptionsUnusable]:
    """The clients to serve. In a fleet, a client without a readable token is returned as its error, so that it does not
    stop the others."""
    if options.fleet is None:
        client = FleetClient(
            token=options.token,
            token_file=str(options.token_file) if options.token_file else None,
            data=options.data,
            canary=options.canary,
        )
        return [_member("client", client, FleetDefaults(task=options.task), options.coordinator)]
    if options.token is not None or options.token_file is not None:
        raise OptionsUnusable("--fleet lists the tokens itself: leave out --token and --token-file")
    fleet = load_fleet(options.fleet)
    members: list[Member | OptionsUnusable] = []
    for number, client in enumerate(fleet.clients, start=1):
        try:
            coordinator = options.coordinator or fleet.coordinator
            members.append(_member(f"client {number}", client, fleet.defaults, coordinator))
        except OptionsUnusable as error:
            members.append(OptionsUnusable(f"client {number}: {error}"))
    return members


def _member(label: str, client: FleetClient, defaults: FleetDefaults, coordinator: str | None) -> Member:
    if coordinator is None or not coordinator.startswith(("http://", "https://")) or not urlsplit(coordinator).netloc:
        raise OptionsUnusable("give the coordinator's address, like https://lethe.example.org")
    return Member(
        label=label,
        coordinator=coordinator,
        token=_token(client),
        task=client.task or defaults.task,
        data=client.data if client.data is not None else defaults.data,
        canary=client.canary,
    )


def _token(client: FleetClient) -> str:
    if (client.token is None) == (client.token_file is None):
        raise OptionsUnusable("give the client's credential, as either token_file or token")
    token = client.token
    if client.token_file is not None:
        try:
            token = Path(client.token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionsUnusable(f"cannot read the token file {client.token_file}: {error}") from error
    token = (token or "").strip()
    if not token or not token.isascii() or len(token.split()) != 1:
        raise OptionsUnusable("the credential is empty or is not one word of ASCII")
    return token
