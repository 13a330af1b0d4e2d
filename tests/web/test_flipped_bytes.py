"""A certificate of a real erasure of which any byte was changed fails wherever it is verified."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from services.audit.verification import check
from tests.web.conftest import World

OpenPage = Callable[..., Page]
NUM_PLACES = 48


@pytest.fixture(scope="module")
def issued(world: World, places: dict[str, str]) -> tuple[bytes, bytes]:
    """The certificate byte for byte, and the public key."""
    path = f"{world.url}/v1/erasure-requests/{places['request']}/certificate"
    answer = httpx.get(path, headers={"Authorization": f"Bearer {world.admin_token}"}, timeout=30)
    key = world.call("GET", "/v1/erasure/discovery")["public_key"]
    return answer.raise_for_status().content, key.encode()


def flipped(envelope: bytes) -> Iterator[tuple[int, bytes]]:
    """At the ends, and at places drawn anew from a fixed seed; one bit each, any of the eight."""
    draw = random.Random(7)
    for place in [0, len(envelope) - 1, *draw.sample(range(1, len(envelope) - 1), NUM_PLACES)]:
        changed = envelope[place] ^ 1 << draw.randrange(8)
        yield place, envelope[:place] + bytes([changed]) + envelope[place + 1 :]


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("/verify", '[data-level="proved"]', '[data-level="failed"]'),
        ("/verify.html", "#outcome.proved", "#outcome.failed"),
    ],
)
def test_in_a_browser(
    issued: tuple[bytes, bytes], open_page: OpenPage, tmp_path: Path, path: str, good: str, bad: str
) -> None:
    envelope, key = issued
    whole, changed = tmp_path / "certificate.json", tmp_path / "changed.json"
    whole.write_bytes(envelope)
    (tmp_path / "key.pem").write_bytes(key)
    page = open_page(None, path)
    files = page.locator("input[type=file]")
    files.set_input_files([whole, tmp_path / "key.pem"])
    for place, content in flipped(envelope):
        expect(page.locator(good), f"before byte {place}").to_be_visible()
        changed.write_bytes(content)
        files.set_input_files([changed])
        expect(page.locator(bad), f"byte {place}").to_be_visible()
        files.set_input_files([whole])


def test_on_the_command_line(world: World, places: dict[str, str], issued: tuple[bytes, bytes], tmp_path: Path) -> None:
    envelope, key = issued
    assert check(envelope, key).valid
    for place, content in flipped(envelope):
        assert not check(content, key).valid, place
    (tmp_path / "key.pem").write_bytes(key)
    path = f"{world.url}/v1/erasure-requests/{places['request']}/certificate/artefacts"
    listed = httpx.get(path, headers={"Authorization": f"Bearer {world.admin_token}"}, timeout=30)
    (tmp_path / "certificate.list.jsonl").write_bytes(listed.raise_for_status().content)
    codes = []
    for content in (envelope, next(flipped(envelope))[1]):
        (tmp_path / "certificate.json").write_bytes(content)
        command = ["verify", str(tmp_path / "certificate.json"), "--key", str(tmp_path / "key.pem")]
        done = subprocess.run(
            [sys.executable, "-m", "lethe.cli", *command], capture_output=True, text=True, check=False
        )
        codes.append((done.returncode, done.stdout + done.stderr))
    assert codes[0][0] == 0 and codes[1][0] != 0, codes
