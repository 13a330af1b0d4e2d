"""The script inside certificate pages and verify.html, run by Node: what it checks, and what it says it proves."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.audit.certificate import to_bytes
from services.audit.keys import key_id, public_pem
from services.audit.pages import html
from tests.golden import certificate_v1 as first
from tests.golden import certificate_v2 as second
from tests.golden.certificate_v1 import KEY, PUBLIC_KEY
from tests.golden.home_0001 import HERE
from tests.support.browser import run_node
from tests.support.signatures import key_of_seed

SCRIPT = Path(html.__file__).with_name("verify.js")
OTHER = key_of_seed(bytes(range(32)))
FINGERPRINT = key_id(KEY.public_key())
RUNS = """
const [script, cases] = process.argv.slice(1);
const { readFileSync } = require("node:fs");
const body = readFileSync(script, "utf8") + `
;(async (cases) => {
  const said = [];
  for (const one of cases) {
    const subtle = one.hasSubtle ? crypto.subtle : null;
    const result = await verifyCertificate(bytesOfBase64(one.certificate), keysOf(one.pem), subtle);
    const facts = result.statement === null ? null : factsOf(result.statement);
    said.push({ ...result, statement: undefined, facts, verdict: judge(result, one.fingerprint, one.areKeysOwn) });
  }
  console.log(JSON.stringify(said));
})`;
(0, eval)(body)(JSON.parse(readFileSync(cases, "utf8")));
"""


def case(certificate: bytes, **changes: Any) -> dict[str, Any]:
    pem = PUBLIC_KEY.read_text()
    made = {"pem": pem, "fingerprint": "", "areKeysOwn": False, "hasSubtle": True, **changes}
    return {"certificate": base64.b64encode(certificate).decode(), **made}


@pytest.fixture
def judged(tmp_path: Path) -> Any:
    """What the script says of each case."""

    def run(*cases: Mapping[str, Any]) -> list[dict[str, Any]]:
        file = tmp_path / "cases.json"
        file.write_text(json.dumps(cases))
        return json.loads(run_node(RUNS, str(SCRIPT), str(file)))  # type: ignore[no-any-return]

    return run


def both(certificate: bytes, **changes: Any) -> list[dict[str, Any]]:
    """With WebCrypto and with the fallback."""
    return [case(certificate, hasSubtle=has, **changes) for has in (True, False)]


@pytest.mark.parametrize("version", [first, second])
def test_a_good_certificate_is_consistent_and_proved_only_with_a_fingerprint_from_elsewhere(
    judged: Any, version: Any
) -> None:
    certificate = version.CERTIFICATE.read_bytes()
    spaced = FINGERPRINT.removeprefix("sha256:").upper()
    spaced = "SHA256:" + " ".join(spaced[i : i + 4] for i in range(0, 64, 4))
    cases = [
        *both(certificate),
        *both(certificate, fingerprint=FINGERPRINT),
        *both(certificate, fingerprint=spaced),
        *both(certificate, areKeysOwn=True),
    ]
    found = judged(*cases)
    assert all(check["ok"] for one in found for check in one["checks"]), found
    assert [one["verdict"]["level"] for one in found] == ["consistent"] * 2 + ["proved"] * 6
    assert "proves nothing about who signed" in found[0]["verdict"]["sentence"]
    facts = dict(found[0]["facts"])
    assert facts["Request"] == "01890a5d-ac96-774b-bcce-b302099a8058" and facts["Guarantee"].startswith("exact: ")


def test_certificates_of_an_earlier_release_verify(judged: Any) -> None:
    pem = (HERE / "issuer.pub.pem").read_text()
    files = [HERE / f"certificate-{name}.json" for name in ("history", "approximate", "samples")]
    found = judged(*(case(file.read_bytes(), pem=pem, areKeysOwn=True) for file in files))
    assert [one["verdict"]["level"] for one in found] == ["proved"] * 3


@pytest.mark.parametrize("version", [first, second])
def test_any_changed_byte_is_found(judged: Any, version: Any) -> None:
    certificate = version.CERTIFICATE.read_bytes()
    places = range(0, len(certificate), max(1, len(certificate) // 60))
    changed = [certificate[:at] + bytes([certificate[at] ^ 1]) + certificate[at + 1 :] for at in places]
    changed += [certificate[:-1], certificate + b"\n", b"\xef\xbb\xbf" + certificate, certificate[:500], b"", b"null"]
    found = judged(*(case(one, areKeysOwn=True) for one in changed))
    assert all(one["facts"] is None for one in found), "nothing is shown of what does not verify"
    assert {one["verdict"]["level"] for one in found} == {"failed"}, "also where the name of the signer was changed"


def test_a_claim_that_was_changed_and_keeps_its_form_is_found_by_both_ways(judged: Any) -> None:
    envelope = json.loads(second.CERTIFICATE.read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b'"exact"', b'"exakt"')
    changed = to_bytes({**envelope, "payload": base64.b64encode(payload).decode()})
    for one in judged(*both(changed, fingerprint=FINGERPRINT)):
        assert [check["ok"] for check in one["checks"]] == [True, False, None]
        assert one["verdict"]["level"] == "failed" and "was changed" in one["verdict"]["sentence"]


def test_another_key_or_fingerprint_fails_and_a_part_of_one_is_not_taken(judged: Any) -> None:
    certificate = second.CERTIFICATE.read_bytes()
    other = public_pem(OTHER.public_key()).decode()
    stranger, wrong, part, empty = judged(
        case(certificate, pem=other),
        case(certificate, fingerprint=key_id(OTHER.public_key())),
        case(certificate, fingerprint=FINGERPRINT[:30]),
        case(certificate, pem=""),
    )
    for one in (stranger, empty):
        assert one["verdict"]["level"] == "unknown" and "is not at hand" in one["verdict"]["sentence"]
    assert wrong["verdict"]["level"] == "failed" and "another key than yours" in wrong["verdict"]["sentence"]
    assert part["verdict"]["level"] == "unknown" and "all 64" in part["verdict"]["sentence"]


def test_a_key_under_the_name_of_another_does_not_help(judged: Any) -> None:
    """The key is named by its own bytes, whatever the envelope says."""
    forged = json.loads(second.CERTIFICATE.read_bytes())
    forged["signatures"][0]["keyid"] = key_id(OTHER.public_key())
    both_keys = PUBLIC_KEY.read_text() + public_pem(OTHER.public_key()).decode()
    for one in judged(*both(to_bytes(forged), pem=both_keys, areKeysOwn=True)):
        assert one["verdict"]["level"] == "failed"


def test_a_valid_signature_by_another_than_the_issuer_is_not_the_issuers(judged: Any) -> None:
    from services.audit.certificate import sign, statement

    signed = to_bytes(sign(statement(second.predicate(), first.SUBJECTS), OTHER))
    (one,) = judged(case(signed, pem=public_pem(OTHER.public_key()).decode(), areKeysOwn=True))
    assert one["verdict"]["level"] == "failed" and "not signed by its issuer" in one["verdict"]["sentence"]


def test_the_fallback_agrees_with_the_reference_on_hashes_and_signatures(tmp_path: Path) -> None:
    messages = [bytes(i % 251 for i in range(length)) for length in (0, 1, 55, 56, 111, 112, 127, 128, 129, 1000)]
    file = tmp_path / "messages.json"
    signed = [{"message": one.hex(), "signature": OTHER.sign(one).hex()} for one in messages]
    file.write_text(json.dumps({"key": OTHER.public_key().public_bytes_raw().hex(), "signed": signed}))
    script = """
const { readFileSync } = require("node:fs");
const [script, file] = process.argv.slice(1);
const body = readFileSync(script, "utf8") + `;(({ key, signed }) => {
  const of = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  return signed.map(({ message, signature }) => {
    const broken = of(signature); broken[3] ^= 1;
    const shifted = of(signature);  // S + L is the same scalar in another spelling
    let s = littleEndian(shifted.subarray(32)) + L;
    for (let i = 32; i < 64; i++, s >>= 8n) shifted[i] = Number(s & 255n);
    return [hex(sha256(of(message))), hex(sha512(of(message))), verifyEd25519(of(key), of(signature), of(message)),
      verifyEd25519(of(key), broken, of(message)), verifyEd25519(of(key), shifted, of(message))];
  });
})`;
console.log(JSON.stringify((0, eval)(body)(JSON.parse(readFileSync(file, "utf8")))));
"""
    expected = [
        [hashlib.sha256(one).hexdigest(), hashlib.sha512(one).hexdigest(), True, False, False] for one in messages
    ]
    assert json.loads(run_node(script, str(SCRIPT), str(file))) == expected
