"""The two ways to fail.

    Exception
    ├── Rejected          the caller is wrong: a stable code, a sentence on what to do next
    └── InvariantBroken   we are wrong: a bug, never a user's fault

`Rejected.code` is one of `CODES`; the API maps each to an HTTP status and a documented problem type.
"""

from __future__ import annotations

from typing import Any, Final

CODES: Final[dict[str, str]] = {
    # who is asking
    "unauthenticated": "The request carries no valid credential.",
    "forbidden": "The credential is valid but its role does not allow this.",
    "session-ended": "The browser's session is over; sign in again.",
    "csrf-failed": "A change through a browser's session needs the header X-CSRF-Token with what its cookie says.",
    "sign-in-failed": "Signing in with OpenID Connect did not come to its end; begin again.",
    "client-removed": "This client was removed from the federation; its agent must stop.",
    "client-erased": "This client was erased from the federation; its agent must stop.",
    # what is named
    "not-found": "There is nothing here under that id, or it belongs to another federation.",
    "method-not-allowed": "The resource exists but does not know this HTTP method.",
    # state
    "conflict": "The resource is in a state that does not allow this.",
    "name-taken": "Another resource of this kind already has that name.",
    "lease-lost": "The lease on this task is no longer held by the sender; drop the work and claim again.",
    "epoch-fenced": "The cohort was fenced after this task was handed out; drop the work and claim again.",
    "ledger-behind": "The worker has not acknowledged all samples that it must leave out; it gets no task before.",
    "round-closed": "The round closed before this update arrived; drop the work and claim again.",
    "too-stale": "The update was trained from a model older than the run's staleness bound; drop it and claim again.",
    "already-submitted": "This task already has another result.",
    "blob-missing": "The digest named was never uploaded here, or was collected; upload it and submit again.",
    "no-task": "What a client uploads belongs to a task that it holds; the Lethe-Task header names it.",
    "anothers-bytes": "These bytes are a client's update, which may have to be forgotten; no operator may upload them.",
    "upload-offset-mismatch": "The upload does not continue where the stored part ends; ask for the offset with HEAD.",
    "precondition-failed": "The resource changed since it was read; read it again.",
    "idempotency-key-missing": "This request starts work and needs an Idempotency-Key header.",
    "idempotency-key-reused": "The same Idempotency-Key was used before with a different body.",
    "protocol-too-old": "The agent speaks a protocol version that this coordinator no longer serves.",
    "four-eyes": "Somebody else than who filed the request has to decide it.",
    "already-erased": "The client was erased before; there is nothing left to forget.",
    "method-unavailable": "The erasure method cannot meet the requested guarantee here, or does not apply.",
    "callback-refused": "The coordinator does not post to the host of this callback.",
    "superseded": "This model was superseded by an erasure and is not served any more.",
    "already-spent": "This link was opened before; it hands over once.",
    "link-expired": "This link has expired or was revoked.",
    "certificate-not-ready": "The erasure is not completed; there is no certificate yet.",
    # payloads
    "invalid-request": "The request does not fit its schema.",
    "invalid-run": "The run's specification cannot be carried out.",
    "too-large": "The body, or what it announces, is larger than allowed.",
    "not-safetensors": "The bytes are not a complete safetensors file (pickle is never accepted).",
    "digest-mismatch": "The bytes do not have the digest in their address.",
    "length-required": "An upload must announce its Content-Length.",
    "wrong-layout": "The tensors do not have the names, shapes and dtypes of the model they update.",
    "not-finite": "The tensors contain NaN, Inf or absurdly large numbers.",
    "out-of-bounds": "The result lies outside what is granted to the client or what the run takes.",
    "invalid-result": "The reported figures are impossible.",
    "range-not-satisfiable": "The requested byte range lies outside the blob.",
    "unsupported-media-type": "The body is of a type this address does not take.",
    # the server's own limits
    "malformed-request": "These bytes are not an HTTP request.",
    "header-too-large": "The request's line and headers together are larger than allowed, or too many.",
    "request-timeout": "The request was too slow and was ended; what is stored of an upload stays: go on from there.",
    "quota-exceeded": "The client, or its federation, has no room left for what was to be uploaded.",
    "storage-full": "The blob store is full; work pauses until there is room.",
    "blob-damaged": "The stored bytes are not as they were stored; restore them from a backup.",
    "key-missing": "The key that these bytes are sealed under is not in the store of keys; restore it from its backup.",
    "not-ready": "The coordinator serves nothing until its database and its evidence go together; `detail` says why.",
    "unavailable": "The database cannot be reached right now; try again after the given delay.",
    "too-many-requests": "More than a client, federation or address may have at once; try again after the given delay.",
    "internal": "Something broke in the coordinator; the log has the trace.",
}


class Rejected(Exception):
    """The caller is wrong. Nothing was changed."""

    def __init__(self, code: str, detail: str, **extra: Any) -> None:
        if code not in CODES:
            raise InvariantBroken(f"unknown rejection code {code!r}")
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.extra = extra


class InvariantBroken(Exception):
    """We are wrong: a state that the design excludes."""
