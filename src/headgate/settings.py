"""Settings: every setting of Headgate, loaded once from a file, the environment and flags into one frozen object.

A later source wins: `headgate.toml`, then `HEADGATE_*` variables, then flags. An unknown name is refused with the
nearest known one; an invalid value is refused with its key, its source and the allowed values. An empty variable
counts as unset; `HEADGATE_TEST_*` is reserved for test suites. Kubernetes sets `HEADGATE_SERVICE_HOST`,
`HEADGATE_SERVICE_PORT*`, `HEADGATE_PORT` (a URL) and `HEADGATE_PORT_*` in every pod beside a Service named headgate;
those are ignored.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from headgate import typed_decode
from headgate.errors import SettingsError
from headgate.setting_sources import (
    RawSetting,
    SettingOrigin,
    find_file,
    from_environ,
    from_file,
    from_flags,
    variable,
)


class Address(NamedTuple):
    """The address a listener binds to. Port 0 means any free port."""

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
    """A text hidden from `repr` and `str`; `reveal` returns it."""

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


class SettingSource(NamedTuple):
    """Where a setting was set: the kind of source, and its place in words."""

    origin: SettingOrigin
    place: str


class SourcedTable(msgspec.Struct, frozen=True):
    """A table whose format another package checks, and where it was set."""

    value: dict[str, Any] = {}
    source: str = ""


def about(text: str) -> Meta:
    """Attach the one-sentence description of a setting."""
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


# `allowed` describes the allowed values; `parse` converts a text into a type that msgspec does not know;
# `unpack` converts the text of an environment variable into the value that the TOML file would hold.
OptionalAddress = Annotated[
    Address | None, Meta(extra={"allowed": "HOST:PORT, such as 127.0.0.1:9400", "parse": Address.parse})
]
ListenAddress = Annotated[
    Address, Meta(extra={"allowed": "HOST:PORT, such as 127.0.0.1:8400 or [::1]:8400", "parse": Address.parse})
]
FolderPath = Annotated[Path, Meta(extra={"allowed": "a path, not empty", "parse": _folder})]
OptionalFile = Annotated[Path | None, Meta(extra={"allowed": "a path, not empty", "parse": _folder})]
RedisUrl = Annotated[
    Secret | None, Meta(extra={"allowed": "a URL that starts with redis://, rediss:// or unix://", "parse": _redis_url})
]
_URL: Final = Meta(extra={"allowed": "a URL that starts with http:// or https://", "parse": _url})
NotifyTable = Annotated[
    SourcedTable,
    Meta(
        extra={
            "allowed": "a table as in the reference of alerts; in the environment, a JSON object",
            "unpack": msgspec.json.decode,
            "sourced": True,
        }
    ),
]
HostNames = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)$")], ...],
    Meta(extra={"allowed": "a list of host names; in the environment, a,b", "unpack": _comma_separated}),
]
Origins = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+.-]*://[^/\s?#@]+\Z")], ...],
    Meta(
        extra={"allowed": "a list such as https://console.example; in the environment, a,b", "unpack": _comma_separated}
    ),
]
HeaderName = Annotated[
    Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}\Z")] | None, Meta(extra={"allowed": "the name of an HTTP header"})
]
Names = Annotated[
    dict[str, str],
    Meta(extra={"allowed": "a table of texts; in the environment, a JSON object", "unpack": msgspec.json.decode}),
]
Pools = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")], Annotated[int, Meta(ge=1, le=1000)]],
    Meta(
        extra={
            "allowed": "a table of sizes from 1 to 1,000 by pool name; in the environment, a JSON object",
            "unpack": msgspec.json.decode,
        }
    ),
]
Networks = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]+/[0-9]{1,3}\Z")], ...],
    Meta(extra={"allowed": "a list of ranges such as 10.0.0.0/8; in the environment, a,b", "unpack": _comma_separated}),
]
Packages = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*\Z")], ...],
    Meta(extra={"allowed": "a list of package names; in the environment, a,b", "unpack": _comma_separated}),
]
TaskTables = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{3,200}(:[A-Za-z0-9_.-]{1,200}){1,2}\Z")], ...],
    Meta(
        extra={
            "allowed": "a list of name:partition_key or name:partition_key:sort_key; in the environment, a,b",
            "unpack": _comma_separated,
        }
    ),
]
TaskRules = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[a-z0-9-]{2,60}:[A-Za-z0-9*]{1,100}(:\S{1,1000})?\Z")], ...],
    Meta(
        extra={
            "allowed": "a list of service:action or service:action:resource; in the environment, a,b",
            "unpack": _comma_separated,
        }
    ),
]
OptionalPrice = Annotated[
    Annotated[float, Meta(ge=0, le=1_000_000)] | None, Meta(extra={"allowed": "a number from 0 to 1,000,000"})
]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z", extra={"allowed": "a currency code such as USD"})]
Folders = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Meta(extra={"allowed": "a list of folders; in the environment, a,b", "unpack": _comma_separated}),
]
QueuePatterns = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^https?://[!-~]{1,500}\Z")], ...],
    Meta(extra={"allowed": "a list of queue URLs, with *; in the environment, a,b", "unpack": _comma_separated}),
]
Algorithms = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]{1,15}\Z")], ...],
    Meta(extra={"allowed": "a list of names such as RS256; in the environment, a,b", "unpack": _comma_separated}),
]
Words = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[!#-\[\]-~]{1,100}\Z")], ...],
    Meta(extra={"allowed": "a list of words; in the environment, a,b", "unpack": _comma_separated}),
]
Leeway = Annotated[float, Meta(ge=0, le=300, extra={"allowed": "a number from 0 to 300"})]
Switch = Annotated[bool, Meta(extra={"allowed": "true or false"})]
Namespace = Annotated[
    str, Meta(pattern=r"^[!-~]{1,100}\Z", extra={"allowed": "1 to 100 ASCII characters without spaces"})
]
Seconds = Annotated[float, Meta(ge=1, le=600, extra={"allowed": "a number from 1 to 600"})]
SessionSeconds = Annotated[int, Meta(ge=60, le=2_592_000, extra={"allowed": "an integer from 60 to 2,592,000"})]
WatchdogSeconds = Annotated[float, Meta(ge=1, le=3600, extra={"allowed": "a number from 1 to 3,600"})]
SilentSeconds = Annotated[float, Meta(ge=4, le=86_400, extra={"allowed": "a number from 4 to 86,400"})]
Processes = Annotated[int, Meta(ge=0, le=1000, extra={"allowed": "a whole number from 0 to 1,000"})]
PROCESSES_MAX: Final = 64
ServingProcesses = Annotated[
    Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] | Literal["auto"],
    Meta(
        extra={
            "allowed": "a whole number from 1 to 64, or auto",
            "unpack": lambda text: text if text == "auto" else int(text),
        }
    ),
]
Threads = Annotated[int, Meta(ge=1, le=1000, extra={"allowed": "a whole number from 1 to 1,000"})]
Slots = Annotated[int, Meta(ge=1, le=100_000, extra={"allowed": "a whole number from 1 to 100,000"})]
CachedExecutions = Annotated[int, Meta(ge=0, le=1_000_000, extra={"allowed": "a whole number from 0 to 1,000,000"})]
PollSeconds = Annotated[float, Meta(ge=0.05, le=60, extra={"allowed": "a number from 0.05 to 60"})]
Days = Annotated[int, Meta(ge=0, le=36_500, extra={"allowed": "a whole number from 0 to 36,500"})]
RetentionDays = Annotated[int, Meta(ge=1, le=36_500, extra={"allowed": "a whole number from 1 to 36,500"})]
RetentionHours = Annotated[int, Meta(ge=1, le=8_760, extra={"allowed": "a whole number from 1 to 8,760"})]
Hours = Annotated[int, Meta(ge=1, le=8_760, extra={"allowed": "a whole number from 1 to 8,760"})]
StuckSeconds = Annotated[float, Meta(ge=60, le=2_678_400, extra={"allowed": "a number from 60 to 2,678,400"})]
PatienceSeconds = Annotated[float, Meta(ge=60, le=31_536_000, extra={"allowed": "a number from 60 to 31,536,000"})]
Minutes = Annotated[int, Meta(ge=0, le=10_080, extra={"allowed": "a whole number from 0 to 10,080"})]
Hops = Annotated[int, Meta(ge=1, le=20, extra={"allowed": "a whole number from 1 to 20"})]
Share = Annotated[float, Meta(ge=0, le=1, extra={"allowed": "a number from 0 to 1"})]
Many = Annotated[int, Meta(ge=1, le=10**12, extra={"allowed": "a whole number of at least 1"})]
Kilobytes = Annotated[int, Meta(ge=1024, le=1_048_576, extra={"allowed": "a whole number from 1,024 to 1,048,576"})]
HeaderCount = Annotated[int, Meta(ge=10, le=10_000, extra={"allowed": "a whole number from 10 to 10,000"})]
Rate = Annotated[int, Meta(ge=0, le=10**9, extra={"allowed": "a whole number; 0 is unlimited"})]
OptionalRate = Annotated[
    Annotated[int, Meta(ge=0, le=10**9)] | None, Meta(extra={"allowed": "a whole number; 0 is unlimited"})
]
Entries = Annotated[int, Meta(ge=0, le=10_000_000, extra={"allowed": "a whole number from 0 to 10,000,000"})]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store: backend, tables and blobs."""

    backend: Annotated[Literal["sqlite", "dynamodb"], about("Database that holds all state.")] = "sqlite"
    synchronous: Annotated[
        Literal["FULL", "NORMAL"],
        about(
            "SQLite only. FULL: acknowledged writes survive a power cut. "
            "NORMAL: they survive a crash of the process, but a power cut may lose the latest ones."
        ),
    ] = "FULL"
    table_prefix: Annotated[str, about("Prefix of every table name.")] = ""
    table_names: Annotated[
        Names, about("Names of single tables: catalogue name to backend name, used without prefix.")
    ] = {}
    aws_region: Annotated[str | None, about("AWS region of the tables and the bucket.")] = None
    aws_endpoint_url: Annotated[str | None, _URL, about("Endpoint to use instead of AWS's public ones.")] = None
    blob_bucket: Annotated[str | None, about("S3 bucket for large payloads; without it, files in HOME/blobs.")] = None
    blob_prefix: Annotated[str, about("Key prefix of every object in the bucket.")] = ""
    deadline_seconds: Annotated[Seconds, about("DynamoDB only. Deadline of a call including its retries.")] = 10.0


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The read-through cache."""

    entries_max: Annotated[Entries, about("Maximum entries in the process's memory; 0 disables it.")] = 10_000
    redis_url: Annotated[RedisUrl, about("Redis that several processes share. Treated as a secret.")] = None
    namespace: Annotated[
        Namespace,
        about(
            "Prefix of every Redis key, with store.table_prefix. Installations that share a Redis need different ones."
        ),
    ] = "headgate:"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The log on standard error."""

    format: Annotated[Literal["console", "json"], about("Text for a terminal, or one JSON object per line.")] = (
        "console"
    )
    level: Annotated[Literal["debug", "info", "warning", "error"], about("Lowest level that is logged.")] = "info"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Tracing. Metrics are always on, at `/metrics`."""

    tracing: Annotated[Switch, about("Export OpenTelemetry spans.")] = False
    otlp_endpoint: Annotated[str, _URL, about("OTLP/HTTP collector for the spans.")] = "http://127.0.0.1:4318"
    service_name: Annotated[str, Meta(min_length=1), about("Service name in traces.")] = "headgate"
    sample_ratio: Annotated[
        Share, about("Share of the traces that begin here which is recorded; other traces follow their caller.")
    ] = 1.0


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that runs workflows and activities."""

    threads_max: Annotated[
        Threads, about("Maximum concurrent activities in threads; async activities do not count.")
    ] = 64
    async_max: Annotated[Slots, about("Maximum concurrent async activities; further ones stay in their queue.")] = 200
    isolated_max: Annotated[
        Threads, about("Maximum concurrent isolated activities, each a process; each also occupies a thread.")
    ] = 64
    cached_max: Annotated[
        CachedExecutions, about("Executions kept in memory; others are replayed when they have an event.")
    ] = 2_000
    prefetch_max: Annotated[Threads, about("Activities claimed ahead that wait for a thread.")] = 256
    poll_seconds: Annotated[
        PollSeconds, about("Longest time between two polls of the store; notifications make most of them earlier.")
    ] = 1.0
    lease_seconds: Annotated[Seconds, about("Worker lease; on expiry its activities are reclaimed.")] = 10.0
    turn_seconds: Annotated[
        Seconds, about("Maximum time workflow code may run without awaiting; then the turn is interrupted.")
    ] = 2.0
    metrics: Annotated[
        OptionalAddress,
        about("Address where `headgate worker` serves its metrics. The server has its own at /metrics."),
    ] = None
    metrics_token_file: Annotated[
        OptionalFile, about("File with the bearer token of the scraper; required where metrics are not on loopback.")
    ] = None


class ForwardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Outbound HTTP: event forwarding, webhooks and probes. The default allows public addresses over TLS only."""

    private_hosts: Annotated[HostNames, about("Receivers that may have private addresses.")] = ()
    private_networks: Annotated[Networks, about("Private networks that receivers may be in.")] = ()
    plain_http: Annotated[
        Switch, about("Allow receivers without TLS; events and secret headers then travel unencrypted.")
    ] = False
    timeout_seconds: Annotated[Seconds, about("Timeout of one delivery.")] = 30.0
    headers: Annotated[
        Names, about("Files of secret request headers (`Name: value` per line), by receiver host or host:port.")
    ] = {}


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of closed executions after their retention."""

    days: Annotated[
        Days, about("Days an archived execution is kept, during which its id stays reserved; 0 keeps it forever.")
    ] = 365


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished records are kept. What something open still needs is kept longer."""

    runs_days: Annotated[
        RetentionDays, about("Days after their end for runs, reruns and backfills; the last run of a schedule stays.")
    ] = 90
    run_logs_days: Annotated[
        RetentionDays, about("Days for the log of a period, which keeps a finished period from starting again.")
    ] = 400
    evaluations_days: Annotated[RetentionDays, about("Days for readiness evaluations.")] = 90
    job_logs_days: Annotated[RetentionDays, about("Days for the job log.")] = 90
    markers_days: Annotated[RetentionDays, about("Days for markers.")] = 30
    sensors_days: Annotated[RetentionDays, about("Days for sensor values of one period.")] = 90
    pipeline_events_days: Annotated[RetentionDays, about("Days for pipeline events.")] = 90
    expectations_days: Annotated[RetentionDays, about("Days for verdicts on expectations.")] = 400
    events_days: Annotated[
        RetentionDays, about("Days for events on the bus, and how far back they can be replayed.")
    ] = 30
    dead_letters_days: Annotated[RetentionDays, about("Days for dead letters of the bus.")] = 90
    alerts_days: Annotated[RetentionDays, about("Days for alerts and the message threads about them.")] = 90
    late_data_days: Annotated[RetentionDays, about("Days for records of data that arrived late.")] = 30
    quarantine_days: Annotated[
        RetentionDays, about("Days for quarantine records; one that a job wrote with an expiry of its own keeps that.")
    ] = 30
    trait_results_days: Annotated[
        RetentionDays, about("Days for trait results after their period or their own expiry.")
    ] = 30
    run_baselines_days: Annotated[
        RetentionDays,
        about("Days for the sensor values at the last success of a period, which drift is measured from."),
    ] = 30
    fanouts_days: Annotated[
        RetentionDays, about("Days after its end for a fan-out that names no `retention_days` of its own.")
    ] = 90
    idempotency_hours: Annotated[
        RetentionHours, about("Hours for which a repeated Idempotency-Key gets the stored response.")
    ] = 24
    signals_days: Annotated[
        RetentionDays, about("Days for a health signal that is OK and gets no update; others stay.")
    ] = 30
    signal_history_days: Annotated[RetentionDays, about("Days for transitions of health signals.")] = 90
    incidents_days: Annotated[RetentionDays, about("Days for incidents after they are resolved.")] = 365
    audit_days: Annotated[
        RetentionDays, about("Days for audit entries; pruning leaves a signed anchor for the rest of the chain.")
    ] = 365


class FanoutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The local chunk workers of fan-outs."""

    processes: Annotated[
        Processes, about("Chunk worker processes of the server, started when chunks are queued; 0 runs none.")
    ] = 2
    handlers: Annotated[
        Packages,
        about("Installed packages whose functions may be chunk handlers, besides those of the project folder."),
    ] = ()
    folders: Annotated[
        Folders,
        about("Folders besides the project folder whose modules may be chunk handlers; --app adds that of the app."),
    ] = ()
    manifests: Annotated[
        OptionalFile,
        about(
            "Folder in which the server finds manifests of fan-outs, below the project folder: a file that ends with "
            ".json is split, and moves to accepted or refused."
        ),
    ] = None
    queue_url: Annotated[
        str | None,
        _URL,
        about("SQS queue for the chunks of fan-outs that name none; without it, workers of this store run them."),
    ] = None
    queues: Annotated[
        QueuePatterns,
        about(
            "URLs of the SQS queues, beside fanout.queue_url, that fan-outs may name for their chunks, with * for any "
            "characters; without it they may name no other."
        ),
    ] = ()
    price_per_gb_second: Annotated[
        OptionalPrice,
        about(
            "Price of a gigabyte-second of a worker, for the cost of fan-outs whose policy has none. Without it only "
            "fan-outs with a queue have a cost, at the list price of AWS Lambda."
        ),
    ] = None
    price_per_request: Annotated[OptionalPrice, about("Price of an attempt; by default 0, or that of AWS Lambda.")] = (
        None
    )
    currency: Annotated[Currency, about("Currency of these prices and of the prices in policies.")] = "USD"


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The files that fan-outs and probes may read on this machine."""

    roots: Annotated[
        Folders,
        about(
            "Folders below which fan-outs and probes may read files, without hidden files; by default the project "
            "folder. The home folder is never read."
        ),
    ] = ()


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the Tasks of state machines may use."""

    tables: Annotated[
        TaskTables,
        about(
            "Tables of DynamoDB Tasks, each as name:partition_key or name:partition_key:sort_key. Their items are "
            "stored by Headgate under the name of the table; no Task reaches a table of Headgate itself."
        ),
    ] = ()
    resources: Annotated[
        OptionalFile,
        about(
            "Resource map in the project folder: what runs in the place of the resources that Tasks name. Read when "
            "the process starts."
        ),
    ] = None
    aws: Annotated[
        TaskRules,
        about(
            "AWS calls that Tasks may make, each as service:action or service:action:resource, with * in action and "
            "resource. By default none; tables, buckets and queues of Headgate itself are never reached."
        ),
    ] = ()
    aws_role: Annotated[str | None, about("Role that is assumed for these calls.")] = None
    aws_region: Annotated[str | None, about("AWS region of these calls; by default store.aws_region.")] = None
    aws_endpoint_url: Annotated[
        str | None, _URL, about("Endpoint of these calls instead of AWS's own; by default store.aws_endpoint_url.")
    ] = None


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Pipeline definitions, the watchdog, and the lifecycle on Step Functions."""

    folder: Annotated[
        OptionalFile,
        about(
            "Folder with the YAML and JSON files that define pipelines, read when the server starts, on "
            "'headgate reload' and on SIGHUP."
        ),
    ] = None
    watch: Annotated[Switch, about("Reload the folder when one of its files changes, for development.")] = False
    pools: Annotated[
        Pools,
        about("Named concurrency limits: how many slots runs of all pipelines that name the pool share."),
    ] = {}
    watchdog: Annotated[Switch, about("Run a watchdog process beside the server once a pipeline is defined.")] = True
    watchdog_tick_seconds: Annotated[
        WatchdogSeconds,
        about("Longest time between two checks of the watchdog; something that is due is checked then."),
    ] = 60.0
    watchdog_silent_seconds: Annotated[
        SilentSeconds,
        about(
            "Time without a heartbeat after which the watchdog alerts that the server is silent, and the server that "
            "the watchdog is."
        ),
    ] = 120.0
    watchdog_stuck_seconds: Annotated[
        StuckSeconds,
        about(
            "Time without activity after which a run is stuck (RUN_STUCK), beyond what its job's time-out and its "
            "readiness interval allow. A pipeline replaces it with watchdog.stuck."
        ),
    ] = 1_800.0
    watchdog_schedule_grace_seconds: Annotated[
        SilentSeconds,
        about(
            "Time after its slot by which a period must have started (SCHEDULE_MISSED), if the schedule has no "
            "deadline. A pipeline replaces it with watchdog.schedule_grace."
        ),
    ] = 300.0
    watchdog_recovery_grace_seconds: Annotated[
        SilentSeconds,
        about(
            "Time after a failure or the arrival of a sensor, after which the watchdog starts what was not started. "
            "A pipeline replaces it with watchdog.recovery_grace."
        ),
    ] = 300.0
    watchdog_lost_seconds: Annotated[
        SilentSeconds,
        about(
            "Time after its last change, after which a run or lock without an execution is lost and ended. A pipeline "
            "replaces it with watchdog.lost."
        ),
    ] = 300.0
    watchdog_patience_seconds: Annotated[
        PatienceSeconds,
        about(
            "Time for which a failure or an arrival is retried while its pipeline is paused, stopped, held or locked. "
            "A pipeline replaces it with watchdog.patience."
        ),
    ] = 604_800.0
    watchdog_check_seconds: Annotated[
        Seconds, about("Time limit of one check of the watchdog; one that takes longer is abandoned and reported.")
    ] = 60.0
    state_machine_arn: Annotated[
        str | None,
        about(
            "Step Functions state machine that runs the pipeline lifecycle. Lambda functions then start and watch "
            "pipelines; the server shows them and accepts commands, but schedules nothing itself."
        ),
    ] = None
    scheduler_role_arn: Annotated[
        str | None,
        about("Role that EventBridge Scheduler assumes for delayed starts; required with the state machine."),
    ] = None
    scheduler_group_name: Annotated[str, about("EventBridge schedule group of the delayed starts.")] = "default"
    hand_over_events: Annotated[
        Annotated[int, Meta(ge=100, le=12_000)],
        about(
            "History events after which an execution on Step Functions, which ends at 25,000, hands the lifecycle over "
            "to a new one."
        ),
    ] = 10_000
    deliver_alerts: Annotated[
        Literal["auto", "always", "never"],
        about(
            "Whether this deployment routes and delivers alerts by its `[notify]`: `auto` is yes, except for a server "
            "beside a state machine, whose functions do. On DynamoDB, deployments with other settings hold back while "
            "one delivers."
        ),
    ] = "auto"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS for both ports. Without it they are plain text, for loopback or behind a proxy."""

    cert: Annotated[OptionalFile, about("Certificate chain (PEM).")] = None
    key: Annotated[OptionalFile, about("Private key (PEM) without a password.")] = None


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication. API keys are always accepted, tokens if an issuer is set."""

    required: Annotated[Switch, about("Require authentication on loopback too; other addresses always do.")] = False
    oidc_issuer: Annotated[str | None, _URL, about("OIDC issuer whose tokens (JWT) are accepted.")] = None
    oidc_audience: Annotated[str | None, about("Required audience of the tokens.")] = None
    oidc_jwks_url: Annotated[
        str | None, _URL, about("URL of the issuer's key set; the default comes from its discovery document.")
    ] = None
    oidc_jwks_file: Annotated[OptionalFile, about("File with the issuer's key set, instead of fetching it.")] = None
    oidc_algorithms: Annotated[Algorithms, about("Accepted signature algorithms.")] = (
        "RS256",
        "PS256",
        "ES256",
        "EdDSA",
    )
    oidc_leeway_seconds: Annotated[Leeway, about("Allowed clock skew between the issuer and this server.")] = 30.0
    oidc_name_claim: Annotated[str, about("Claim with the caller's name.")] = "sub"
    oidc_roles_claim: Annotated[str, about("Claim with the caller's roles; may be a path such as a.b.")] = "roles"
    oidc_scopes_claim: Annotated[
        str | None, about("Claim with dataset patterns; without it every dataset is in scope.")
    ] = None
    oidc_roles: Annotated[Names, about("Mapping from the issuer's role names to Headgate's.")] = {}
    oidc_client_id: Annotated[
        str | None, about("Client by which people sign in to the pages at the issuer; without it they need an API key.")
    ] = None
    oidc_client_secret_file: Annotated[
        OptionalFile, about("File with the secret of the client; a public client has none.")
    ] = None
    oidc_client_scopes: Annotated[Words, about("Scopes that are requested when a person signs in, besides openid.")] = (
        "profile",
    )
    session_idle_seconds: Annotated[
        SessionSeconds, about("Time without a request after which a person is signed out of the pages.")
    ] = 7_200
    session_seconds: Annotated[
        SessionSeconds, about("Time after signing in, after which a person is signed out in any case.")
    ] = 43_200
    session_rotate_seconds: Annotated[
        SessionSeconds, about("Age at which the id of a session is replaced on the next page.")
    ] = 900


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on clients. Those on requests and connections apply before authentication."""

    request_line_bytes: Annotated[Kilobytes, about("Maximum length of a request line; longer ones get 414.")] = 8_192
    header_bytes: Annotated[
        Kilobytes, about("Maximum size of a request's headers, and of gRPC metadata; larger ones get 431.")
    ] = 32_768
    headers: Annotated[HeaderCount, about("Maximum number of headers of a request; more get 431.")] = 100
    header_seconds: Annotated[
        Seconds, about("Time limit for the headers of a request, for its first byte too, and for a TLS handshake.")
    ] = 10.0
    body_seconds: Annotated[Seconds, about("Time after which a body that makes no progress is given up with 408.")] = (
        30.0
    )
    idle_seconds: Annotated[Seconds, about("Time after which a connection without a request is closed.")] = 75.0
    connections: Annotated[
        Many, about("Maximum HTTP connections; further ones get 503. File descriptors may limit them further.")
    ] = 10_000
    connections_per_address: Annotated[
        Many, about("Maximum HTTP connections of one client address; not applied behind a proxy.")
    ] = 4_096
    in_flight: Annotated[
        Many,
        about(
            "Maximum HTTP requests that wait for their response to begin, in each serving process; further ones get "
            "503, pages at half of it."
        ),
    ] = 128
    failed_logins_per_minute: Annotated[
        Rate, about("Failed logins of a client address in a minute that get 401; further ones get 429.")
    ] = 20
    writes_per_second_per_caller: Annotated[
        OptionalRate,
        about(
            "Maximum writes a second of one caller; by default 2,000, and unlimited for local programs without a key."
        ),
    ] = None
    writes_per_second_per_address: Annotated[
        OptionalRate,
        about("Maximum writes a second of one client address, with the same defaults."),
    ] = None
    grpc_streams: Annotated[
        Many,
        about("Maximum concurrent calls of one gRPC connection, watches included; further ones wait in the client."),
    ] = 100
    grpc_idle_seconds: Annotated[Seconds, about("Time after which a gRPC connection without a call is closed.")] = 300.0


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the server serves its ports."""

    processes: Annotated[
        ServingProcesses,
        about(
            "Processes that serve the HTTP and gRPC ports; auto is one for each core. The first one also runs all "
            "background work; further ones answer requests about the health of datasets and forward all others."
        ),
    ] = 1


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The health of datasets."""

    opens_incidents: Annotated[Switch, about("Open an incident when a signal becomes CRITICAL.")] = True
    tier_1_needs_ticket: Annotated[Switch, about("Require an approval ticket for changes of TIER_1 datasets.")] = False
    on_silence: Annotated[
        Literal["ignore", "warn", "critical"],
        about(
            "What it means that no report on a freshness SLO came in time: ignore it, FRESHNESS becomes WARNING, or "
            "WARNING and then CRITICAL. A dataset's own slos.freshness.on_silence wins."
        ),
    ] = "critical"
    upstream: Annotated[
        Literal["ignore", "warn", "hold"],
        about(
            "What the gate does about a dataset that an unhealthy one feeds: ignore it, warn, or hold its readers. A "
            "dataset's own gate.upstream wins."
        ),
    ] = "warn"
    resolved_silence_minutes: Annotated[
        Minutes,
        about(
            "Minutes in which a breach that a person resolved while its signal was CRITICAL opens no incident; 0 for "
            "none."
        ),
    ] = 60
    upstream_hops: Annotated[
        Hops, about("How many producers upstream the gate looks; a dataset's own gate.upstream_hops wins.")
    ] = 3
    intake: Annotated[
        Literal["auto", "always", "never"],
        about("Serve write calls from a second process: auto starts it under load, with one serving process."),
    ] = "auto"


class EvidenceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and retention of evidence. The limits apply to each process."""

    pass_rate: Annotated[
        Share, about("Share of passed checks that is kept; the last good one of each dataset always is.")
    ] = 0.01
    fail_rate: Annotated[Share, about("Share of failed checks that is kept.")] = 1.0
    warn_rate: Annotated[Share, about("Share of warnings that is kept.")] = 1.0
    skip_rate: Annotated[Share, about("Share of skipped checks that is kept.")] = 0.01
    hot_hours: Annotated[Hours, about("Hours in the table; older evidence is in the archive only.")] = 24
    archive_days: Annotated[Days, about("Days in the archive; 0 keeps it forever.")] = 400
    per_signature_per_minute: Annotated[Many, about("Rate limit per failure signature of a dataset.")] = 1_000
    per_dataset_per_minute: Annotated[Many, about("Rate limit per dataset.")] = 30_000
    total_per_minute: Annotated[Many, about("Total rate limit; passed checks are dropped first.")] = 120_000
    rows_max: Annotated[Many, about("Maximum rows in the table.")] = 200_000_000


class RegionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Active/standby regions: one region at a time writes dataset health. Without a name there is no fencing."""

    name: Annotated[str | None, about("The region of this process.")] = None
    home: Annotated[str | None, about("The region that is the writer while it is healthy.")] = None
    standby: Annotated[str | None, about("The region that becomes the writer on failover.")] = None
    authority_home: Annotated[
        OptionalFile, about("Home folder of the store that holds the writer lease, on SQLite.")
    ] = None
    authority_aws_region: Annotated[
        str | None, about("AWS region of the table that holds the writer lease, on DynamoDB; use a third region.")
    ] = None
    authority_table: Annotated[str, about("Name of that table; its keys are PK and SK.")] = "headgate-control"
    urls: Annotated[Names, about("Base URL of each region's server, whose /health is probed.")] = {}
    observer: Annotated[
        str | None, about("Name of this process among the observers of the regions; by default its region.")
    ] = None
    move_command: Annotated[
        OptionalFile, about("Command that moves traffic to the region given as argument; must be idempotent.")
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    home: Annotated[FolderPath, about("Home folder with all state; relative to the current folder.")] = Path(
        ".headgate"
    )
    project: Annotated[
        OptionalFile,
        about(
            "Project folder: its modules may be chunk handlers, and its files may be read by fan-outs and probes. By "
            "default the folder of headgate.toml, or the current folder unless that is the root or a home folder."
        ),
    ] = None
    http: Annotated[ListenAddress, about("Listen address of HTTP; port 0 is any free port.")] = Address(
        "127.0.0.1", 8400
    )
    grpc: Annotated[ListenAddress, about("Listen address of gRPC; port 0 is any free port.")] = Address(
        "127.0.0.1", 8401
    )
    behind_proxy: Annotated[
        Switch, about("A reverse proxy authenticates callers, so non-loopback addresses are allowed without TLS.")
    ] = False
    allowed_hosts: Annotated[
        HostNames, about("Host names, without ports, that requests may use besides loopback.")
    ] = ()
    allowed_origins: Annotated[
        Origins, about("Origins of web pages that may call this server, besides its own pages.")
    ] = ()
    client_address_header: Annotated[
        HeaderName,
        about("Header whose last entry is the client address, such as X-Forwarded-For; only with behind_proxy."),
    ] = None
    public_url: Annotated[
        str | None,
        _URL,
        about(
            "URL by which jobs and people reach this server, for callbacks and links in alerts; its host is allowed "
            "as by allowed_hosts. By default that of the listen address."
        ),
    ] = None
    build: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")] | None,
        Meta(extra={"allowed": "up to 64 letters, digits and . _ + -, beginning with a letter or digit"}),
        about("Build id of the app's code, such as a release or commit. By default the digest of its source files."),
    ] = None
    drain_seconds: Annotated[Seconds, about("Time limit for draining on shutdown.")] = 10.0
    notify: Annotated[
        NotifyTable, about("Alert channels and routes, unless HOME/notify.toml has them; see the reference of alerts.")
    ] = SourcedTable()
    store: StoreSettings = StoreSettings()
    cache: CacheSettings = CacheSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    worker: WorkerSettings = WorkerSettings()
    forward: ForwardSettings = ForwardSettings()
    archive: ArchiveSettings = ArchiveSettings()
    retention: RetentionSettings = RetentionSettings()
    fanout: FanoutSettings = FanoutSettings()
    tasks: TaskSettings = TaskSettings()
    files: FileSettings = FileSettings()
    pipelines: PipelineSettings = PipelineSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()
    serve: ServeSettings = ServeSettings()
    health: HealthSettings = HealthSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    region: RegionSettings = RegionSettings()
    # Of each setting that is not a default.
    sources: dict[str, SettingSource] = {}

    @classmethod
    def load(cls, environ: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Settings:
        """Merge all sources into one object.

        Without `file`, reads the file named by HEADGATE_CONFIG, or `headgate.toml` in the current folder if it
        exists. `flags` maps keys to values; None means unset. Raises `SettingsError`.
        """
        keys = _catalogue().keys()
        found = find_file(environ, file)
        raw = {
            **from_file(found, keys),
            **from_environ(environ, keys),
            **from_flags(flags, keys),
        }
        values = {key: _value(key, setting) for key, setting in raw.items()}
        sections: dict[str, Any] = {name: kind(**_below(name, values)) for name, kind in _SECTIONS.items()}
        settings = cls(**{key: value for key, value in values.items() if "." not in key}, **sections)
        sources = {key: SettingSource(setting.origin, setting.source) for key, setting in raw.items()}
        _check_together(settings)
        project = settings.project if settings.project is not None or found is None else found.parent
        return msgspec.structs.replace(
            settings,
            home=_absolute(settings.home),
            project=None if project is None else _absolute(project, "project"),
            sources=sources,
        )

    def value_of(self, key: str) -> object:
        """Return the value of a setting by its key, such as `store.backend`."""
        section, _, name = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, name)


