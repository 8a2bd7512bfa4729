"""Messages: what a queue carries about a chunk. Enough to find its row, and what workers of others know to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct, field

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.fanout.model.rows import Chunk, Fanout, sort_key

# A message as it comes: a mapping, its JSON, or just the ids of the fan-out and of the chunk.
Message = Mapping[str, Any] | str | bytes | tuple[str, str]


class ChunkMessage(Struct, frozen=True, omit_defaults=True):
    """Which chunk of which fan-out a message is about."""

    run_id: str
    chunk_id: str = ""
    input_key: str = field(name="chunk_key", default="")
    group: str = field(name="survey", default="")
    params: dict[str, Any] | None = None


def message_about(fanout: Fanout, chunk: Chunk) -> str:
    """Return the message that tells a worker of a chunk, as JSON."""
    message = ChunkMessage(
        run_id=chunk.run_id,
        chunk_id=chunk.chunk_id,
        input_key=chunk.input_key,
        group=fanout.group,
        params=msgspec.json.decode(fanout.params) if fanout.params else None,
    )
    return msgspec.json.encode(message).decode()


def message_of(message: Message) -> ChunkMessage:
    """Return which chunk a message is about. Without `chunk_id`, the input is named after the chunk.

    Raises `InvalidPayloadError` for what is no message about a chunk, and `InvalidIdError` for an id that is none.
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
        raise InvalidPayloadError(f"message {_shown(message)}: it is not about a chunk ({exc})") from exc


def _shown(message: Message) -> str:
    return repr(message)[:100]
