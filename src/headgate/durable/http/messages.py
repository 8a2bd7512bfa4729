"""What the HTTP handlers of an app are given and give back: requests, responses, headers and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from headgate import typed_decode
from headgate.durable.model import payload
from headgate.errors import BadOutputError, UserError

T = TypeVar("T")

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Everything that could end a line or a message early. Bytes above ASCII are legal, if useless, in a value.
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MESSAGE_MAX: Final = 200
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)
# They say where a message ends, and only the server knows.
_FRAMING: Final = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED})


class HttpError(Exception):
    """Raise it in a handler or a middleware to answer with an error.

    The caller is shown `message`, `data` (anything JSON can hold) and `code`, which is derived from the status
    unless it is given. `headers` are sent along: `{"www-authenticate": "Bearer"}`.
    """

    def __init__(
        self,
        status: int,
        message: str = "",
        *,
        data: object = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not any(status == known for known in HTTPStatus) or status < HTTPStatus.BAD_REQUEST:
            raise BadOutputError(f"HttpError({status!r}): use one of the error statuses of HTTP, 400 to 511")
        phrase = HTTPStatus(status).phrase
        super().__init__(message or phrase)
        self.status = int(status)
        self.message = message or phrase
        self.data = data
        self.code = code or phrase.lower().replace(" ", "_").replace("-", "_").replace("'", "")
        self.headers = Headers(headers or {})
        self.headers.check_sendable()


class InputProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong with an input: what, at which key, and where that was looked for."""

    message: str
    key: str
    source: str

    @classmethod
    def of(cls, error: Exception, source: str, key: str = "") -> InputProblem:
        """Return what a decoder found; `key` is where in the input it was at work."""
        message, _, where = str(error).partition(" - at `$")
        # Some messages repeat the value, which may be as long as the caller likes.
        return cls(message[:_MESSAGE_MAX], (key + where.rstrip("`")).removeprefix("."), source)


class BadInputError(HttpError):
    """What the caller sent is not what the handler takes; `problems` lists everything that was found."""

    def __init__(self, problems: Sequence[InputProblem]) -> None:
        listed = "; ".join(f"{each.key or each.source}: {each.message}" for each in problems)
        super().__init__(HTTPStatus.BAD_REQUEST, f"the input is not what is expected: {listed}", code="bad_input")
        self.problems = tuple(problems)


