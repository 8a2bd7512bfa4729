"""The commands and options that a page shows outside of its walk-throughs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

# Inline code, and blocks without a language: walk-throughs are blocks of `console`.
INLINE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> set[str]:
    """Return every command that a page shows, inline or in a block of commands, except in its walk-throughs."""
    text = page.read_text()
    lines = [line for language, block in BLOCK.findall(text) if not language for line in block.splitlines()]
    found = [*INLINE.findall(BLOCK.sub("", text)), *lines]
    return {each for each in found if each.startswith("headgate ")}


def options_of(page: Path) -> set[str]:
    """Return every option that a page shows by itself."""
    return {each for each in INLINE.findall(BLOCK.sub("", page.read_text())) if each.startswith("--")}
