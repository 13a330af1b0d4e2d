"""Answers as objects: messages of `services.wire.v1` that keep the document they were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from pydantic import PrivateAttr, ValidationError

from lethe.client.rendering import as_html
from lethe.errors import AnswerUnreadable, NotFound, Unusable
from services.wire.message import Message

Document = dict[str, Any]


class Answer(Message):
    """Fields that a newer coordinator adds are in `document` only."""

    _document: Document = PrivateAttr(default_factory=dict)
    _connection: Any = PrivateAttr(default=None)

    @classmethod
    def read(cls, document: Document, connection: Any = None) -> Self:
        try:
            answer = cls.model_validate(document, strict=False, extra="ignore")
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise AnswerUnreadable(
                f"the coordinator's {cls.__name__} cannot be read: {'.'.join(map(str, fault['loc']))}: {fault['msg']}",
                next_step="is the coordinator of a newer release? then install that one here as well",
            ) from error
        answer._document, answer._connection = document, connection
        return answer

    @property
    def document(self) -> Document:
        """The answer as it came: plain JSON values."""
        return self._document

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, self._document)


def is_id(text: str | UUID) -> bool:
    if isinstance(text, UUID):
        return True
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def only(kind: str, name: str, found: Sequence[Document]) -> Document:
    """The one of that name. Several: it might be the wrong one, so that somebody must choose."""
    matches = [document for document in found if document["name"] == name]
    if not matches:
        raise NotFound.by_name(f"there is no {kind} called {name}{named(found)}", kind)
    if len(matches) > 1:
        lines = [f"       {_candidate(document)}" for document in matches[:10]]
        more = [f"       and {len(matches) - 10} more"] if len(matches) > 10 else []
        raise Unusable(
            "\n".join([f"{len(matches)} {kind}s are called {name}:", *lines, *more]),
            next_step=f"say which by its id, instead of {name}",
        )
    return matches[0]


def named(found: Sequence[Document]) -> str:
    names = [str(document["name"]) for document in found[:10]]
    return f"; there is {', '.join(names)}{', …' if len(found) > 10 else ''}" if names else ""


def _candidate(document: Mapping[str, Any]) -> str:
    federation = document.get("federation_id")
    described = (
        document.get("status"),
        f"created {str(document.get('created_at'))[:19]}",
        federation and f"of federation {federation}",
    )
    return "  ".join(str(part) for part in (document["id"], *described) if part)
