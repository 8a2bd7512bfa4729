"""Tracebacks: which frames are of the user's own code, and not of Headgate, the standard library or a package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+')
# Frames of Headgate, of the standard library and of installed packages.
_PACKAGE: Final = Path(__file__).parent
_OTHERS: Final = re.compile(rf"^{re.escape(str(_PACKAGE))}/|/lib(?:64)?/python3|/site-packages/|^<")
OWN_MARK: Final = "> "


def own_frames(trace: str) -> str:
    """Return the frames of the user's own code; all frames if there are none of these."""
    return "\n".join(line for line, is_own in _lines(trace) if is_own) or trace


def marked_frames(trace: str) -> str:
    """Return all frames, each line of the user's own code with a mark before it."""
    return "\n".join(f"{OWN_MARK if is_own else '  '}{line}" for line, is_own in _lines(trace))


def _lines(trace: str) -> list[tuple[str, bool]]:
    lines: list[tuple[str, bool]] = []
    is_own = False
    for line in trace.splitlines():
        found = _FRAME.match(line)
        if found is not None:
            is_own = _OTHERS.search(found["path"]) is None
        lines.append((line, is_own))
    return lines
