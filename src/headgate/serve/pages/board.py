"""Health board: open incidents, signals in breach and pipelines that need attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import ForbiddenError, TransientError
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier
from headgate.serve.pages.api_calls import ApiCaller, Listed, twin
from headgate.serve.pages.labels import command
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute
from headgate.serve.pages.pipelines import PipelineCounts, pipeline_counts

INCIDENTS_MAX: Final = 100
SIGNALS_MAX: Final = 50
OPEN: Final = (IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value)
REGISTER: Final = command("dataset", "register", "urn:dp:orders:created", "--team", "orders", "--freshness", "1h")


class Count(Struct, frozen=True):
    """A count of problems."""

    word: str
    of: str
    number: int
    address: str


class TierBreaches(Struct, frozen=True):
    """Signals in breach of a tier, latest change first."""

    tier: str
    signals: list[Any]
    has_more: bool


class Board(Struct, frozen=True, kw_only=True):
    """View of the board. `missing` lists unavailable parts with the reason."""

    incidents: list[Any]
    has_more_incidents: bool
    tiers: tuple[TierBreaches, ...]
    counts: tuple[Count, ...]
    has_datasets: bool
    # None: there are no pipelines, or they are not visible.
    pipelines: PipelineCounts | None
    missing: tuple[str, ...]
    register: str = REGISTER

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems among the visible parts."""
        is_quiet = not self.incidents and not any(each.signals for each in self.tiers) and not self.missing
        return is_quiet and (self.pipelines is None or not self.pipelines.listed)


def board(api: ApiCaller) -> Board:
    """Return the board of a caller. Raises `UnauthenticatedError`, and `ForbiddenError` without dataset access."""
    has_datasets = bool(api.listed("GET /datasets", most=1).items)
    missing: list[str] = []
    incidents = _listed(api, missing, "GET /incidents", INCIDENTS_MAX, status=list(OPEN))
    tiers = []
    for tier in Tier:
        found = _listed(api, missing, "GET /signals", SIGNALS_MAX, tier=tier.value)
        # Most severe first, then newest.
        worst = sorted(found.items, key=lambda each: each["state"] != SignalState.CRITICAL)
        tiers.append(TierBreaches(tier.value, worst, found.has_more))
    return Board(
        incidents=sorted(incidents.items, key=lambda each: str(each["severity"])),
        has_more_incidents=incidents.has_more,
        tiers=tuple(tiers),
        counts=(*_of_incidents(incidents.items), *_of_signals(tiers)),
        has_datasets=has_datasets,
        pipelines=_pipelines(api, missing),
        missing=tuple(dict.fromkeys(missing)),
    )


def _listed(api: ApiCaller, missing: list[str], name: str, most: int, **query: Any) -> Listed:  # noqa: ANN401
    try:
        return api.listed(name, most=most, query=query)
    except (ForbiddenError, TransientError) as exc:
        missing.append(exc.message)
        return Listed([], has_more=False)


def _pipelines(api: ApiCaller, missing: list[str]) -> PipelineCounts | None:
    # Without pipeline permissions the board shows datasets only.
    if not api.may(Permission.PIPELINE_READ):
        return None
    try:
        return pipeline_counts(api)
    except TransientError as exc:
        missing.append(exc.message)
        return None


def _of_incidents(incidents: Sequence[Any]) -> list[Count]:
    found = Counter(each["severity"] for each in incidents)
    query = "&".join(f"status={each}" for each in OPEN)
    return [Count(each.value, "incidents", found[each], f"/ui/incidents?{query}&severity={each}") for each in Severity]


def _of_signals(tiers: Sequence[TierBreaches]) -> list[Count]:
    found = Counter(signal["state"] for tier in tiers for signal in tier.signals)
    return [
        Count(each.value, "signals", found[each], "#signals") for each in (SignalState.CRITICAL, SignalState.WARNING)
    ]


def _page(api: ApiCaller, _request: PageRequest) -> Page:
    return Page(
        template="board.html",
        title="Now",
        view=board(api),
        json=twin("/incidents", {"status": ["OPEN", "ACKNOWLEDGED"]}),
        cli=command("incident", "ls"),
        changes=changes_of(),
        section="now",
    )


PAGES: Final = (PageRoute("", _page),)
