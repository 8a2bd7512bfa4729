"""Queue messages: the JSON body that names a chunk, in the layout that external workers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct, field

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.fanout.model.rows import Chunk, Fanout, sort_key

# A message as received: a mapping, its JSON, or the ids of fan-out and chunk.
Message = Mapping[str, Any] | str | bytes | tuple[str, str]


class ChunkMessage(Struct, frozen=True, omit_defaults=True):
    """The body of a chunk's queue message."""

    run_id: str
    chunk_id: str = ""
    input_key: str = field(name="chunk_key", default="")
    group: str = field(name="survey", default="")
    params: dict[str, Any] | None = None


def message_about(fanout: Fanout, chunk: Chunk) -> str:
    """Return the queue message of a chunk as JSON."""
    message = ChunkMessage(
        run_id=chunk.run_id,
        chunk_id=chunk.chunk_id,
        input_key=chunk.input_key,
        group=fanout.group,
        params=msgspec.json.decode(fanout.params) if fanout.params else None,
    )
    return msgspec.json.encode(message).decode()


def message_of(message: Message) -> ChunkMessage:
    """Parse a message. Without `chunk_id`, the id is the stem of the input's name.

    Raises `InvalidPayloadError` for a malformed message, and `InvalidIdError` for a malformed chunk id.
    """
    found = _read(message)
    chunk_id = found.chunk_id or PurePosixPath(found.input_key).stem
    if not found.run_id or not chunk_id:
        raise InvalidPayloadError(f"message {_shown(message)}: it names no chunk; it needs run_id and chunk_id")
    sort_key(chunk_id)
    return msgspec.structs.replace(found, chunk_id=chunk_id)


def _read(message: Message) -> ChunkMessage:
    if isinstance(message, tuple):
        return ChunkMessage(*message)
    try:
        if isinstance(message, str | bytes):
            return typed_decode.from_json(message, ChunkMessage)
        return typed_decode.convert(message, ChunkMessage)
    except msgspec.MsgspecError as exc:
        raise InvalidPayloadError(f"message {_shown(message)}: it is not a chunk message ({exc})") from exc


def _shown(message: Message) -> str:
    return repr(message)[:100]
