"""A store as full as the state store is expected to be: its rows, written straight through `batch_write`.

At scale 1 that is 50,000 signals, 10,000 incidents, 10,000 datasets, 5,000 rules, 1,000,000 pieces of evidence, and
100,000, 100,000, 500,000 and 500,000 rows of lineage. Names are numbered, so that clients know what
exists.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.health.evidence.rows import (
    Correlation,
    Evidence,
    Fingerprints,
    Otel,
    Producer,
    Result,
    Validation,
    line_of,
    row_of_line,
)
from headgate.health.evidence.rows import Source as EvidenceSource
from headgate.health.incidents.rows import Unsealed, incident_row, open_put
from headgate.health.lineage.rows import ProducerDatasets, side, ties_item
from headgate.health.lineage.specs import EdgeKind
from headgate.health.model import enums
from headgate.health.model.datasets import ComplianceSlo, Dataset, FreshnessSlo, Slos, Source
from headgate.health.model.enums import Confidence, EntityType, IncidentStatus, Phase, Severity, SignalState, Tier
from headgate.health.model.incidents import Incident, Link, Step
from headgate.health.model.signals import Metrics, Signal, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.registry.rows import Versions, alias_name, latest_item, versions_item
from headgate.health.resolution.loader import RuleSet, rule_set_item
from headgate.health.resolution.rules import Rule, marks, rule_item
from headgate.health.signals.rows import signal_row
from headgate.settings import Address, Settings
from headgate.store.catalogue.tables import (
    CONTROL,
    DATASET_REGISTRY,
    DATASET_RESOLUTION,
    EVIDENCE_CACHE,
    INCIDENT_INDEX,
    SIGNAL_STATE,
)
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key

TYPES: Final = (
    enums.FRESHNESS,
    enums.VOLUME,
    enums.CONTRACT_COMPLIANCE,
    enums.SCHEMA_DRIFT,
    enums.DATA_QUALITY,
)
SIGNATURE: Final = "MISSING_FIELD:customer_id"
TEAM: Final = "orders-team"
# Of the signals so many in a thousand are CRITICAL, each with an incident of its own, and so many WARNING.
CRITICAL_PER_MILLE, WARNING_PER_MILLE = 40, 40
_AT_ONCE: Final = 5_000
_MINUTE_MS: Final = 60_000
_DAY_SECONDS: Final = 86_400
# What an id says of when it was made: it only has to be the same whenever it is asked for.
_EVIDENCE_PREFIX: Final = "evd-01M7GXYEA8"


class Sizes(NamedTuple):
    """How much there is."""

    datasets: int
    incidents: int
    rules: int
    evidence: int
    producers: int
    # Each producer reads and writes so many datasets, and five columns of each.
    ties: int = 10
    columns: int = 5

    @property
    def signals(self) -> int:
        return self.datasets * len(TYPES)

    @property
    def critical(self) -> int:
        return self.signals * CRITICAL_PER_MILLE // 1000


def sizes(scale: float) -> Sizes:
    """Return how much there is at a scale: 1 is what the store was designed for."""
    return Sizes(
        datasets=max(200, round(10_000 * scale)),
        incidents=max(100, round(10_000 * scale)),
        rules=max(50, round(5_000 * scale)),
        evidence=max(1_000, round(1_000_000 * scale)),
        producers=max(10, round(10_000 * scale)),
    )


def settings_at(home: Path) -> Settings:
    """Return the settings of everything that is measured here: all as it is by default, but for free ports."""
    free = Address("127.0.0.1", 0)
    return Settings.load(os.environ, None, {"home": str(home), "http": str(free), "grpc": str(free)})


@contextmanager
def filled(scale: float) -> Iterator[Path]:
    """Give the home of a full store."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        home = Path(folder)
        fill(home, sizes(scale))
        # What is still to be written of it is none of what is measured.
        os.sync()
        yield home


