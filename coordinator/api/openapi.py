"""The committed contract: `openapi/v1.json` is this document."""

from __future__ import annotations

import json
from typing import Any

from coordinator.api.app import assemble


def document() -> dict[str, Any]:
    return assemble().openapi()


def text() -> str:
    """The document as it is committed: sorted keys, two spaces, a newline at the end."""
    return json.dumps(document(), sort_keys=True, indent=2, ensure_ascii=False) + "\n"
