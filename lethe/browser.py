"""Showing a page in the browser of whoever sits at this machine."""

from __future__ import annotations

import os
import sys
import webbrowser


def has_screen() -> bool:
    """Whether somebody sits at a terminal of this machine who would see a window. Without one, a browser for text would
    take the terminal over."""
    is_named = bool({"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys())
    return sys.stdout.isatty() and (is_named or sys.platform in ("darwin", "win32"))


def show(url: str) -> None:
    """Whether it worked does not matter: the address has been printed."""
    webbrowser.open(url)
