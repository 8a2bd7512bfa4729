"""Tracebacks in a terminal: an error with its causes, and a mark at the frames of the user's own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer


def error_text(error: Mapping[str, Any]) -> str:
    """Return the type and the message of an error."""
    return f"{error['type']}: {error['message']}" if error["message"] else str(error["type"])


def show_traceback(title: str, error: Mapping[str, Any]) -> None:
    """Print an error with its frames, and its causes below it. Prints nothing if no traceback is stored."""
    from headgate.tracebacks import marked_frames

    chain: list[Mapping[str, Any]] = []
    link: Mapping[str, Any] | None = error
    while link is not None:
        chain.append(link)
        link = link.get("cause")
    if not any(each.get("trace") for each in chain):
        return
    typer.echo(f"\n{title}:")
    for place, each in enumerate(chain):
        typer.echo(f"{'caused by ' if place else ''}{error_text(each)}")
        if each.get("trace"):
            typer.echo(marked_frames(each["trace"]))
