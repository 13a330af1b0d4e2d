"""Which coordinator, as whom, when a program does not say: LETHE_… variables, then a `lethe serve` started here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lethe.errors import Unusable

DEFAULT_URL: Final = "http://127.0.0.1:8440"
DEFAULT_TOKEN_FILE: Final = Path("lethe-data/admin.token")


def token_here(token_file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The one in the file, else of the environment, else of a `lethe serve` in this directory."""
    if token_file is None and (token := environment.get("LETHE_TOKEN")):
        return token
    named = environment.get("LETHE_TOKEN_FILE")
    file = token_file or (Path(named) if named else None)
    file = file or (DEFAULT_TOKEN_FILE if DEFAULT_TOKEN_FILE.is_file() else None)
    if file is None:
        return None
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"cannot read the token file {file}: {error}") from error
