"""REST client of a server: locates the server, sends requests and maps problem documents to errors."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from headgate.cli.session import CA_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE, Config, Home, session_of
from headgate.errors import (
    HeadgateError,
    InvalidPayloadError,
    PayloadTooLargeError,
    SettingsError,
    UserError,
)
from headgate.problem_errors import error_of

if TYPE_CHECKING:
    from msgspec import Raw

    from headgate.cli.connection import Connection, Reply

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Server. [default: HEADGATE_SERVER, or the one that serves the home]",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="File with the API key. [default: HEADGATE_API_KEY, which is the key itself]",
        show_default=False,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="CA bundle (PEM). [default: HEADGATE_CA, or the system's]",
        show_default=False,
    ),
]

ADDRESS_FILE: Final = "server.json"
# Characters of a key that an HTTP header can carry.
_KEY: Final = re.compile(r"[!-~]+")
ENTRIES_PAGE: Final = 1000
_ITEMS_PAGE: Final = 100
# Payloads up to this size are within every limit, so the modules with the limits are not imported.
_SMALL_BYTES: Final = 500_000
# A wildcard address cannot be connected to; the loopback address reaches the same server.
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class Api:
    """REST API of one server. `key` authenticates every call; `ca` verifies the server's certificate."""

    def __init__(self, url: str, *, key: str | None = None, ca: Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._ca = ca

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._url

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401 - JSON
        """Send a GET request. Query parameters that are None are left out."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        """Send a POST request. Body members that are None are left out."""
        return self.request("POST", path, body=body or {})

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        packed: bool = False,
        if_match: int | None = None,
        keeps_null: bool = False,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the decoded JSON response. Raises the `HeadgateError` of the server's problem document.

        `packed` compresses the body. `if_match` is the version that the resource must still have. Body members that
        are None are left out unless `keeps_null`.
        """
        import msgspec

        content = None if body is None else msgspec.json.encode(body if keeps_null else _without_none(body))
        headers = {"content-type": "application/json"} if content is not None else {}
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        if content is not None and packed:
            content, headers["content-encoding"] = gzip.compress(content, compresslevel=5), "gzip"
        return self._call(method, path, query or {}, content, headers)

    def send(self, method: str, path: str, text: str, media: str, *, query: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Send a text body. Raises as `request` does."""
        return self._call(method, path, query, text.encode(), {"content-type": media})

    def _call(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None, headers: Mapping[str, str]
    ) -> Any:  # noqa: ANN401 - JSON
        import msgspec

        reply = self._connection().request(method, path, query=_without_none(query), content=content, headers=headers)
        if reply.is_error:
            raise _problem(reply)
        return msgspec.json.decode(reply.content) if reply.content else None

    def entries(self, path: str, member: str, limit: int | None = None, **query: Any) -> Iterator[Any]:  # noqa: ANN401
        """Yield the entries of a list that pages by `cursor`, up to a limit. Raises as `request` does.

        `member` is the name of the list in a page. A page may be empty although more pages follow.
        """
        cursor, count = None, 0
        while limit is None or count < limit:
            size = ENTRIES_PAGE if limit is None else min(ENTRIES_PAGE, limit - count)
            page = self.get(path, **query, limit=size, cursor=cursor)
            yield from page[member]
            count += len(page[member])
            cursor = page.get("cursor")
            if cursor is None:
                return

    def listed(self, path: str, member: str, limit: int, **query: Any) -> tuple[list[Any], int | None]:  # noqa: ANN401
        """Return the first entries of a list that pages by `cursor`, and the number of all if the server knows it."""
        found: list[Any] = []
        cursor, total = None, None
        while len(found) < limit:
            page = self.get(path, **query, limit=min(ENTRIES_PAGE, limit - len(found)), cursor=cursor)
            found += page[member]
            cursor, total = page.get("cursor"), page.get("total", total)
            if cursor is None:
                break
        return found, total

    def items(self, path: str, limit: int | None, **query: Any) -> Iterator[Any]:  # noqa: ANN401
        """Yield the items of a list that pages by `page_token`, up to a limit. Raises as `request` does."""
        token, count = None, 0
        while limit is None or count < limit:
            size = _ITEMS_PAGE if limit is None else min(_ITEMS_PAGE, limit - count)
            page = self.get(path, **query, page_size=size, page_token=token)
            yield from page["items"]
            count += len(page["items"])
            token = page["next_page_token"]
            if token is None:
                return

    def content(self, path: str) -> bytes:
        """Return the raw content at a path. Raises as `request` does."""
        reply = self._connection().request("GET", path, query={})
        if reply.is_error:
            raise _problem(reply)
        return reply.content

    def follow(self, path: str, *, after: str | None = None, **query: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401
        """Yield the server-sent events of a stream until it ends: name, id and data."""
        import msgspec

        headers = {} if after is None else {"last-event-id": after}
        from headgate.cli.connection import Reply

        with self._connection().lines(path, query=_without_none(query), headers=headers) as lines:
            if isinstance(lines, Reply):
                raise _problem(lines)
            fields: dict[str, str] = {}
            for line in lines:
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                if "data" in fields:
                    yield fields.get("event", "message"), fields.get("id", ""), msgspec.json.decode(fields["data"])
                fields = {}

    def _connection(self) -> Connection:
        from headgate.cli.connection import Connection

        return Connection(self._url, key=self._key, ca=self._ca)


def api_of(
    context: typer.Context,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
) -> Api:
    """Return the API of the selected server, or of the server that serves the home."""
    session = session_of(context)
    key = _key(session.environ.get(KEY_VARIABLE) or None, api_key_file)
    bundle = ca or (Path(session.environ[CA_VARIABLE]) if session.environ.get(CA_VARIABLE) else None)
    url = server or session.environ.get(SERVER_VARIABLE)
    if not url:
        settings = session.settings(config, home=home)
        url = _served_url(settings.home) or f"http://{settings.http}"
    return Api(url, key=key, ca=bundle)


def _key(key: str | None, file: Path | None) -> str | None:
    """Return the API key. Raises `SettingsError`, without the key in its message, if it is malformed."""
    source = KEY_VARIABLE
    if file is not None:
        source = f"--api-key-file {file}"
        try:
            key = file.read_text(encoding="ascii").strip()
        except OSError as exc:
            raise SettingsError(f"{source}: cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise SettingsError(f"{source}: must contain only an API key") from exc
    if key is not None and not _KEY.fullmatch(key):
        raise SettingsError(f"{source}: not an API key; create one with 'headgate api-key issue'")
    return key


def _served_url(home: Path) -> str | None:
    """Return the address that the server of this home wrote to it."""
    import msgspec

    from headgate import typed_decode

    path = home / ADDRESS_FILE
    try:
        url: str = typed_decode.from_json(path.read_bytes(), dict[str, str])["http"]
        parts = urlsplit(url)
        host = _ANY_HOST.get(parts.hostname or "")
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, KeyError, ValueError) as exc:
        raise SettingsError(f"{path}: no valid server address; select the server with --server") from exc
    return url if host is None else f"{parts.scheme}://{host}:{parts.port}"


def at(*segments: str) -> str:
    """Return the path of these segments, with slashes in a segment escaped."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def read_json(text: str | None, what: str) -> Raw | None:
    """Return the JSON of an argument: JSON text, `@file`, or `-` for standard input. Raises `UserError`."""
    import msgspec

    if text is None:
        return None
    try:
        if text == "-":
            content = sys.stdin.buffer.read()
        else:
            content = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        msgspec.json.decode(content)
    except OSError as exc:
        raise UserError(f"{what} {text}: the file cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"{what}: not JSON ({exc}); write JSON, @file, or - for standard input") from exc
    return msgspec.Raw(content)


def read_payload(text: str | None, what: str, *, is_event: bool = False) -> Raw | None:
    """Return the JSON payload of an execution or event, as `read_json` does. Raises `PayloadTooLargeError`.

    The server checks the size as well, but its error cannot name the option.
    """
    content = read_json(text, what)
    if content is None or len(content) <= _SMALL_BYTES:
        return content
    from headgate.durable.bus.events import EVENT_BYTES_MAX
    from headgate.durable.model.payload import BYTES_MAX

    size, size_max = len(content), EVENT_BYTES_MAX if is_event else BYTES_MAX
    if size > size_max:
        raise PayloadTooLargeError(f"{what}: {size:,} bytes of JSON; at most {size_max:,}; pass a reference instead")
    return content


def read_tags(texts: list[str] | None) -> dict[str, str]:
    """Parse tags written as NAME:VALUE. Raises `UserError`."""
    tags = {}
    for text in texts or []:
        name, separator, value = text.partition(":")
        if not separator:
            raise UserError(f"--tag {text!r}: write NAME:VALUE")
        tags[name] = value
    return tags


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _problem(reply: Reply) -> HeadgateError:
    """Return the error of a response with a problem document."""
    import msgspec

    from headgate import typed_decode

    try:
        problem = typed_decode.from_json(reply.content, dict[str, Any])
        code, detail = str(problem["code"]), str(problem["detail"])
    except (msgspec.DecodeError, KeyError):
        return UserError(f"{reply.url}: unexpected response with status {reply.status}; check --server")
    return error_of(reply.status, code, detail)
