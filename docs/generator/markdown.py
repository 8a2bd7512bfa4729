"""Markdown: the note that generated pages begin with, table cells and code."""

from __future__ import annotations

from typing import Final

NOTE: Final = "<!-- Written by docs/generator; run `make reference` after changing the code. -->\n"


def cell(text: str) -> str:
    """Return a text as it stands in a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code, and an empty one as it is."""
    return f"`{text}`" if text else ""
