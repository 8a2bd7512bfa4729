"""The sections of the settings: what can be set, what is allowed, and what it is for."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta


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


def about(text: str) -> Meta:
    """Return what a setting is for, in one sentence."""
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
OptionalFile = Annotated[Path | None, Meta(extra={"allowed": "a path, not empty", "parse": _folder})]
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
Algorithms = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]{1,15}\Z")], ...],
    Meta(extra={"allowed": "a list of names such as RS256; in the environment, a,b", "unpack": _comma_separated}),
]
Leeway = Annotated[float, Meta(ge=0, le=300, extra={"allowed": "a number from 0 to 300"})]
Switch = Annotated[bool, Meta(extra={"allowed": "true or false"})]
Namespace = Annotated[
    str, Meta(pattern=r"^[!-~]{1,100}\Z", extra={"allowed": "1 to 100 ASCII characters without spaces"})
]
Seconds = Annotated[float, Meta(ge=1, le=600, extra={"allowed": "a number from 1 to 600"})]
Processes = Annotated[int, Meta(ge=0, le=1000, extra={"allowed": "a whole number from 0 to 1,000"})]
Threads = Annotated[int, Meta(ge=1, le=1000, extra={"allowed": "a whole number from 1 to 1,000"})]
Days = Annotated[int, Meta(ge=0, le=36_500, extra={"allowed": "a whole number from 0 to 36,500"})]
Hours = Annotated[int, Meta(ge=1, le=8_760, extra={"allowed": "a whole number from 1 to 8,760"})]
Share = Annotated[float, Meta(ge=0, le=1, extra={"allowed": "a number from 0 to 1"})]
Many = Annotated[int, Meta(ge=1, le=10**12, extra={"allowed": "a whole number of at least 1"})]
Entries = Annotated[int, Meta(ge=0, le=10_000_000, extra={"allowed": "a whole number from 0 to 10,000,000"})]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where durable state lives."""

    backend: Annotated[Literal["sqlite", "dynamodb"], about("What keeps the state.")] = "sqlite"
    synchronous: Annotated[
        Literal["FULL", "NORMAL"],
        about(
            "SQLite only. FULL: what was acknowledged survives a power cut. "
            "NORMAL: it survives a crash of the process, and a power cut may take the last moments."
        ),
    ] = "FULL"
    table_prefix: Annotated[str, about("Goes before the name of every table.")] = ""
    table_names: Annotated[Names, about("Names single tables outright: the catalogue's name to the backend's.")] = {}
    aws_region: Annotated[str | None, about("Region of the tables and the bucket.")] = None
    aws_endpoint_url: Annotated[str | None, _URL, about("Endpoint to use instead of the public AWS ones.")] = None
    blob_bucket: Annotated[
        str | None, about("S3 bucket for large payloads; without it they are files in HOME/blobs.")
    ] = None
    blob_prefix: Annotated[str, about("Goes before the name of every object in the bucket.")] = ""
    deadline_seconds: Annotated[Seconds, about("DynamoDB only. How long a call is retried before it fails.")] = 10.0


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be answered from memory."""

    entries_max: Annotated[Entries, about("Items kept in the memory of the process; 0 keeps none.")] = 10_000
    redis_url: Annotated[RedisUrl, about("Redis shared by several processes. A secret: it is never shown.")] = None
    namespace: Annotated[
        Namespace,
        about("Goes, with store.table_prefix, before every key in Redis; installations that share one need their own."),
    ] = "headgate:"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lines on standard error."""

    format: Annotated[Literal["console", "json"], about("Lines for people, or one JSON object a line.")] = "console"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], about("The least important lines that are written.")
    ] = "info"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Traces. Metrics are always on, at `/metrics`."""

    tracing: Annotated[Switch, about("Whether spans are made and exported.")] = False
    otlp_endpoint: Annotated[str, _URL, about("Collector that takes OTLP over HTTP, if tracing is on.")] = (
        "http://127.0.0.1:4318"
    )
    service_name: Annotated[str, Meta(min_length=1), about("How this service is called in traces.")] = "headgate"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How executions are advanced and activities run."""

    threads_max: Annotated[Threads, about("Activities, other than async ones, that run at a time.")] = 64
    lease_seconds: Annotated[
        Seconds, about("After how long without a sign of life a worker's activities are taken over by others.")
    ] = 10.0
    turn_seconds: Annotated[
        Seconds, about("How long workflow code may go on without waiting for anything before it is interrupted.")
    ] = 2.0


class ForwardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where events may be sent on to. Without any of it: to public addresses, over TLS."""

    private_hosts: Annotated[HostNames, about("Receivers whose addresses need not be public.")] = ()
    private_networks: Annotated[Networks, about("Where receivers may be besides public addresses.")] = ()
    plain_http: Annotated[
        Switch, about("Whether receivers without TLS are sent to: others can then read events and secret headers.")
    ] = False
    timeout_seconds: Annotated[Seconds, about("How long a receiver may take to accept an event.")] = 30.0
    headers: Annotated[
        Names,
        about("Files of secret headers, a `Name: value` a line, by the host or host:port that they are sent to."),
    ] = {}


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of executions after their retention."""

    days: Annotated[Days, about("How long an archived execution is kept, and its id taken; 0 keeps it for ever.")] = 365


class FanoutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How chunks of fan-outs are run."""

    processes: Annotated[
        Processes, about("Processes in which the server runs chunks, started when there are some; 0 runs none.")
    ] = 2
    handlers: Annotated[
        Packages, about("Packages besides those in the current folder whose functions fan-outs may name as handlers.")
    ] = ()


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where pipelines are defined, and whether they are watched."""

    folder: Annotated[
        OptionalFile, about("Folder whose YAML and JSON files define pipelines; they are read when the server starts.")
    ] = None
    watchdog: Annotated[
        Switch, about("Whether the server runs a watchdog beside itself, as soon as there is a pipeline.")
    ] = True
    state_machine_arn: Annotated[
        str | None,
        about(
            "Machine of Step Functions that runs the lifecycle, where functions on Lambda begin and watch pipelines: "
            "the server then shows them and takes orders, and begins nothing by itself."
        ),
    ] = None
    scheduler_role_arn: Annotated[
        str | None, about("Role as which a schedule of EventBridge starts an execution later; with the machine.")
    ] = None
    scheduler_group_name: Annotated[str, about("Group of schedules in which those are.")] = "default"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What both ports are encrypted with. Without it they speak plainly, on this machine or behind a proxy."""

    cert: Annotated[OptionalFile, about("Certificate in PEM, with those that vouch for it.")] = None
    key: Annotated[OptionalFile, about("Its private key in PEM, without a password.")] = None


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may call. API keys are always accepted; tokens if an issuer is named."""

    required: Annotated[
        Switch, about("Whether programs on this machine must prove who they are too; others always must.")
    ] = False
    oidc_issuer: Annotated[str | None, _URL, about("Issuer whose tokens (JWT) are accepted.")] = None
    oidc_audience: Annotated[str | None, about("Audience that tokens must be for.")] = None
    oidc_jwks_url: Annotated[
        str | None, _URL, about("Where the issuer's keys are; without it, where its own document says.")
    ] = None
    oidc_jwks_file: Annotated[OptionalFile, about("A file of the issuer's keys, instead of asking for them.")] = None
    oidc_algorithms: Annotated[Algorithms, about("Signatures of tokens that are accepted.")] = (
        "RS256",
        "PS256",
        "ES256",
        "EdDSA",
    )
    oidc_leeway_seconds: Annotated[Leeway, about("How far the clock of the issuer may be from ours.")] = 30.0
    oidc_name_claim: Annotated[str, about("Claim that names the caller.")] = "sub"
    oidc_roles_claim: Annotated[str, about("Claim that lists the caller's roles; a path such as a.b is followed.")] = (
        "roles"
    )
    oidc_scopes_claim: Annotated[
        str | None, about("Claim that lists patterns of datasets; without it every dataset is in scope.")
    ] = None
    oidc_roles: Annotated[Names, about("Names of roles that the issuer uses, and which of ours they are.")] = {}


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the health of datasets is kept."""

    opens_incidents: Annotated[Switch, about("Whether a signal that becomes CRITICAL opens an incident by itself.")] = (
        True
    )
    tier_1_needs_ticket: Annotated[Switch, about("Whether changes of TIER_1 datasets need an approval ticket.")] = False
    intake: Annotated[
        Literal["auto", "always", "never"],
        about("Whether a second process answers calls that write: once there are many, always or never."),
    ] = "auto"


class EvidenceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much evidence is kept, and for how long. The limits are of one process."""

    pass_rate: Annotated[Share, about("How much is kept of what passed; the last good of each dataset is besides.")] = (
        0.01
    )
    fail_rate: Annotated[Share, about("How much is kept of what failed.")] = 1.0
    warn_rate: Annotated[Share, about("How much is kept of what only warns.")] = 1.0
    skip_rate: Annotated[Share, about("How much is kept of what was skipped.")] = 0.01
    hot_hours: Annotated[Hours, about("How long it is in the table; after that it is in the archive alone.")] = 24
    archive_days: Annotated[Days, about("How long it is in the archive; 0 keeps it for ever.")] = 400
    per_signature_per_minute: Annotated[Many, about("At most so much a minute of one failure of one dataset.")] = 1_000
    per_dataset_per_minute: Annotated[Many, about("At most so much a minute of one dataset.")] = 30_000
    total_per_minute: Annotated[Many, about("At most so much a minute; what passed is left out first.")] = 120_000
    rows_max: Annotated[Many, about("At most so many rows in the table.")] = 200_000_000


class RegionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Two regions, of which one writes the health of datasets at a time. Without a name there is one, and no fence."""

    name: Annotated[str | None, about("The region of this process.")] = None
    home: Annotated[str | None, about("The region that writes as long as it is well.")] = None
    standby: Annotated[str | None, about("The region that takes over.")] = None
    authority_home: Annotated[
        OptionalFile, about("Folder of the store that keeps the lease of the writer, where that is on SQLite.")
    ] = None
    authority_aws_region: Annotated[
        str | None, about("Region of the table that keeps the lease of the writer: a third one, on DynamoDB.")
    ] = None
    authority_table: Annotated[str, about("Name of that table; its keys are PK and SK.")] = "headgate-control"
    urls: Annotated[Names, about("Where the server of each region is asked how it is.")] = {}
    observer: Annotated[
        str | None, about("How this process is called among those that watch the regions; without it, as its region.")
    ] = None
    move_command: Annotated[
        OptionalFile, about("Program that moves traffic. It is given the region that writes now, perhaps repeatedly.")
    ] = None
