"""Payload codec: values of user code as stored, sealed by the codec of their app.

A sealed value is JSON itself, so that rows, histories, archives, exports and backups hold it without knowing of codecs:
`{"headgate.encrypted": {"key": "2026-11", "data": "…"}}`. It is bound to its execution and its place there, and cannot
be opened anywhere else.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from headgate.durable.model.failures import ErrorInfo
from headgate.errors import SealedPayloadError

E = TypeVar("E", ErrorInfo, ErrorInfo | None)

_NAME: Final = "headgate.encrypted"
_PREFIX: Final = f'{{"{_NAME}"'
_PREFIX_BYTES: Final = _PREFIX.encode()
_NULL: Final = b"null"

# The places of an execution's values.
INPUT: Final = "input"
MEMO: Final = "memo"
RESULT: Final = "result"
ERROR: Final = "error"
HEARTBEAT: Final = "heartbeat"


class Sealed(Struct, frozen=True, forbid_unknown_fields=True):
    """A sealed value: the id of its key, and the ciphertext as base64."""

    key: str
    data: str


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True, rename={"sealed": _NAME}):
    sealed: Sealed


_envelopes: Final = msgspec.json.Decoder(_Envelope)
_errors: Final = msgspec.json.Decoder(ErrorInfo)


class PayloadCodec(Protocol):
    """Seals the values of an app before they are stored, and opens them in its code alone."""

    @property
    def accepts_plain(self) -> bool:
        """Whether values that are not sealed are accepted, such as those stored before the codec was set."""

    @property
    def seals_errors(self) -> bool:
        """Whether messages, arguments and tracebacks of errors are sealed too."""

    def seal(self, plain: bytes, bound_to: str) -> Sealed:
        """Return the sealed form of a value, the same for the same value and place under the same key."""

    def open(self, sealed: Sealed, bound_to: str) -> bytes:
        """Return the value. Raises `SealedPayloadError` without its key, or if it was altered or moved."""

    def has_key(self, key_id: str) -> bool:
        """Whether values under this key can be opened."""


def is_sealed_text(text: str) -> bool:
    """Whether a stored value is sealed."""
    return text.startswith(_PREFIX)


def sealed_of(raw: Raw | bytes) -> Sealed | None:
    """Return the sealed form of a stored value, or None if it is not sealed."""
    content = bytes(raw)
    if not content.startswith(_PREFIX_BYTES) and _NAME.encode() not in content[:40]:
        return None
    try:
        return _envelopes.decode(content).sealed
    except msgspec.DecodeError:
        return None


def seal(codec: PayloadCodec, raw: Raw, execution_id: str, place: str) -> Raw:
    """Return the form in which a value is stored."""
    return Raw(msgspec.json.encode(_Envelope(codec.seal(bytes(raw), _bound_to(execution_id, place)))))


def open_sealed(codec: PayloadCodec, raw: Raw, execution_id: str, place: str) -> Raw:
    """Return a stored value as JSON of its own. Raises `SealedPayloadError`."""
    sealed = sealed_of(raw)
    if sealed is not None:
        try:
            return Raw(codec.open(sealed, _bound_to(execution_id, place)))
        except SealedPayloadError as exc:
            raise SealedPayloadError(f"execution {execution_id}: its {place}: {exc}") from exc
    if not codec.accepts_plain and bytes(raw) != _NULL:
        raise SealedPayloadError(
            f"execution {execution_id}: its {place} is not encrypted, and this app accepts encrypted values only"
        )
    return raw


def seal_once(codec: PayloadCodec, raw: Raw, execution_id: str, place: str) -> Raw:
    """Return the form in which a value is stored; a value that was sealed for this place stays as it is."""
    sealed = sealed_of(raw)
    if sealed is not None:
        try:
            codec.open(sealed, _bound_to(execution_id, place))
        except SealedPayloadError:
            pass  # Another value of the same form.
        else:
            return raw
    return seal(codec, raw, execution_id, place)


def seal_for(codec: PayloadCodec | None, raw: Raw, execution_id: str, place: str) -> Raw:
    """Return a value as it is stored by an app with this codec, or without one."""
    return raw if codec is None else seal(codec, raw, execution_id, place)


def open_for(codec: PayloadCodec | None, raw: Raw, execution_id: str, place: str) -> Raw:
    """Return a stored value as JSON of its own. Raises `SealedPayloadError`, also for a sealed one without a codec."""
    if codec is not None:
        return open_sealed(codec, raw, execution_id, place)
    refuse_sealed(raw, execution_id, place)
    return raw


def seal_error(codec: PayloadCodec, error: ErrorInfo, execution_id: str, place: str) -> ErrorInfo:
    """Return an error as stored: its class is readable, which retry policies need, and the rest is sealed."""
    if not codec.seals_errors or sealed_of(error.data) is not None:
        return error
    data = seal(codec, Raw(msgspec.json.encode(error)), execution_id, place)
    sealed = sealed_of(data)
    assert sealed is not None, "it was sealed just now"
    return ErrorInfo(
        type=error.type,
        message=described(sealed),
        module=error.module,
        qualname=error.qualname,
        data=data,
        retryable=error.retryable,
        bases=error.bases,
    )


def open_error(codec: PayloadCodec | None, error: E, execution_id: str, place: str) -> ErrorInfo | E:
    """Return an error in full; without a codec as it is stored. Raises `SealedPayloadError`."""
    if error is None or codec is None or sealed_of(error.data) is None:
        return error
    return _errors.decode(open_sealed(codec, error.data, execution_id, place))


def described(sealed: Sealed) -> str:
    """Return what people without the key see of a value."""
    return f"encrypted with key {sealed.key}"


def readable(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON for people: in place of each sealed value, the id of its key."""
    if isinstance(value, dict):
        sealed = value.get(_NAME)
        if len(value) == 1 and isinstance(sealed, dict) and sealed.keys() == {"key", "data"}:
            return f"encrypted with key {sealed['key']}"
        return {name: readable(each) for name, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, list) else value


def refuse_sealed(raw: Raw, execution_id: str, place: str) -> None:
    """Raise `SealedPayloadError` for a sealed value where there is no codec."""
    sealed = sealed_of(raw)
    if sealed is not None:
        raise SealedPayloadError(
            f"execution {execution_id}: its {place} is {described(sealed)}, and no codec is loaded here; set codec= of "
            "the app, or read it where the app is loaded"
        )


def activity_place(seq: int, what: str) -> str:
    """Return the place of an activity's input, result, error or heartbeat details."""
    return f"activity {seq} {what}"


def _bound_to(execution_id: str, place: str) -> str:
    return f"headgate payload\0{execution_id}\0{place}"
