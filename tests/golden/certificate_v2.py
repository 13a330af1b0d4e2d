"""The claim, the list and the opening of the golden certificate of the second version. The key is that of the first."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from uuid import UUID

from services.audit import opening as openings
from services.audit.artefact_list import Artefact, ListWriter
from services.audit.certificate import issue
from services.audit.opening import Opening
from services.audit.predicate import (
    PLAIN_BACKUPS,
    STANDING_LIMITS,
    Artefacts,
    Count,
    ErasurePredicate,
    Incident,
    Method,
    Workers,
)
from services.core import digests
from tests.golden import certificate_v1 as first
from tests.golden.certificate_v1 import KEY, SALT, SUBJECTS, digest

FOLDER = Path(__file__).parent
CERTIFICATE = FOLDER / "certificate-v2.json"
LIST = FOLDER / "certificate-v2.list.jsonl"
OPENING = FOLDER / "certificate-v2.opening.json"
DIGEST = FOLDER / "certificate-v2.sha256"

FEDERATION = UUID("01890a5d-ac96-774b-bcce-b302099a8059")
LISTED = (
    Artefact("update", digest("update of b"), "deleted"),
    Artefact("update", digest("equal update"), "also-held-by-another"),
    Artefact("history", digest("copy of an update of b"), "deleted"),
    Artefact("checkpoint", digest("all with b"), "deleted"),
    Artefact("merge", digest("export"), "deleted"),
    Artefact("step", digest("residual of b"), "deleted"),
    Artefact("upload", digest("public weights"), "also-held-as-operator-upload"),
    Artefact("part", digest("half an upload"), "deleted"),
    Artefact("credential", digest("key of b"), "reduced", "It expires on 2026-06-01."),
    Artefact("sealing-key", digest("sealing key of b"), "destroyed"),
    Artefact("log-tail", digest("tasks/1/log_tail"), "scrubbed"),
    Artefact("device", digest("clients/b/device"), "scrubbed"),
    Artefact("figure", digest("tasks/1/loss"), "scrubbed"),
    Artefact("canary", digest("clients/b/canary"), "scrubbed"),
    Artefact("failure-reason", digest("tasks/2/failure"), "scrubbed"),
    Artefact("worker-cache", digest("cache of a"), "reported"),
    Artefact("worker-cache", digest("cache of c"), "unconfirmed", "Not heard of since the fence."),
)


def opening() -> Opening:
    request = first.predicate().request
    return Opening(request=request.id, federation=FEDERATION, clients=("hospital-b",), salt=SALT.hex())


def listed() -> tuple[bytes, Artefacts]:
    """With salts that everybody can compute, unlike those of a coordinator."""
    file, numbers = io.BytesIO(), iter(range(len(LISTED)))
    writer = ListWriter(file, lambda: hashlib.sha256(b"leaf %d" % next(numbers)).digest())
    writer.write(LISTED)
    planned = {one.kind: sum(other.kind == one.kind for other in LISTED) for one in LISTED}
    return file.getvalue(), writer.artefacts(planned)


def predicate() -> ErasurePredicate:
    earlier = first.predicate()
    return ErasurePredicate(
        federation=FEDERATION,
        request=earlier.request.model_copy(update={"subjects": (opening().commitment("hospital-b"),)}),
        method=Method(name=earlier.method.name, parameters=earlier.method.parameters),
        guarantee=earlier.guarantee,
        cohorts=earlier.cohorts,
        num_cohorts=Count(planned=3, done=3),
        artefacts=listed()[1],
        still_shaped_by=earlier.still_shaped_by,
        workers=Workers(unconfirmed=(opening().commitment("hospital-b"),)),
        audit=earlier.audit,
        replayable=earlier.replayable,
        limits=(*STANDING_LIMITS, PLAIN_BACKUPS),
        incidents=(
            Incident(
                at=earlier.request.submitted_at,
                kind="evidence-loss-accepted",
                explanation="The tombstone log was lost with its disk.",
            ),
        ),
        issuer=earlier.issuer,
    )


def certificate() -> bytes:
    return issue(predicate(), SUBJECTS, KEY)


if __name__ == "__main__":
    CERTIFICATE.write_bytes(certificate())
    LIST.write_bytes(listed()[0])
    OPENING.write_bytes(openings.to_bytes(opening()))
    DIGEST.write_text(digests.of_bytes(certificate()) + "\n")
