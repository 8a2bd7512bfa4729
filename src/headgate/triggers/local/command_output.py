"""Command output: reads parts of what a command wrote, without the secrets of its job.

Offsets count the bytes that the command wrote, also those that were dropped from the middle of a large output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.triggers.contract import JobOutput
from headgate.triggers.local.command_records import CommandRecord, Dropped
from headgate.triggers.local.command_supervisor import masked

# A shorter beginning of a secret at the end of the output is shown.
_PREFIX_BYTES_MIN: Final = 4
_CHARACTER_BYTES_MAX: Final = 4
_NONE: Final = Dropped(0, 0)


def read_output(record: CommandRecord, secrets: Callable[[], tuple[str, ...]], *, offset: int, limit: int) -> JobOutput:
    """Return the output from an offset on, at most `limit` bytes. A negative offset counts from the end."""
    # The end first: nothing is written after it.
    ended = record.ended()
    hidden = () if ended is not None and ended.is_scrubbed else secrets()
    dropped = record.dropped() or _NONE
    try:
        size = record.output.stat().st_size
    except FileNotFoundError:
        size = 0
    start = _start_of(offset, size, dropped)
    stop = min(start + limit, size)
    if start < dropped.start:
        stop = min(stop, dropped.start)
    content = _masked_part(record, [secret.encode(errors="surrogateescape") for secret in hidden], start, stop)
    if ended is None and stop == size:
        content = _settled(content, hidden)
    if ended is None or stop < size:
        content = _whole_characters(content)
    return JobOutput(
        text=content.decode(errors="replace"),
        offset=start,
        next_offset=start + len(content),
        size=size,
        is_ended=ended is not None,
        dropped_bytes=dropped.end - dropped.start if start >= dropped.end else 0,
    )


def tail_text(record: CommandRecord, secrets: tuple[str, ...], limit: int) -> str:
    """Return the end of the output of a command that has ended, for a sentence about it."""
    return read_output(record, lambda: secrets, offset=-limit, limit=limit).text


def _start_of(offset: int, size: int, dropped: Dropped) -> int:
    start = max(0, size + offset) if offset < 0 else offset
    if start > size:
        # The output began again after its head, on a file system without holes.
        start = dropped.start if dropped.end else size
    return dropped.end if dropped.start <= start < dropped.end else start


def _masked_part(record: CommandRecord, secrets: list[bytes], start: int, stop: int) -> bytes:
    """Read a range, with so much around it that a secret across its ends is recognised."""
    if stop <= start:
        return b""
    margin = max(map(len, secrets), default=0)
    first = max(0, start - margin)
    with record.output.open("rb") as file:
        file.seek(first)
        content = file.read(stop + margin - first)
    return masked(content, secrets)[start - first : stop - first]


def _settled(content: bytes, secrets: tuple[str, ...]) -> bytes:
    """Hold back the beginning of a secret that the command may be writing."""
    for secret in (each.encode(errors="surrogateescape") for each in secrets):
        for length in range(len(secret) - 1, _PREFIX_BYTES_MIN - 1, -1):
            if content.endswith(secret[:length]):
                return content[:-length]
    return content


def _whole_characters(content: bytes) -> bytes:
    """Cut a character of UTF-8 that continues beyond the end."""
    for back in range(1, min(_CHARACTER_BYTES_MAX, len(content) + 1)):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return content[:-back] if length > back else content
    return content
