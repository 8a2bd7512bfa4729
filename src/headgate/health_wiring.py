"""Builds health and who may call it around an open store."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from headgate.auth.api_keys import ApiKeys, IssuedKey
from headgate.auth.authenticator import Authenticator
from headgate.auth.key_sets import JwksFetcher, KeySet, from_file
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.auth.tokens import TokenPolicy, Tokens
from headgate.clock import Clock
from headgate.durable.app import App
from headgate.durable.destinations import Destinations
from headgate.durable.events import Event
from headgate.durable.service import Service
from headgate.health.meters import HealthMeters
from headgate.health.service import HealthService
from headgate.settings import Settings
from headgate.store.cache import Cache
from headgate.store.guarded import GuardedStore
from headgate.store.writes import Write
from headgate.telemetry import Tracing
from headgate.wiring import OpenedStore, open_cache, open_service, open_store

LAST_KNOWN: Final = "last-known-datasets.json"
# An incident and its signal make two events known in one transaction, beside much else.
_NEWS_DELIVERIES_MAX: Final = 8


def open_health(
    opened: OpenedStore,
    cache: Cache,
    clock: Clock,
    service: Service,
    *,
    meters: HealthMeters | None = None,
    tracing: Tracing | None = None,
) -> HealthService:
    """Return the health of datasets on an open store, which makes its news known on the bus of a service.

    Its calls to the store go through breakers and limiters. `meters` count what happens.
    """
    health = opened.settings.health

    def announce(event: Event, now_ms: int) -> list[Write]:
        return service.bus.event_writes(event, now_ms, deliveries_max=_NEWS_DELIVERIES_MAX)

    return HealthService(
        GuardedStore(opened.store, clock, watcher=meters),
        clock,
        service.ids,
        cache,
        opened.keyring,
        opened.blobs,
        announce=announce,
        told=lambda: service.bus.told(),
        tier_1_needs_ticket=health.tier_1_needs_ticket,
        opens_incidents=health.opens_incidents,
        last_known_path=opened.settings.home / LAST_KNOWN,
        meters=meters,
        tracing=tracing,
    )


def open_keys(opened: OpenedStore, clock: Clock, health: HealthService) -> ApiKeys:
    """Return the API keys of an open store."""
    return ApiKeys(opened.store, clock, health.ids, health.audit)


def issue_first_key(settings: Settings, clock: Clock, principal: str) -> IssuedKey:
    """Make a key for an administrator in the store that the settings name, which needs no other key.

    Raises `InvalidPayloadError` for what is no name, and whatever opening the store raises.
    """
    opened = open_store(settings, clock)
    with closing(opened.store), closing(open_cache(settings, clock)) as cache:
        health = open_health(opened, cache, clock, open_service(App("headgate"), opened, clock))
        with closing(health):
            keys = open_keys(opened, clock, health)
            return keys.issue(principal, [Role.ADMIN], issuer=LOCAL, note="made beside the server")


def open_authenticator(settings: Settings, clock: Clock, keys: ApiKeys) -> Authenticator:
    """Return what says who calls. Raises `SettingsError` if tokens cannot be checked as the settings say."""
    auth = settings.auth
    return Authenticator(
        keys, _open_tokens(settings, clock), is_required=auth.required, is_behind_proxy=settings.behind_proxy
    )


def _open_tokens(settings: Settings, clock: Clock) -> Tokens | None:
    auth = settings.auth
    if auth.oidc_issuer is None:
        return None
    policy = TokenPolicy(
        issuer=auth.oidc_issuer,
        audience=auth.oidc_audience or "",
        algorithms=auth.oidc_algorithms,
        leeway_seconds=auth.oidc_leeway_seconds,
        name_claim=auth.oidc_name_claim,
        roles_claim=auth.oidc_roles_claim,
        scopes_claim=auth.oidc_scopes_claim,
        roles=auth.oidc_roles,
    )
    file = auth.oidc_jwks_file
    if file is not None:
        return Tokens(policy, from_file(file, clock), clock)
    forward = settings.forward
    allowed = Destinations(forward.private_hosts, forward.private_networks, forward.plain_http)
    fetch = JwksFetcher(clock, issuer=auth.oidc_issuer, url=auth.oidc_jwks_url, destinations=allowed)
    return Tokens(policy, KeySet(fetch, clock), clock)
