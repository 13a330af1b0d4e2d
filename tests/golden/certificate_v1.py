"""The claim and the key of the golden certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from services.audit.certificate import STATEMENT_TYPE, sign, to_bytes
from services.audit.keys import key_id, public_pem
from services.audit.v1.predicate import (
    PREDICATE_TYPE,
    STANDING_LIMITS,
    Artefact,
    AuditFigure,
    CohortOutcome,
    Count,
    ErasurePredicate,
    Guarantee,
    Influence,
    Issuer,
    Method,
    Parent,
    Replayable,
    Request,
    Workers,
    commit,
)
from services.core import digests
from tests.support.signatures import key_of_seed

FOLDER = Path(__file__).parent
CERTIFICATE = FOLDER / "certificate-v1.json"
PUBLIC_KEY = FOLDER / "certificate-v1.pub.pem"
DIGEST = FOLDER / "certificate-v1.sha256"

KEY = key_of_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
SALT = bytes(range(32))
RUN = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def digest(name: str) -> str:
    return digests.of_bytes(name.encode())


SUBJECTS = [
    ("digits/all", digest("all, round 12")),
    ("digits/left", digest("left, round 12")),
    ("digits/right", digest("right, round 12")),
]


def predicate() -> ErasurePredicate:
    return ErasurePredicate(
        request=Request(
            id=UUID("01890a5d-ac96-774b-bcce-b302099a8058"),
            subjects=(commit("hospital-b", SALT),),
            scope="client",
            regulation="GDPR Art. 17",
            submitted_at=datetime(2026, 3, 1, 9, 0, tzinfo=UTC),
            fenced_at=datetime(2026, 3, 1, 9, 0, 0, 125000, tzinfo=UTC),
            first_clean_at=datetime(2026, 3, 1, 9, 0, 2, tzinfo=UTC),
            completed_at=datetime(2026, 3, 1, 9, 14, 30, tzinfo=UTC),
            legal_deadline=datetime(2026, 4, 1, 9, 0, tzinfo=UTC),
        ),
        method=Method(name="influence-tree", parameters={"shape": "huffman", "learning_rate": 0.5, "workers": 3}),
        guarantee=Guarantee.plain("exact"),
        cohorts=(
            CohortOutcome(
                run=RUN,
                name="all",
                epoch_before=1,
                epoch_after=2,
                round_at_fence=12,
                outcome="re-initialised",
                parents=(Parent(digest=digest("right, round 11"), weight=2.0), Parent(digest=digest("a"), weight=1.0)),
                round_reached=12,
                head=digest("all, round 12"),
            ),
            CohortOutcome(
                run=RUN,
                name="left",
                epoch_before=1,
                epoch_after=2,
                round_at_fence=12,
                outcome="rolled-back",
                rollback_point=digest("left, round 0"),
                round_reached=12,
                head=digest("left, round 12"),
            ),
            CohortOutcome(
                run=RUN, name="b", epoch_before=1, epoch_after=2, round_at_fence=12, outcome="retired", round_reached=0
            ),
        ),
        artefacts=(
            Artefact(kind="checkpoint", digest=digest("all with b"), disposition="superseded"),
            Artefact(kind="key", digest=digest("key of b"), disposition="deleted"),
            Artefact(
                kind="merge", digest=digest("export"), disposition="unreachable", reason="Downloaded in February."
            ),
            Artefact(kind="update", digest=digest("update of b"), disposition="deleted"),
        ),
        counts={
            "checkpoint": Count(planned=1, done=1),
            "cohort": Count(planned=3, done=3),
            "key": Count(planned=1, done=1),
            "merge": Count(planned=1, done=1),
            "update": Count(planned=1, done=1),
        },
        still_shaped_by=(
            Influence(
                aspect="tree-shape", explanation="The tree was built from all clients’ probabilities of leaving."
            ),
        ),
        workers=Workers(confirmed=(commit("hospital-a", SALT),), unconfirmed=(commit("hospital-c", SALT),)),
        audit=(
            AuditFigure(
                name="membership-inference-auc", value=0.503, reference=0.501, reference_is="a run that never had it"
            ),
        ),
        replayable=Replayable.of(23, 24),
        limits=(*STANDING_LIMITS, "One worker did not confirm that it dropped its cached models."),
        issuer=Issuer(coordinator_version="0.1.0", key_id=key_id(KEY.public_key())),
    )


def statement() -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": served.removeprefix("sha256:")}} for name, served in SUBJECTS],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate().model_dump(mode="json", by_alias=True),
    }


def certificate() -> bytes:
    """As the releases that issued this version signed it."""
    return to_bytes(sign(statement(), KEY))


if __name__ == "__main__":
    CERTIFICATE.write_bytes(certificate())
    PUBLIC_KEY.write_bytes(public_pem(KEY.public_key()))
    DIGEST.write_text(digests.of_bytes(certificate()) + "\n")
