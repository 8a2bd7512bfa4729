"""The registry: versions without gaps, names that find each other, and nothing half done."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.errors import (
    AlreadyExistsError,
    ApprovalRequiredError,
    CursorError,
    DatasetNotFoundError,
    IllegalTransitionError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    QueryLimitError,
    VersionConflictError,
)
from headgate.health.model.datasets import (
    ComplianceSlo,
    ContractBinding,
    Dataset,
    DatasetSpec,
    DatasetStatus,
    FreshnessSlo,
    Slos,
    Source,
)
from headgate.health.model.enums import Tier
from headgate.health.observer import NullObserver
from headgate.health.registry.change_feed import SHARDS, shard_of
from headgate.health.registry.service import UNCHECKED, DatasetFilter, FieldChange, read_spec
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from tests.integration.health.registry_world import ORDERS, SPEC, CrashError, Rig, once

BASE = "urn:dp:orders:order_created"
TIER_1 = replace(SPEC, tier=Tier.TIER_1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


def rows(rig: Rig, urn: str = ORDERS) -> dict[str, int]:
    page = rig.sqlite.query(Query(table=DATASET_REGISTRY, partition=urn, limit=1000))
    return {item["SK"]: item["config_version"] for item in page.items if item["SK"].startswith("CONFIG#")}


def fresh(rig: Rig, urn: str = ORDERS) -> int:
    return rig.registry.get(urn).config_version


# Creating.


def test_create__a_dataset__row_has_the_documented_keys_and_attributes(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")

    row = rig.sqlite.get(DATASET_REGISTRY, Key(ORDERS, "CONFIG#LATEST"))
    assert row is not None
    assert row["dataset_urn"] == ORDERS
    assert row["tier"] == "TIER_2"
    assert row["retention_days"] == 90, "what is a default is written as well"
    assert row["schema_binding"]["version_policy"] == "LATEST"
    assert (row["config_version"], row["updated_by"], row["status"]) == (1, "jane", "ACTIVE")
    assert row["created_at"] == row["updated_at"] == "2025-06-15T15:06:40.000Z"
    assert "previous_version_sk" not in row
    assert "stale" not in row


def test_create__one_that_is_registered__is_refused_with_what_is_there(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")

    with pytest.raises(AlreadyExistsError, match="at version 1; update it") as caught:
        rig.registry.create(ORDERS, TIER_1, actor="joe", ticket="CHG-1")

    assert caught.value.current is not None
    assert caught.value.current["updated_by"] == "jane"
    assert rows(rig) == {"CONFIG#LATEST": 1}


@pytest.mark.parametrize("was", [DatasetStatus.DISCOVERED, DatasetStatus.DELETED])
def test_create__one_that_was_discovered_or_deleted__is_taken_over_and_versions_go_on(
    rig: Rig, was: DatasetStatus
) -> None:
    if was is DatasetStatus.DISCOVERED:
        rig.registry.discover(ORDERS, None, "lineage")
    else:
        rig.registry.create(ORDERS, DatasetSpec(), actor="joe")
        rig.registry.delete(ORDERS, actor="joe")
    before = max(rows(rig).values())

    taken = rig.registry.create(ORDERS, SPEC, actor="jane")

    assert (taken.config_version, taken.status) == (before + 1, DatasetStatus.ACTIVE)
    assert rig.registry.get(ORDERS, version=before).status is was
    assert rig.registry.find(ORDERS) == taken


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(SPEC, owner_team=" "), "owner_team is empty"),
        (replace(SPEC, retention_days=0), r"\$\.retention_days"),
        (
            replace(SPEC, slos=Slos(contract_compliance=ComplianceSlo(min_compliance_rate=2))),
            r"\$\.slos\.contract_compliance\.min_compliance_rate",
        ),
    ],
)
def test_create__a_field_out_of_its_limits__is_refused_naming_it(rig: Rig, wrong: DatasetSpec, said: str) -> None:
    with pytest.raises(InvalidPayloadError, match=said):
        rig.registry.create(ORDERS, wrong, actor="jane")

    assert rows(rig) == {}


def test_create__what_is_no_urn__is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidIdError):
        rig.registry.create("orders", SPEC, actor="jane")


def test_read_spec__as_others_spell_it__is_understood_or_the_field_named() -> None:
    assert read_spec({"tier": 1, "owner_team": "orders"}).tier is Tier.TIER_1
    with pytest.raises(InvalidPayloadError, match="no field 'owner'"):
        read_spec({"owner": "orders"})
    with pytest.raises(InvalidPayloadError, match="tier 'gold'"):
        read_spec({"tier": "gold"})
    with pytest.raises(InvalidPayloadError, match=r"\$\.description"):
        read_spec({"description": 3})


# Versions.


def test_update__twelve_versions__latest_is_twelve_and_each_other_archived_once(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    for version in range(1, 12):
        rig.clock.advance(60)
        spec = replace(SPEC, description=f"text {version + 1}")
        rig.registry.update(ORDERS, spec, expected_version=version, actor="jane")

    assert rows(rig) == {"CONFIG#LATEST": 12, **{f"CONFIG#v{version:06d}": version for version in range(1, 12)}}
    latest = rig.sqlite.get(DATASET_REGISTRY, Key(ORDERS, "CONFIG#LATEST"))
    archived = rig.sqlite.get(DATASET_REGISTRY, Key(ORDERS, "CONFIG#v000011"))
    assert latest is not None
    assert archived is not None
    assert latest["previous_version_sk"] == "CONFIG#v000011"
    assert archived["archived_at"] == latest["updated_at"]
    assert archived["previous_version_sk"] == "CONFIG#v000010"
    assert "latest_tier" not in archived, "listings show a dataset once"
    assert [each.dataset_urn for each in rig.registry.ls().datasets] == [ORDERS]
    assert rig.registry.get(ORDERS, version=12) == rig.registry.get(ORDERS)
    assert rig.registry.get(ORDERS, version=2).description == "text 2"
    assert rig.registry.get(ORDERS).created_at < rig.registry.get(ORDERS).updated_at


@pytest.mark.parametrize("version", [0, 3, -1, 10**9])
def test_get__a_version_that_there_is_not__says_which_there_are(rig: Rig, version: int) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.registry.update(ORDERS, replace(SPEC, description="x"), expected_version=1, actor="jane")

    with pytest.raises(DatasetNotFoundError, match=f"no version {version}; it has 1 to 2"):
        rig.registry.get(ORDERS, version=version)


def test_update__of_an_older_version__is_refused_with_the_present_config(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.registry.update(ORDERS, replace(SPEC, description="hers"), expected_version=1, actor="jane")

    for expected in (1, 0, 7):
        with pytest.raises(VersionConflictError, match=f"at version 2, not {expected}") as caught:
            rig.registry.update(ORDERS, replace(SPEC, description="his"), expected_version=expected, actor="joe")
        assert caught.value.current is not None
        assert (caught.value.current["config_version"], caught.value.current["description"]) == (2, "hers")

    assert fresh(rig) == 2


def test_update__the_same_again__changes_nothing(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    wanted = replace(SPEC, description="new")
    first = rig.registry.update(ORDERS, wanted, expected_version=1, actor="jane")

    again = [
        rig.registry.update(ORDERS, wanted, expected_version=expected, actor="jane") for expected in (1, 2, UNCHECKED)
    ]

    assert again == [first] * 3
    assert rows(rig) == {"CONFIG#LATEST": 2, "CONFIG#v000001": 1}


def test_update__of_what_is_not_there__is_not_found(rig: Rig) -> None:
    for expected in (0, 1, UNCHECKED):
        with pytest.raises(DatasetNotFoundError):
            rig.registry.update(ORDERS, SPEC, expected_version=expected, actor="jane")


def test_rollback__to_an_earlier_version__says_that_again_as_a_new_one(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.registry.update(ORDERS, replace(SPEC, description="worse"), expected_version=1, actor="jane")

    back = rig.registry.rollback(ORDERS, 1, actor="joe", expected_version=2)
    again = rig.registry.rollback(ORDERS, 1, actor="joe", expected_version=2)

    assert back == again
    assert (back.config_version, back.description, back.updated_by) == (3, "", "joe")
    assert rig.registry.diff(ORDERS, 1, 3) == []
    with pytest.raises(VersionConflictError):
        rig.registry.rollback(ORDERS, 2, actor="joe", expected_version=2)
    with pytest.raises(DatasetNotFoundError, match="no version 9"):
        rig.registry.rollback(ORDERS, 9, actor="joe")


def test_delete__a_dataset__is_out_of_use_with_its_history_and_can_be_restored(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")

    gone = rig.registry.delete(ORDERS, actor="joe", reason="moved")

    assert (gone.status, gone.config_version) == (DatasetStatus.DELETED, 2)
    assert rig.registry.delete(ORDERS, actor="joe") == gone, "deleting twice changes nothing"
    assert rig.registry.find(ORDERS) is None
    with pytest.raises(DatasetNotFoundError, match=r"deleted at .* by joe; restore it"):
        rig.registry.get(ORDERS)
    with pytest.raises(DatasetNotFoundError, match="deleted"):
        rig.registry.update(ORDERS, SPEC, expected_version=2, actor="joe")
    assert rig.registry.ls().datasets == []
    assert rig.registry.ls(DatasetFilter(owner_team="orders-platform")).datasets == []
    deleted = DatasetStatus.DELETED
    assert rig.registry.ls(DatasetFilter(status=deleted)).datasets == [gone]
    assert rig.registry.ls(DatasetFilter(status=deleted, owner_team="orders-platform")).datasets == [gone]
    assert rig.registry.ls(DatasetFilter(status=deleted, owner_team="others")).datasets == []
    assert rig.registry.ls(DatasetFilter(status=deleted, tier=Tier.TIER_3)).datasets == []
    assert rig.registry.get(ORDERS, version=1).status is DatasetStatus.ACTIVE
    assert len(rig.registry.history(ORDERS).versions) == 2

    back = rig.registry.restore(ORDERS, actor="joe")
    assert (back.status, back.config_version) == (DatasetStatus.ACTIVE, 3)
    assert rig.registry.find(ORDERS) == back
    assert rig.registry.ls().datasets == [back]


def test_deprecate__a_dataset__stays_listed_and_found_and_updates_keep_it_so(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    old = rig.registry.deprecate(ORDERS, actor="joe")

    assert rig.registry.ls(DatasetFilter(status=DatasetStatus.DEPRECATED)).datasets == [old]
    assert rig.registry.find(ORDERS) == old
    changed = rig.registry.update(ORDERS, replace(SPEC, description="x"), expected_version=2, actor="joe")
    assert changed.status is DatasetStatus.DEPRECATED


def test_move__what_cannot_be__says_why(rig: Rig) -> None:
    rig.registry.discover(ORDERS, None, "lineage")
    with pytest.raises(IllegalTransitionError, match="only discovered; create it"):
        rig.registry.restore(ORDERS, actor="joe")
    rig.registry.delete(ORDERS, actor="joe")
    with pytest.raises(DatasetNotFoundError):
        rig.registry.deprecate(ORDERS, actor="joe")
    with pytest.raises(DatasetNotFoundError):
        rig.registry.delete(BASE, actor="joe")


def test_history__in_pages__every_version_once_the_newest_first(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    for version in range(1, 7):
        rig.registry.update(ORDERS, replace(SPEC, description=str(version)), expected_version=version, actor="jane")

    for limit in (1, 2, 3, 7, 100):
        seen: list[int] = []
        cursor: str | None = None
        while True:
            page = rig.registry.history(ORDERS, limit=limit, cursor=cursor)
            assert len(page.versions) <= limit
            seen += [each.config_version for each in page.versions]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [7, 6, 5, 4, 3, 2, 1]
    for wrong in ("x", "-1", ""):
        with pytest.raises(CursorError):
            rig.registry.history(ORDERS, cursor=wrong)
    with pytest.raises(QueryLimitError):
        rig.registry.history(ORDERS, limit=0)
    with pytest.raises(DatasetNotFoundError):
        rig.registry.history(BASE)


def test_diff__between_versions__names_each_field_by_its_path(rig: Rig) -> None:
    constraints: dict[str, dict[str, object]] = {"total.amount": {"min": 0}, "id": {"type": "string"}}
    first = replace(SPEC, contract_binding=ContractBinding(contract_id="c", field_constraints=constraints))
    rig.registry.create(ORDERS, first, actor="jane")
    second = replace(
        first,
        slos=Slos(freshness=FreshnessSlo(max_delay_seconds=600)),
        contract_binding=ContractBinding(
            contract_id="c", required_fields=("id",), field_constraints={"total.amount": {"min": 1}}
        ),
    )
    rig.registry.update(ORDERS, second, expected_version=1, actor="jane")
    rig.registry.deprecate(ORDERS, actor="jane")

    assert rig.registry.diff(ORDERS, 1, 3) == [
        FieldChange("contract_binding.field_constraints.id", {"type": "string"}, None),
        FieldChange('contract_binding.field_constraints["total.amount"].min', 0, 1),
        FieldChange("contract_binding.required_fields", [], ["id"]),
        FieldChange("slos.freshness.max_delay_seconds", 300, 600),
        FieldChange("status", "ACTIVE", "DEPRECATED"),
    ]
    assert [change.after for change in rig.registry.diff(ORDERS, 3, 2)] == ["ACTIVE"]
    assert rig.registry.diff(ORDERS, 2, 2) == []


# Tickets, audit and events.


def test_tier_1__any_change_that_concerns_it__needs_a_ticket(rig: Rig) -> None:
    registry = rig.registry
    made = registry.create(ORDERS, TIER_1, actor="jane", ticket="CHG-1234")
    assert made.approval_ticket == "CHG-1234"
    for ticket in (None, "", "  ", "yes", "x" * 200 + "1"):
        with pytest.raises(ApprovalRequiredError, match="needs an approval ticket"):
            registry.update(ORDERS, replace(TIER_1, description="y"), expected_version=1, actor="jane", ticket=ticket)

    with pytest.raises(ApprovalRequiredError):
        registry.update(ORDERS, replace(TIER_1, description="x"), expected_version=1, actor="jane")
    with pytest.raises(ApprovalRequiredError):
        registry.update(ORDERS, SPEC, expected_version=1, actor="jane")
    with pytest.raises(ApprovalRequiredError):
        registry.delete(ORDERS, actor="jane")
    with pytest.raises(ApprovalRequiredError):
        registry.deprecate(ORDERS, actor="jane")
    registry.update(ORDERS, SPEC, expected_version=1, actor="jane", ticket="CHG-2")
    with pytest.raises(ApprovalRequiredError):
        registry.rollback(ORDERS, 1, actor="jane")
    unticketed = registry.update(ORDERS, replace(SPEC, description="x"), expected_version=2, actor="jane")
    assert unticketed.approval_ticket is None

    assert registry.get(ORDERS, version=2).approval_ticket == "CHG-2"
    with pytest.raises(InvalidPayloadError, match="ticket 'no'"):
        registry.delete(ORDERS, actor="jane", ticket="no")


def test_tier_1__one_that_is_new__needs_no_ticket(rig: Rig) -> None:
    registry = rig.registry
    discovered = "urn:dp:orders:seen:v1"
    registry.discover(discovered, None, "openlineage")

    assert registry.create(ORDERS, TIER_1, actor="jane").tier is Tier.TIER_1
    assert registry.create(discovered, TIER_1, actor="jane").tier is Tier.TIER_1

    with pytest.raises(InvalidPayloadError, match="ticket 'no'"):
        registry.create("urn:dp:orders:more:v1", TIER_1, actor="jane", ticket="no")
    registry.delete(ORDERS, actor="jane", ticket="CHG-1")
    with pytest.raises(ApprovalRequiredError):
        registry.create(ORDERS, TIER_1, actor="jane")


def test_tier_1__switched_off__needs_no_ticket(rig: Rig) -> None:
    made = rig.process(tier_1_needs_ticket=False).create(ORDERS, TIER_1, actor="jane")

    assert made.tier is Tier.TIER_1


def test_changes__of_all_kinds__are_audited_with_versions_fields_and_grounds(rig: Rig) -> None:
    rig.registry.create(ORDERS, TIER_1, actor="jane", ticket="CHG-1", reason="new")
    rig.registry.update(
        ORDERS, replace(TIER_1, description="x"), expected_version=1, actor="joe", ticket="CHG-2", reason="why"
    )
    rig.registry.rollback(ORDERS, 1, actor="joe", ticket="CHG-3")
    rig.registry.delete(ORDERS, actor="ann", ticket="CHG-4")

    entries = list(reversed(rig.audit.ls(ORDERS).entries))

    result = [(each.actor, each.action, each.before_version, each.after_version, each.ticket) for each in entries]
    assert result == [
        ("jane", "dataset.create", None, 1, "CHG-1"),
        ("joe", "dataset.update", 1, 2, "CHG-2"),
        ("joe", "dataset.rollback", 2, 3, "CHG-3"),
        ("ann", "dataset.delete", 3, 4, "CHG-4"),
    ]
    assert [each.changed for each in entries[1:]] == [("description",), ("description",), ("status",)]
    assert [each.reason for each in entries] == ["new", "why", "to version 1", ""]
    assert rig.audit.verify().problems == []


class ChangeRecorder(NullObserver):
    def __init__(self) -> None:
        self.versions: list[int] = []

    def on_dataset_changed(self, dataset: Dataset) -> None:
        self.versions.append(dataset.config_version)


def test_change__committed__publishes_an_event_and_calls_the_observer(rig: Rig) -> None:
    observer = ChangeRecorder()
    registry = rig.process(observer=observer)
    registry.create(ORDERS, SPEC, actor="jane")
    registry.update(ORDERS, replace(SPEC, description="x"), expected_version=1, actor="joe")

    events = [event.event.decoded() for event in rig.bus.tail(type="headgate.dataset.config_changed")]

    assert [event.subject for event in events] == [ORDERS, ORDERS]
    assert events[1].source == "/headgate/health"
    assert events[1].data == {
        "event_type": "DATASET_CONFIG_CHANGED",
        "dataset_urn": ORDERS,
        "changed_fields": ["description"],
        "config_version": 2,
        "updated_by": "joe",
        "timestamp": "2025-06-15T15:06:40.000Z",
    }
    assert observer.versions == [1, 2]


# Crashes and races.


def test_change__crash_before_or_after_the_commit__all_of_it_or_nothing(rig: Rig) -> None:
    def crash() -> None:
        raise CrashError

    rig.registry.create(ORDERS, SPEC, actor="jane")
    for is_applied in (False, True):
        before = rows(rig)
        checkpoint = rig.registry.changes().checkpoint
        version = fresh(rig)
        if is_applied:
            rig.store.after_write = crash
        else:
            rig.store.before_write = crash
        with pytest.raises(CrashError):
            rig.registry.update(
                ORDERS, replace(SPEC, description=str(is_applied)), expected_version=version, actor="joe"
            )
        rig.store.before_write = rig.store.after_write = lambda: None

        seen = [each.config_version for each in rig.registry.changes(checkpoint).changes]
        if is_applied:
            assert rows(rig) == {**before, "CONFIG#LATEST": version + 1, f"CONFIG#v{version:06d}": version}
            assert seen == [version + 1]
        else:
            assert rows(rig) == before
            assert seen == []
        assert len(rig.audit.ls(ORDERS).entries) == fresh(rig)
        assert len(rig.bus.tail(type="headgate.dataset.config_changed")) == fresh(rig)


def test_create__the_answer_got_lost__is_found_to_be_done(rig: Rig) -> None:
    def lose() -> None:
        raise OutcomeUnknownError("the connection broke")

    rig.store.after_write = once(lose)

    made = rig.registry.create(ORDERS, SPEC, actor="jane")

    assert made.config_version == 1
    assert rows(rig) == {"CONFIG#LATEST": 1}


def test_update__overtaken_on_the_way__is_decided_anew(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    other = rig.process()

    rig.store.before_write = once(
        lambda: other.update(ORDERS, replace(SPEC, description="hers"), expected_version=1, actor="jane")
    )
    with pytest.raises(VersionConflictError, match="at version 2, not 1"):
        rig.registry.update(ORDERS, replace(SPEC, description="his"), expected_version=1, actor="joe")

    rig.store.before_write = once(
        lambda: other.update(ORDERS, replace(SPEC, owner_team="t"), expected_version=UNCHECKED, actor="x")
    )
    made = rig.registry.update(ORDERS, replace(SPEC, description="his"), expected_version=UNCHECKED, actor="joe")
    assert (made.config_version, made.description) == (4, "his")


def test_update__overtaken_between_its_reads__loses_nobodys_change(rig: Rig) -> None:
    """The place in the feed is read after the dataset: that it is still free says nothing of the dataset."""
    rig.registry.create(ORDERS, SPEC, actor="jane")
    other = rig.process()
    overtake = once(lambda: other.update(ORDERS, replace(SPEC, description="hers"), expected_version=1, actor="jane"))
    reads: list[int] = []

    def before_second_read() -> None:
        reads.append(1)
        if len(reads) == 2:
            # So that the two do not have an event in common, which only one of them could emit.
            rig.clock.advance(1)
            overtake()

    rig.store.before_many = before_second_read
    made = rig.registry.update(ORDERS, replace(SPEC, description="his"), expected_version=UNCHECKED, actor="joe")

    assert made.config_version == 3
    assert [each.description for each in rig.registry.history(ORDERS).versions] == ["his", "hers", ""]


def test_update__twenty_threads__versions_without_gaps_and_every_one_kept(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    processes = [rig.process() for _ in range(4)]

    def change(number: int) -> int:
        registry = processes[number % 4]
        while True:
            current = registry.get(ORDERS)
            try:
                spec = replace(SPEC, description=f"by {number}")
                return registry.update(
                    ORDERS, spec, expected_version=current.config_version, actor=f"a{number}"
                ).config_version
            except VersionConflictError:
                continue

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(change, range(20)))

    assert sorted(made) == list(range(2, 22))
    history = rig.registry.history(ORDERS, limit=100).versions
    assert [each.config_version for each in history] == list(range(21, 0, -1))
    assert {each.description for each in history} == {"", *(f"by {number}" for number in range(20))}
    for version, number in zip(made, range(20), strict=True):
        assert rig.registry.get(ORDERS, version=version).description == f"by {number}"
    assert [each.after_version for each in reversed(rig.audit.ls(ORDERS).entries)] == list(range(1, 22))
    assert rig.audit.verify().problems == []
    changes = rig.registry.changes().changes
    assert [(each.dataset_urn, each.config_version) for each in changes] == [(ORDERS, 21)]


def test_discover__many_at_once__one_row_and_all_get_it(rig: Rig) -> None:
    source = Source(type="KAFKA", topic="t")

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: rig.process().discover(ORDERS, source, "lineage"), range(12)))

    assert {(each.config_version, each.status, each.tier) for each in found} == {
        (1, DatasetStatus.DISCOVERED, Tier.TIER_3)
    }
    assert found[0].source == source
    assert rows(rig) == {"CONFIG#LATEST": 1}


def test_discover__another_process_was_faster__is_found_here_at_once(rig: Rig) -> None:
    here, there = rig.process(), rig.process()
    assert here.find(ORDERS) is None
    made = there.discover(ORDERS, None, "lineage")

    assert here.discover(ORDERS, None, "lineage") == made
    assert here.find(ORDERS) == made


def test_discover__what_is_known__changes_nothing(rig: Rig) -> None:
    made = rig.registry.create(ORDERS, SPEC, actor="jane")

    assert rig.registry.discover(ORDERS, None, "lineage") == made
    assert rig.registry.discover(BASE, None, "lineage") == made, "by the other form of its name as well"
    deleted = rig.registry.delete(ORDERS, actor="jane")
    assert rig.process().discover(ORDERS, None, "lineage") == deleted, "what people deleted is not brought back"
    assert rows(rig, BASE) == {}


# Names.


def test_find__without_a_version__finds_the_highest_that_is_registered(rig: Rig) -> None:
    registry = rig.registry
    assert registry.find(BASE) is None
    made = {
        number: registry.create(f"{BASE}:v{number}", replace(SPEC, description=str(number)), actor="jane")
        for number in (2, 10, 1)
    }
    registry.discover(f"{BASE}:v11", None, "lineage")

    assert registry.find(BASE) == made[10], "by number, and what was only discovered does not count"
    assert rig.process().get(BASE) == made[10]
    assert rig.process().find(f"{BASE}:v3") is None

    registry.delete(f"{BASE}:v10", actor="jane")
    assert registry.find(BASE) == made[2]
    registry.create(f"{BASE}:v10", SPEC, actor="jane")
    found = registry.find(BASE)
    assert found is not None
    assert (found.dataset_urn, found.config_version) == (f"{BASE}:v10", 3)
    for number in (1, 2, 10):
        registry.delete(f"{BASE}:v{number}", actor="jane")
    left = registry.find(BASE)
    assert left is not None
    assert left.dataset_urn == f"{BASE}:v11", "better than nothing"


def test_find__with_a_version__finds_one_registered_without(rig: Rig) -> None:
    made = rig.registry.create(BASE, SPEC, actor="jane")

    assert rig.registry.find(f"{BASE}:v1") == made
    assert rig.registry.get(f"{BASE}:v7") == made
    own = rig.registry.create(f"{BASE}:v1", SPEC, actor="jane")
    assert rig.registry.find(f"{BASE}:v1") == own
    assert rig.registry.find(BASE) == made


def test_find__discovered_under_one_form_and_registered_under_the_other__is_the_registered_one(rig: Rig) -> None:
    rig.registry.discover(BASE, None, "lineage")
    made = rig.registry.create(ORDERS, SPEC, actor="jane")

    assert rig.registry.find(BASE) == made
    assert rig.registry.get(BASE).status is DatasetStatus.DISCOVERED, "what is asked for by its own name is shown"


def test_create__two_versions_of_a_name_at_once__both_are_known_by_it(rig: Rig) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: rig.process().create(f"{BASE}:v{n}", SPEC, actor="jane"), range(1, 9)))

    row = rig.sqlite.get(DATASET_REGISTRY, Key(BASE, "ALIAS"))
    assert row is not None
    assert row["registered"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert row["dataset_urn"] == f"{BASE}:v8"


def test_alias__a_name_elsewhere__stands_for_a_dataset_until_it_is_changed(rig: Rig) -> None:
    registry = rig.registry
    registry.create(ORDERS, SPEC, actor="jane")
    registry.create("urn:dp:orders:other", SPEC, actor="jane")
    space, name = "s3://lake#eu", "orders/created#1"
    assert registry.named(space, name) is None

    first = registry.alias(space, name, BASE, why="by its topic", actor="lineage")
    assert (first.dataset_urn, first.why, first.updated_by, first.version) == (ORDERS, "by its topic", "lineage", 1)
    assert registry.named(space, name) == ORDERS
    assert registry.alias(space, name, ORDERS, why="again", actor="joe") == first
    moved = registry.alias(space, name, "urn:dp:orders:other", why="was wrong", actor="joe")
    assert moved.version == 2
    assert registry.named(space, name) == "urn:dp:orders:other"
    assert registry.aliases(ORDERS) == []
    assert registry.aliases("urn:dp:orders:other") == [moved]

    registry.unalias(space, name, why="gone", actor="joe")
    assert registry.named(space, name) is None
    assert registry.aliases("urn:dp:orders:other") == []
    with pytest.raises(NotFoundError, match="not an alias of a dataset"):
        registry.unalias(space, name, why="gone", actor="joe")
    assert registry.alias(space, name, ORDERS, why="back", actor="joe").version == 4
    assert registry.named(space, name) == ORDERS
    actions = [entry.action for entry in rig.audit.ls(ORDERS).entries]
    assert actions == ["dataset.alias", "dataset.alias", "dataset.create"]


def test_alias__to_what_is_not_registered__is_refused(rig: Rig) -> None:
    with pytest.raises(DatasetNotFoundError):
        rig.registry.alias("space", "name", ORDERS, why="x", actor="joe")
    rig.registry.create(ORDERS, SPEC, actor="jane")
    other = rig.process()

    rig.store.before_write = once(lambda: other.delete(ORDERS, actor="ann"))
    with pytest.raises(DatasetNotFoundError, match="create it before"):
        rig.registry.alias("space", "name", ORDERS, why="x", actor="joe")
    assert rig.registry.named("space", "name") is None
    for wrong in (("", "name"), ("space", ""), ("space", "n" * 2000)):
        with pytest.raises(InvalidPayloadError):
            rig.registry.named(*wrong)


# Listings.


def fill(rig: Rig, count: int) -> None:
    for number in range(count):
        spec = replace(SPEC, tier=list(Tier)[number % 3], owner_team=f"team-{number % 2}", description=f"d{number}")
        rig.registry.create(f"urn:dp:d:{number:03d}", spec, actor="jane", ticket="CHG-1")


@pytest.mark.parametrize(
    "wanted",
    [
        DatasetFilter(),
        DatasetFilter(tier=Tier.TIER_1),
        DatasetFilter(owner_team="team-1"),
        DatasetFilter(owner_team="team-1", tier=Tier.TIER_3),
        DatasetFilter(search="D:01"),
        DatasetFilter(source_type="kafka", status=DatasetStatus.ACTIVE),
        DatasetFilter(source_type="S3"),
        DatasetFilter(owner_team="nobody"),
    ],
)
def test_ls__any_filter_in_pages__each_dataset_once_in_order(rig: Rig, wanted: DatasetFilter) -> None:
    fill(rig, 25)
    every = [rig.registry.get(f"urn:dp:d:{number:03d}") for number in range(25)]
    expected = [each for each in every if wanted.admits(each)]

    for limit in (1, 4, 1000):
        seen, cursor = [], None
        while True:
            page = rig.registry.ls(wanted, limit=limit, cursor=cursor)
            assert len(page.datasets) <= limit
            seen += page.datasets
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == expected


def test_ls__a_cursor_of_another_question__is_refused(rig: Rig) -> None:
    fill(rig, 5)
    cursor = rig.registry.ls(limit=2).cursor

    with pytest.raises(CursorError):
        rig.registry.ls(DatasetFilter(tier=Tier.TIER_1), limit=2, cursor=cursor)
    with pytest.raises(CursorError):
        rig.registry.ls(limit=2, cursor=f"{cursor}x")
    with pytest.raises(QueryLimitError):
        rig.registry.ls(limit=0)


def test_ls__changes_while_paging__what_stays_is_neither_missed_nor_repeated(rig: Rig) -> None:
    fill(rig, 12)
    first = rig.registry.ls(limit=6)
    rig.registry.delete("urn:dp:d:002", actor="jane", ticket="CHG-2")
    rig.registry.delete("urn:dp:d:007", actor="jane", ticket="CHG-2")
    rig.registry.create("urn:dp:d:0015", SPEC, actor="jane")
    second = rig.registry.ls(limit=100, cursor=first.cursor)

    assert [each.dataset_urn[-3:] for each in second.datasets] == ["006", "008", "009", "010", "011"]


# The change feed.


def drain(rig: Rig, checkpoint: str | None, limit: int = 3) -> tuple[dict[str, int], str]:
    seen: dict[str, int] = {}
    while True:
        answer = rig.registry.changes(checkpoint, limit=limit)
        assert len(answer.changes) <= limit
        for change in answer.changes:
            assert change.config_version > seen.get(change.dataset_urn, 0)
            seen[change.dataset_urn] = change.config_version
        checkpoint = answer.checkpoint
        if not answer.has_more:
            return seen, checkpoint


def test_changes__since_a_checkpoint__each_dataset_that_changed_with_its_latest(rig: Rig) -> None:
    fill(rig, 20)
    everything, checkpoint = drain(rig, None)
    assert everything == {f"urn:dp:d:{number:03d}": 1 for number in range(20)}
    assert drain(rig, checkpoint) == ({}, checkpoint)

    for version in (1, 2, 3):
        spec = replace(SPEC, tier=Tier.TIER_2, description=f"v{version}")
        rig.registry.update("urn:dp:d:001", spec, expected_version=version, actor="joe")
    rig.registry.delete("urn:dp:d:004", actor="joe")

    answer = rig.registry.changes(checkpoint)
    assert {each.dataset_urn: each.config_version for each in answer.changes} == {"urn:dp:d:001": 4, "urn:dp:d:004": 2}
    assert {each.status.value for each in answer.changes} == {"ACTIVE", "DELETED"}
    assert [each.changed_fields for each in answer.changes] == [("description",), ("status",)]
    assert len(drain(rig, None)[0]) == 20, "a dataset has one place, however often it changes"


def test_changes__a_place_that_was_left__is_never_taken_again(rig: Rig) -> None:
    """A writer that stands still between reading the end and committing must not land behind a reader."""
    rig.registry.create(ORDERS, SPEC, actor="jane")
    late = next(urn for urn in (f"urn:dp:late:{number}" for number in range(1000)) if shard_of(urn) == shard_of(ORDERS))
    other = rig.process()
    seen: list[str] = []

    def meanwhile() -> None:
        for version in (1, 2, 3):
            other.update(ORDERS, replace(SPEC, description=str(version)), expected_version=version, actor="joe")
        seen.append(other.changes().checkpoint)

    rig.store.before_write = once(meanwhile)
    rig.registry.create(late, SPEC, actor="jane")

    assert [each.dataset_urn for each in rig.registry.changes(seen[0]).changes] == [late]


def test_changes__writers_and_a_poller_at_once__nothing_is_missed(rig: Rig) -> None:
    urns = [f"urn:dp:d:{number}" for number in range(12)]
    copy: dict[str, int] = {}
    checkpoint: str | None = None

    def write(urn: str) -> None:
        registry = rig.process()
        registry.create(urn, SPEC, actor="jane")
        for version in (1, 2):
            registry.update(urn, replace(SPEC, description=str(version)), expected_version=version, actor="jane")

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, urn) for urn in urns]
        while True:
            is_over = all(writer.done() for writer in writers)
            answer = rig.registry.changes(checkpoint, limit=5)
            checkpoint = answer.checkpoint
            copy |= {change.dataset_urn: change.config_version for change in answer.changes}
            if is_over and not answer.changes:
                break
        for writer in writers:
            writer.result()

    assert copy == dict.fromkeys(urns, 3)


@pytest.mark.parametrize(
    "wrong", ["", "f1", "f1.1.2", "f2" + ".0" * SHARDS, "f1" + ".x" * SHARDS, "f1" + ".-1" * SHARDS]
)
def test_changes__what_is_no_checkpoint__is_refused(rig: Rig, wrong: str) -> None:
    with pytest.raises(CursorError, match="start again without one"):
        rig.registry.changes(wrong)


def test_export__in_chunks__everything_and_a_checkpoint_to_go_on_from(rig: Rig) -> None:
    empty = rig.registry.export()
    assert (empty.datasets, empty.has_more) == ([], False)
    rig.registry.create(ORDERS, SPEC, actor="jane")
    fill(rig, 7)
    rig.registry.delete("urn:dp:d:001", actor="jane")

    chunks = [rig.registry.export(limit=3)]
    while chunks[-1].has_more:
        chunks.append(rig.registry.export(chunks[-1].checkpoint, limit=3))

    assert len(chunks) >= 3
    found = {each.dataset_urn: each for chunk in chunks for each in chunk.datasets}
    assert len(found) == 8
    assert found["urn:dp:d:001"].status is DatasetStatus.DELETED
    rig.registry.deprecate(ORDERS, actor="jane")
    later = rig.registry.export(chunks[-1].checkpoint).datasets
    assert [(each.dataset_urn, each.status) for each in later] == [(ORDERS, DatasetStatus.DEPRECATED)]


@pytest.mark.parametrize(
    ("slos", "named"),
    [
        (Slos(freshness=FreshnessSlo(max_delay_seconds=10, warning_delay_seconds=500)), "warning_delay_seconds 500"),
        (
            Slos(contract_compliance=ComplianceSlo(min_compliance_rate=0.9, warning_compliance_rate=0.5)),
            "warning_compliance_rate 0.5",
        ),
    ],
)
def test_create__a_warning_that_would_come_after_the_breach__is_refused(rig: Rig, slos: Slos, named: str) -> None:
    with pytest.raises(InvalidPayloadError, match=named):
        rig.registry.create(ORDERS, replace(SPEC, slos=slos), actor="jane")

    same = Slos(
        freshness=FreshnessSlo(max_delay_seconds=10, warning_delay_seconds=10),
        contract_compliance=ComplianceSlo(min_compliance_rate=0.9, warning_compliance_rate=0.95),
    )
    assert rig.registry.create(ORDERS, replace(SPEC, slos=same), actor="jane").slos == same
