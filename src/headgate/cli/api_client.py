"""A running server, asked over HTTP: where it is, what it answers, and its problems as errors of ours."""

from __future__ import annotations

import functools
import gzip
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from headgate.cli.session import CA_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE, Config, Home, session_of
from headgate.errors import (
    ConflictError,
    FatalError,
    HeadgateError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
    SettingsError,
    TransientError,
    UserError,
)

if TYPE_CHECKING:
    from msgspec import Raw

    from headgate.cli.connection import Connection, Reply

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="The server to ask. [default: HEADGATE_SERVER, or the one that serves the home]",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="A file with the API key to call with. [default: HEADGATE_API_KEY, which is the key itself]",
        show_default=False,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="Certificates in PEM that vouch for a server with https. [default: HEADGATE_CA, or those of this machine]",
        show_default=False,
    ),
]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="JSON, @file, or - for standard input.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME:VALUE", help="A tag; may be given repeatedly.")]

ADDRESS_FILE: Final = "server.json"
# What can stand for a key or a token in a header.
_KEY: Final = re.compile(r"[!-~]+")
_PAGE: Final = 100
# What is within every limit, so that nobody waits until the limits are loaded.
_SMALL_BYTES: Final = 500_000
_FAMILIES: Final[Mapping[int, type[HeadgateError]]] = {
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: TransientError,
    503: TransientError,
}
# An address that stands for all of a machine's is none that can be asked.
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class Api:
    """The API of one server. `key` is sent with every call, and `ca` vouches for the server."""

    def __init__(self, url: str, *, key: str | None = None, ca: Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._ca = ca

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401 - JSON
        """Return what is at a path. Arguments that are None are left out."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        """Send a body, of which members that are None are left out, and return the answer."""
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
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the answer as plain JSON values. Raises the `HeadgateError` that the server's problem stands for.

        A body that is large and repeats itself is sent `packed`, where the server takes that. With `if_match`, only
        that version of a thing is changed.
        """
        import msgspec

        content = None if body is None else msgspec.json.encode(_without_none(body))
        headers = {"content-type": "application/json"} if content is not None else {}
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        if content is not None and packed:
            content, headers["content-encoding"] = gzip.compress(content, compresslevel=5), "gzip"
        return self._asked(method, path, query or {}, content, headers)

    def send(self, method: str, path: str, text: str, media: str, *, query: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Send a text as it is, and return the answer. Raises as `request` does."""
        return self._asked(method, path, query, text.encode(), {"content-type": media})

    def _asked(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None, headers: Mapping[str, str]
    ) -> Any:  # noqa: ANN401 - JSON
        import msgspec

        reply = self._connection().ask(method, path, query=_without_none(query), content=content, headers=headers)
        if reply.is_error:
            raise _problem(reply)
        return msgspec.json.decode(reply.content) if reply.content else None

    def pages(self, path: str, limit: int | None, **query: Any) -> Iterator[Any]:  # noqa: ANN401
        """Yield what is on the pages of a list, up to a limit. Raises as `request` does."""
        token, count = None, 0
        while limit is None or count < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - count)
            page = self.get(path, **query, page_size=size, page_token=token)
            yield from page["items"]
            count += len(page["items"])
            token = page["next_page_token"]
            if token is None:
                return

    def content(self, path: str) -> bytes:
        """Return what is at a path as it is, where that is not JSON. Raises as `request` does."""
        reply = self._connection().ask("GET", path, query={})
        if reply.is_error:
            raise _problem(reply)
        return reply.content

    def follow(self, path: str, *, after: str | None = None, **query: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401
        """Yield the events of a stream until it ends: their names, ids and data."""
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
    """Return the server that was named, or else the one that serves the home."""
    session = session_of(context)
    key = _key(session.environ.get(KEY_VARIABLE) or None, api_key_file)
    vouching = ca or (Path(session.environ[CA_VARIABLE]) if session.environ.get(CA_VARIABLE) else None)
    named = server or session.environ.get(SERVER_VARIABLE)
    if not named:
        settings = session.settings(config, home=home)
        named = _served(settings.home) or f"http://{settings.http}"
    return Api(named, key=key, ca=vouching)


def _key(key: str | None, file: Path | None) -> str | None:
    """Return the key to call with. Raises `SettingsError`, which does not show it, for what cannot be one."""
    source = KEY_VARIABLE
    if file is not None:
        source = f"--api-key-file {file}"
        try:
            key = file.read_text(encoding="ascii").strip()
        except OSError as exc:
            raise SettingsError(f"{source}: it cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise SettingsError(f"{source}: it holds more than an API key; put the key alone there") from exc
    if key is not None and not _KEY.fullmatch(key):
        raise SettingsError(f"{source}: that is no API key; 'headgate api-key issue' makes one")
    return key


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options that name a server, of which it is given the API as its first argument."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    context, *named = inspect.signature(api_of, eval_str=True).parameters.values()

    @functools.wraps(command)
    def asking(**given: Any) -> None:  # noqa: ANN401 - as the command has declared them
        api = api_of(*[given.pop(each.name) for each in (context, *named)])
        command(api, **given)

    # In the order in which people read them: what the command is about, where the server is, in which form to answer.
    order = sorted([context, *own, *named], key=lambda each: each.name == "as_json")
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in order]
    asking.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return asking


def _served(home: Path) -> str | None:
    """Return the address that the server of this home has left there."""
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
        raise SettingsError(f"{path}: it does not say where the server is; name it with --server") from exc
    return url if host is None else f"{parts.scheme}://{host}:{parts.port}"


def at(*segments: str) -> str:
    """Return the path of these segments, in which a slash is part of an id."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def read_json(text: str | None, what: str) -> Raw | None:
    """Return the JSON that an argument gives: itself, `@file`, or `-` for standard input. Raises `UserError`."""
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
    """Return JSON for an execution, or an event, as `read_json` does. Raises `PayloadTooLargeError` before it is sent.

    The server refuses it all the same, but cannot name the option.
    """
    content = read_json(text, what)
    if content is None or len(content) <= _SMALL_BYTES:
        return content
    from headgate.durable.bus.events import EVENT_BYTES_MAX
    from headgate.durable.model.payload import BYTES_MAX

    size, most = len(content), EVENT_BYTES_MAX if is_event else BYTES_MAX
    if size > most:
        raise PayloadTooLargeError(f"{what}: {size:,} bytes of JSON; at most {most:,}; pass a reference instead")
    return content


def read_tags(given: list[str] | None) -> dict[str, str]:
    """Return tags that were given as NAME:VALUE. Raises `UserError`."""
    tags = {}
    for text in given or []:
        name, separator, value = text.partition(":")
        if not separator:
            raise UserError(f"--tag {text!r}: write NAME:VALUE")
        tags[name] = value
    return tags


def _without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _problem(reply: Reply) -> HeadgateError:
    """Return the error that an answer tells of."""
    import msgspec

    from headgate import typed_decode

    try:
        problem = typed_decode.from_json(reply.content, dict[str, Any])
        code, detail = str(problem["code"]), str(problem["detail"])
    except (msgspec.DecodeError, KeyError):
        return UserError(f"{reply.url}: answered {reply.status} as no server of ours does; check --server")
    return _error(reply.status, code, detail)


def _error(status: int, code: str, detail: str) -> HeadgateError:
    """Return the error that a problem stands for: its family decides the exit code, its code stays what it is."""
    known = {kind.code: kind for kind in _subclasses(HeadgateError) if "code" in vars(kind)}
    family = known.get(code) or _FAMILIES.get(status) or (FatalError if status >= 500 else UserError)
    made: type[HeadgateError] = family
    if family.code != code:
        made = type(family.__name__, (family,), {"code": code})
    return made(detail)


def _subclasses(kind: type[HeadgateError]) -> Iterator[type[HeadgateError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
