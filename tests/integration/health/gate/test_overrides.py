"""Overrides: granted for a reason and a time, in the audit, taken back, and over when they are over."""

from __future__ import annotations

import math

import pytest

from headgate.errors import ConflictError, InvalidIdError, InvalidPayloadError, NotFoundError
from headgate.health.gate.decisions import Override, Verb
from headgate.health.gate.overrides import SECONDS_MAX
from tests.health_faults import interrupted
from tests.health_rig import ORDERS, Rig


def grant(rig: Rig, seconds: float = 60.0, **more: str) -> Override:
    return rig.overrides.grant(ORDERS, Verb.READ, seconds=seconds, reason="we know", actor="ana", **more)


def test_grant__is_in_force_until_it_expires(rig: Rig) -> None:
    override = grant(rig, principal="svc", ticket="OPS-1")
    assert rig.overrides.ls(ORDERS) == [override]
    assert (override.actor, override.principal, override.ticket) == ("ana", "svc", "OPS-1")
    rig.clock.advance(59.9)
    assert rig.overrides.ls(ORDERS) == [override]
    rig.clock.advance(0.2)
    assert rig.overrides.ls(ORDERS) == []


def test_grant__of_half_a_second__is_over_after_it(rig: Rig) -> None:
    grant(rig, 0.5)
    assert len(rig.overrides.ls(ORDERS)) == 1
    rig.clock.advance(0.6)
    assert rig.overrides.ls(ORDERS) == []


def test_grant__and_revoke__are_in_the_audit(rig: Rig) -> None:
    override = grant(rig, ticket="OPS-1")
    rig.overrides.revoke(ORDERS, override.override_id, actor="bob", reason="no longer")
    result = [(each.actor, each.action, each.reason, each.ticket) for each in rig.audit.ls(limit=10).entries]
    assert sorted(result) == [
        ("ana", "gate.override", "we know", "OPS-1"),
        ("bob", "gate.revoke", "no longer", "OPS-1"),
    ]
    assert rig.audit.verify().is_whole


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, SECONDS_MAX + 1])
def test_grant__for_a_time_that_is_none__is_refused(rig: Rig, seconds: float) -> None:
    with pytest.raises(InvalidPayloadError):
        grant(rig, seconds)


@pytest.mark.parametrize("reason", ["", "  \n", "x" * 2_000])
def test_grant__without_a_reason__is_refused(rig: Rig, reason: str) -> None:
    with pytest.raises(InvalidPayloadError, match="reason"):
        rig.overrides.grant(ORDERS, Verb.READ, seconds=60, reason=reason, actor="ana")


def test_grant__for_what_is_no_dataset__is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidIdError):
        rig.overrides.grant("nonsense", Verb.READ, seconds=60, reason="r", actor="ana")


def test_revoke__twice_or_after_it_ran_out__is_not_found(rig: Rig) -> None:
    first, second = grant(rig), grant(rig)
    rig.overrides.revoke(ORDERS, first.override_id, actor="bob")
    assert [each.override_id for each in rig.overrides.ls(ORDERS)] == [second.override_id]
    with pytest.raises(NotFoundError):
        rig.overrides.revoke(ORDERS, first.override_id, actor="bob")
    rig.clock.advance(120)
    with pytest.raises(NotFoundError):
        rig.overrides.revoke(ORDERS, second.override_id, actor="bob")


def test_revoke__another_did_in_between__is_not_found(rig: Rig) -> None:
    override = grant(rig)
    store = interrupted(rig.store, "transact", lambda: rig.overrides.revoke(ORDERS, override.override_id, actor="ana"))
    process = Rig(store, rig.clock, rig.keyring, rig.folder)
    with pytest.raises((NotFoundError, ConflictError)):
        process.overrides.revoke(ORDERS, override.override_id, actor="bob")
