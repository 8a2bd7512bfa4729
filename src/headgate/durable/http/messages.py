"""HTTP messages: the requests, responses, headers and errors of an app's handlers."""

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
# Excludes everything that could end a line or a message early. Bytes above ASCII are legal in a value.
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MESSAGE_MAX: Final = 200
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)
# Headers of message framing, which only the server sets.
_FRAMING: Final = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED})


class HttpError(Exception):
    """Raised in a handler or a middleware to respond with an error.

    The caller gets `message`, `data` (any JSON) and `code`, which defaults to one derived from the status. `headers`
    are added to the response: `{"www-authenticate": "Bearer"}`.
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
    """One problem of an input: its message, its key, and the part of the request."""

    message: str
    key: str
    source: str

    @classmethod
    def of(cls, error: Exception, source: str, key: str = "") -> InputProblem:
        """Return the problem of a decoding error; `key` is the prefix of its path."""
        message, _, where = str(error).partition(" - at `$")
        # Some messages repeat the value, which may be of any length.
        return cls(message[:_MESSAGE_MAX], (key + where.rstrip("`")).removeprefix("."), source)


class BadInputError(HttpError):
    """The input does not match the handler's annotations; `problems` lists all problems."""

    def __init__(self, problems: Sequence[InputProblem]) -> None:
        listed = "; ".join(f"{each.key or each.source}: {each.message}" for each in problems)
        super().__init__(HTTPStatus.BAD_REQUEST, f"the input is not what is expected: {listed}", code="bad_input")
        self.problems = tuple(problems)


class Headers(MutableMapping[str, str]):
    """Headers by name, case-insensitive. A repeated name reads as its values joined by commas.

    Setting a header raises `BadOutputError` for a name or value that is not valid.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._pairs: list[tuple[str, str]] = []
        for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
            self.add(name, value)

    @classmethod
    def received(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a received message, unchanged."""
        headers = cls()
        headers._pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]
        return headers

    def add(self, name: str, value: str) -> None:
        """Add a header, besides others of the same name: `set-cookie` may be repeated."""
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise BadOutputError(f"header {name!r}: a name is made of letters, digits and -")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise BadOutputError(f"header {name}: its value must be text on one line; encode anything else")
        self._pairs.append((name.lower(), value.strip(" \t")))

    def all(self, name: str) -> list[str]:
        """Return every value of a header, in order."""
        lower = name.lower()
        return [value for each, value in self._pairs if each == lower]

    def pairs(self) -> list[tuple[str, str]]:
        """Return all headers, with names in lower case, repeated ones included."""
        return list(self._pairs)

    def check_sendable(self) -> None:
        """Raise `BadOutputError` if there is a header that only the server sets."""
        framing = sorted(_FRAMING.intersection(self))
        if framing:
            raise BadOutputError(f"header {framing[0]}: the server sets it; leave it out")

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __setitem__(self, name: str, value: str) -> None:
        others = [pair for pair in self._pairs if pair[0] != str(name).lower()]
        self.add(name, value)
        self._pairs = [*others, self._pairs[-1]]

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
        # Names only: values may be credentials.
        return f"Headers({', '.join(self)})"


class Request(msgspec.Struct, kw_only=True):
    """One HTTP request. Middleware passes values on in `context`, which starts empty.

    `path` is still percent-encoded; `path_params` and `query` are decoded.
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
    def json(self) -> Any: ...  # noqa: ANN401 - any JSON

    @overload
    def json(self, as_type: type[T]) -> T: ...

    def json(self, as_type: Any = Any) -> Any:
        """Return the body as plain JSON types, or as an `as_type`. Raises `BadInputError` if it does not match."""
        try:
            return from_json(self.body, as_type)
        except msgspec.ValidationError as exc:
            raise BadInputError([InputProblem.of(exc, "body")]) from exc

    def text(self) -> str:
        """Return the body as text, in the charset of the content type, or UTF-8.

        Raises `BadInputError` if it is not in that charset, and `HttpError` 415 for an unknown charset.
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
    """A response as sent, without the headers that the server sets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Response:
    """One HTTP response. Middleware may change any part of it.

    A body of `bytes` is sent unchanged, a `str` as plain text, any other value as JSON, and None has no body; a
    `content-type` header overrides the default.
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
        """Return the response as sent. Raises `BadOutputError` if it is not valid."""
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


def from_json(body: bytes, kind: Any) -> Any:  # noqa: ANN401 - of type `kind`
    """Return a JSON body decoded as a `kind`.

    Raises `BadInputError` if it is not JSON, and `msgspec.ValidationError` if it does not match.
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
    """Return a value of the app as JSON. Raises `BadOutputError` if JSON cannot represent it faithfully."""
    try:
        return bytes(payload.encode(value, what=what))
    except UserError as exc:
        # An error of the app, not of the sender of the request.
        raise BadOutputError(exc.message) from exc


def respond(value: object) -> Response:
    """Return the result of a handler as a response: None has no content, any other value is the body."""
    if isinstance(value, Response):
        return value
    return Response(HTTPStatus.NO_CONTENT) if value is None else Response(HTTPStatus.OK, value)
