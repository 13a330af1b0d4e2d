"""What JSON columns hold, on every back end: plain values whose numbers are finite.

A number that is not finite is left out of the object that it stands in, when it is written and when it is read: rows of
older releases may hold some. JSONB gives large floats back as integers of hundreds of digits; these are read as floats.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final

import orjson

MOST_DIGITS: Final = 20
_GONE: Final = object()


def to_text(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
        if "null" not in text:  # else it may have been NaN or Inf, which the slower writer refuses
            return text
    except TypeError:  # keys that are numbers, numbers of more than 64 bits
        pass
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def from_text(text: str | bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:  # NaN and the like, or digits that no float can hold, which the slower reader takes
        return _finite(json.loads(text, parse_int=_number))


def _number(digits: str) -> int | float:
    """The number as the quicker reader gives it: what 64 bits do not hold is a float."""
    if len(digits) > MOST_DIGITS:
        return float(digits)
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(number)


def _finite(value: Any) -> Any:
    kept = _kept(value)
    return None if kept is _GONE else kept


def _kept(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else _GONE
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := _kept(item)) is not _GONE}
    if isinstance(value, list | tuple):
        return [kept for item in value if (kept := _kept(item)) is not _GONE]
    return value
