"use strict";
// Checks a certificate of erasure: its form, and its Ed25519 signatures. The same file runs inside every certificate that
// is written as HTML, in verify.html, and in Node for the tests. It loads nothing, and sends nothing anywhere.

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPES = ["https://lethe.dev/attestation/erasure/v1", "https://lethe.dev/attestation/erasure/v2"];
const SPKI_PREFIX = "302a300506032b6570032100"; // SubjectPublicKeyInfo of Ed25519; 32 bytes follow

// --- bytes and text -------------------------------------------------------------------------------------------------

const utf8 = (text) => new TextEncoder().encode(text);
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const base64Of = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

function bytesOfBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function areEqual(one, other) {
  return one.length === other.length && one.every((byte, i) => byte === other[i]);
}

// --- SHA-2, where the browser offers no WebCrypto (a page that came over plain HTTP) ----------------------------------

function firstPrimes(count) {
  const primes = [];
  for (let n = 2n; primes.length < count; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  return primes;
}

// The first `bits` bits behind the point of the k-th root of n.
function fraction(n, k, bits) {
  const wanted = n << (k * bits);
  let low = 0n;
  let high = 1n << (bits + 8n);
  while (high - low > 1n) {
    const middle = (low + high) >> 1n;
    if (middle ** k <= wanted) low = middle;
    else high = middle;
  }
  return low & ((1n << bits) - 1n);
}

function sha2(message, bits) {
  const is512 = bits === 64n;
  const rounds = is512 ? 80 : 64;
  const block = is512 ? 128 : 64;
  const mask = (1n << bits) - 1n;
  const [S0, S1, s0, s1] = is512
    ? [[28n, 34n, 39n], [14n, 18n, 41n], [1n, 8n, 7n], [19n, 61n, 6n]]
    : [[2n, 13n, 22n], [6n, 11n, 25n], [7n, 18n, 3n], [17n, 19n, 10n]];
  const rotated = (x, n) => (x >> n) | ((x << (bits - n)) & mask);
  const big = (x, [a, b, c]) => rotated(x, a) ^ rotated(x, b) ^ rotated(x, c);
  const small = (x, [a, b, c]) => rotated(x, a) ^ rotated(x, b) ^ (x >> c);
  const primes = firstPrimes(rounds);
  const constants = primes.map((prime) => fraction(prime, 3n, bits));
  const state = primes.slice(0, 8).map((prime) => fraction(prime, 2n, bits));
  const lengthBytes = block / 8;
  const padded = new Uint8Array(Math.ceil((message.length + 1 + lengthBytes) / block) * block);
  padded.set(message);
  padded[message.length] = 0x80;
  new DataView(padded.buffer).setBigUint64(padded.length - 8, BigInt(message.length) * 8n);
  const view = new DataView(padded.buffer);
  const word = Number(bits) / 8;
  for (let start = 0; start < padded.length; start += block) {
    const w = [];
    for (let i = 0; i < rounds; i++) {
      if (i < 16) w.push(is512 ? view.getBigUint64(start + i * word) : BigInt(view.getUint32(start + i * word)));
      else w.push((small(w[i - 2], s1) + w[i - 7] + small(w[i - 15], s0) + w[i - 16]) & mask);
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < rounds; i++) {
      const one = h + big(e, S1) + ((e & f) ^ (~e & mask & g)) + constants[i] + w[i];
      const two = big(a, S0) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) & mask, c, b, a, (one + two) & mask];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] = (state[i] + value) & mask));
  }
  const digest = new Uint8Array(8 * word);
  state.forEach((value, i) => {
    for (let j = 0; j < word; j++) digest[i * word + j] = Number((value >> BigInt(8 * (word - 1 - j))) & 255n);
  });
  return digest;
}

const sha256 = (message) => sha2(message, 32n);
const sha512 = (message) => sha2(message, 64n);

// --- Ed25519 (RFC 8032), where the browser offers none ----------------------------------------------------------------

const P = 2n ** 255n - 19n;
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const modulo = (x) => ((x % P) + P) % P;

function power(base, exponent) {
  let result = 1n;
  for (let factor = modulo(base); exponent; exponent >>= 1n, factor = modulo(factor * factor))
    if (exponent & 1n) result = modulo(result * factor);
  return result;
}

const D = modulo(-121665n * power(121666n, P - 2n));
const ROOT_OF_MINUS_1 = power(2n, (P - 1n) / 4n);

function littleEndian(bytes) {
  return bytes.reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);
}

