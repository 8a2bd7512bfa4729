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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from headgate import typed_decode
from headgate.errors import SettingsError
from headgate.setting_sections import (
    Address as Address,
)
from headgate.setting_sections import (
    ArchiveSettings as ArchiveSettings,
)
from headgate.setting_sections import (
    AuthSettings as AuthSettings,
)
from headgate.setting_sections import (
    CacheSettings as CacheSettings,
)
from headgate.setting_sections import (
    EvidenceSettings as EvidenceSettings,
)
from headgate.setting_sections import (
    FanoutSettings as FanoutSettings,
)
from headgate.setting_sections import (
    FolderPath as FolderPath,
)
from headgate.setting_sections import (
    ForwardSettings as ForwardSettings,
)
from headgate.setting_sections import (
    HealthSettings as HealthSettings,
)
from headgate.setting_sections import (
    HostNames as HostNames,
)
from headgate.setting_sections import (
    ListenAddress as ListenAddress,
)
from headgate.setting_sections import (
    LogSettings as LogSettings,
)
from headgate.setting_sections import (
    Names as Names,
)
from headgate.setting_sections import (
    PipelineSettings as PipelineSettings,
)
from headgate.setting_sections import (
    RegionSettings as RegionSettings,
)
from headgate.setting_sections import (
    Seconds as Seconds,
)
from headgate.setting_sections import (
    Secret as Secret,
)
from headgate.setting_sections import (
    StoreSettings as StoreSettings,
)
from headgate.setting_sections import (
    Switch as Switch,
)
from headgate.setting_sections import (
    TelemetrySettings as TelemetrySettings,
)
from headgate.setting_sections import (
    TlsSettings as TlsSettings,
)
from headgate.setting_sections import (
    WorkerSettings as WorkerSettings,
)
from headgate.setting_sections import (
    about,
)
from headgate.setting_sources import Given, find_file, from_environ, from_file, from_flags, variable


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    home: Annotated[FolderPath, about("Folder of all state; relative to the current folder.")] = Path(".headgate")
    http: Annotated[ListenAddress, about("Where HTTP is served; port 0: any free one.")] = Address("127.0.0.1", 8400)
    grpc: Annotated[ListenAddress, about("Where gRPC is served; port 0: any free one.")] = Address("127.0.0.1", 8401)
    behind_proxy: Annotated[
        Switch, about("A reverse proxy in front checks who calls, so other addresses than loopback may be used.")
    ] = False
    allowed_hosts: Annotated[HostNames, about("Names besides loopback that requests may use, without ports.")] = ()
    drain_seconds: Annotated[Seconds, about("How long a stopping server may take to finish its work.")] = 10.0
    store: StoreSettings = StoreSettings()
    cache: CacheSettings = CacheSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    worker: WorkerSettings = WorkerSettings()
    forward: ForwardSettings = ForwardSettings()
    archive: ArchiveSettings = ArchiveSettings()
    fanout: FanoutSettings = FanoutSettings()
    pipelines: PipelineSettings = PipelineSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    health: HealthSettings = HealthSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    region: RegionSettings = RegionSettings()

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


@functools.lru_cache(maxsize=4096)
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
    "pipelines": PipelineSettings,
    "tls": TlsSettings,
    "auth": AuthSettings,
    "health": HealthSettings,
    "evidence": EvidenceSettings,
    "region": RegionSettings,
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
    return typed_decode.convert(value, field_type, strict=not given.is_text)


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
    return "" if field.default in (None, msgspec.NODEFAULT) else str(field.default)


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
    if (settings.pipelines.state_machine_arn is None) != (settings.pipelines.scheduler_role_arn is None):
        raise SettingsError(
            "pipelines.state_machine_arn, pipelines.scheduler_role_arn: they go together; set both, or neither"
        )
    if (settings.tls.cert is None) != (settings.tls.key is None):
        raise SettingsError("tls.cert, tls.key: a certificate and its key go together; set both, or neither")
    _check_region(settings.region)
    if settings.http.port == settings.grpc.port != 0:
        raise SettingsError(
            f"http = {settings.http}, grpc = {settings.grpc}: one port cannot serve both; choose another for one"
        )


def _check_region(region: RegionSettings) -> None:
    if not (region.name or region.home or region.standby):
        return
    if not (region.home and region.standby) or region.home == region.standby:
        raise SettingsError("region.home, region.standby: name both regions, the one that writes and the other")
    if region.name not in (None, region.home, region.standby):
        raise SettingsError(f"region.name {region.name}: it is neither {region.home} nor {region.standby}")
    if (region.authority_home is None) == (region.authority_aws_region is None):
        raise SettingsError(
            "region.authority_home, region.authority_aws_region: say where the lease is kept, in one of them"
        )


def _check_exposure(settings: Settings, key: str, address: Address) -> None:
    if is_loopback(address.host):
        return
    if not settings.behind_proxy and settings.tls.cert is None:
        raise SettingsError(
            f"{key} = {address}: what other machines send could be read on the way; set tls.cert and tls.key, or, "
            "if a reverse proxy encrypts it, checks callers, and nothing else can reach the port, set behind_proxy"
        )
    if not settings.allowed_hosts:
        raise SettingsError(f"{key} = {address}: it needs allowed_hosts, the names that requests may be addressed to")
