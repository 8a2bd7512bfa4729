"""Replay check: compares the commands that code issues on replay with those in its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from headgate.durable.model.history import (
    AnswerUpdate,
    CancelChild,
    Close,
    Command,
    ContinueAsNew,
    EmitEvent,
    MarkPatch,
    RecordValue,
    SendSignal,
    SetTags,
    StartActivity,
    StartChild,
)
from headgate.durable.model.payload import canonical


def compare(recorded: Sequence[Command], issued: Sequence[Command]) -> str | None:
    """Return the first difference as text, or None if there is none.

    Options, due times, and the result of the execution are not compared: a new time-out or another error message must
    not break running executions. Marks of deprecated patches may be missing from either side.
    """
    recorded = [each for each in recorded if not _is_deprecated_mark(each)]
    issued = [each for each in issued if not _is_deprecated_mark(each)]
    for old, new in zip(recorded, issued, strict=False):
        if not _same(old, new):
            return _difference(old, new)
    if len(issued) > len(recorded):
        return f"history ends there, the code now also does {_describe(issued[len(recorded)])}"
    if len(issued) < len(recorded):
        return f"history has {_describe(recorded[len(issued)])}, the code no longer does it"
    return None


def _is_deprecated_mark(command: Command) -> bool:
    return isinstance(command, MarkPatch) and command.is_deprecated


def _same(old: Command, new: Command) -> bool:
    if old.__class__ is not new.__class__ or getattr(old, "seq", 0) != getattr(new, "seq", 0):
        return False
    if isinstance(old, (Close, ContinueAsNew, RecordValue)):
        return True
    old_parts, new_parts = _parts(old), _parts(new)
    return old_parts == new_parts or [_canonical(p) for p in old_parts] == [_canonical(p) for p in new_parts]


def _difference(old: Command, new: Command) -> str:
    before, after = _describe(old), _describe(new)
    if before != after:
        return f"history has {before}, the code now does {after}"
    # Their descriptions are the same; another compared field differs.
    names = _COMPARED[type(old)]
    parts = zip(names, map(_shown, _parts(old)), map(_shown, _parts(new)), strict=True)
    name, was, is_now = next(each for each in parts if each[1] != each[2])
    return f"history has {before} with {name.replace('_', ' ')} {_cut(was)}, the code now has {_cut(is_now)}"


# The compared fields. Others, such as options and due times, may change.
_COMPARED: Final[dict[type, tuple[str, ...]]] = {
    StartActivity: ("name", "input"),
    StartChild: ("workflow", "child_id", "input"),
    SendSignal: ("execution_id", "name", "payload"),
    EmitEvent: ("type", "data"),
    MarkPatch: ("patch",),
    CancelChild: ("child_id",),
    AnswerUpdate: ("id", "rejected"),
    SetTags: ("tags",),
}


def _parts(command: Command) -> list[object]:
    values = [getattr(command, name) for name in _COMPARED.get(type(command), ())]
    return [bytes(value) if isinstance(value, Raw) else value for value in values]


def _canonical(part: object) -> object:
    return canonical(Raw(part)) if isinstance(part, bytes) else part


def _describe(command: Command) -> str:
    """Return the description of a command in terms of the code."""
    seq = getattr(command, "seq", None)
    place = "" if seq is None else f" #{seq}"
    kind = str(command.__struct_config__.tag).replace("_", " ")
    match command:
        case StartActivity():
            return f"{kind} {command.name}({_short(command.input)}){place}"
        case StartChild():
            return f"{kind} {command.workflow}({_short(command.input)}){place}"
        case SendSignal() | EmitEvent():
            name = command.name if isinstance(command, SendSignal) else command.type
            return f"{kind} {name}{place}"
        case MarkPatch():
            return f"{kind} {command.patch}{place}"
        case Close():
            return f"{kind} ({command.status.value})"
        case _:
            return f"{kind}{place}"


def _short(value: Raw) -> str:
    return _cut(_shown(bytes(value)))


def _shown(part: object) -> str:
    return canonical(Raw(part)).decode() if isinstance(part, bytes) else str(part)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
