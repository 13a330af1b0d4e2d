"""One form for every document that is signed: sorted keys, no spaces, UTF-8.

A document is read once, into its model, and must be exactly what the model writes again. So an unknown field, a key
given twice, a space, another spelling of a number or of a time are all refused, and no second parser can see something
else in the same bytes.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Malformed(ValueError):
    """The bytes are not the canonical form of the document they should be."""


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def text(value: str) -> str:
    """The form of a text alone."""
    return encode_basestring(value)


def encode_model(model: BaseModel) -> bytes:
    return encode(model.model_dump(mode="json", by_alias=True))


def decode(data: bytes, model: type[Model], what: str) -> Model:
    """`what` names the document in the reason of `Malformed`."""
    try:
        document = model.model_validate_json(data)
    except ValidationError as error:
        raise Malformed(f"the {what} {explain(error)}") from None
    try:
        is_canonical = encode_model(document) == data
    except ValueError:  # infinities
        is_canonical = False
    if not is_canonical:
        raise Malformed(f"the {what} is not in canonical form (sorted keys, no spaces, UTF-8, each key once)")
    return document


def explain(error: ValidationError) -> str:
    """The first thing that is wrong, as the end of a sentence."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "json_invalid":
            return f"is not JSON: {first['msg']}"
        case "missing":
            return f"lacks the field {field}"
        case "extra_forbidden":
            return f"has the unknown field {field[:200]!a}"
        case "literal_error":
            return f"says {field} {str(first['input'])[:100]!a}; expected is {first['ctx']['expected']}"
        case _:
            return f"has an impossible {field or 'form'}: {first['msg'][:300]}"
