"""Dataset listing: which index serves which filter, and its pages.

| filter | partitions read | filtered row by row |
|---|---|---|
| `owner_team` (and anything but DELETED) | owner-index of the team | tier, status, source_type, search |
| `tier` | tier-index of the tier | status, source_type, search |
| `status` DELETED | tier-index of deleted datasets, of the tier or of each | owner_team, source_type, search |
| anything else | tier-index of each tier, merged | status, source_type, search |

All are ordered by URN. Indexes may lag: a consumer that must not miss a dataset reads the change feed.
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
from headgate.store.port import Store

LIMIT_MAX: Final = 1000


class DatasetFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing; all given fields must match. Deleted datasets are listed only on request.

    `search` is a text in the URN, the names, the team or the description, ignoring case.
    """

    tier: Tier | None = None
    owner_team: str | None = None
    status: DatasetStatus | None = None
    source_type: str | None = None
    search: str | None = None

    def admits(self, dataset: Dataset) -> bool:
        """Whether a dataset matches."""
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
    """A page of datasets, and the cursor of the next page if there may be one."""

    datasets: list[Dataset]
    cursor: str | None = None


class Listing:
    """Lists datasets."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._pages = MergedPages(store, keyring)

    def page(self, wanted: DatasetFilter, *, limit: int, cursor: str | None) -> Datasets:
        """Return up to `limit` datasets by URN. A page may be short although its cursor is set.

        Raises `QueryLimitError` for an invalid limit, and `CursorError` for a cursor of another query.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise QueryLimitError(f"limit is {limit}: give 1 to {LIMIT_MAX}")
        page = self._pages.page(
            partitions(wanted),
            lambda item: Place(item["PK"], ""),
            limit=limit,
            cursor=cursor,
            descending=False,
            keep=lambda item: wanted.admits(dataset_of(item)),
            question=wanted,
        )
        # Deduplicated by URN: a lagging index may show a dataset in its old and its new partition.
        found = {item["PK"]: dataset_of(item) for item in page.items}
        return Datasets(list(found.values()), page.cursor)


def partitions(wanted: DatasetFilter) -> list[Partition]:
    """Return the index partitions that together hold all matches."""
    is_deleted = wanted.status is DatasetStatus.DELETED
    if wanted.owner_team and not is_deleted:
        return [Partition(DATASET_REGISTRY, "owner-index", wanted.owner_team)]
    tiers = [*Tier] if wanted.tier is None else [wanted.tier]
    return [Partition(DATASET_REGISTRY, "tier-index", tier_partition(tier, is_deleted=is_deleted)) for tier in tiers]
