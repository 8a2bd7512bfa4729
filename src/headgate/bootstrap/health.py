"""Health bootstrap: builds the health service, API keys, authentication and regions on an open store."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.auth.api_keys import ApiKeys, IssuedKey
from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.auth.sessions import SessionLimits, Sessions
from headgate.bootstrap.store import (
    DATABASE,
    AppService,
    OpenedStore,
    all_items,
    database_path,
    make_usable,
    open_authority,
    open_cache,
    open_store,
)
from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.bus.events import Event
from headgate.durable.sdk.app import App
from headgate.durable.service import Service
from headgate.errors import SettingsError, StoreBusyError, UserError
from headgate.feedback import subscriber_filter
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.evidence.limits import Limits
from headgate.health.evidence.sampling import Rates, ResultRates
from headgate.health.gate.decisions import GatePolicy
from headgate.health.metrics import HealthMeters
from headgate.health.model.datasets import OnSilence, OnUpstream
from headgate.health.model.events import EventWrites
from headgate.health.regions.agent import RegionAgent, RegionProbe, RegionPulse
from headgate.health.regions.failover import Failover, FailoverState, LeaseKeeper
from headgate.health.regions.fenced_store import FencedStore
from headgate.health.regions.regions import Fence, Replica, WriterLease, known_epoch
from headgate.health.regions.table_restore import NAMED_MAX, Difference, RepairResult, compare, repair, swapped
from headgate.health.reporter import HealthReporter
from headgate.health.service import HealthOptions, HealthService
from headgate.ids import IdMaker
from headgate.settings import AuthSettings, Settings
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import (
    COLUMN_READERS,
    COLUMN_WRITERS,
    DATASET_READERS,
    DATASET_REGISTRY,
    DATASET_RESOLUTION,
    DATASET_WRITERS,
    EVIDENCE_CACHE,
    HEALTH_CHECK,
    INCIDENT_INDEX,
    REGION_PULSE,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.model.requests import Write
from headgate.store.model.schema import Key, Table
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.store.port import Store
from headgate.store.resilience.guarded_store import AnyStore, GuardedStore
from headgate.telemetry import Tracing

if TYPE_CHECKING:
    from headgate.auth.key_sets import KeySet
    from headgate.auth.oidc_sign_in import OidcSignIn
    from headgate.auth.tokens import TokenPolicy, Tokens

_log = structlog.get_logger("statestore.regions")
# The tables that are merged between regions. The audit log is a hash chain per region and is not merged.
MERGED: Final = (
    SIGNAL_STATE, SIGNAL_HISTORY, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE,
    DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS,
)  # fmt: skip
_ASK_SECONDS: Final = 5.0
_MOVE_SECONDS: Final = 60.0
REGION_MOVED: Final = "headgate.region.moved"
LAST_KNOWN: Final = "last-known-datasets.json"
# An incident and its signal publish two events in one transaction, which has to fit 100 writes.
_EVENT_DELIVERIES_MAX: Final = 8


def event_writer(store: Store, bus: Bus) -> EventWrites:
    """Return the function that publishes health events on a bus.

    The pipelines' subscription is skipped for datasets that no pipeline depends on.
    """

    def announce(event: Event, now_ms: int) -> list[Write]:
        unwanted = (subscriber_filter.SUBSCRIPTION,) if subscriber_filter.has_no_subscriber(store, event) else ()
        return bus.event_writes(event, now_ms, deliveries_max=_EVENT_DELIVERIES_MAX, unwanted=unwanted)

    return announce


def open_health(
    opened: OpenedStore,
    cache: Cache,
    clock: Clock,
    service: Service,
    *,
    meters: HealthMeters | None = None,
    alerts: ErrorAlerts | None = None,
    tracing: Tracing | None = None,
    fence: Fence | None = None,
    intake_shed_count: Callable[[str], int] = lambda _urn: 0,
) -> HealthService:
    """Return the health service on an open store, which publishes its events on the bus of `service`.

    Its store calls go through circuit breakers and rate limiters. `meters` receive its metrics; a high failure rate
    emits an alert on the bus. `alerts` are those that observe the opened store, if any. With a `fence`, writes are
    refused unless this region is the writer. `intake_shed_count` returns how much evidence of a dataset the intake
    processes shed.
    """
    alerts = ErrorAlerts(clock, meters) if alerts is None else alerts
    if meters is not None:
        meters.watch_store(opened.store.stats)
    store: AnyStore = opened.store if fence is None else FencedStore(opened.store, fence)
    guarded = GuardedStore(store, clock, observer=alerts)
    if meters is not None:
        meters.watch_guards(guarded.breakers, guarded.limiters)
    health = HealthService(
        guarded,
        clock,
        service.ids,
        cache,
        opened.keyring,
        opened.blobs,
        event_writes=event_writer(guarded, service.bus),
        observer=HealthReporter(meters=meters, alerts=alerts, wake_bus=lambda: service.bus.on_committed()),
        publish_alerts=lambda: alerts.publish(service.bus.emit),
        tracing=tracing,
        is_writer=(lambda: True) if fence is None else fence.is_open,
        intake_shed_count=intake_shed_count,
        options=_options(opened.settings),
    )
    if meters is not None:
        inbox = health.ingestion.inbox
        meters.watch_lookups(health.registry.stats)
        meters.watch_inbox(lambda: inbox.oldest_seconds)
        meters.watch_evidence(health.evidence.stats)
    return health


def _options(settings: Settings) -> HealthOptions:
    evidence = settings.evidence
    return HealthOptions(
        tier_1_needs_ticket=settings.health.tier_1_needs_ticket,
        opens_incidents=settings.health.opens_incidents,
        gate=GatePolicy(
            on_silence=OnSilence(settings.health.on_silence),
            upstream=OnUpstream(settings.health.upstream),
            upstream_hops=settings.health.upstream_hops,
        ),
        silence_seconds=60 * settings.health.resolved_silence_minutes,
        last_known_path=settings.home / LAST_KNOWN,
        db_system=settings.store.backend,
        evidence_limits=Limits(
            hot_seconds=3600 * evidence.hot_hours,
            per_signature_per_minute=evidence.per_signature_per_minute,
            per_dataset_per_minute=evidence.per_dataset_per_minute,
            total_per_minute=evidence.total_per_minute,
            rows_max=evidence.rows_max,
        ),
        evidence_rates=Rates(
            usual=ResultRates(
                passed=evidence.pass_rate,
                failed=evidence.fail_rate,
                warned=evidence.warn_rate,
                skipped=evidence.skip_rate,
            )
        ),
        archive_seconds=86_400 * evidence.archive_days or None,
        audit_seconds=86_400 * settings.retention.audit_days,
        history_seconds=86_400 * settings.retention.signal_history_days,
        quiet_days=settings.retention.signals_days,
        incidents_seconds=86_400 * settings.retention.incidents_days,
    )


def open_keys(
    opened: OpenedStore, clock: Clock, health: HealthService, peer_changes: PeerChanges = NO_PEERS
) -> ApiKeys:
    """Return the API keys of an open store, audited by the health service."""
    return ApiKeys(opened.store, clock, health.ids, health.audit, peer_changes)


def issue_first_key(settings: Settings, clock: Clock, principal: str) -> IssuedKey:
    """Create an administrator's API key directly in the store, without another key.

    Raises `InvalidPayloadError` for an invalid principal name, and the errors of opening the store.
    """
    opened = open_store(settings, clock)
    with closing(opened.store), closing(open_cache(settings, clock)) as cache:
        service = AppService(App("headgate"), opened, clock)
        region = open_region(opened, clock, service)
        with nullcontext() if region is None else closing(region):
            health = open_health(opened, cache, clock, service, fence=None if region is None else region.fence)
            with closing(health):
                keys = open_keys(opened, clock, health)
                return keys.issue(principal, [Role.ADMIN], issuer=LOCAL, note="made beside the server")


class RegionMoved(Struct, frozen=True, kw_only=True):
    """The data of `headgate.region.moved`: the health service serves from another region."""

    event_type: str = "REGION_MOVED"
    region: str
    failovers: int


class OpenRegion(NamedTuple):
    """The region of a process: its write fence, its background agent and the authority store that holds the lease."""

    fence: Fence
    duty: RegionAgent
    authority: Store

    def close(self) -> None:
        """Close the authority store. The lease expires unless another process of the region renews it."""
        self.fence.leave()
        self.authority.close()


def open_region(
    opened: OpenedStore, clock: Clock, service: Service, meters: HealthMeters | None = None
) -> OpenRegion | None:
    """Open the region of this process and acquire the writer lease if it is the active region.

    Returns None if no region is configured. Raises the authority store's errors if it cannot be read.
    """
    settings = opened.settings
    name = settings.region.name
    if name is None:
        return None
    authority = open_authority(settings, clock)
    fence = Fence(opened.store, name, clock)
    home, standby = _regions(settings)
    keeper = LeaseKeeper(authority, WriterLease(authority, clock), fence, name, home)
    keeper.keep()
    pulse = RegionPulse(opened.store, authority, clock, region=name, other=standby if name == home else home)

    def on_moved(state: FailoverState) -> None:
        if meters is not None:
            meters.failed_over(state.active)
        service.bus.emit(_moved(state, service.ids))

    agent = open_agent(settings, authority, clock, keeper=keeper, pulse=pulse, on_moved=on_moved)
    return OpenRegion(fence, agent, authority)


def open_agent(
    settings: Settings,
    authority: Store,
    clock: Clock,
    *,
    keeper: LeaseKeeper | None = None,
    pulse: RegionPulse | None = None,
    on_moved: Callable[[FailoverState], None] = lambda _state: None,
) -> RegionAgent:
    """Return the agent that probes both regions and moves the writer. Raises `SettingsError` without regions."""
    chosen = settings.region
    regions = _regions(settings)
    unknown = [each for each in regions if each not in chosen.urls]
    if unknown:
        raise SettingsError(f"region.urls: the URL of region {unknown[0]} is missing; its health is probed there")
    observer = chosen.observer or chosen.name
    if observer is None:
        raise SettingsError("region.observer: an observer outside the regions needs a name; set region.observer")
    return RegionAgent(
        authority,
        clock,
        regions=regions,
        probe=RegionProbe(authority, clock, observer, partial(_is_healthy, chosen.urls)),
        failover=open_failover(settings, authority, clock, on_moved=on_moved),
        keeper=keeper,
        pulse=pulse,
    )


def open_failover(
    settings: Settings,
    authority: Store,
    clock: Clock,
    *,
    on_moved: Callable[[FailoverState], None] = lambda _state: None,
) -> Failover:
    """Return the failover that moves the writer between regions. Raises `SettingsError` without regions."""
    command = settings.region.move_command

    def log_move(state: FailoverState) -> None:
        _log.warning("region_moved", action="region.move", region=state.active, failovers=state.failovers)
        on_moved(state)

    return Failover(
        authority,
        clock,
        WriterLease(authority, clock),
        regions=_regions(settings),
        move_traffic=partial(_move_traffic, command),
        on_moved=log_move,
    )


def _regions(settings: Settings) -> tuple[str, str]:
    chosen = settings.region
    if chosen.home is None or chosen.standby is None:
        raise SettingsError("region.home: no regions are configured; set region.home, region.standby and the authority")
    return chosen.home, chosen.standby


def _is_healthy(urls: Mapping[str, str], region: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{urls[region].rstrip('/')}/health", timeout=_ASK_SECONDS).status_code == HTTPStatus.OK
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def _move_traffic(command: Path | None, region: str) -> None:
    """Run the configured command that moves traffic. Raises `StoreBusyError` on failure, so the next check retries."""
    _log.error("initiating_failover", action="region.move", region=region)
    if command is None:
        return
    try:
        subprocess.run([str(command), region], check=True, timeout=_MOVE_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as exc:
        raise StoreBusyError(f"region.move_command {command} {region}: {exc}; will be retried") from exc


def _moved(state: FailoverState, ids: IdMaker) -> Event:
    return Event(
        id=ids.make("evt"),
        type=REGION_MOVED,
        source="/headgate/health",
        subject=state.active,
        data=msgspec.to_builtins(RegionMoved(region=state.active, failovers=state.failovers)),
    )


@contextmanager
def _both(settings: Settings, other: Settings, clock: Clock) -> Iterator[tuple[OpenedStore, OpenedStore]]:
    ours = open_store(settings, clock)
    with closing(ours.store):
        theirs = open_store(other, clock)
        with closing(theirs.store):
            yield ours, theirs


def merge_region(settings: Settings, other: Settings, clock: Clock) -> dict[str, int]:
    """Merge the health rows of another region into this one; return the count of newer rows per table.

    Idempotent and independent of order. Raises the errors of opening the stores.
    """
    taken: dict[str, int] = {}
    with _both(settings, other, clock) as (ours, theirs):
        replica = Replica(ours.store)
        for table in MERGED:
            count = sum(replica.take(table, item) for item in all_items(theirs, table, clock))
            if count:
                taken[table.name] = count
        for region in filter(None, (settings.region.home, settings.region.standby)):
            # The other row of that table belongs to a region's own health check.
            pulse = theirs.store.get(HEALTH_CHECK, REGION_PULSE.key(region=region), consistent=True)
            if pulse is not None:
                replica.take(HEALTH_CHECK, pulse)
        known = known_epoch(theirs.store)
        if known is not None:
            replica.learn_epoch(*known)
    return taken


def compare_restored(
    settings: Settings, clock: Clock, table: Table, restored: str, *, ignoring: Sequence[str] = ()
) -> tuple[Difference, list[str]]:
    """Compare a restored copy of a table with the table in use; also return the faults of the copy.

    On DynamoDB, the TTL, stream and recovery that a restore leaves out are first enabled on the copy.
    """
    with _both(settings, restored_settings(settings, table, restored), clock) as (ours, theirs):
        faults = make_usable(theirs, table)
        both = (all_items(each, table, clock) for each in (ours, theirs))
        return compare(table, *both, ignoring=ignoring), faults


def repair_restored(
    settings: Settings, clock: Clock, table: Table, restored: str, keys: Sequence[Key] | None, *, dry_run: bool
) -> RepairResult:
    """Copy items back from a restored table: those of `keys`, or with None all that differ or are missing."""
    with _both(settings, restored_settings(settings, table, restored), clock) as (ours, theirs):
        if keys is None:
            difference = compare(table, *(all_items(each, table, clock) for each in (ours, theirs)))
            if difference.extra_count > NAMED_MAX or difference.differing_count > NAMED_MAX:
                raise UserError(f"table {table.name}: more than {NAMED_MAX} items differ; swap in the restored table")
            keys = [*difference.extra, *difference.differing]
        return repair(
            ours.store, table, keys, lambda key: theirs.store.get(table, key, consistent=True), dry_run=dry_run
        )


def restored_settings(settings: Settings, table: Table, restored: str) -> Settings:
    """Return settings that open a restored copy: `restored` is a table name, or on SQLite a home folder.

    Raises `SettingsError` if the copy does not exist.
    """
    if settings.store.backend == "sqlite":
        copy = replace(settings, home=Path(restored).expanduser().absolute())
        if not database_path(copy).exists():
            raise SettingsError(f"--restored {restored}: no {DATABASE} in this folder; name the restored home folder")
        return copy
    names = swapped(settings.store.table_names, table, restored, prefix=settings.store.table_prefix)
    return replace(settings, store=replace(settings.store, table_names=names))


def open_sessions(
    settings: Settings,
    opened: OpenedStore,
    clock: Clock,
    health: HealthService,
    keys: ApiKeys,
    peer_changes: PeerChanges = NO_PEERS,
) -> Sessions:
    """Return the sessions of people who sign in to the pages."""
    auth = settings.auth
    limits = SessionLimits(auth.session_idle_seconds, auth.session_seconds, auth.session_rotate_seconds)
    return Sessions(opened.store, clock, health.ids, health.audit, keys, limits, peer_changes)


def open_authenticator(
    settings: Settings, clock: Clock, keys: ApiKeys, sessions: Sessions | None = None
) -> Authenticator:
    """Return the authenticator of API keys, OIDC tokens and sessions. Raises `SettingsError` for OIDC settings."""
    auth = settings.auth
    return Authenticator(
        keys, _open_tokens(settings, clock), sessions, is_required=auth.required, is_behind_proxy=settings.behind_proxy
    )


def open_oidc_sign_in(settings: Settings, clock: Clock) -> OidcSignIn | None:
    """Return the sign-in at the OIDC issuer; None without a client. Raises `SettingsError`."""
    auth = settings.auth
    if auth.oidc_issuer is None or auth.oidc_client_id is None:
        return None
    from headgate.auth.oidc_sign_in import OidcSignIn
    from headgate.auth.tokens import Tokens

    return OidcSignIn(
        clock,
        # ID tokens are for the client; tokens of programs are for oidc_audience.
        Tokens(_token_policy(auth, auth.oidc_issuer, auth.oidc_client_id), _key_set(settings, clock), clock),
        issuer=auth.oidc_issuer,
        client_id=auth.oidc_client_id,
        scopes=auth.oidc_client_scopes,
        secret_file=auth.oidc_client_secret_file,
        destinations=_destinations(settings),
    )


def _open_tokens(settings: Settings, clock: Clock) -> Tokens | None:
    auth = settings.auth
    if auth.oidc_issuer is None or (auth.oidc_audience is None and auth.oidc_client_id is not None):
        return None
    # Imported only with an issuer: the JWT libraries are slow to load.
    from headgate.auth.tokens import Tokens

    policy = _token_policy(auth, auth.oidc_issuer, auth.oidc_audience or "")
    return Tokens(policy, _key_set(settings, clock), clock)


def _token_policy(auth: AuthSettings, issuer: str, audience: str) -> TokenPolicy:
    from headgate.auth.tokens import TokenPolicy

    return TokenPolicy(
        issuer=issuer,
        audience=audience,
        algorithms=auth.oidc_algorithms,
        leeway_seconds=auth.oidc_leeway_seconds,
        name_claim=auth.oidc_name_claim,
        roles_claim=auth.oidc_roles_claim,
        scopes_claim=auth.oidc_scopes_claim,
        roles=auth.oidc_roles,
    )


def _key_set(settings: Settings, clock: Clock) -> KeySet:
    from headgate.auth.key_sets import JwksFetcher, KeySet, from_file

    auth = settings.auth
    if auth.oidc_jwks_file is not None:
        return from_file(auth.oidc_jwks_file, clock)
    issuer = auth.oidc_issuer or ""
    fetch = JwksFetcher(clock, issuer=issuer, url=auth.oidc_jwks_url, destinations=_destinations(settings))
    return KeySet(fetch, clock)


def _destinations(settings: Settings) -> Destinations:
    forward = settings.forward
    return Destinations(forward.private_hosts, forward.private_networks, forward.plain_http)
