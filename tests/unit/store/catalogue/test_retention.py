"""Every entity of the catalogue has an end, and the settings that it names exist."""

from __future__ import annotations

from headgate.settings import describe
from headgate.store.catalogue.retention import described, ending_of
from headgate.store.catalogue.tables import ALL_TABLES


def test_endings__every_entity__has_one_and_none_is_left_over() -> None:
    names = {(table.name, entity.name) for table in ALL_TABLES for entity in table.entities}

    assert {entity for _, entity in names} == described()
    assert all(ending_of(table, entity).how for table, entity in names)


def test_endings__settings__exist() -> None:
    known = {setting.key for setting in describe()}
    used = {ending_of(table.name, entity.name).setting for table in ALL_TABLES for entity in table.entities} - {""}

    assert used <= known
    assert {key for key in known if key.startswith("retention.")} <= used


def test_endings__expiry__only_in_tables_with_a_ttl_attribute() -> None:
    for table in ALL_TABLES:
        for entity in table.entities:
            if ending_of(table.name, entity.name).how.startswith("expires"):
                assert table.ttl_attribute is not None, f"{entity.name} expires, and {table.name} has no TTL"
