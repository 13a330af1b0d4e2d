"""Handing a new token to the operator: it is shown once, so it goes to a private file or, alone, to standard output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lethe.failures import UNUSABLE, CommandFailed


def refuse_existing(token_out: Path | None) -> None:
    """Call it before anything is issued: a token that cannot be written would be lost."""
    if token_out is not None and token_out.exists():
        raise CommandFailed(f"{token_out} exists already; choose another --token-out", exit_code=UNUSABLE)
    if token_out is not None and not token_out.absolute().parent.is_dir():
        raise CommandFailed(f"there is no directory {token_out.parent} for the token", exit_code=UNUSABLE)


def hand_over(issued: Mapping[str, Any], token_out: Path | None, *, what: str, as_json: bool) -> None:
    """Only the token goes to standard output (or all of it as JSON), so that `> a.token` keeps it."""
    from lethe.printing import print_record, say

    if token_out is not None:
        descriptor = os.open(token_out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(issued["token"] + "\n")
        say(f"{what}: token written to {token_out}")
        if as_json:
            print_record({key: value for key, value in issued.items() if key != "token"}, as_json=True)
        return
    if as_json:
        print_record(issued, as_json=True)
        return
    say(f"{what}: its token, shown this once:")
    print(issued["token"])