class Headers(MutableMapping[str, str]):
    """Headers by name, in any case. A name that came more than once reads as its values joined by commas.

    Setting one raises `BadOutputError` for a name or value that would not arrive as one header.
    """

    __slots__ = ("_pairs",)

    def __init__(self, given: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._pairs: list[tuple[str, str]] = []
        for name, value in given.items() if isinstance(given, Mapping) else given:
            self.add(name, value)

    @classmethod
    def received(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a message that came in, as they came."""
        made = cls()
        made._pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]
        return made

    def add(self, name: str, value: str) -> None:
        """Add a header besides those of the same name: `set-cookie` is one that may be there many times."""
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise BadOutputError(f"header {name!r}: a name is made of letters, digits and -")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise BadOutputError(f"header {name}: its value must be text on one line; encode anything else")
        self._pairs.append((name.lower(), value.strip(" \t")))

    def all(self, name: str) -> list[str]:
        """Return every value of a header, in the order in which they came."""
        wanted = name.lower()
        return [value for each, value in self._pairs if each == wanted]

    def pairs(self) -> list[tuple[str, str]]:
        """Return all headers, names in lower case, repeated ones as often as they are there."""
        return list(self._pairs)

    def check_sendable(self) -> None:
        """Raise `BadOutputError` if there is a header that only the server can set."""
        framing = sorted(_FRAMING.intersection(self))
        if framing:
            raise BadOutputError(f"header {framing[0]}: the server sets it; leave it out")

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __setitem__(self, name: str, value: str) -> None:
        kept = [pair for pair in self._pairs if pair[0] != str(name).lower()]
        self.add(name, value)
        self._pairs = [*kept, self._pairs[-1]]

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._pairs = [pair for pair in self._pairs if pair[0] != name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.all(name))

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._pairs))

    def __len__(self) -> int:
        return len(dict(self._pairs))

    def __repr__(self) -> str:
        # Names only: values are where credentials travel.
        return f"Headers({', '.join(self)})"


class Request(msgspec.Struct, kw_only=True):
    """One HTTP request. `context` starts empty, and is where middleware leaves what it found out.

    `path` is as it was sent, still percent-encoded; `path_params` and `query` are decoded.
    """

    method: str = "GET"
    path: str = "/"
    path_params: dict[str, str] = {}
    query: dict[str, list[str]] = {}
    headers: Headers = msgspec.field(default_factory=Headers)
    body: bytes = b""
    correlation_id: str | None = None
    context: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.headers, Headers):
            self.headers = Headers(self.headers)

    @overload
    def arg(self, name: str) -> str | None: ...

    @overload
    def arg(self, name: str, default: T) -> str | T: ...

    def arg(self, name: str, default: object = None) -> object:
        """Return the query argument `name`, the first if it was sent more than once, or `default`."""
        values = self.query.get(name)
        return values[0] if values else default

    @overload
    def json(self) -> Any: ...  # noqa: ANN401 - the caller sent it

    @overload
    def json(self, as_type: type[T]) -> T: ...

    def json(self, as_type: Any = Any) -> Any:
        """Return the body as JSON says it, or as an `as_type`. Raises `BadInputError` if it is not that."""
        try:
            return from_json(self.body, as_type)
        except msgspec.ValidationError as exc:
            raise BadInputError([InputProblem.of(exc, "body")]) from exc

    def text(self) -> str:
        """Return the body as text, in the charset that the content type names, or UTF-8.

        Raises `BadInputError` if it is not that, and `HttpError` 415 for a charset that is not known.
        """
        named = _CHARSET.search(self.headers.get("content-type", ""))
        charset = named[1] if named else "utf-8"
        try:
            return self.body.decode(charset)
        except LookupError as exc:
            raise HttpError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"charset {charset!r} is not known here; send UTF-8"
            ) from exc
        except ValueError as exc:
            raise BadInputError([InputProblem(f"it is not text in {charset}", "", "body")]) from exc


class WireResponse(NamedTuple):
    """A response as it is sent, but for the headers that the server sets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Response:
    """One HTTP response. Middleware may change any part of it before it is sent.

    A body of `bytes` is sent as it is, a `str` as plain text, anything else as JSON, None not at all; a
    `content-type` header of your own says otherwise.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: object = None,
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.headers = Headers(headers)

    def to_wire(self) -> WireResponse:
        """Return the response in the form in which it is sent. Raises `BadOutputError` if that cannot be."""
        if not isinstance(self.status, int) or not HTTPStatus.OK <= self.status <= 599:
            raise BadOutputError(f"response status {self.status!r}: use a number from 200 to 599")
        self.headers.check_sendable()
        content, media_type = self._content()
        if content and self.status in WITHOUT_BODY:
            raise BadOutputError(f"response of status {self.status} with a body: leave the body or change the status")
        headers = self.headers.pairs()
        if self.body is not None and self.status not in WITHOUT_BODY and "content-type" not in self.headers:
            headers.append(("content-type", media_type))
        return WireResponse(int(self.status), headers, content)

    def _content(self) -> tuple[bytes, str]:
        match self.body:
            case None:
                return b"", ""
            case bytes() | bytearray() | memoryview():
                return bytes(self.body), "application/octet-stream"
            case str():
                try:
                    return self.body.encode(), "text/plain; charset=utf-8"
                except UnicodeEncodeError as exc:
                    raise BadOutputError(f"response body: {exc}") from exc
        return to_json(self.body, "response body"), "application/json"

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.headers!r})"


def from_json(body: bytes, kind: Any) -> Any:  # noqa: ANN401 - of the type that is asked for
    """Return what a caller sent as a `kind`.

    Raises `BadInputError` if it is not JSON, and `msgspec.ValidationError` if it is, but does not fit.
    """
    try:
        return typed_decode.from_json(body, kind)
    except msgspec.ValidationError:
        raise
    except RecursionError as exc:
        raise BadInputError([InputProblem("it is nested too deeply", "", "body")]) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInputError([InputProblem.of(exc, "body")]) from exc


def to_json(value: object, what: str) -> bytes:
    """Return a value that the app gave as JSON. Raises `BadOutputError` for what JSON cannot hold faithfully."""
    try:
        return bytes(payload.encode(value, what=what))
    except UserError as exc:
        # To the payload it is the caller's fault; here the caller is the app, and whoever sent the request is not.
        raise BadOutputError(exc.message) from exc


def respond(value: object) -> Response:
    """Return what a handler returned as a response: None has no content, anything else is a body."""
    if isinstance(value, Response):
        return value
    return Response(HTTPStatus.NO_CONTENT) if value is None else Response(HTTPStatus.OK, value)
