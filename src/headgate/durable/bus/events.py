"""Events: the events of the bus, as CloudEvents 1.0 in JSON and over HTTP."""

from __future__ import annotations

import base64
import binascii
import builtins
import enum
import re
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.durable.model import payload
from headgate.errors import InvalidPayloadError, PayloadTooLargeError

SPECVERSION: Final = "1.0"
# The size of the whole event as structured JSON, the form in which it is stored and delivered.
EVENT_BYTES_MAX: Final = 1_000_000
BATCH_EVENTS_MAX: Final = 1_000
TYPE_LENGTH_MAX: Final = 255
TEXT_LENGTH_MAX: Final = 2_048
EXTENSIONS_MAX: Final = 64
JSON_TYPE: Final = "application/json"
BYTES_TYPE: Final = "application/octet-stream"
STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
# The default of an event without a time; the bus sets the time of acceptance.
UNTIMED: Final = datetime(1, 1, 1, tzinfo=UTC)

_ATTRIBUTES: Final = ("id", "source", "type", "time", "subject", "datacontenttype", "dataschema")
_RESERVED: Final = frozenset({*_ATTRIBUTES, "specversion", "data", "data_base64"})
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,64}")
# Control characters, unpaired surrogates, and noncharacters.
_NOT_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_URI: Final = re.compile(r"""[^\s<>"{}|\\^`]+""")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE: Final = re.compile(rf"""{_TOKEN}/{_TOKEN}(?:\s*;\s*{_TOKEN}=(?:{_TOKEN}|"[^"]*"))*""")
_INTEGER_MAX: Final = 2**31 - 1
# Characters that need no encoding in a header: printable ASCII without the space, the quote and the percent sign.
_HEADER_SAFE: Final = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
_HEADER: Final = "ce-"

_T = TypeVar("_T")
_encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_any: Final = msgspec.json.Decoder().decode
_moment: Final = msgspec.json.Decoder(Annotated[datetime, msgspec.Meta(tz=True)]).decode
_JSON_ERRORS: Final = (msgspec.DecodeError, RecursionError)


class Mode(enum.StrEnum):
    """The form of an event over HTTP: attributes as headers, or one JSON document."""

    BINARY = "binary"
    STRUCTURED = "structured"


# The extension of CloudEvents for distributed tracing.
TRACEPARENT: Final = "traceparent"


class Event(Struct, frozen=True, kw_only=True):
    """An event. The bus sets `id`, `source` and `time` if the producer does not.

    `data` is a JSON value, or text or bytes of the `datacontenttype`; empty means JSON. The bus passes JSON on as
    `Raw`; a handler gets it decoded. `source` and `id` together identify the event.
    """

    type: str
    source: str = ""
    id: str = ""
    time: datetime = UNTIMED
    subject: str = ""
    data: Any = None
    datacontenttype: str = ""
    dataschema: str = ""
    extensions: dict[str, str] = {}

    def data_as(self, kind: builtins.type[_T]) -> _T:
        """Return the data as this type. Raises `InvalidPayloadError` if it is of another type."""
        if isinstance(self.data, bytes) and kind is bytes:
            return self.data  # type: ignore[return-value]  # checked by the line before
        raw = self.data if isinstance(self.data, Raw) else payload.encode(self.data, what=f"data of {self.type}")
        value: _T = payload.decode(raw, kind, what=f"data of {self.type}")
        return value

    def decoded(self) -> Event:
        """Return the event with its JSON data decoded. Raises `InvalidPayloadError` if it is not JSON."""
        if not isinstance(self.data, Raw):
            return self
        return replace(self, data=payload.decode(self.data, Any, what=f"data of {self.type}"))


def check(event: Event) -> Event:
    """Return a complete event. Raises `InvalidPayloadError` if it violates CloudEvents 1.0."""
    _check_text(event, "id", event.id, required=True)
    _check_text(event, "source", event.source, required=True)
    check_type(event.type)
    _check_text(event, "subject", event.subject)
    _check_text(event, "dataschema", event.dataschema)
    if not _URI.fullmatch(event.source):
        _refuse(
            event, f"source {event.source!r} is not a URI reference; use one such as /orders or https://shop.example"
        )
    if event.dataschema and not (_SCHEME.match(event.dataschema) and _URI.fullmatch(event.dataschema)):
        _refuse(event, f"dataschema {event.dataschema!r} is not an absolute URI")
    if event.datacontenttype and not _MEDIA_TYPE.fullmatch(event.datacontenttype):
        _refuse(event, f"datacontenttype {event.datacontenttype!r} is not a media type such as application/json")
    if not isinstance(event.time, datetime) or event.time.tzinfo is None:
        _refuse(event, f"time {event.time!r} is not a moment with a time zone")
    _check_extensions(event)
    return event


