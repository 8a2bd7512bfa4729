"""The health board: what is wrong now, newest first, and what to do when nothing is there yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import ForbiddenError, TransientError
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier
from headgate.serve.pages.api_calls import ApiCaller, Listed
from headgate.serve.pages.labels import command
from headgate.serve.pages.pipelines import PipelineCounts, pipeline_counts

INCIDENTS_MAX: Final = 100
SIGNALS_MAX: Final = 50
OPEN: Final = (IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value)
REGISTER: Final = command("dataset", "register", "urn:dp:orders:created", "--team", "orders", "--freshness", "1h")


class Count(Struct, frozen=True):
    """How many there are of something that is wrong."""

    word: str
    of: str
    number: int
    address: str


class TierBreaches(Struct, frozen=True):
    """The signals of a tier that are in breach, those that changed last first."""

    tier: str
    signals: list[Any]
    has_more: bool


class Board(Struct, frozen=True, kw_only=True):
    """What the board shows. `missing` says what it does not show, and why."""

    incidents: list[Any]
    has_more_incidents: bool
    tiers: tuple[TierBreaches, ...]
    counts: tuple[Count, ...]
    has_datasets: bool
    # None: there are none, or they may not be seen.
    pipelines: PipelineCounts | None
    missing: tuple[str, ...]
    register: str = REGISTER

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong, as far as it could be looked at."""
        is_quiet = not self.incidents and not any(each.signals for each in self.tiers) and not self.missing
        return is_quiet and (self.pipelines is None or not self.pipelines.listed)


def board(asking: ApiCaller) -> Board:
    """Return the board of a caller. Raises `UnauthenticatedError`, and `ForbiddenError` if it may see no dataset."""
    has_datasets = bool(asking.listed("GET /datasets", most=1).items)
    missing: list[str] = []
    incidents = _listed(asking, missing, "GET /incidents", INCIDENTS_MAX, status=list(OPEN))
    tiers = []
    for tier in Tier:
        found = _listed(asking, missing, "GET /signals", SIGNALS_MAX, tier=tier.value)
        # The worst first, and of those that are alike the newest: the order in which someone on call looks.
        worst = sorted(found.items, key=lambda each: each["state"] != SignalState.CRITICAL)
        tiers.append(TierBreaches(tier.value, worst, found.has_more))
    return Board(
        incidents=sorted(incidents.items, key=lambda each: str(each["severity"])),
        has_more_incidents=incidents.has_more,
        tiers=tuple(tiers),
        counts=(*_of_incidents(incidents.items), *_of_signals(tiers)),
        has_datasets=has_datasets,
        pipelines=_pipelines(asking, missing),
        missing=tuple(dict.fromkeys(missing)),
    )


def _listed(asking: ApiCaller, missing: list[str], name: str, most: int, **query: Any) -> Listed:  # noqa: ANN401
    try:
        return asking.listed(name, most=most, query=query)
    except (ForbiddenError, TransientError) as exc:
        missing.append(exc.message)
        return Listed([], has_more=False)


def _pipelines(asking: ApiCaller, missing: list[str]) -> PipelineCounts | None:
    # A board of datasets is whole without pipelines that its reader has nothing to do with.
    if not asking.may(Permission.PIPELINE_READ):
        return None
    try:
        return pipeline_counts(asking)
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
