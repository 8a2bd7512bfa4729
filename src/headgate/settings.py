"""Every setting of Headgate, read once from a file, the environment and flags into one frozen object.

A later source wins: `headgate.toml`, then `HEADGATE_*` variables, then flags. A name that does not
exist is refused with the nearest one that does; a value that is not allowed is refused with its key, its
source and what is allowed. An empty variable counts as not set; `HEADGATE_TEST_*` is left to test suites.
Kubernetes gives every pod beside a Service named headgate `HEADGATE_SERVICE_HOST`, `HEADGATE_SERVICE_PORT*`,
`HEADGATE_PORT` with a URL, and `HEADGATE_PORT_*`; those are no settings and are passed over.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from headgate.errors import SettingsError

FILE_NAME: Final = "headgate.toml"
FILE_VARIABLE: Final = "HEADGATE_CONFIG"
_VARIABLE_PREFIX: Final = "HEADGATE_"
_TEST_PREFIX: Final = "HEADGATE_TEST_"
_KUBERNETES: Final = re.compile(r"HEADGATE_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\w+)=.*|HEADGATE_PORT=\w+://.*", re.S)


class Address(NamedTuple):
    """Where a listener binds. Port 0 means: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`, with an IPv6 host in brackets. Raises `ValueError` for anything else."""
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})", text)
        if match is None or int(match.group(3)) > 65535:
            raise ValueError(text)
        if match.group(1) is not None:
            ipaddress.IPv6Address(match.group(1))
        return cls(match.group(1) or match.group(2), int(match.group(3)))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Secret:
    """A text that is never shown: its `repr` and `str` hide it, `reveal` does not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def _about(text: str) -> Meta:
    return Meta(description=text)


def _redis_url(text: str) -> Secret:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError
    return Secret(text)


def _url(text: str) -> str:
    if not re.match(r"https?://[^/\s]+", text):
        raise ValueError(text)
    return text


def _folder(text: str) -> Path:
    if not text.strip():
        raise ValueError(text)
    return Path(text)


def _comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


# `allowed` says in words what a value may be; `parse` reads a text into a type that msgspec does not know;
# `unpack` reads the text of a variable into what the file would have held.
ListenAddress = Annotated[
    Address, Meta(extra={"allowed": "HOST:PORT, such as 127.0.0.1:8400 or [::1]:8400", "parse": Address.parse})
]
FolderPath = Annotated[Path, Meta(extra={"allowed": "a path, not empty", "parse": _folder})]
RedisUrl = Annotated[
    Secret | None, Meta(extra={"allowed": "a URL that starts with redis://, rediss:// or unix://", "parse": _redis_url})
]
_URL: Final = Meta(extra={"allowed": "a URL that starts with http:// or https://", "parse": _url})
HostNames = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)$")], ...],
    Meta(extra={"allowed": "a list of host names; in the environment, a,b", "unpack": _comma_separated}),
]
Names = Annotated[
    dict[str, str],
    Meta(extra={"allowed": "a table of texts; in the environment, a JSON object", "unpack": msgspec.json.decode}),
]
Switch = Annotated[bool, Meta(extra={"allowed": "true or false"})]
Namespace = Annotated[
    str, Meta(pattern=r"^[!-~]{1,100}\Z", extra={"allowed": "1 to 100 ASCII characters without spaces"})
]
Seconds = Annotated[float, Meta(ge=1, le=600, extra={"allowed": "a number from 1 to 600"})]
Threads = Annotated[int, Meta(ge=1, le=1000, extra={"allowed": "a whole number from 1 to 1,000"})]
Entries = Annotated[int, Meta(ge=0, le=10_000_000, extra={"allowed": "a whole number from 0 to 10,000,000"})]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where durable state lives."""

    backend: Annotated[Literal["sqlite", "dynamodb"], _about("What keeps the state.")] = "sqlite"
    synchronous: Annotated[
        Literal["FULL", "NORMAL"],
        _about(
            "SQLite only. FULL: what was acknowledged survives a power cut. "
            "NORMAL: it survives a crash of the process, and a power cut may take the last moments."
        ),
    ] = "FULL"
    table_prefix: Annotated[str, _about("Goes before the name of every table.")] = ""
    table_names: Annotated[Names, _about("Names single tables outright: the catalogue's name to the backend's.")] = {}
    aws_region: Annotated[str | None, _about("Region of the tables and the bucket.")] = None
    aws_endpoint_url: Annotated[str | None, _URL, _about("Endpoint to use instead of the public AWS ones.")] = None
    blob_bucket: Annotated[
        str | None, _about("S3 bucket for large payloads; without it they are files in HOME/blobs.")
    ] = None
    blob_prefix: Annotated[str, _about("Goes before the name of every object in the bucket.")] = ""
    deadline_seconds: Annotated[Seconds, _about("DynamoDB only. How long a call is retried before it fails.")] = 10.0


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be answered from memory."""

    entries_max: Annotated[Entries, _about("Items kept in the memory of the process; 0 keeps none.")] = 10_000
    redis_url: Annotated[RedisUrl, _about("Redis shared by several processes. A secret: it is never shown.")] = None
    namespace: Annotated[
        Namespace,
        _about(
            "Goes, with store.table_prefix, before every key in Redis; installations that share one need their own."
        ),
    ] = "headgate:"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lines on standard error."""

    format: Annotated[Literal["console", "json"], _about("Lines for people, or one JSON object a line.")] = "console"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("The least important lines that are written.")
    ] = "info"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Traces. Metrics are always on, at `/metrics`."""

    tracing: Annotated[Switch, _about("Whether spans are made and exported.")] = False
    otlp_endpoint: Annotated[str, _URL, _about("Collector that takes OTLP over HTTP, if tracing is on.")] = (
        "http://127.0.0.1:4318"
    )
    service_name: Annotated[str, Meta(min_length=1), _about("How this service is called in traces.")] = "headgate"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How executions are advanced and activities run."""

    threads_max: Annotated[Threads, _about("Activities, other than async ones, that run at a time.")] = 64
    lease_seconds: Annotated[
        Seconds, _about("After how long without a sign of life a worker's activities are taken over by others.")
    ] = 10.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    home: Annotated[FolderPath, _about("Folder of all state; relative to the current folder.")] = Path(".headgate")
    http: Annotated[ListenAddress, _about("Where HTTP is served; port 0: any free one.")] = Address("127.0.0.1", 8400)
    grpc: Annotated[ListenAddress, _about("Where gRPC is served; port 0: any free one.")] = Address("127.0.0.1", 8401)
    behind_proxy: Annotated[
        Switch, _about("A reverse proxy in front checks who calls, so other addresses than loopback may be used.")
    ] = False
    allowed_hosts: Annotated[HostNames, _about("Names besides loopback that requests may use, without ports.")] = ()
    drain_seconds: Annotated[Seconds, _about("How long a stopping server may take to finish its work.")] = 10.0
    store: StoreSettings = StoreSettings()
    cache: CacheSettings = CacheSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    worker: WorkerSettings = WorkerSettings()

    @classmethod
    def load(cls, environ: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Settings:
        """Return the settings that the sources add up to.

        Without `file`, the one named by HEADGATE_CONFIG is read, or `headgate.toml` in the current folder if it is
        there. `flags` maps keys to values; None means not given. Raises `SettingsError`.
        """
        given = {**_from_file(_find_file(environ, file)), **_from_environ(environ), **_from_flags(flags)}
        values = {key: _value(key, setting) for key, setting in given.items()}
        sections: dict[str, Any] = {name: kind(**_below(name, values)) for name, kind in _SECTIONS.items()}
        settings = cls(**{key: value for key, value in values.items() if "." not in key}, **sections)
        _check_together(settings)
        return msgspec.structs.replace(settings, home=_absolute(settings.home))


class Description(NamedTuple):
    """One row of the reference of settings."""

    key: str
    variable: str
    allowed: str
    default: str
    description: str


def describe() -> list[Description]:
    """Return every setting with its variable, what is allowed, its default and what it is for."""
    return [
        Description(key, _variable(key), _allowed(field.type), _shown(field), get_args(field.type)[-1].description)
        for key, field in _catalogue().items()
    ]


def is_loopback(host: str) -> bool:
    """Whether a host, by name or number and without its port, is this machine talking to itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "store": StoreSettings,
    "cache": CacheSettings,
    "log": LogSettings,
    "telemetry": TelemetrySettings,
    "worker": WorkerSettings,
}


class _Given(NamedTuple):
    value: object
    source: str
    is_text: bool


@functools.cache
def _catalogue() -> dict[str, msgspec.structs.FieldInfo]:
    top = {field.name: field for field in msgspec.structs.fields(Settings) if field.name not in _SECTIONS}
    nested = {
        f"{section}.{field.name}": field
        for section, kind in _SECTIONS.items()
        for field in msgspec.structs.fields(kind)
    }
    return top | nested


def _below(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")}


def _variable(key: str) -> str:
    return _VARIABLE_PREFIX + key.replace(".", "_").upper()


def _find_file(environ: Mapping[str, str], file: Path | None) -> Path | None:
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE])
    looked_for = Path(FILE_NAME) if file is None else file
    try:
        is_there = looked_for.is_file()
    except OSError as exc:
        raise SettingsError(
            f"settings file {looked_for}: cannot be looked for: {exc.strerror}; correct the permissions of its folder"
        ) from exc
    if file is not None and not is_there:
        raise SettingsError(f"settings file {file}: there is no such file; correct --config or {FILE_VARIABLE}")
    return looked_for if is_there else None


def _from_file(file: Path | None) -> dict[str, _Given]:
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as exc:
        raise SettingsError(f"settings file {file}: cannot be read: {exc.strerror}; correct its permissions") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"settings file {file}: not TOML: {exc}; correct that line") from exc
    found = {}
    for key, value in _flat(content):
        source = f"{file}{_line(text, key)}"
        _refuse_unknown(key, key, list(_catalogue()), source)
        found[key] = _Given(value, source, is_text=False)
    return found


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if isinstance(value, dict) and name not in _catalogue():
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _line(text: str, key: str) -> str:
    """Return ` line N` for the line that sets `key`, or nothing where it is written in some unusual way."""
    section, _, name = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([\w.\"-]+)\]", line)
        current = header.group(1) if header else current
        written = re.match(r"\s*([\w.-]+)\s*=", line)
        if (written and f"{current}.{written.group(1)}".strip(".") == key) or (header and current == key):
            return f" line {number}"
    return f" section [{section}]" if section and name else ""


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Given]:
    keys = {_variable(key): key for key in _catalogue()}
    found = {}
    for name, value in environ.items():
        ours = name.startswith(_VARIABLE_PREFIX) and not name.startswith(_TEST_PREFIX) and name != FILE_VARIABLE
        if not ours or _KUBERNETES.fullmatch(f"{name}={value}"):
            continue
        _refuse_unknown(name, name, [*keys, FILE_VARIABLE], "the environment")
        if value:
            found[keys[name]] = _Given(value, f"variable {name}", is_text=True)
    return found


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    found = {}
    for key, value in flags.items():
        flag = "--" + key.replace("_", "-")
        _refuse_unknown(key, flag, list(_catalogue()), "the command line")
        if value is not None:
            found[key] = _Given(value, f"flag {flag}", is_text=isinstance(value, str))
    return found


def _refuse_unknown(name: str, shown: str, known: list[str], source: str) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the settings are {', '.join(known)}"
    raise SettingsError(f"{shown} ({source}): there is no such setting; {hint}")


def _value(key: str, given: _Given) -> Any:  # noqa: ANN401 - the type is the field's own
    field_type = _catalogue()[key].type
    try:
        return _convert(field_type, given)
    except ValueError as exc:
        shown = "the value" if Secret in get_args(get_args(field_type)[0]) else repr(given.value)
        raise SettingsError(f"{key} ({given.source}): {shown} is not allowed; use {_allowed(field_type)}") from exc


def _convert(field_type: object, given: _Given) -> Any:  # noqa: ANN401
    """Return the value in the field's type. Raises `ValueError`, which msgspec's own error is too, if it has none."""
    value = given.value
    parse, unpack = _extra(field_type, "parse"), _extra(field_type, "unpack")
    if parse is not None:
        if not isinstance(value, str):
            raise ValueError(value)
        return parse(value)
    if given.is_text and unpack is not None:
        value = unpack(value)
    return msgspec.convert(value, field_type, strict=not given.is_text)


def _extra(field_type: object, name: str) -> Any:  # noqa: ANN401
    metas = [meta for meta in get_args(field_type)[1:] if meta.extra and name in meta.extra]
    return metas[0].extra[name] if metas else None


def _allowed(field_type: object) -> str:
    bare = get_args(field_type)[0]
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(get_args(bare))
    return str(_extra(field_type, "allowed") or "text")


def _shown(field: msgspec.structs.FieldInfo) -> str:
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return "" if field.default in (None, (), msgspec.NODEFAULT) else str(field.default)


def _absolute(home: Path) -> Path:
    try:
        return home.expanduser().absolute()
    except (RuntimeError, OSError) as exc:
        raise SettingsError(f"home = {home}: does not lead to a folder: {exc}; write it out from /") from exc


def _check_together(settings: Settings) -> None:
    """Refuse settings that are fine one by one and wrong together."""
    store = settings.store
    if (store.backend == "dynamodb" or store.blob_bucket) and not store.aws_region:
        raise SettingsError("store.aws_region: DynamoDB and S3 need a region; set it, for instance to eu-west-1")
    if store.backend == "dynamodb" and not store.blob_bucket:
        raise SettingsError(
            "store.blob_bucket: with DynamoDB, large payloads must lie where all processes find them; name an S3 bucket"
        )
    for key, address in (("http", settings.http), ("grpc", settings.grpc)):
        _check_exposure(settings, key, address)
    if settings.http.port == settings.grpc.port != 0:
        raise SettingsError(
            f"http = {settings.http}, grpc = {settings.grpc}: one port cannot serve both; choose another for one"
        )


def _check_exposure(settings: Settings, key: str, address: Address) -> None:
    if is_loopback(address.host):
        return
    if not settings.behind_proxy:
        raise SettingsError(
            f"{key} = {address}: other machines could call it without proving who they are; "
            "bind to 127.0.0.1 and let a reverse proxy on this machine check callers, or, if the proxy runs elsewhere "
            "and nothing else can reach the port, set behind_proxy"
        )
    if not settings.allowed_hosts:
        raise SettingsError(
            f"{key} = {address}: behind_proxy needs allowed_hosts, the names that requests may be addressed to"
        )
