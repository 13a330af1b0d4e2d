"""The compliance officer's whole way in the browser, with a second person in a second browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.web.conftest import World, saved

OpenPage = Callable[..., Page]


def test_file_approve_follow_verify_and_hand_over(world: World, open_page: OpenPage, tmp_path: Path) -> None:
    four_eyes = {"four_eyes": "asked"}
    world.call("PATCH", f"/v1/federations/{world.federation_id}", json=four_eyes)
    filer = open_page(world.people["Dr. Weber"], "/")
    filer.get_by_role("link", name="New request").click()
    filer.get_by_label("Client", exact=True).fill("clinic-b")
    filer.get_by_label("Client", exact=True).press("Enter")
    filer.get_by_label("Ground").select_option("withdrawal")
    filer.get_by_label("Ticket").fill("=HYPERLINK(1)")
    filer.get_by_label("Note").fill("By letter of <b>Monday</b>.")
    filer.get_by_label("Wait until somebody has approved it").check()
    filer.get_by_role("button", name="Show what it takes").click()
    expect(filer.get_by_text("recommended")).to_be_visible()
    expect(filer.get_by_text("Does not apply").first).to_be_visible()
    filer.get_by_role("button", name="File the request").click()
    forget = filer.get_by_role("button", name="Forget")
    expect(forget).to_be_disabled()
    filer.get_by_label("Type “clinic-b” to confirm").fill("clinic-b")
    forget.click()
    expect(filer.get_by_text("Somebody else has to decide: you filed it.")).to_be_visible()
    expect(filer.get_by_text("By letter of <b>Monday</b>.")).to_be_visible()
    expect(filer.get_by_role("button", name=re.compile("^Approve"))).to_have_count(0)

    approver = open_page(world.people["Ms. Huber"], "/")
    expect(approver.get_by_role("link", name=re.compile("[1-9] await my approval"))).to_be_visible()
    approver.get_by_role("row", name=re.compile("clinic-b")).get_by_role("link", name="Approve or deny").click()
    approver.get_by_role("button", name=re.compile("^Approve")).click()
    expect(approver.get_by_text(re.compile("Approved by Ms. Huber"))).to_be_visible()

    expect(filer.get_by_text(re.compile("Approved by Ms. Huber"))).to_be_visible()
    certificate = filer.get_by_role("link", name="Certificate", exact=True)
    expect(certificate).to_be_visible(timeout=120_000)
    certificate.click()
    expect(filer.get_by_text("What is guaranteed")).to_be_visible()
    expect(filer.get_by_text("What is not", exact=True)).to_be_visible()
    expect(filer.locator('[data-level="consistent"]')).to_be_visible()
    key_id = world.call("GET", "/v1/erasure/discovery")["key_id"]
    filer.get_by_label("Fingerprint of the coordinator’s key, as you got it elsewhere").fill(key_id)
    expect(filer.locator('[data-level="proved"]')).to_be_visible()
    envelope, key = saved(filer, "Save the certificate"), saved(filer, "Save the public key")
    _verify_without_login(open_page, envelope.read_bytes(), key, tmp_path)
    _hand_over(open_page, filer)
    _export(filer)


def _verify_without_login(open_page: OpenPage, envelope: bytes, key: Path, folder: Path) -> None:
    anybody = open_page(None, "/verify")
    files = anybody.locator("input[type=file]")
    (folder / "certificate.json").write_bytes(envelope)
    (folder / "key.pem").write_bytes(key.read_bytes())
    files.set_input_files([folder / "certificate.json", folder / "key.pem"])
    expect(anybody.locator('[data-level="proved"]')).to_be_visible()
    for place in (40, len(envelope) // 2, len(envelope) - 40):
        flipped = envelope[:place] + bytes([envelope[place] ^ 1]) + envelope[place + 1 :]
        (folder / "flipped.json").write_bytes(flipped)
        files.set_input_files([folder / "flipped.json"])
        expect(anybody.locator('[data-level="failed"]')).to_be_visible()
        files.set_input_files([folder / "certificate.json"])
        expect(anybody.locator('[data-level="proved"]')).to_be_visible()


def _hand_over(open_page: OpenPage, officer: Page) -> None:
    officer.get_by_role("button", name="Hand over").click()
    link = officer.locator("dialog code").inner_text()
    assert "#" in link
    leaver = open_page(None, link)
    leaver.get_by_role("button", name="Open it and hand it over to me").click()
    expect(leaver.get_by_role("link", name="certificate.html")).to_be_visible()
    late = open_page(None, link)
    late.get_by_role("button", name="Open it and hand it over to me").click()
    expect(late.locator("#outcome.failed")).to_be_visible()
    officer.get_by_role("button", name="Close").click()


def _export(officer: Page) -> None:
    officer.get_by_role("link", name="Requests", exact=True).click()
    officer.get_by_label("Status").select_option("completed")
    expect(officer).to_have_url(re.compile("status=completed"))
    rows = list(csv.DictReader(saved(officer, "Save as CSV").read_text("utf-8").splitlines()))
    tickets = {row["ticket"] for row in rows}
    assert "'=HYPERLINK(1)" in tickets and not [one for one in tickets if one[:1] in "=+-@" and one], "no formula"
    assert rows[0]["decided_by"] == "Ms. Huber (compliance)" and rows[0]["decision"] == "approved"