def check_type(name: str) -> str:
    """Return the type of an event. Raises `InvalidPayloadError` if it is not valid."""
    fits = isinstance(name, str) and 1 <= len(name) <= TYPE_LENGTH_MAX and name == name.strip()
    if not fits or "*" in name or _NOT_TEXT.search(name):
        raise InvalidPayloadError(
            f"event type {str(name)[:80]!r}: use 1 to {TYPE_LENGTH_MAX} printable characters without '*', "
            "such as order.created"
        )
    return name


# JSON format.


def dump(event: Event) -> str:
    """Return a complete event as structured JSON.

    Raises `InvalidPayloadError` if it violates CloudEvents or has no JSON form, and `PayloadTooLargeError`.
    """
    text = _encode(_document(check(event)))
    if len(text) > EVENT_BYTES_MAX:
        raise PayloadTooLargeError(
            f"event {event.id} of {event.type}: {len(text):,} bytes of JSON, and {EVENT_BYTES_MAX:,} are accepted; "
            "store the data elsewhere and send a reference"
        )
    return text.decode()


def load(text: str | bytes) -> Event:
    """Return the event of a structured JSON document with its data decoded, as a handler gets it.

    Raises `InvalidPayloadError`.
    """
    return parse(text).decoded()


def parse(text: str | bytes) -> Event:
    """Return the event of a structured JSON document, with its JSON data as `Raw`.

    Raises `InvalidPayloadError` for anything that is not a CloudEvent of version 1.0, and `PayloadTooLargeError`.
    """
    body = _checked_body(text, EVENT_BYTES_MAX)
    try:
        return _event(_members(body))
    except _JSON_ERRORS as exc:
        raise InvalidPayloadError(f"event: not a JSON object: {exc}") from exc


def parse_batch(text: str | bytes) -> list[Event]:
    """Return the events of a JSON batch; one invalid event refuses the whole batch. Raises as `parse` does."""
    body = _checked_body(text, None)
    try:
        elements = _elements(body)
    except _JSON_ERRORS as exc:
        raise InvalidPayloadError(f"batch of events: not a JSON array: {exc}") from exc
    if len(elements) > BATCH_EVENTS_MAX:
        raise PayloadTooLargeError(f"batch of {len(elements)} events: at most {BATCH_EVENTS_MAX}; send several")
    return [_of_batch(place, bytes(element)) for place, element in enumerate(elements)]


# HTTP protocol binding.


def from_http(headers: Mapping[str, str], body: bytes) -> list[Event]:
    """Return the events of an HTTP message in any of the three modes: one, or those of a batch.

    Raises `InvalidPayloadError` for a message that is not CloudEvents 1.0, and `PayloadTooLargeError`.
    """
    named = {name.lower(): value for name, value in headers.items()}
    content_type = named.get("content-type", "").strip()
    media_type = _media_type(content_type)
    if media_type == BATCH_TYPE:
        return parse_batch(body)
    if media_type == STRUCTURED_TYPE:
        return [parse(body)]
    if media_type.startswith("application/cloudevents"):
        raise InvalidPayloadError(f"event: content type {media_type} is not understood; use {STRUCTURED_TYPE}")
    return [_of_headers(named, content_type, body)]


def to_http(event: Event, mode: Mode = Mode.BINARY) -> tuple[dict[str, str], bytes]:
    """Return a complete event as headers and body. Raises as `dump` does."""
    if mode is Mode.STRUCTURED:
        return {"content-type": f"{STRUCTURED_TYPE}; charset=utf-8"}, dump(event).encode()
    check(event)
    attributes = {
        "specversion": SPECVERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": "" if event.time == UNTIMED else _written(event.time),
        "subject": event.subject,
        "dataschema": event.dataschema,
        **event.extensions,
    }
    headers = {
        f"{_HEADER}{name}": urllib.parse.quote(value, safe=_HEADER_SAFE) for name, value in attributes.items() if value
    }
    content_type, body = _body(event)
    if content_type:
        headers["content-type"] = content_type
    return headers, body


