"""Recordings: histories in the form that `headgate execution history ID --json` prints, laid out for people to read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate.durable.model.history import Turn
from headgate.serve.rest.durable.models import turn_view

HISTORIES = Path(__file__).parent / "histories"


@dataclass(frozen=True)
class Recording:
    """A history that was written down."""

    execution_id: str
    workflow: str
    turns: list[Turn]


def read(path: Path) -> Recording:
    """Return the recording in a file."""
    return load(path.read_bytes())


def load(text: bytes | str) -> Recording:
    """Return the recording that JSON holds. Raises `msgspec.ValidationError` if it is none."""
    return msgspec.json.decode(text, type=Recording)


def plain_turns(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Return turns as the server shows them, as plain data."""
    return [json.loads(msgspec.json.encode(turn_view(turn))) for turn in turns]


def laid_out(execution_id: str, workflow: str, turns: list[dict[str, Any]]) -> str:
    """Return a history as JSON with one event, command or note to a line."""
    head = {"execution_id": execution_id, "workflow": workflow}
    result = ", ".join(f"{_text(name)}: {_text(value)}" for name, value in head.items())
    return f'{{{result}, "turns": [\n' + ",\n".join(_turn(turn) for turn in turns) + "\n]}\n"


def _turn(turn: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{_text(name)}: {_part(value)}" for name, value in turn.items()) + "}"


def _part(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _text(value)
    return "[\n  " + ",\n  ".join(_text(each) for each in value) + "\n]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
