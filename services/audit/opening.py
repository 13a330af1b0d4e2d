"""The opening of a certificate's pseudonyms: with it, and the name of a client, anybody can check that the certificate
is about this client. It lies apart from the certificate; deleting every copy of it cuts the link for good.
"""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from services.audit import canonical
from services.audit.artefact_list import Salt
from services.audit.canonical import Malformed
from services.audit.predicate import Statement, commit
from services.audit.v1 import predicate as first
from services.wire.message import Id, Message

MEDIA_TYPE: Final = "application/json"


class OpeningInvalid(ValueError):
    """It is no opening, or opens another certificate, or the certificate is about somebody else."""


class Opening(Message):
    request: Id
    federation: Id
    clients: Annotated[tuple[str, ...], Field(min_length=1)]
    salt: Salt

    def commitment(self, client: str) -> str:
        return commit(client, self.request, self.federation, bytes.fromhex(self.salt))


def to_bytes(opening: Opening) -> bytes:
    return canonical.encode_model(opening) + b"\n"


def read(data: bytes) -> Opening:
    try:
        return canonical.decode(data.removesuffix(b"\n"), Opening, "opening")
    except Malformed as malformed:
        raise OpeningInvalid(str(malformed)) from None


def check_is_about(client: str, data: bytes, statement: Statement | first.Statement) -> Opening:
    """Raises `OpeningInvalid` unless the certificate is about this client, by this opening."""
    opening, request = read(data), statement.predicate.request
    _check_same("request", opening.request, request.id)
    if isinstance(statement, Statement):
        _check_same("federation", opening.federation, statement.predicate.federation)
        commitment = opening.commitment(client)
    else:  # the first version committed to the name alone
        commitment = first.commit(client, bytes.fromhex(opening.salt))
    if commitment not in request.subjects:
        raise OpeningInvalid(f"the certificate is not about {client!a}: none of its subjects is the commitment to it")
    return opening


def _check_same(what: str, opened: UUID, certified: UUID) -> None:
    if opened != certified:
        raise OpeningInvalid(f"the opening is that of {what} {opened}, the certificate is about {what} {certified}")