// A point as [X, Y, Z, T] with x = X/Z, y = Y/Z, xy = T/Z; null when the bytes are none.
function pointOf(bytes) {
  const encoded = littleEndian(bytes);
  const y = encoded & ((1n << 255n) - 1n);
  if (y >= P) return null;
  const u = modulo(y * y - 1n);
  const v = modulo(D * y * y + 1n);
  let x = modulo(u * power(v, 3n) * power(u * power(v, 7n), (P - 5n) / 8n));
  if (modulo(v * x * x) !== u) x = modulo(x * ROOT_OF_MINUS_1);
  if (modulo(v * x * x) !== u) return null;
  if (x === 0n && encoded >> 255n) return null;
  if ((x & 1n) !== encoded >> 255n) x = P - x;
  return [x, y, 1n, modulo(x * y)];
}

function sum([x1, y1, z1, t1], [x2, y2, z2, t2]) {
  const a = modulo((y1 - x1) * (y2 - x2));
  const b = modulo((y1 + x1) * (y2 + x2));
  const c = modulo(2n * D * t1 * t2);
  const d = modulo(2n * z1 * z2);
  const [e, f, g, h] = [b - a, d - c, d + c, b + a];
  return [modulo(e * f), modulo(g * h), modulo(f * g), modulo(e * h)];
}

function times(scalar, point) {
  let result = [0n, 1n, 1n, 0n];
  for (; scalar; scalar >>= 1n, point = sum(point, point)) if (scalar & 1n) result = sum(result, point);
  return result;
}

function encoded([x, y, z]) {
  const inverse = power(z, P - 2n);
  const number = modulo(y * inverse) | ((modulo(x * inverse) & 1n) << 255n);
  return Uint8Array.from({ length: 32 }, (_, i) => Number((number >> BigInt(8 * i)) & 255n));
}

function verifyEd25519(publicKey, signature, message) {
  if (publicKey.length !== 32 || signature.length !== 64) return false;
  const s = littleEndian(signature.subarray(32));
  const key = pointOf(publicKey);
  if (key === null || s >= L) return false;
  const hashed = new Uint8Array(64 + message.length);
  hashed.set(signature.subarray(0, 32));
  hashed.set(publicKey, 32);
  hashed.set(message, 64);
  const k = littleEndian(sha512(hashed)) % L;
  const base = pointOf(Uint8Array.from({ length: 32 }, (_, i) => (i ? 0x66 : 0x58)));
  const [x, y, z, t] = times(k, key);
  return areEqual(encoded(sum(times(s, base), [P - x, y, z, P - t])), signature.subarray(0, 32));
}

// `subtle`: null where the context is not secure.
async function isSignedBy(publicKey, signature, message, subtle) {
  if (subtle) {
    try {
      const key = await subtle.importKey("raw", publicKey, { name: "Ed25519" }, false, ["verify"]);
      return await subtle.verify({ name: "Ed25519" }, key, signature, message);
    } catch (error) {
      // An older browser has no Ed25519, and says so in many ways: what follows needs none.
    }
  }
  return verifyEd25519(publicKey, signature, message);
}

// --- keys -------------------------------------------------------------------------------------------------------------

const fingerprintOf = (publicKey) => "sha256:" + hex(sha256(publicKey));

// Every Ed25519 key of a PEM text, as {fingerprint: 32 bytes}.
function keysOf(pem) {
  const keys = new Map();
  for (const [, body] of pem.matchAll(/-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----/g)) {
    const der = bytesOfBase64(body.replace(/\s/g, ""));
    if (der.length !== 44 || hex(der.subarray(0, 12)) !== SPKI_PREFIX) throw new Error("the key is not Ed25519");
    keys.set(fingerprintOf(der.subarray(12)), der.subarray(12));
  }
  return keys;
}

// A whole fingerprint, however it is spaced and written; null: it is none. Parts of one are not taken: they are easily forged.
function fingerprintIn(text) {
  const digits = text.trim().toLowerCase().replace(/^sha-?256[:\s]/, "").replace(/[\s:]/g, "");
  return /^[0-9a-f]{64}$/.test(digits) ? "sha256:" + digits : null;
}

// --- the certificate --------------------------------------------------------------------------------------------------

class Invalid extends Error {
  constructor(check, reason) {
    super(reason);
    this.check = check;
  }
}

