"""What plain recovery is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Recovery

METHOD: Final = Recovery(name="plain", summary="those who remain train on as they always do")
