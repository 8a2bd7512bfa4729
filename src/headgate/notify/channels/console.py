"""Console channel: writes alerts to standard error."""

from __future__ import annotations

import sys
from typing import Final, TextIO

from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.enums import AlertAction, Severity
from headgate.notify.messages import Message

_COLOURS: Final = {Severity.CRITICAL: "\x1b[31m", Severity.WARNING: "\x1b[33m", Severity.INFO: "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"


class ConsoleChannel:
    """Writes to a stream, in colour on a terminal."""

    actions = frozenset(AlertAction)

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self._stream = stream

    def send(self, message: Message) -> str:
        """Write the message. Raises `TransientError` if the stream is closed."""
        stream = self._stream if self._stream is not None else sys.stderr
        counted = f" (x{message.count})" if message.count > 1 else ""
        lines = [f"    {line}" for line in message.lines]
        lines += [f"    -> {message.hint}"] if message.hint else []
        lines += [f"    {message.link}"] if message.link else []
        try:
            colour, plain = (_COLOURS[message.severity], _PLAIN) if stream.isatty() else ("", "")
            first = f"{instant(message.at_ms)} {colour}{message.severity.upper()}{plain} {message.title}{counted}"
            stream.write("\n".join([first, *lines]) + "\n")
            stream.flush()
        except (OSError, ValueError) as exc:
            raise TransientError(f"channel {self.name}: the console cannot be written: {exc}") from exc
        return ""
