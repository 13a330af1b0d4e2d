"""A real OpenID Connect provider for tests, and a browser that signs in there."""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import httpx

from tests.support.servers import free_port

SOURCE: Final = Path(__file__).parent / "openid_provider"
CLIENT_ID: Final = "lethe"
CLIENT_SECRET: Final = "the secret of the coordinator: 100% & more"
_BIN: Final = Path(sys.executable).parent
_FORM: Final = re.compile(r'<form[^>]*action="([^"]+)"[^>]*method="post"|<form[^>]*method="post"[^>]*action="([^"]+)"')
_PROMPT: Final = re.compile(r'name="prompt" value="(\w+)"')
People = Mapping[str, Mapping[str, Any]]


def _installed() -> Path:
    """The folder of the provider with its packages, installed once for all processes of the tests."""
    folder = Path(tempfile.gettempdir()) / f"lethe-openid-provider-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (SOURCE / "package-lock.json").read_bytes()
        done = folder / ".installed"
        if not done.exists() or done.read_bytes() != wanted:
            for name in ("package.json", "package-lock.json", ".npmrc"):
                shutil.copy(SOURCE / name, folder / name)
            command = [str(_BIN / "npm"), "ci", "--silent"]
            said = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stdout + said.stderr
            done.write_bytes(wanted)
        shutil.copy(SOURCE / "provider.mjs", folder / "provider.mjs")
    return folder


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Running:
    issuer: str
    public_url: str
    """Where the coordinator has to be for the provider to send people back."""


@contextlib.contextmanager
def running_provider(people: People) -> Iterator[Running]:
    port, public_url = free_port(), f"http://127.0.0.1:{free_port()}"
    arguments = [str(port), f"{public_url}/v1/openid/callback", json.dumps(people)]
    process = subprocess.Popen(
        [str(_BIN / "node"), "provider.mjs", *arguments],
        cwd=_installed(),
        env=_environment(),
        stdin=subprocess.PIPE,  # it ends when this closes, however that comes
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.strip() == "ready":
                break
        else:
            raise AssertionError("the provider did not start: " + "".join(said))
        yield Running(f"http://127.0.0.1:{port}", public_url)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Node is a child of what the wheel starts
        process.communicate()


def settings_of(provider: Running, roles: str) -> dict[str, Any]:
    """For a coordinator whose people sign in there."""
    return {
        "public_url": provider.public_url,
        "openid_issuer": provider.issuer,
        "openid_client_id": CLIENT_ID,
        "openid_client_secret": CLIENT_SECRET,
        "openid_roles": roles,
        "openid_name": "Hospital login",
    }


async def signed_in(http: httpx.AsyncClient, url: str, login: str) -> httpx.Response:
    """Follow redirects and fill in the provider's forms, as a person would, up to the first page that has none."""
    response = await http.get(url)
    for _ in range(20):
        if response.is_redirect:
            response = await http.get(urljoin(str(response.url), response.headers["location"]))
            if str(response.url.path).startswith("/v1/openid/callback"):
                return response
            continue
        if (form := _FORM.search(response.text)) is None:
            return response
        prompt = _PROMPT.search(response.text)
        assert prompt is not None, response.text
        fields = {"prompt": prompt[1]} | ({"login": login, "password": "any"} if prompt[1] == "login" else {})
        response = await http.post(urljoin(str(response.url), html.unescape(form[1] or form[2])), data=fields)
    raise AssertionError("signing in goes round in circles")
