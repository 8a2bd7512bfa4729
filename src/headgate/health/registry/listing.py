"""Listings of the registry: which index answers which question, and the pages that come of it.

| asked for | partitions read | what is left to filter |
|---|---|---|
| `owner_team` (and anything but DELETED) | owner-index of the team | tier, status, source_type, search |
| `tier` | tier-index of the tier | status, source_type, search |
| `status` DELETED | tier-index of what is deleted, of the tier or of each | owner_team, source_type, search |
| anything else | tier-index of each tier, merged | status, source_type, search |

All are in the order of URNs. Indexes may lag: who must not miss a dataset reads the change feed.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.errors import QueryLimitError
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.model.enums import Tier
from headgate.health.model.paging import MergedPages, Partition, Place
from headgate.health.registry.rows import dataset_of, tier_partition
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.keyring import Keyring
from headgate.store.model.values import Item
from headgate.store.port import Store

LIMIT_MAX: Final = 1000


class DatasetFilter(Struct, frozen=True, kw_only=True):
    """Which datasets: those that match all that is given. Deleted ones only if they are asked for.

    `search` is text that is looked for in the URN, the names, the team and the description, in either case.
    """

    tier: Tier | None = None
    owner_team: str | None = None
    status: DatasetStatus | None = None
    source_type: str | None = None
    search: str | None = None

    def admits(self, dataset: Dataset) -> bool:
        """Whether a dataset is meant."""
        if dataset.status is not self.status and (self.status is not None or dataset.status is DatasetStatus.DELETED):
            return False
        if self.tier not in (None, dataset.tier) or self.owner_team not in (None, dataset.owner_team):
            return False
        source_type = dataset.source.type if dataset.source is not None else None
        if self.source_type is not None and (source_type or "").upper() != self.source_type.upper():
            return False
        texts = (dataset.dataset_urn, dataset.display_name, dataset.owner_team, dataset.description)
        return self.search is None or any(self.search.casefold() in text.casefold() for text in texts)


class Datasets(Struct, frozen=True):
    """Some datasets, and the cursor to the next ones if there may be more."""

    datasets: list[Dataset]
    cursor: str | None = None


class Listing:
    """Answers which datasets there are."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._pages = MergedPages(store, keyring)

    def page(self, wanted: DatasetFilter, *, limit: int, cursor: str | None) -> Datasets:
        """Return up to `limit` datasets by URN. A page may be short although there are more: the cursor tells.

        Raises `QueryLimitError` for a limit that is not allowed, and `CursorError` for a cursor of another question.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise QueryLimitError(f"limit is {limit}: ask for 1 to {LIMIT_MAX} datasets at a time")
        page = self._pages.page(
            partitions(wanted),
            _place,
            limit=limit,
            cursor=cursor,
            descending=False,
            keep=lambda item: wanted.admits(dataset_of(item)),
            question=wanted,
        )
        # By URN: an index that lags may show a dataset in the partition it has left and in the one it is in.
        found = {item["PK"]: dataset_of(item) for item in page.items}
        return Datasets(list(found.values()), page.cursor)


def partitions(wanted: DatasetFilter) -> list[Partition]:
    """Return the partitions of indexes that together hold all that is wanted."""
    is_deleted = wanted.status is DatasetStatus.DELETED
    if wanted.owner_team and not is_deleted:
        return [Partition(DATASET_REGISTRY, "owner-index", wanted.owner_team)]
    tiers = [*Tier] if wanted.tier is None else [wanted.tier]
    return [Partition(DATASET_REGISTRY, "tier-index", tier_partition(tier, is_deleted=is_deleted)) for tier in tiers]


def _place(item: Item) -> Place:
    return Place(item["PK"], "")