class Description(NamedTuple):
    """One row of the settings reference."""

    key: str
    variable: str
    allowed: str
    default: str
    description: str


def describe() -> list[Description]:
    """Return every setting with its variable, allowed values, default and description."""
    return [
        Description(key, variable(key), _allowed(field.type), _shown(field), get_args(field.type)[-1].description)
        for key, field in _catalogue().items()
    ]


@functools.lru_cache(maxsize=4096)
def is_loopback(host: str) -> bool:
    """Whether a host name or IP address, without port, is loopback."""
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
    "retention": RetentionSettings,
    "fanout": FanoutSettings,
    "tasks": TaskSettings,
    "files": FileSettings,
    "pipelines": PipelineSettings,
    "tls": TlsSettings,
    "auth": AuthSettings,
    "limits": LimitSettings,
    "serve": ServeSettings,
    "health": HealthSettings,
    "evidence": EvidenceSettings,
    "region": RegionSettings,
}


@functools.cache
def _catalogue() -> dict[str, msgspec.structs.FieldInfo]:
    not_settings = (*_SECTIONS, "sources")
    top = {field.name: field for field in msgspec.structs.fields(Settings) if field.name not in not_settings}
    nested = {
        f"{section}.{field.name}": field
        for section, kind in _SECTIONS.items()
        for field in msgspec.structs.fields(kind)
    }
    return top | nested