function preAuthenticationEncoding(payload) {
  const head = utf8(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${payload.length} `);
  const message = new Uint8Array(head.length + payload.length);
  message.set(head);
  message.set(payload, head.length);
  return message;
}

// The envelope of a file that has the one form that a certificate may have.
function openEnvelope(bytes) {
  let text;
  let envelope;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    envelope = JSON.parse(text);
  } catch (error) {
    throw new Invalid("form", "the file is no certificate: it is not JSON");
  }
  const signatures = envelope && envelope.signatures;
  const isEnvelope =
    envelope && typeof envelope.payload === "string" && Array.isArray(signatures) && signatures.length > 0;
  if (!isEnvelope || signatures.some((one) => !one || typeof one.keyid !== "string" || typeof one.sig !== "string"))
    throw new Invalid("form", "the file is no certificate: it is not a DSSE envelope");
  const only = {
    payload: envelope.payload,
    payloadType: PAYLOAD_TYPE,
    signatures: signatures.map(({ keyid, sig }) => ({ keyid, sig })),
  };
  if (JSON.stringify(only) + "\n" !== text)
    throw new Invalid("form", "the file was changed or written anew: it is not in the form in which it was signed");
  const ids = signatures.map((one) => one.keyid);
  if (ids.some((id, i) => i > 0 && ids[i - 1] >= id))
    throw new Invalid("form", "the signatures are not sorted by key, each key once");
  return envelope;
}

function decoded(text, what) {
  try {
    const bytes = bytesOfBase64(text);
    if (base64Of(bytes) === text) return bytes;
  } catch (error) {
    // said below
  }
  throw new Invalid("form", `${what} is not base64 in its usual form`);
}

// Checks all but the claims. `keys`: of `keysOf`. Returns {checks: [{name, ok, detail}], statement, signers}; the
// statement is null unless every signature holds. `ok` is null for what was not checked.
async function verifyCertificate(bytes, keys, subtle) {
  const names = ["form", "signatures", "statement"];
  const checks = [];
  const pass = (detail) => checks.push({ name: names[checks.length], ok: true, detail });
  try {
    const envelope = openEnvelope(bytes);
    const payload = decoded(envelope.payload, "the payload");
    pass("a DSSE envelope, byte for byte in the form in which it is signed");
    const message = preAuthenticationEncoding(payload);
    const signers = [];
    for (const { keyid, sig } of envelope.signatures) {
      const key = keys.get(keyid);
      if (key === undefined) throw new Invalid("signatures", `the public key ${keyid} is not at hand`);
      if (!(await isSignedBy(key, decoded(sig, "a signature"), message, subtle)))
        throw new Invalid("signatures", `the signature by ${keyid} does not fit: the certificate was changed`);
      signers.push(keyid);
    }
    pass(`Ed25519, by ${signers.join(", ")}`);
    const statement = statementOf(payload);
    const issuer = statement.predicate.issuer.key_id;
    if (!signers.includes(issuer)) throw new Invalid("statement", `it is not signed by its issuer's key ${issuer}`);
    pass(`${statement.predicateType}, issued by ${issuer}`);
    return { checks, statement, signers, issuer };
  } catch (error) {
    if (!(error instanceof Invalid)) throw error;
    const failed = names.indexOf(error.check);
    while (checks.length > failed) checks.pop();
    names.slice(failed).forEach((name, i) =>
      checks.push(i ? { name, ok: null, detail: "not checked" } : { name, ok: false, detail: error.message }),
    );
    return { checks, statement: null, signers: [], issuer: null };
  }
}

function statementOf(payload) {
  let statement;
  try {
    statement = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload));
  } catch (error) {
    throw new Invalid("statement", "what is signed is not JSON");
  }
  const isKnown = statement && statement._type === STATEMENT_TYPE && PREDICATE_TYPES.includes(statement.predicateType);
  if (!isKnown || !statement.predicate?.issuer?.key_id)
    throw new Invalid("statement", "what is signed is no erasure, or of a version that this page does not know");
  return statement;
}

// What follows from the checks and from the fingerprint that the reader got elsewhere ("" while there is none).
// `areKeysOwn`: the public key itself is one that the reader brought.
function judge(result, fingerprintText, areKeysOwn) {
  const failed = result.checks.find((one) => one.ok === false);
  if (failed && failed.name === "signatures" && failed.detail.endsWith("is not at hand") && !areKeysOwn)
    return { level: "unknown", sentence: `Not checked: ${failed.detail}. Add the issuer's public key.` };
  if (failed) return { level: "failed", sentence: `Do not rely on it: ${failed.detail}.` };
  if (fingerprintText.trim()) {
    const fingerprint = fingerprintIn(fingerprintText);
    if (fingerprint === null)
      return { level: "unknown", sentence: "This is no fingerprint: sha256: and all 64 hexadecimal digits." };
    if (fingerprint !== result.issuer)
      return { level: "failed", sentence: `Do not rely on it: it was signed by ${result.issuer}, another key than yours.` };
  } else if (!areKeysOwn) {
    return {
      level: "consistent",
      sentence:
        "The signature fits the key that came with the certificate. That alone proves nothing about who signed: anybody " +
        "can make a certificate with a key of their own. Enter the fingerprint of the coordinator's key as you got it " +
        "elsewhere: on paper, by telephone, from a contract, or from the operator's own site.",
    };
  }
  return {
    level: "proved",
    sentence:
      `Signed by the key ${result.issuer} that you named, and not changed since. This is worth as much as the way on ` +
      "which you got the fingerprint, and this page.",
  };
}

