"""Codecs of RPC messages: the port, and protobuf's binary encoding."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError, Message

from headgate.errors import InvalidPayloadError


class Codec(Protocol):
    """Encodes and decodes messages. `name` identifies the codec to other processes."""

    name: str

    def decode(self, kind: type[Message], content: bytes) -> Message:
        """Return the message. Raises `InvalidPayloadError`."""

    def encode(self, message: Message) -> bytes:
        """Return the bytes."""


class Binary:
    """Protobuf's binary encoding."""

    name = "proto"

    def decode(self, kind: type[Message], content: bytes) -> Message:
        try:
            return kind.FromString(content)
        except DecodeError as exc:
            raise InvalidPayloadError(f"the message is not a {kind.DESCRIPTOR.full_name}: {exc}") from exc

    def encode(self, message: Message) -> bytes:
        return message.SerializeToString()
