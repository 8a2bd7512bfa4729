"""Connect wire format: JSON codec, compressed bodies, stream envelopes, errors."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from headgate.errors import InvalidPayloadError
from headgate.serve.rpc.errors import RpcFailure
from headgate.serve.rpc.methods import MESSAGE_BYTES_MAX

PROTO: Final = b"application/proto"
JSON: Final = b"application/json"
# gRPC status → Connect code and HTTP status.
STATUSES: Final[Mapping[str, tuple[str, int]]] = {
    "CANCELLED": ("canceled", 499),
    "UNKNOWN": ("unknown", 500),
    "INVALID_ARGUMENT": ("invalid_argument", 400),
    "DEADLINE_EXCEEDED": ("deadline_exceeded", 504),
    "NOT_FOUND": ("not_found", 404),
    "ALREADY_EXISTS": ("already_exists", 409),
    "PERMISSION_DENIED": ("permission_denied", 403),
    "RESOURCE_EXHAUSTED": ("resource_exhausted", 429),
    "FAILED_PRECONDITION": ("failed_precondition", 400),
    "ABORTED": ("aborted", 409),
    "OUT_OF_RANGE": ("out_of_range", 400),
    "UNIMPLEMENTED": ("unimplemented", 501),
    "INTERNAL": ("internal", 500),
    "UNAVAILABLE": ("unavailable", 503),
    "DATA_LOSS": ("data_loss", 500),
    "UNAUTHENTICATED": ("unauthenticated", 401),
}
_ENCODINGS: Final = {"proto": PROTO, "json": JSON}
_GZIP_WINDOW: Final = 31
_HEAD: Final = struct.Struct(">BI")
_COMPRESSED: Final = 1
_END: Final = 2


class Json:
    """Protobuf's JSON mapping. Unknown fields are ignored."""

    name = "json"

    def decode(self, kind: type[Message], content: bytes) -> Message:
        """Return the message. Raises `InvalidPayloadError`."""
        # The library accepts an empty list as a message without fields.
        if not content.lstrip().startswith(b"{"):
            raise InvalidPayloadError(f"the message is not a {kind.DESCRIPTOR.full_name} in JSON: send an object")
        try:
            return json_format.Parse(content, kind(), ignore_unknown_fields=True)
        except (json_format.ParseError, ValueError, RecursionError, TypeError, AttributeError) as exc:
            fact = str(exc) or type(exc).__name__
            raise InvalidPayloadError(f"the message is not a {kind.DESCRIPTOR.full_name} in JSON: {fact}") from exc

    def encode(self, message: Message) -> bytes:
        return json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()


class RawHeaders(Mapping[str, str]):
    """HTTP headers, decoded lazily: most calls read none."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[bytes, bytes]) -> None:
        self._raw = raw

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1", "replace") in self._raw

    def __getitem__(self, name: str) -> str:
        return self._raw[name.encode("latin-1", "replace")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def decompressed(content: bytes, encoding: bytes) -> bytes:
    """Decompress a body. Raises `InvalidPayloadError` and `RpcFailure`."""
    if len(content) > MESSAGE_BYTES_MAX:
        raise _too_large()
    if encoding in (b"", b"identity"):
        return content
    if encoding != b"gzip":
        shown = encoding.decode("latin-1")[:40]
        message = f"content-encoding {shown!r}: supported are gzip and identity"
        raise RpcFailure("UNIMPLEMENTED", "unimplemented", message, [])
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = decompressor.decompress(content, MESSAGE_BYTES_MAX + 1)
    except zlib.error as exc:
        raise InvalidPayloadError(f"the body is not gzip, although content-encoding says so: {exc}") from exc
    if len(plain) > MESSAGE_BYTES_MAX:
        raise _too_large()
    if not decompressor.eof and content:
        raise InvalidPayloadError("the gzip body is truncated")
    return plain


def queried(query: bytes) -> tuple[bytes, bytes]:
    """Return media type and message of a GET request. Raises `InvalidPayloadError` and `RpcFailure`."""
    try:
        given = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20))
        text = given["message"]
        media = _ENCODINGS[given["encoding"]]
        content = _base64(text) if given.get("base64") == "1" else text.encode()
    except (KeyError, ValueError, binascii.Error) as exc:
        raise InvalidPayloadError(
            "query: write encoding=json&message=… or encoding=proto&base64=1&message=…, escaped as in every URL"
        ) from exc
    return media, decompressed(content, given.get("compression", "").encode())


def opened(body: bytes, encoding: bytes) -> bytes:
    """Return the single request message of a stream. Raises `InvalidPayloadError` and `RpcFailure`."""
    if len(body) > MESSAGE_BYTES_MAX + _HEAD.size:
        raise _too_large()
    if len(body) < _HEAD.size:
        raise InvalidPayloadError("the body is shorter than the five-byte envelope header")
    flags, length = _HEAD.unpack_from(body)
    if flags & ~_COMPRESSED or length != len(body) - _HEAD.size:
        raise InvalidPayloadError("the body is not exactly one enveloped message")
    content = body[_HEAD.size :]
    return decompressed(content, encoding if flags & _COMPRESSED else b"")


def enveloped(content: bytes) -> bytes:
    """Wrap a message in a stream envelope."""
    return _HEAD.pack(0, len(content)) + content


def end_of_stream(failed: RpcFailure | None) -> bytes:
    """Return the end-of-stream envelope with the error, if any."""
    content = msgspec.json.encode({} if failed is None else {"error": _error(failed)})
    return _HEAD.pack(_END, len(content)) + content


def error_content(failed: RpcFailure) -> bytes:
    """Return the body of an error response."""
    return msgspec.json.encode(_error(failed))


def _error(failed: RpcFailure) -> dict[str, object]:
    details = [
        {
            "type": detail.DESCRIPTOR.full_name,
            "value": base64.b64encode(detail.SerializeToString()).decode().rstrip("="),
            "debug": json_format.MessageToDict(detail),
        }
        for detail in failed.details
    ]
    return {"code": STATUSES[failed.status][0], "message": failed.message, "details": details}


def _base64(text: str) -> bytes:
    padded = text.rstrip("=")
    return base64.b64decode(padded + "=" * (-len(padded) % 4), altchars=b"-_", validate=True)


def _too_large() -> RpcFailure:
    message = f"the message is larger than {MESSAGE_BYTES_MAX:,} bytes; send less at a time"
    return RpcFailure("RESOURCE_EXHAUSTED", "payload_too_large", message, [])
