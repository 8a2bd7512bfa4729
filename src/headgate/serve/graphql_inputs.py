"""What can be given to a GraphQL query: filters, and which page of what they find."""

from __future__ import annotations

from typing import Final

import strawberry
from strawberry import UNSET

from headgate.errors import QueryLimitError
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model import urns
from headgate.health.model.enums import IncidentStatus, Severity, Tier
from headgate.serve.graphql_words import Moment

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100


@strawberry.input(name="Pagination")
class PaginationInput:
    """Which page: the `first` so many (at most 100) that come `after` a cursor."""

    first: int = PAGE_DEFAULT
    after: str | None = UNSET


@strawberry.input(name="IncidentFilter")
class IncidentFilterInput:
    """Which incidents: those that match all that is given. `from` and `to` are about when they were opened."""

    status: list[IncidentStatus] | None = UNSET
    severity: list[Severity] | None = UNSET
    dataset_urn: str | None = UNSET
    owner_team: str | None = UNSET
    from_: Moment | None = strawberry.field(name="from", default=UNSET)
    to: Moment | None = UNSET

    def wanted(self) -> IncidentFilter:
        """Return it in the words of health. Raises `InvalidIdError`."""
        return IncidentFilter(
            # Each once: every one of them is a partition to be read.
            statuses=tuple(dict.fromkeys(self.status or ())),
            severities=tuple(dict.fromkeys(self.severity or ())),
            dataset_urn=urns.dataset_urn(self.dataset_urn) if self.dataset_urn else None,
            owner_team=self.owner_team or None,
            since=self.from_ or "",
            until=self.to or "9999",
        )


@strawberry.input(name="DatasetFilter")
class DatasetFilterInput:
    """Which datasets: those that match all that is given.

    `inBreach` asks for those with a signal that is WARNING or CRITICAL, or for those without one.
    """

    tier: list[Tier] | None = UNSET
    owner_team: str | None = UNSET
    source_type: str | None = UNSET
    in_breach: bool | None = UNSET
    search: str | None = UNSET


def page_size(given: int, name: str) -> int:
    """Return a page size that is allowed. Raises `QueryLimitError`."""
    if not 1 <= given <= PAGE_MAX:
        raise QueryLimitError(f"{name} is {given}: ask for 1 to {PAGE_MAX} at a time, and page through more")
    return given