def _below(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")}


def _value(key: str, raw: RawSetting) -> Any:  # noqa: ANN401 - the type is the field's own
    field_type = _catalogue()[key].type
    try:
        return _convert(field_type, raw)
    except ValueError as exc:
        shown = "the value" if Secret in get_args(get_args(field_type)[0]) else repr(raw.value)
        raise SettingsError(f"{key} ({raw.source}): {shown} is not allowed; use {_allowed(field_type)}") from exc


def _convert(field_type: object, raw: RawSetting) -> Any:  # noqa: ANN401
    """Convert a raw value to the field's type. Raises `ValueError`, of which msgspec's error is a subclass."""
    value = raw.value
    parse, unpack = _extra(field_type, "parse"), _extra(field_type, "unpack")
    if parse is not None:
        if not isinstance(value, str):
            raise ValueError(value)
        return parse(value)
    if raw.is_text and unpack is not None:
        value = unpack(value)
    if _extra(field_type, "sourced"):
        if not isinstance(value, dict):
            raise ValueError(value)
        return SourcedTable(value, raw.source)
    return typed_decode.convert(value, field_type, strict=not raw.is_text)


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
    if isinstance(field.default, tuple) and not isinstance(field.default, Address):
        return ",".join(field.default)
    is_empty = field.default in (None, msgspec.NODEFAULT) or isinstance(field.default, SourcedTable)
    return "" if is_empty else str(field.default)


def _absolute(folder: Path, key: str = "home") -> Path:
    try:
        return folder.expanduser().absolute()
    except (RuntimeError, OSError) as exc:
        raise SettingsError(f"{key} = {folder}: not a usable path: {exc}; use an absolute path") from exc


def _check_together(settings: Settings) -> None:
    """Refuse combinations of settings that contradict each other."""
    store = settings.store
    if (store.backend == "dynamodb" or store.blob_bucket) and not store.aws_region:
        raise SettingsError(
            "store.aws_region: DynamoDB and S3 need a region; set it, for instance HEADGATE_STORE_AWS_REGION=eu-west-1"
        )
    if store.backend == "dynamodb" and not store.blob_bucket:
        raise SettingsError(
            "store.blob_bucket: with DynamoDB, large payloads need storage that all processes share; set an S3 bucket, "
            "for instance HEADGATE_STORE_BLOB_BUCKET=acme-headgate-blobs"
        )
    for key, address in (("http", settings.http), ("grpc", settings.grpc)):
        _check_exposure(settings, key, address)
    if settings.worker.metrics is not None:
        _check_metrics(settings, settings.worker.metrics)
    if settings.client_address_header is not None and not settings.behind_proxy:
        raise SettingsError("client_address_header: any client could set the header; it needs behind_proxy")
    if (settings.pipelines.state_machine_arn is None) != (settings.pipelines.scheduler_role_arn is None):
        raise SettingsError("pipelines.state_machine_arn, pipelines.scheduler_role_arn: set both or neither")
    if (settings.tls.cert is None) != (settings.tls.key is None):
        raise SettingsError("tls.cert, tls.key: set both or neither")
    if settings.auth.oidc_client_id is not None and settings.auth.oidc_issuer is None:
        raise SettingsError("auth.oidc_client_id: people sign in at the issuer; set auth.oidc_issuer as well")
    _check_region(settings.region)
    _check_processes(settings)
    if settings.http.port == settings.grpc.port != 0:
        raise SettingsError(
            f"http = {settings.http}, grpc = {settings.grpc}: one port cannot serve both; choose another for one"
        )


def _check_region(region: RegionSettings) -> None:
    if not (region.name or region.home or region.standby):
        return
    if not (region.home and region.standby) or region.home == region.standby:
        raise SettingsError("region.home, region.standby: set both, to two different regions")
    if region.name not in (None, region.home, region.standby):
        raise SettingsError(f"region.name {region.name}: must be {region.home} or {region.standby}")
    if (region.authority_home is None) == (region.authority_aws_region is None):
        raise SettingsError(
            "region.authority_home, region.authority_aws_region: set exactly one, the store of the writer lease"
        )


def _check_metrics(settings: Settings, address: Address) -> None:
    _check_exposure(settings, "worker.metrics", address)
    if not is_loopback(address.host) and settings.worker.metrics_token_file is None:
        raise SettingsError(
            f"worker.metrics = {address}: other machines could read it; set worker.metrics_token_file, and give the "
            "token to the scraper"
        )


def _check_processes(settings: Settings) -> None:
    if settings.serve.processes == 1:
        return
    if settings.region.name is not None and settings.serve.processes != "auto":
        raise SettingsError(
            f"serve.processes = {settings.serve.processes}: the lease of a region's writer belongs to one process; "
            "use 1 or auto with region.name"
        )
    if settings.health.intake == "always":
        raise SettingsError(
            f"serve.processes = {settings.serve.processes}: several serving processes handle writes themselves; "
            "set health.intake to auto or never"
        )


def allowed_host_names(settings: Settings) -> tuple[str, ...]:
    """Return the host names, besides loopback, that requests may use: those allowed, and that of the public URL."""
    public = None if settings.public_url is None else urlsplit(settings.public_url).hostname
    return settings.allowed_hosts if public is None else (*settings.allowed_hosts, public)


def _check_exposure(settings: Settings, key: str, address: Address) -> None:
    if is_loopback(address.host):
        return
    if not settings.behind_proxy and settings.tls.cert is None:
        raise SettingsError(
            f"{key} = {address}: traffic from other machines would be unencrypted; set tls.cert and tls.key, or, if "
            "a reverse proxy encrypts and authenticates it and nothing else can reach the port, set behind_proxy"
        )
    if not settings.allowed_hosts:
        raise SettingsError(f"{key} = {address}: needs allowed_hosts, the host names that requests may use")