def fill(home: Path, size: Sizes) -> None:
    """Write everything into the store at `home`."""
    clock = SystemClock()
    rows = _Rows(size, int(1000 * clock.seconds()))
    parts = (rows.datasets, rows.signals, rows.incidents, rows.rules, rows.evidence, rows.lineage, rows.columns)
    with closing(open_store(settings_at(home), clock).store) as store:
        for part in parts:
            puts = iter(part())
            while some := list(islice(puts, _AT_ONCE)):
                store.batch_write(some)


# Names.


def urn(number: int) -> str:
    """Return the name of the n-th dataset."""
    return f"urn:dp:bench:set{number:05d}:v1"


def signal_at(place: int) -> tuple[str, str]:
    """Return dataset and type of the n-th signal."""
    return urn(place // len(TYPES)), TYPES[place % len(TYPES)]


def state_at(place: int) -> SignalState:
    """Return the state that the n-th signal was filled in with."""
    # Spread over the datasets by a multiplication that no other number here shares a factor with.
    spot = place * 7919 % 1000
    if spot < CRITICAL_PER_MILLE:
        return SignalState.CRITICAL
    return SignalState.WARNING if spot < CRITICAL_PER_MILLE + WARNING_PER_MILLE else SignalState.OK


def signature_at(place: int) -> str:
    """Return how the n-th signal fails when it does: of two signals of one dataset each has its own trouble."""
    return f"MISSING_FIELD:{signal_at(place)[1].lower()}"


def evidence_id(number: int) -> str:
    """Return the id of the n-th piece of evidence."""
    return f"{_EVIDENCE_PREFIX}{number:016d}"


def incident_id(number: int) -> str:
    """Return the id of the n-th incident: those of critical signals come first."""
    return f"INC-BENCH{number:08d}"


def evidence_like(number: int, dataset_urn: str, *, fails: bool = False, created_at: str = "") -> Evidence:
    """Return a piece of evidence of a usual size."""
    said = Result.FAIL if fails else Result.PASS
    return Evidence(
        evidence_id=evidence_id(number),
        dataset_urn=dataset_urn,
        created_at=created_at,
        producer=Producer(producer_id="svc:checkout", version="3.4.1", confidence=Confidence.HIGH),
        source=EvidenceSource(topic="orders.created", partition=number % 12, offset=number),
        validation=Validation(
            result=said,
            failed_gates=("contract",) if fails else (),
            reason_codes=(SIGNATURE,) if fails else (),
        ),
        fingerprints=Fingerprints(schema_fingerprint="b2:7c9e6a3d10f4", payload_hash=f"{number:016x}"),
        otel=Otel(trace_id=f"{number:032x}", span_id=f"{number:016x}"),
        correlation=Correlation(run_id=f"run-{number:09d}"),
        payload_ref=f"s3://bench-lake/orders/{number:012d}",
        payload_size_bytes=2048,
    )


class _Rows:
    """Makes the rows, part by part."""

    def __init__(self, size: Sizes, now_ms: int) -> None:
        self._size = size
        self._now_ms = now_ms
        self._now_seconds = now_ms // 1000
        self._critical = [place for place in range(size.signals) if state_at(place) is SignalState.CRITICAL]
        self._incident_of = {place: incident_id(number) for number, place in enumerate(self._critical)}

    def _at(self, minutes: float) -> str:
        """The moment so many minutes before now."""
        return instant(self._now_ms - round(minutes * _MINUTE_MS))

    def datasets(self) -> Iterator[Put]:
        for number in range(self._size.datasets):
            dataset = Dataset(
                dataset_urn=urn(number),
                config_version=1,
                display_name=f"Orders {number}",
                description="Orders as they were placed, one event each",
                tier=_tier(number),
                owner_team=f"team-{number % 50}",
                oncall_rotation="orders-primary",
                source=Source(type="KAFKA", topic=f"orders.created.{number}", cluster="main"),
                slos=Slos(
                    freshness=FreshnessSlo(max_delay_seconds=900.0, warning_delay_seconds=600.0),
                    contract_compliance=ComplianceSlo(min_compliance_rate=0.995),
                ),
                created_at=self._at(90_000),
                updated_at=self._at(90_000),
                updated_by="bench",
            )
            yield Put(DATASET_REGISTRY, latest_item(dataset, change_id=f"chg-{number}", feed_sequence=0))
            name = alias_name(dataset.dataset_urn)
            assert name is not None
            yield Put(DATASET_REGISTRY, versions_item(name, Versions(registered=(1,), version=1)))

    def signals(self) -> Iterator[Put]:
        for place in range(self._size.signals):
            yield Put(SIGNAL_STATE, signal_row(self._signal(place), self._now_seconds))

    def _signal(self, place: int) -> Signal:
        (dataset_urn, signal_type), state = signal_at(place), state_at(place)
        value = SignalValue(
            state=state,
            score=0.999 if state is SignalState.OK else 0.91,
            slo_threshold=0.995,
            window_start=self._at(15),
            window_end=self._at(10),
            window_type="TUMBLING_5MIN",
            metrics=Metrics(evidence_count=1200, pass_count=1199, fail_count=1),
            breach_start=self._at(60) if state.is_breach else None,
            failure_signature=signature_at(place) if state.is_breach else None,
            evidence_sample=(evidence_id(place % self._size.evidence),) if state.is_breach else (),
            incident_id=self._incident_of.get(place),
        )
        return Signal(
            dataset_urn=dataset_urn,
            signal_type=signal_type,
            value=value,
            tier=_tier(place // len(TYPES)),
            owner_team=f"team-{place // len(TYPES) % 50}",
            version=7,
            digest=value.digest,
            last_updated=self._at(10),
            state_changed_at=self._at(60),
        )

    def incidents(self) -> Iterator[Put]:
        for number in range(self._size.incidents):
            place = self._critical[number] if number < len(self._critical) else None
            incident = self._incident(number, place)
            yield Put(INCIDENT_INDEX, incident_row(incident, Unsealed()))
            if incident.is_open:
                yield open_put(incident, incident.primary_dataset_urn)
                dedup = {"PK": f"DEDUP#{incident.dedup_key}", "SK": "DEDUP"}
                yield Put(CONTROL, {**dedup, "incident_id": incident.incident_id, "is_open": True})

    def _incident(self, number: int, place: int | None) -> Incident:
        """Return an open incident of a signal, or without one an incident that is over."""
        spot = number if place is None else place
        dataset_urn, signal_type = signal_at(spot)
        status, phase = (IncidentStatus.RESOLVED, Phase.RESOLVED) if place is None else (IncidentStatus.OPEN, Phase.NEW)
        at = self._at(60 if place is not None else 3_000 + number % 40_000)
        signature = signature_at(spot)
        return Incident(
            incident_id=incident_id(number),
            status=status,
            phase=phase,
            severity=Severity.SEV_2,
            title=f"{signal_type} of {dataset_urn}",
            created_at=at,
            updated_at=at,
            resolved_at=at if place is None else None,
            primary_dataset_urn=dataset_urn,
            dedup_key=f"{dataset_urn}#{signature}",
            tier=Tier.TIER_2,
            owner_team=TEAM,
            version=1,
            signal_types=(signal_type,),
            failure_signatures=(signature,),
            evidence_sample=(evidence_id(number % self._size.evidence),),
            episode_started_at=at,
            links=() if place is None else (Link(dataset_urn, signal_type),),
            steps=(Step(at=at, actor="bench", status=status, phase=phase),),
        )

    def rules(self) -> Iterator[Put]:
        made = [
            Rule(
                topic_pattern=f"orders.created.{number}" if number % 10 else f"orders.*.{number}",
                name="default",
                resolution_type="EXACT" if number % 10 else "WILDCARD",
                dataset_urn=urn(number % self._size.datasets),
                set_version=number + 1,
                etag=f"e{number}",
                created_at=self._at(90_000),
                updated_at=self._at(90_000),
                updated_by="bench",
            )
            for number in range(self._size.rules)
        ]
        yield from (Put(DATASET_RESOLUTION, rule_item(rule)) for rule in made)
        yield Put(DATASET_RESOLUTION, rule_set_item(RuleSet(version=len(made), marks=f"{marks(made):016x}")))

    def evidence(self) -> Iterator[Put]:
        size = self._size
        ttl = self._now_seconds + _DAY_SECONDS
        # Checked once; what differs from one to the next is put in by hand, or a million would take very long.
        shapes = [
            row_of_line(line_of(evidence_like(0, urn(0), fails=fails), evidence_id(0), 0)) for fails in (False, True)
        ]
        for number in range(size.evidence):
            yield Put(
                EVIDENCE_CACHE,
                {
                    **shapes[number % 50 == 0],
                    "evidence_id": evidence_id(number),
                    "dataset_urn": urn(number % size.datasets),
                    "created_at": self._at(600 * (1 - number / size.evidence)),
                    "ttl": ttl,
                },
            )

    def lineage(self) -> Iterator[Put]:
        """Go through who writes and reads datasets, and what each of them has to do with them all."""
        for producer in range(self._size.producers):
            reads, writes = self._tied(producer)
            tied = ProducerDatasets(
                producer_id=_producer(producer),
                producer_name=f"job {producer}",
                producer_type=EntityType.JOB,
                reads=dict.fromkeys(reads, Confidence.HIGH),
                writes=dict.fromkeys(writes, Confidence.HIGH),
                expires=self._now_seconds + 90 * _DAY_SECONDS,
                version=1,
            )
            yield Put(CONTROL, ties_item(tied, self._now_ms - 60 * _MINUTE_MS))
            yield from (self._edge(EdgeKind.DATASET_READ, each, producer) for each in reads)
            yield from (self._edge(EdgeKind.DATASET_WRITE, each, producer) for each in writes)

    def columns(self) -> Iterator[Put]:
        for producer in range(self._size.producers):
            for kind, tied in zip((EdgeKind.COLUMN_READ, EdgeKind.COLUMN_WRITE), self._tied(producer), strict=True):
                for each in tied:
                    columns = (f"urn:col:{each}:field_{column}" for column in range(self._size.columns))
                    yield from (self._edge(kind, column, producer) for column in columns)

    def _tied(self, producer: int) -> tuple[list[str], list[str]]:
        """Return what a producer reads and writes: what it reads comes before what it writes, so nothing is circular.

        It writes one dataset of its own; what else it writes is written by others too.
        """
        size = self._size
        draw = random.Random(producer)
        share = size.datasets / size.producers
        own = int(producer * share)
        before = sorted({urn(max(0, own - 1 - draw.randrange(size.datasets // 4))) for _ in range(size.ties * 2)})
        after = sorted({urn(min(size.datasets - 1, own + draw.randrange(20))) for _ in range(size.ties * 2)})
        return _exactly(before, size.ties), _exactly(after, size.ties)

    def _edge(self, kind: EdgeKind, target: str, producer: int) -> Put:
        table, role = side(kind)
        item: dict[str, Any] = {
            **table.key_attributes(Key(target, f"{role}#{_producer(producer)}")),
            f"{role}_id": _producer(producer),
            f"{role}_name": f"job {producer}",
            f"{role}_type": EntityType.JOB.value,
            "confidence": Confidence.HIGH.value,
            "spec_id": f"lspec:{_producer(producer)}:git:9f31c2d",
            "updated_at": self._at(1_440),
            "ttl": self._now_seconds + 90 * _DAY_SECONDS,
        }
        return Put(table, item)


def _exactly(names: Iterable[str], count: int) -> list[str]:
    return list(islice(names, count))


def _tier(number: int) -> Tier:
    return (Tier.TIER_1, Tier.TIER_2, Tier.TIER_3)[number % 3]


def _producer(number: int) -> str:
    return f"job:p{number}"
