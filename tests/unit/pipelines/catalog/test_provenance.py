"""Provenance: what a seal covers."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.pipelines.catalog.provenance import DefinitionSeals
from headgate.pipelines.definition.model import Pipeline, TriggerSpec
from headgate.store.keyring import Keyring, Purpose

CLOCK = VirtualClock(1_750_000_000.0)
ORDERS = Pipeline(id="orders", trigger=TriggerSpec(type="command", config={"command": "load"}))
SOURCE = ("orders.yaml", "0" * 64)


def test_seal__of_a_definition__holds_for_this_definition_version_and_source_only() -> None:
    seals = DefinitionSeals(Keyring.generate(CLOCK))
    seal = seals.seal(ORDERS, 1, *SOURCE)

    assert seals.holds(seal, ORDERS, 1, *SOURCE)
    assert not seals.holds(seal, ORDERS, 2, *SOURCE)
    assert not seals.holds(seal, replace(ORDERS, id="other"), 1, *SOURCE)
    other = replace(ORDERS, trigger=TriggerSpec(type="command", config={"command": "other"}))
    assert not seals.holds(seal, other, 1, *SOURCE)
    assert not seals.holds(seal, ORDERS, 1, "other.yaml", SOURCE[1])
    assert not seals.holds(seal, ORDERS, 1, SOURCE[0], "1" * 64)


def test_seal__empty_malformed_or_of_another_keyring__does_not_hold() -> None:
    seals = DefinitionSeals(Keyring.generate(CLOCK))
    foreign = DefinitionSeals(Keyring.generate(CLOCK)).seal(ORDERS, 1, *SOURCE)

    for seal in ("", "x", "a.b.c", foreign):
        assert not seals.holds(seal, ORDERS, 1, *SOURCE)


def test_seal__signed_for_another_purpose__does_not_hold() -> None:
    keyring = Keyring.generate(CLOCK)
    seals = DefinitionSeals(keyring)
    payload = keyring.verify(Purpose.TOKEN, seals.seal(ORDERS, 1, *SOURCE))

    assert not seals.holds(keyring.sign(Purpose.CURSOR, payload), ORDERS, 1, *SOURCE)


def test_seal__after_a_rotation_of_the_key__still_holds() -> None:
    keyring = Keyring.generate(CLOCK)
    seal = DefinitionSeals(keyring).seal(ORDERS, 1, *SOURCE)

    assert DefinitionSeals(keyring.rotated(Purpose.TOKEN, CLOCK)).holds(seal, ORDERS, 1, *SOURCE)


def test_seals__without_a_keyring__never_hold() -> None:
    seal = DefinitionSeals(Keyring.generate(CLOCK)).seal(ORDERS, 1, *SOURCE)

    assert DefinitionSeals().seal(ORDERS, 1, *SOURCE) == ""
    assert not DefinitionSeals().holds(seal, ORDERS, 1, *SOURCE)
