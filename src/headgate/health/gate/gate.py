"""Gate: answers whether datasets may be read or published now, with reasons, times and the people to ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import InvalidPayloadError
from headgate.health.gate.decisions import (
    ANSWER_SECONDS,
    DatasetFacts,
    DatasetRuling,
    GatePolicy,
    GateQuestion,
    Reason,
    Ruling,
    Verb,
    judge,
    worst,
)
from headgate.health.gate.overrides import override_of, overrides_query
from headgate.health.gate.upstream import UpstreamFacts
from headgate.health.incidents.rows import Sealer, Unsealed, incident_key, incident_of, open_query
from headgate.health.model import urns
from headgate.health.model.datasets import Dataset, OnUpstream
from headgate.health.model.incidents import Incident
from headgate.health.model.timestamps import instant
from headgate.health.signals.reads import SIGNALS_OF_A_DATASET_MAX
from headgate.health.signals.rows import signal_of
from headgate.store.catalogue.tables import INCIDENT_INDEX, SIGNAL_STATE
from headgate.store.model.requests import Page, Query
from headgate.store.port import Store

DATASETS_MAX: Final = 200
OVERRIDABLE_BY: Final = ("admin", "operator")
_QUERIES: Final = 3


class GateAnswer(Struct, frozen=True, kw_only=True):
    """The ruling on all requested datasets: the worst of the single rulings."""

    decision: Ruling
    verb: Verb
    principal: str
    as_of: str
    datasets: tuple[DatasetRuling, ...]
    reasons: tuple[Reason, ...]
    since: str | None
    until: str | None
    override_id: str | None
    overridable_by: tuple[str, ...]
    ttl_seconds: int = ANSWER_SECONDS
    # False if a part came from the cache because the store was unavailable, or the lineage upstream is too large.
    complete: bool = True


class Gatekeeper:
    """Answers gate requests with one store call each, and one more if there are open incidents."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        find: Callable[[str], Dataset | None],
        sealer: Sealer | None = None,
        policy: GatePolicy | None = None,
        upstream: Callable[[str, int, bool], UpstreamFacts] = lambda _urn, _hops, _holds: UpstreamFacts(),
    ) -> None:
        """Take the store, and the policy of the server.

        `find` returns a dataset from the registry. `upstream` returns the troubles up to some producers upstream of
        one, confirmed if they hold it.
        """
        self._store = store
        self._clock = clock
        self._find = find
        self._sealer = sealer if sealer is not None else Unsealed()
        self._policy = policy if policy is not None else GatePolicy()
        self._upstream = upstream

    def check(self, dataset_urns: Sequence[str], question: GateQuestion) -> GateAnswer:
        """Return whether some datasets may be used. Raises `InvalidPayloadError` or `InvalidIdError`."""
        if not 1 <= len(dataset_urns) <= DATASETS_MAX:
            raise InvalidPayloadError(f"datasets: {len(dataset_urns)} given; give 1 to {DATASETS_MAX}")
        names = [urns.dataset_urn(each) for each in dict.fromkeys(dataset_urns)]
        found = [self._find(name) for name in names]
        # A URN without a version stands for the registered dataset, which has the signals.
        kept = [name if each is None else each.dataset_urn for name, each in zip(names, found, strict=True)]
        pages = self._store.query_many([query for urn in kept for query in _queries(urn)])
        named = [row["incident_id"] for page in pages[1::_QUERIES] for row in page.items]
        incidents = self._incidents(named)
        now_ms = int(self._clock.seconds() * 1000)
        facts = [
            self._facts(urn, dataset, pages[start : start + _QUERIES], incidents)
            for urn, dataset, start in zip(kept, found, range(0, len(pages), _QUERIES), strict=True)
        ]
        rulings = [judge(each, question, now_ms, self._policy) for each in facts]
        decision = worst([each.ruling for each in rulings])
        against = [each for each in rulings if each.ruling is decision]
        return GateAnswer(
            decision=decision,
            verb=question.verb,
            principal=question.principal,
            as_of=instant(now_ms),
            datasets=tuple(rulings),
            reasons=tuple(reason for each in rulings for reason in each.reasons),
            since=min((each.since for each in against if each.since is not None), default=None),
            until=min((each.until for each in against if each.until is not None), default=None),
            override_id=next((each.override_id for each in rulings if each.override_id is not None), None),
            overridable_by=OVERRIDABLE_BY if decision in (Ruling.BLOCK, Ruling.UNKNOWN) else (),
            complete=not any(each is not None and each.stale for each in found)
            and all(each.upstream.complete for each in facts),
        )

    def _facts(
        self, urn: str, dataset: Dataset | None, pages: Sequence[Page], incidents: Mapping[str, Incident]
    ) -> DatasetFacts:
        signals, opened, overrides = pages
        held = (incidents.get(row["incident_id"]) for row in opened.items)
        meaning, hops = self._policy.on_upstream(None if dataset is None else dataset.gate)
        is_asked = dataset is not None and meaning is not OnUpstream.IGNORE
        return DatasetFacts(
            dataset_urn=urn,
            dataset=dataset,
            signals=[signal_of(row) for row in signals.items],
            incidents=[each for each in held if each is not None and each.is_open],
            overrides=[override_of(row) for row in overrides.items],
            upstream=self._upstream(urn, hops, meaning is OnUpstream.HOLD) if is_asked else UpstreamFacts(),
        )

    def _incidents(self, incident_ids: Sequence[str]) -> dict[str, Incident]:
        if not incident_ids:
            return {}
        keys = [incident_key(each) for each in dict.fromkeys(incident_ids)]
        found = (row for row in self._store.get_many(INCIDENT_INDEX, keys) if row is not None)
        return {row["incident_id"]: incident_of(row, self._sealer) for row in found}


def _queries(urn: str) -> list[Query]:
    return [
        Query(table=SIGNAL_STATE, partition=urn, limit=SIGNALS_OF_A_DATASET_MAX),
        open_query(urn),
        overrides_query(urn),
    ]