def _document(event: Event) -> dict[str, Any]:
    document: dict[str, Any] = {"specversion": SPECVERSION, "id": event.id, "source": event.source, "type": event.type}
    if event.time != UNTIMED:
        document["time"] = _written(event.time)
    for name in ("subject", "datacontenttype", "dataschema"):
        if value := getattr(event, name):
            document[name] = value
    document.update(event.extensions)
    if isinstance(event.data, bytes):
        document.setdefault("datacontenttype", BYTES_TYPE)
        document["data_base64"] = base64.b64encode(event.data).decode()
    elif event.data is not None:
        document["data"] = _raw(event)
    return document


def _raw(event: Event) -> Raw:
    return event.data if isinstance(event.data, Raw) else payload.encode(event.data, what=f"data of {event.type}")


def _body(event: Event) -> tuple[str, bytes]:
    """Return the data of an event in binary mode, as content type and bytes."""
    if event.data is None:
        return event.datacontenttype, b""
    if isinstance(event.data, bytes):
        return event.datacontenttype or BYTES_TYPE, event.data
    if isinstance(event.data, str) and not _is_json(event.datacontenttype):
        return event.datacontenttype, event.data.encode()
    return event.datacontenttype or JSON_TYPE, bytes(_raw(event))


def _checked_body(text: str | bytes, bytes_max: int | None) -> bytes:
    try:
        body = text.encode() if isinstance(text, str) else text
        # The JSON decoder does not validate the values that it skips, so that invalid UTF-8 would be stored.
        if not body.isascii():
            body.decode()
    except UnicodeError as exc:
        raise InvalidPayloadError(f"event: not UTF-8: {exc}") from exc
    if bytes_max is not None and len(body) > bytes_max:
        raise PayloadTooLargeError(f"event: {len(body):,} bytes, and {bytes_max:,} are accepted")
    return body


def _of_batch(place: int, element: bytes) -> Event:
    try:
        return parse(element)
    except InvalidPayloadError as exc:
        raise InvalidPayloadError(f"batch of events: number {place}: {exc}") from exc


def _event(members: dict[str, Raw]) -> Event:
    """Return the event of a JSON object."""
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    values = {name: value for name, raw in members.items() if (value := _any(raw)) is not None}
    label = f"event {values.get('id')!r}"
    if data is not None and encoded is not None:
        raise InvalidPayloadError(f"{label}: it has both data and data_base64; give one of them")
    texts = {name: _attribute(label, name, value) for name, value in values.items()}
    content_type = texts.get("datacontenttype", "")
    body: Any = None
    if encoded is not None:
        body = _of_base64(label, _any(encoded), content_type)
    elif data is not None:
        body = _of_json(label, data, content_type)
    return _from_texts(label, texts, body)


def _from_texts(label: str, texts: dict[str, str], data: object) -> Event:
    """Return the event of attributes that are all text."""
    specversion = texts.pop("specversion", "")
    if specversion != SPECVERSION:
        version = f"specversion {specversion!r}" if specversion else "specversion is missing"
        raise InvalidPayloadError(f"{label}: {version}; version {SPECVERSION} of CloudEvents is understood")
    for name in ("id", "source", "type"):
        if not texts.get(name):
            raise InvalidPayloadError(f"{label}: {name} is missing or empty; a CloudEvent needs id, source and type")
    time = _time(label, texts.pop("time")) if "time" in texts else UNTIMED
    known = {name: texts.pop(name) for name in _ATTRIBUTES if name in texts}
    return check(Event(**known, time=time, data=data, extensions=texts))


def _attribute(label: str, name: str, value: object) -> str:
    """Return an attribute as text. Only extensions may have other types."""
    if isinstance(value, str):
        return value
    if name not in _RESERVED:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int) and -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
            return str(value)
    allowed = "text" if name in _RESERVED else "text, true, false or a whole number of 32 bits"
    raise InvalidPayloadError(f"{label}: attribute {name[:64]!r} is {str(value)[:40]!r}; it must be {allowed}")


