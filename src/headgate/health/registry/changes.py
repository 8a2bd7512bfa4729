"""Registry changes: the checks of a change, and all writes of its transaction."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec.structs import asdict

from headgate.auth.audit_entry import AuditEntry, change_digest
from headgate.durable.bus.events import Event
from headgate.errors import ApprovalRequiredError, DatasetNotFoundError, InvalidPayloadError, VersionConflictError
from headgate.health.model.datasets import Dataset, DatasetSpec, DatasetStatus, FreshnessSlo
from headgate.health.model.enums import Tier
from headgate.health.model.events import EventWrites
from headgate.health.model.timestamps import instant
from headgate.health.model.urns import version_of
from headgate.health.registry.change_feed import feed_writes
from headgate.health.registry.field_sources import kept_sources
from headgate.health.registry.rows import (
    Versions,
    alias_name,
    archived_item,
    fields_of,
    latest_item,
    versions_item,
    written,
)
from headgate.health.registry.versions import differences, names
from headgate.health.retirement import retirement_put
from headgate.health.signals.freshness_rows import freshness_put
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.model.conditions import Condition, absent, equals, version_is
from headgate.store.model.requests import Put, Write
from headgate.store.model.values import Item

EVENT_TYPE: Final = "headgate.dataset.config_changed"
EVENT_SOURCE: Final = "/headgate/health"
# As `expected_version`: no version check.
UNCHECKED: Final = -1
_TICKET: Final = re.compile(r"(?=.*\d)[A-Za-z0-9][A-Za-z0-9._/#:@-]{2,127}")


class ChangeAuthor(NamedTuple):
    """The actor of a change, with ticket and reason."""

    actor: str
    action: str
    ticket: str | None = None
    reason: str = ""


class StoredDataset(NamedTuple):
    """The stored dataset, as a change needs it."""

    urn: str
    item: Item | None
    dataset: Dataset | None
    # The versions row of the URN without its version, if it has one.
    versions: Versions | None


class DesiredState(NamedTuple):
    """The requested config and status of a dataset."""

    spec: DatasetSpec
    status: DatasetStatus
    # The tools that its fields come from; None keeps those of fields that stay the same.
    sources: dict[str, str] | None = None
    merged_into: str | None = None


class ChangePlan(NamedTuple):
    """The transaction of a change, and the dataset after it."""

    dataset: Dataset
    versions: Versions | None
    writes: list[Write]
    entry: AuditEntry


class ChangeStamp(NamedTuple):
    """The time of a change, its id, and its position in the feed."""

    now_ms: int
    change_id: str
    place: int


def plan(
    held: StoredDataset, wanted: DesiredState, by: ChangeAuthor, at: ChangeStamp, event_writes: EventWrites
) -> ChangePlan:
    """Return the transaction that makes the requested change, conditional on the stored version."""
    now = instant(at.now_ms)
    before = held.dataset
    sources = wanted.sources
    if sources is None:
        sources = {} if before is None else kept_sources(before, wanted.spec)
    dataset = Dataset(
        **asdict(wanted.spec),
        field_sources=sources,
        merged_into=wanted.merged_into,
        dataset_urn=held.urn,
        config_version=1 if before is None else before.config_version + 1,
        status=wanted.status,
        created_at=now if before is None else before.created_at,
        updated_at=now,
        updated_by=by.actor,
        approval_ticket=by.ticket,
    )
    old, new = {} if before is None else fields_of(before), fields_of(dataset)
    changed = tuple(sorted(new)) if before is None else names(differences(old, new))
    row = latest_item(dataset, change_id=at.change_id, feed_sequence=at.place)
    writes: list[Write] = [Put(DATASET_REGISTRY, row, _unchanged(before))]
    left: int | None = None
    if held.item is not None:
        writes.append(Put(DATASET_REGISTRY, archived_item(held.item, now)))
        left = held.item.get("feed_sequence")
    versions, moved = _versions_writes(held, wanted.status)
    feed = feed_writes(dataset, changed, place=at.place, before=left)
    writes += [*moved, *feed, *event_writes(_event(dataset, changed, now), at.now_ms)]
    if needs_settling(before, dataset):
        writes.append(retirement_put(held.urn, at.now_ms))
    if _freshness(before) != _freshness(dataset):
        # The timer reads the SLO when it is due, and ends by itself without one.
        writes.append(freshness_put(held.urn, at.now_ms, at.now_ms))
    entry = AuditEntry(
        actor=by.actor,
        action=by.action,
        entity=held.urn,
        before_version=None if before is None else before.config_version,
        after_version=dataset.config_version,
        changed=changed,
        reason=by.reason,
        ticket=by.ticket,
        digest=change_digest(old, new),
    )
    return ChangePlan(dataset, versions, writes, entry)


def _freshness(dataset: Dataset | None) -> FreshnessSlo | None:
    if dataset is None or dataset.slos is None or dataset.status is DatasetStatus.DELETED:
        return None
    return dataset.slos.freshness


def needs_settling(before: Dataset | None, after: Dataset) -> bool:
    """Whether signals and incidents have to follow a change: of deletion, tier or team."""
    if before is None:
        return False
    flips = (before.status is DatasetStatus.DELETED) != (after.status is DatasetStatus.DELETED)
    return flips or (before.tier, before.owner_team) != (after.tier, after.owner_team)


def present(urn: str, current: Dataset | None) -> Dataset:
    """Return a dataset that is in use. Raises `DatasetNotFoundError`."""
    if current is None:
        raise DatasetNotFoundError(f"dataset {urn}: not registered; 'headgate dataset ls' lists the datasets")
    if current.status is DatasetStatus.DELETED:
        if current.merged_into is not None:
            raise DatasetNotFoundError(f"dataset {urn}: it was merged into {current.merged_into}; use that name")
        raise DatasetNotFoundError(
            f"dataset {urn}: it was deleted at {current.updated_at} by {current.updated_by}; restore it, "
            f"or read its version {current.config_version}"
        )
    return current


def is_repeat(current: Dataset, expected_version: int) -> bool:
    """Whether the current version may be the result of this same request: then repeating it changes nothing."""
    return expected_version in (UNCHECKED, current.config_version, current.config_version - 1)


def check_version(current: Dataset, expected_version: int) -> None:
    """Raise `VersionConflictError`, carrying the dataset, if it is not at the expected version."""
    if expected_version not in (UNCHECKED, current.config_version):
        raise VersionConflictError(
            f"dataset {current.dataset_urn}: it is at version {current.config_version}, not {expected_version}; "
            "read it again",
            current=written(current),
        )


def check_ticket(held: StoredDataset, wanted: DesiredState, by: ChangeAuthor, *, tier_1_needs_ticket: bool) -> None:
    """Reject a change to or from TIER_1 without an approval ticket.

    A first registration needs none, because nothing relies on the dataset yet. Raises `ApprovalRequiredError`, and
    `InvalidPayloadError` for an invalid ticket.
    """
    is_formed = by.ticket is not None and _TICKET.fullmatch(by.ticket) is not None
    is_new = held.dataset is None or held.dataset.status is DatasetStatus.DISCOVERED
    tiers = (wanted.spec.tier, None if held.dataset is None else held.dataset.tier)
    if tier_1_needs_ticket and Tier.TIER_1 in tiers and not is_new and not is_formed:
        given = "none was given" if not by.ticket else f"{by.ticket[:40]!r} is not one"
        raise ApprovalRequiredError(
            f"dataset {held.urn}: a change of TIER_1 needs an approval ticket, and {given}; name one such as CHG-1234"
        )
    if by.ticket is not None and not is_formed:
        raise InvalidPayloadError(
            f"ticket {by.ticket[:40]!r}: use 3 to 128 letters, digits and . _ / # : @ -, with a digit among them"
        )


def _unchanged(before: Dataset | None) -> Condition:
    return absent() if before is None else equals("config_version", before.config_version)


def _versions_writes(held: StoredDataset, status: DatasetStatus) -> tuple[Versions | None, list[Write]]:
    """Return the versions of the URN without a version after a status change, and the write of their row."""
    name, number, versions = alias_name(held.urn), version_of(held.urn), held.versions
    if name is None or number is None or versions is None:
        return None, []
    moved = versions.moved(number, status)
    if moved is versions:
        return versions, []
    condition = version_is(versions.version) if versions.version else absent()
    return moved, [Put(DATASET_REGISTRY, versions_item(name, moved), condition)]


def _event(dataset: Dataset, changed: tuple[str, ...], timestamp: str) -> Event:
    return Event(
        type=EVENT_TYPE,
        source=EVENT_SOURCE,
        id=f"{dataset.dataset_urn}@{dataset.config_version}",
        subject=dataset.dataset_urn,
        data={
            "event_type": "DATASET_CONFIG_CHANGED",
            "dataset_urn": dataset.dataset_urn,
            "changed_fields": list(changed),
            "config_version": dataset.config_version,
            "updated_by": dataset.updated_by,
            "timestamp": timestamp,
        },
    )
