"""Decisions about heads, bodies, connections, client addresses and writes."""

from __future__ import annotations

import pytest

from headgate.auth.principals import LOCAL, CredentialKind, Principal
from headgate.clock import VirtualClock
from headgate.errors import RateLimitedError, SettingsError
from headgate.serve.http.limits.caller_limits import BURST_SECONDS, WRITES_PER_SECOND, CallerLimits
from headgate.serve.http.limits.client_address import UNKNOWN, ClientAddresses, limit_key
from headgate.serve.http.limits.connection_limits import ConnectionCounter, check_head, is_body_late
from headgate.settings import LimitSettings, Settings

LIMITS = LimitSettings(
    request_line_bytes=1024, header_bytes=2048, headers=10, connections_per_address=2, body_seconds=10
)
SERVICE = Principal("loader", frozenset(), kind=CredentialKind.API_KEY)


@pytest.mark.parametrize(
    ("line", "head", "headers", "status"),
    [(1024, 2048, 10, None), (1025, 0, 0, 414), (0, 2049, 0, 431), (0, 0, 11, 431), (1025, 2049, 11, 414)],
)
def test_head__each_limit__has_its_status(line: int, head: int, headers: int, status: int | None) -> None:
    refusal = check_head(LIMITS, line_bytes=line, head_bytes=head, headers=headers)

    assert (None if refusal is None else refusal.status) == status


@pytest.mark.parametrize(
    ("seconds", "received", "is_late"), [(9.9, 0, None), (10, 0, True), (10, 2559, True), (10, 2560, False)]
)
def test_body__after_the_time_limit__is_late_unless_it_makes_progress(
    seconds: float, received: int, is_late: bool | None
) -> None:
    assert is_body_late(LIMITS, seconds=seconds, received_bytes=received) is is_late


def test_connections__of_one_address__are_limited_and_released() -> None:
    counter = ConnectionCounter(LIMITS)

    assert [counter.add("10.0.0.1") is None for _ in range(3)] == [True, True, False]
    assert counter.add("10.0.0.2") is None
    counter.remove("10.0.0.1")
    assert counter.add("10.0.0.1") is None


def test_connections__behind_a_proxy__are_limited_in_total_only() -> None:
    counter = ConnectionCounter(LimitSettings(connections=20, connections_per_address=2), is_behind_proxy=True)

    assert [counter.add("10.0.0.1") is None for _ in range(21)] == [True] * 20 + [False]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:5000", "127.0.0.1"),
        ("::1:5000", "::1"),
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("::ffff:10.0.0.1:5000", "10.0.0.1"),
        ("unix:/run/x", "127.0.0.1"),
        ("", UNKNOWN),
    ],
)
def test_client_address__without_a_proxy__is_the_peer(peer: str, address: str) -> None:
    assert ClientAddresses().of(peer, {"x-forwarded-for": "203.0.113.9"}) == address


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        # What the client sent itself comes first.
        ("127.0.0.1, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("nonsense\nline", "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_client_address__header_configured__is_its_last_entry(header: str, address: str) -> None:
    addresses = ClientAddresses("X-Forwarded-For", is_behind_proxy=True)

    assert addresses.of("10.0.0.1:5000", {"x-forwarded-for": header}) == address


def test_client_address_header__without_a_proxy__is_refused() -> None:
    with pytest.raises(SettingsError, match="behind_proxy"):
        Settings.load({}, None, {"client_address_header": "X-Forwarded-For"})


def test_limit_key__ipv6__is_the_network_of_the_client() -> None:
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff") == "2001:db8::/64"
    assert limit_key("::1") == "::1"
    assert limit_key("10.0.0.1") == "10.0.0.1"


def _writes(limits: CallerLimits, principal: Principal | None, peer: str, count: int, **headers: str) -> bool:
    """Whether `count` writes at one time are all admitted."""
    try:
        for _ in range(count):
            limits.check_write(principal, peer, headers)
    except RateLimitedError:
        return False
    return True


MANY = int(WRITES_PER_SECOND * BURST_SECONDS) + 1


def test_writes__default__local_programs_are_unlimited_and_others_are_not() -> None:
    limits = CallerLimits(LimitSettings(), VirtualClock())

    assert _writes(limits, LOCAL, "127.0.0.1:5", MANY)
    assert not _writes(limits, SERVICE, "127.0.0.1:5", MANY)
    assert not _writes(limits, None, "10.0.0.1:5", MANY)


def test_writes__behind_a_proxy__are_limited_by_address_only_with_the_header() -> None:
    proxy = "10.0.0.1:5"
    blind = CallerLimits(LimitSettings(), VirtualClock(), addresses=ClientAddresses(is_behind_proxy=True))
    seeing = CallerLimits(LimitSettings(), VirtualClock(), addresses=ClientAddresses("x-client", is_behind_proxy=True))

    assert _writes(blind, LOCAL, proxy, MANY)
    assert not _writes(seeing, LOCAL, proxy, MANY, **{"x-client": "203.0.113.9"})
    assert _writes(seeing, LOCAL, proxy, 1, **{"x-client": "203.0.113.10"})


def test_writes__limit_set__applies_to_local_programs_too() -> None:
    limits = CallerLimits(LimitSettings(writes_per_second_per_caller=1), VirtualClock())

    assert not _writes(limits, LOCAL, "127.0.0.1:5", 3)


def test_counter__ipv6_addresses_of_one_client__count_as_one() -> None:
    counter = ConnectionCounter(LimitSettings(connections_per_address=2))
    assert counter.add("2001:db8::1") is counter.add("2001:db8::2") is None

    refused = counter.add("2001:db8::3")
    counter.remove("2001:db8::1")

    assert refused is not None
    assert refused.detail.startswith("2001:db8::3 has 2 connections")
    assert counter.add("2001:db8::4") is None
    assert counter.add("2001:db8:1::4") is None
