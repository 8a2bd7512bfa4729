"""Every setting of Headgate, read once from a file, the environment and flags into one frozen object.

A later source wins: `headgate.toml`, then `HEADGATE_*` variables, then flags. A name that does not
exist is refused with the nearest one that does; a value that is not allowed is refused with its key, its
source and what is allowed. An empty variable counts as not set; `HEADGATE_TEST_*` is left to test suites.
Kubernetes gives every pod beside a Service named headgate `HEADGATE_SERVICE_HOST`, `HEADGATE_SERVICE_PORT*`,
`HEADGATE_PORT` with a URL, and `HEADGATE_PORT_*`; those are no settings and are passed over.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from headgate.errors import SettingsError
from headgate.setting_sources import Given, find_file, from_environ, from_file, from_flags, variable


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
Networks = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]+/[0-9]{1,3}\Z")], ...],
    Meta(extra={"allowed": "a list of ranges such as 10.0.0.0/8; in the environment, a,b", "unpack": _comma_separated}),
]
Packages = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*\Z")], ...],
    Meta(extra={"allowed": "a list of names of packages; in the environment, a,b", "unpack": _comma_separated}),
]
Switch = Annotated[bool, Meta(extra={"allowed": "true or false"})]
Namespace = Annotated[
    str, Meta(pattern=r"^[!-~]{1,100}\Z", extra={"allowed": "1 to 100 ASCII characters without spaces"})
]
Seconds = Annotated[float, Meta(ge=1, le=600, extra={"allowed": "a number from 1 to 600"})]
Processes = Annotated[int, Meta(ge=0, le=1000, extra={"allowed": "a whole number from 0 to 1,000"})]
Threads = Annotated[int, Meta(ge=1, le=1000, extra={"allowed": "a whole number from 1 to 1,000"})]
Days = Annotated[int, Meta(ge=0, le=36_500, extra={"allowed": "a whole number from 0 to 36,500"})]
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
    turn_seconds: Annotated[
        Seconds, _about("How long workflow code may go on without waiting for anything before it is interrupted.")
    ] = 2.0


class ForwardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where events may be sent on to. Without any of it: to public addresses, over TLS."""

    private_hosts: Annotated[HostNames, _about("Receivers whose addresses need not be public.")] = ()
    private_networks: Annotated[Networks, _about("Where receivers may be besides public addresses.")] = ()
    plain_http: Annotated[
        Switch, _about("Whether receivers without TLS are sent to: others can then read events and secret headers.")
    ] = False
    timeout_seconds: Annotated[Seconds, _about("How long a receiver may take to accept an event.")] = 30.0
    headers: Annotated[
        Names,
        _about("Files of secret headers, a `Name: value` a line, by the host or host:port that they are sent to."),
    ] = {}


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of executions after their retention."""

    days: Annotated[Days, _about("How long an archived execution is kept, and its id taken; 0 keeps it for ever.")] = (
        365
    )


class FanoutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How chunks of fan-outs are run."""

    processes: Annotated[
        Processes, _about("Processes in which the server runs chunks, started when there are some; 0 runs none.")
    ] = 2
    handlers: Annotated[
        Packages, _about("Packages besides those in the current folder whose functions fan-outs may name as handlers.")
    ] = ()


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
    forward: ForwardSettings = ForwardSettings()
    archive: ArchiveSettings = ArchiveSettings()
    fanout: FanoutSettings = FanoutSettings()

    @classmethod
    def load(cls, environ: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Settings:
        """Return the settings that the sources add up to.

        Without `file`, the one named by HEADGATE_CONFIG is read, or `headgate.toml` in the current folder if it is
        there. `flags` maps keys to values; None means not given. Raises `SettingsError`.
        """
        keys = _catalogue().keys()
        given = {
            **from_file(find_file(environ, file), keys),
            **from_environ(environ, keys),
            **from_flags(flags, keys),
        }
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
        Description(key, variable(key), _allowed(field.type), _shown(field), get_args(field.type)[-1].description)
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
    "forward": ForwardSettings,
    "archive": ArchiveSettings,
    "fanout": FanoutSettings,
}


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


def _value(key: str, given: Given) -> Any:  # noqa: ANN401 - the type is the field's own
    field_type = _catalogue()[key].type
    try:
        return _convert(field_type, given)
    except ValueError as exc:
        shown = "the value" if Secret in get_args(get_args(field_type)[0]) else repr(given.value)
        raise SettingsError(f"{key} ({given.source}): {shown} is not allowed; use {_allowed(field_type)}") from exc


def _convert(field_type: object, given: Given) -> Any:  # noqa: ANN401
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
