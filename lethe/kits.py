"""An enrolment kit: everything that a data holder needs to join, in one archive that its owner alone can read."""

from __future__ import annotations

import io
import json
import os
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.failures import UNUSABLE, CommandFailed

PRIVATE, EXECUTABLE, READABLE = 0o600, 0o700, 0o644
CA_FILE: Final = "ca.pem"


@dataclass(frozen=True)
class Kit:
    client: str
    coordinator: str
    token: str
    version: str
    ca: bytes | None = None

    def files(self) -> Mapping[str, tuple[bytes, int]]:
        """Content and mode, by name."""
        found = {
            f"{self.client}.token": (f"{self.token}\n".encode(), PRIVATE),
            "worker.sh": (self._script().encode(), EXECUTABLE),
            "compose.yaml": (self._compose().encode(), READABLE),
            "README.md": (self._readme().encode(), READABLE),
        }
        return found if self.ca is None else {**found, CA_FILE: (self.ca, READABLE)}

    def write(self, out: Path) -> None:
        """A new file, in mode 600. The archive has one folder, named after the client."""
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        except FileExistsError as error:
            raise CommandFailed(f"{out} exists already", next_step="choose another -o", exit_code=UNUSABLE) from error
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, (content, mode) in self.files().items():
                entry = tarfile.TarInfo(f"{self.client}/{name}")
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))

    def _script(self) -> str:
        ca = f" --ca-file {CA_FILE}" if self.ca is not None else ""
        address = shlex.quote(self.coordinator)
        return (
            "#!/bin/sh\n"
            "# Serves this client. Give what your data needs: ./worker.sh --data npz:/data/scans.npz\n"
            'cd "$(dirname "$0")"\n'
            f'exec lethe worker --coordinator {address} --token-file {self.client}.token{ca} "$@"\n'
        )

    def _compose(self) -> str:
        ca = f", --ca-file, /run/secrets/{CA_FILE}" if self.ca is not None else ""
        address = json.dumps(self.coordinator)  # JSON is YAML
        ca_volume = f'\n      - "./{CA_FILE}:/run/secrets/{CA_FILE}:ro"' if self.ca is not None else ""
        return f"""\
# docker compose up -d; put your data into ./data and name it in the command. The container's user is 10002: it must be
# able to read the token and the data (chown 10002 {self.client}.token).
services:
  worker:
    image: lethe-worker
    restart: unless-stopped
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    stop_grace_period: 60s
    command: [worker, --coordinator, {address}, --token-file, /run/secrets/token{ca}, --data, "npz:/data/a.npz"]
    volumes:
      - "./{self.client}.token:/run/secrets/token:ro"{ca_volume}
      - "./data:/data:ro"
      - "state:/var/lib/lethe"
volumes:
  state: {{}}
"""

    def _readme(self) -> str:
        return f"""\
# {self.client}: joining the federation at {self.coordinator}

The token in `{self.client}.token` is your credential: keep it to yourself. Whoever has it can act as {self.client}.

1. Install the worker from the operator's wheel: `pip install 'lethe-{self.version}-py3-none-any.whl[worker]'`.
2. Try this machine: `lethe worker check`.
3. Serve: `./worker.sh --data npz:/data/scans.npz`, or `docker compose up -d` with compose.yaml.
4. See what it did and sent: `lethe worker report`.

Your data stays here; only changes of the model's weights, sample counts and a few figures are sent. No port is opened.
You may ask to be forgotten with the same token:

    lethe --url {self.coordinator} --token-file {self.client}.token erase --client {self.client} --watch
"""