// The main facts, read from the signed bytes themselves.
function factsOf(statement) {
  const { request, guarantee, method, cohorts, limits, federation } = statement.predicate;
  return [
    ["Guarantee", `${guarantee.kind}: ${guarantee.meaning}`],
    ...limits.map((limit, i) => [`Limit ${i + 1} of ${limits.length}`, limit]),
    ["Request", request.id],
    ...(federation === undefined ? [] : [["Federation", federation]]),
    ["Forgotten", `${request.subjects.length} (${request.scope}), under ${request.regulation}`],
    ["Whom, as commitments", request.subjects.join(", ")],
    ["Method", method.name],
    ["Submitted", request.submitted_at],
    ["Completed", request.completed_at],
    ["Legal deadline", request.legal_deadline === null ? "none was recorded" : request.legal_deadline],
    ["Cohorts fenced", String(cohorts.length)],
    ["Models served", statement.subject.map((one) => `${one.name} sha256:${one.digest.sha256}`).join(", ") || "none"],
  ];
}

// --- the page ---------------------------------------------------------------------------------------------------------

const WORDS = { proved: "✔ Proved", consistent: "● Consistent, not proved", unknown: "? Not checked", failed: "✘ Failed" };
const MARKS = new Map([[true, "✔"], [false, "✘"], [null, "–"]]);

function startPage(document, subtle) {
  const at = (id) => document.getElementById(id);
  const held = { certificate: null, keys: "", areKeysOwn: false };
  let turn = 0;

  function element(name, text, parent) {
    const made = document.createElement(name);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  async function show() {
    const mine = ++turn;
    const outcome = at("outcome");
    if (held.certificate === null) return;
    const typed = at("trusted").value;
    const isPem = typed.includes("BEGIN PUBLIC KEY");
    let verdict;
    let result = { checks: [], statement: null };
    try {
      const keys = keysOf(isPem ? typed : held.keys);
      result = await verifyCertificate(held.certificate, keys, subtle);
      verdict = judge(result, isPem ? "" : typed, isPem || held.areKeysOwn);
    } catch (error) {
      verdict = { level: "unknown", sentence: `The public key cannot be used: ${error.message}.` };
    }
    if (mine !== turn) return;
    outcome.className = verdict.level;
    outcome.replaceChildren();
    element("strong", WORDS[verdict.level], outcome);
    element("p", verdict.sentence, outcome);
    const list = element("ul", "", outcome);
    for (const { name, ok, detail } of result.checks) element("li", `${MARKS.get(ok)} ${name}: ${detail}`, list);
    at("facts").replaceChildren();
    if (result.statement !== null && verdict.level !== "failed")
      for (const [label, value] of factsOf(result.statement)) {
        element("dt", label, at("facts"));
        element("dd", value, at("facts"));
      }
  }

  async function take(files) {
    for (const file of files) {
      const bytes = new Uint8Array(await file.arrayBuffer());
      const text = new TextDecoder().decode(bytes);
      const page = text.match(/<pre id="envelope" hidden>([A-Za-z0-9+/=]+)<\/pre>/);
      if (page) {
        held.certificate = bytesOfBase64(page[1]);
        const keys = text.match(/<pre id="keys" hidden>([A-Za-z0-9+/=]*)<\/pre>/);
        if (keys && !held.areKeysOwn) held.keys = new TextDecoder().decode(bytesOfBase64(keys[1]));
      } else if (text.includes("BEGIN PUBLIC KEY")) Object.assign(held, { keys: text, areKeysOwn: true });
      else held.certificate = bytes;
    }
    await show();
  }

  if (at("envelope")) {
    held.certificate = bytesOfBase64(at("envelope").textContent);
    held.keys = new TextDecoder().decode(bytesOfBase64(at("keys").textContent));
  }
  at("trusted").addEventListener("input", show);
  if (at("files")) {
    at("files").addEventListener("change", () => take(at("files").files));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      take(event.dataTransfer.files);
    });
  }
  return show();
}

if (typeof document !== "undefined")
  startPage(document, globalThis.isSecureContext && globalThis.crypto ? globalThis.crypto.subtle : null);