def _time(label: str, text: str) -> datetime:
    try:
        moment: datetime = _moment(_encode(text))
    except msgspec.DecodeError as exc:
        raise InvalidPayloadError(f"{label}: time {text[:64]!r} is not as in 2026-01-31T12:00:00Z: {exc}") from exc
    try:
        moment.astimezone(UTC)
    except OverflowError as exc:
        raise InvalidPayloadError(f"{label}: time {text[:64]!r} is not within the years 1 to 9999 in UTC") from exc
    return moment


def _of_base64(label: str, text: object, content_type: str) -> bytes | Raw | None:
    if text is None:
        return None
    try:
        if not isinstance(text, str):
            raise TypeError("it is not text")
        content = base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error, ValueError) as exc:
        raise InvalidPayloadError(f"{label}: data_base64 is not base 64: {exc}") from exc
    return _json(label, content) if content_type and _is_json(content_type) else content


def _of_json(label: str, data: Raw, content_type: str) -> Raw | str | None:
    raw = _json(label, bytes(data))
    if raw is None or _is_json(content_type) or not bytes(raw).startswith(b'"'):
        return raw
    # Text of another type than JSON is carried as a JSON string.
    text: str = _any(raw)
    return text


def _json(label: str, content: bytes) -> Raw | None:
    """Return JSON unchanged, but without surrounding white space; None for null. Raises `InvalidPayloadError`."""
    stripped = content.strip()
    if stripped == b"null":
        return None
    try:
        # Decoded only to validate it: invalid data is refused now, not at delivery.
        value = _any(stripped)
        if stripped.count(b"[") + stripped.count(b"{") > payload.DEPTH_MAX:
            payload.encode(value, what=f"data of {label}")
    except (*_JSON_ERRORS, UnicodeError) as exc:
        raise InvalidPayloadError(f"{label}: its data is not JSON: {exc}") from exc
    return Raw(stripped)


def _of_headers(named: dict[str, str], content_type: str, body: bytes) -> Event:
    """Return the event of a message in binary mode; header names are in lower case."""
    attributes = {name.removeprefix(_HEADER): value for name, value in named.items() if name.startswith(_HEADER)}
    if "specversion" not in attributes:
        raise InvalidPayloadError(
            f"event: neither a ce-specversion header nor content type {STRUCTURED_TYPE}; send a CloudEvent"
        )
    # The content type of the message is authoritative; a header that repeats it is ignored.
    attributes.pop("datacontenttype", None)
    texts = {name: _header_text(name, value) for name, value in attributes.items()}
    if len(body) > EVENT_BYTES_MAX:
        raise PayloadTooLargeError(f"event: {len(body):,} bytes, and {EVENT_BYTES_MAX:,} are accepted")
    label = f"event {texts.get('id')!r}"
    if content_type:
        texts["datacontenttype"] = content_type
    data = (_json(label, body) if content_type and _is_json(content_type) else body) if body else None
    return _from_texts(label, texts, data)


def _header_text(name: str, value: str) -> str:
    text = value.strip()
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return urllib.parse.unquote(text, errors="strict")
    except UnicodeDecodeError as exc:
        raise InvalidPayloadError(f"event: header ce-{name}: what is percent-encoded is not UTF-8: {exc}") from exc


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(content_type: str) -> bool:
    media_type = _media_type(content_type)
    return not media_type or media_type.endswith(("/json", "+json"))


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _check_text(event: Event, name: str, value: object, *, required: bool = False) -> None:
    if not isinstance(value, str) or (required and not value):
        _refuse(event, f"{name} is missing or empty; give it some text")
    if len(value) > TEXT_LENGTH_MAX or _NOT_TEXT.search(value):
        _refuse(event, f"{name} is {value[:40]!r}; use up to {TEXT_LENGTH_MAX} characters, none of them a control")


def _check_extensions(event: Event) -> None:
    if len(event.extensions) > EXTENSIONS_MAX:
        _refuse(event, f"{len(event.extensions)} extension attributes; at most {EXTENSIONS_MAX}")
    for name, value in event.extensions.items():
        if name in _RESERVED or not _EXTENSION.fullmatch(name):
            _refuse(
                event, f"attribute name {name[:64]!r}; use up to 64 lower-case letters and digits, and none of ours"
            )
        _check_text(event, f"extension {name}", value)


def _refuse(event: Event, fact: str) -> NoReturn:
    raise InvalidPayloadError(f"event {str(event.id)[:64]!r} of {str(event.type)[:64]!r}: {fact}")
