"""The check of the keys against what a store holds: rotations pass, lost and foreign keys are refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headgate.auth.audit_entry import AuditEntry
from headgate.bootstrap.key_check import (
    accept_lost_keys,
    check_function_keys,
    check_keys,
    recorded_with,
    unknown_keys,
)
from headgate.bootstrap.store import keys_path, open_store
from headgate.clock import SystemClock, VirtualClock
from headgate.errors import KeysLostError
from headgate.health.audit.hash_chain import anchor_key, chain_of
from headgate.health.audit.log import Audit, Fault
from headgate.ids import IdMaker
from headgate.settings import Settings
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring, Purpose

CLOCK = SystemClock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.mark.parametrize("purpose", list(Purpose))
def test_unknown_keys__rotated_many_times__none(purpose: Purpose) -> None:
    keyring = Keyring.generate(CLOCK)
    recorded = recorded_with({}, keyring)
    for _ in range(8):
        keyring = keyring.rotated(purpose, CLOCK)

        assert unknown_keys(recorded, keyring) == []
        recorded = recorded_with(recorded, keyring)


def test_unknown_keys__keyring_of_before_a_rotation__names_the_newer_key() -> None:
    before = Keyring.generate(CLOCK)
    after = before.rotated(Purpose.FIELD, CLOCK)

    assert unknown_keys(recorded_with({}, after), before) == [after.keys(Purpose.FIELD)[-1].id]


def test_unknown_keys__the_id_with_another_secret__is_foreign() -> None:
    one, other = Keyring.generate(CLOCK), Keyring.generate(CLOCK)
    key_id = one.keys(Purpose.FIELD)[-1].id
    (value,) = recorded_with({}, other).values()

    assert unknown_keys({key_id: value}, one) == [key_id]


def test_check_keys__recorded__holds_no_secret(settings: Settings) -> None:
    opened = open_store(settings, CLOCK)
    with closing(opened.store):
        check_keys(opened)
    secrets = [key.secret for purpose in Purpose for key in opened.keyring.keys(purpose)]
    content = b"".join(path.read_bytes() for path in settings.home.glob("headgate.db*") if path.is_file())

    assert not any(secret.encode() in content for secret in secrets)


def test_check_function_keys__another_keyring__refused_with_the_remedy(settings: Settings) -> None:
    opened = open_store(settings, CLOCK)
    with closing(opened.store):
        check_function_keys(opened)
        check_keys(opened)
        check_function_keys(opened)

        with pytest.raises(KeysLostError, match="restore it from a backup"):
            check_function_keys(opened._replace(keyring=Keyring.generate(CLOCK)))


def test_open_store__keys_missing_and_data_of_them_there__refused_and_none_are_made(settings: Settings) -> None:
    opened = open_store(settings, CLOCK)
    with closing(opened.store):
        check_keys(opened)
    keys_path(settings).unlink()

    with pytest.raises(KeysLostError, match="is missing"):
        open_store(settings, CLOCK)

    assert not keys_path(settings).exists()


@pytest.mark.parametrize("is_altered", [False, True])
def test_accept_lost_keys__pruned_audit_chain__verifies_and_is_pruned_again(
    settings: Settings, is_altered: bool
) -> None:
    clock, entity = VirtualClock(), "dataset urn:dp:orders"
    day = 86_400.0

    def write(audit: Audit) -> None:
        for number in range(10):
            clock.advance(day)
            audit.commit([], AuditEntry("ann", "dataset.update", entity, number, number + 1))

    opened = open_store(settings, clock)
    with closing(opened.store):
        check_keys(opened)
        audit = Audit(opened.store, clock, IdMaker(clock), opened.keyring)
        write(audit)
        assert audit.prune(kept_seconds=5.5 * day) > 0
        if is_altered:
            row = opened.store.get(AUDIT, anchor_key(chain_of(entity)))
            assert row is not None
            opened.store.put(AUDIT, {**row, "hash": "0" * 64})
    keys_path(settings).unlink()

    opened = open_store(settings, clock, accept_new_keys=True)
    with closing(opened.store):
        assert accept_lost_keys(opened, clock, reason="disk died")
        audit = Audit(opened.store, clock, IdMaker(clock), opened.keyring)
        write(audit)
        faults = {each.fault for each in audit.verify().problems}
        pruned = audit.prune(kept_seconds=5.5 * day)

    assert (faults, pruned > 0) == (({Fault.LINK_BROKEN}, False) if is_altered else (set(), True))
