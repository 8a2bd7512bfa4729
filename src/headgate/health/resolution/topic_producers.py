"""Topic producers: the producers of a topic, with source, confidence and last sighting."""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, StoreBusyError
from headgate.health.lineage.specs import ID_BYTES_MAX, entity_id
from headgate.health.model.enums import Confidence
from headgate.health.model.signals import FUTURE_MS_MAX
from headgate.health.model.timestamps import instant, milliseconds, moment
from headgate.ids import check_new_path
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

TOPIC_BYTES_MAX: Final = 1024
ATTEMPTS_MAX: Final = 32
PAGE: Final = 100
# A producer that was not seen for this long is dropped.
_KEPT_SECONDS: Final = 90 * 86_400


class Source(enum.StrEnum):
    """How a producer is known. A person's statement outranks messages, which outrank guesses."""

    INFERRED = "INFERRED"
    HEADER = "HEADER"
    MANUAL = "MANUAL"


_TRUST: Final = tuple(Source)


class TopicProducer(Struct, frozen=True, kw_only=True):
    """A producer of a topic. `said_at` is the time of the sighting behind `source` and `confidence`."""

    topic: str
    producer_id: str
    confidence: Confidence
    source: Source
    first_seen_at: str
    last_seen_at: str
    said_at: str
    version: int


class TopicProducerPage(Struct, frozen=True):
    """A page of producers of a topic, by id, and the cursor of the next page."""

    producers: list[TopicProducer]
    cursor: str | None = None


def merged(held: TopicProducer | None, seen: TopicProducer) -> TopicProducer:
    """Return a producer after a sighting, the same object if nothing is new.

    A better source wins, and the later of two sightings of the same source; their order of arrival does not matter.
    """
    if held is None:
        return replace(seen, version=1)
    is_believed = (_TRUST.index(seen.source), seen.said_at) >= (_TRUST.index(held.source), held.said_at)
    known = replace(
        seen if is_believed else held,
        first_seen_at=min(held.first_seen_at, seen.first_seen_at),
        last_seen_at=max(held.last_seen_at, seen.last_seen_at),
        version=held.version,
    )
    return held if known == held else replace(known, version=held.version + 1)


class TopicProducers:
    """Stores the producers of topics. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def seen(
        self, topic: str, producer_id: str, *, confidence: Confidence, source: Source, seen_at: str | None = None
    ) -> TopicProducer:
        """Record a sighting of a producer, now or at a time, and return the producer.

        Raises `InvalidPayloadError` or `InvalidIdError` for invalid input, and `StoreBusyError` after too many
        conflicts.
        """
        key, now_ms = Key(_partition(topic), entity_id(producer_id)), int(self._clock.seconds() * 1000)
        check_new_path("topic", topic, TOPIC_BYTES_MAX, is_foreign=True)
        check_new_path("producer_id", producer_id, ID_BYTES_MAX, is_foreign=True)
        at = instant(now_ms) if seen_at is None else moment(seen_at, field="seen_at")
        if at > instant(now_ms + FUTURE_MS_MAX):
            raise InvalidPayloadError(f"seen_at {at} is in the future; it is {instant(now_ms)}")
        sighting = TopicProducer(
            topic=topic,
            producer_id=producer_id,
            confidence=confidence,
            source=source,
            first_seen_at=at,
            last_seen_at=at,
            said_at=at,
            version=0,
        )
        for _ in range(ATTEMPTS_MAX):
            row = self._store.get(CONTROL, key, consistent=True)
            held = None if row is None else _producer(row)
            made = merged(held, sighting)
            if held is made:
                return made
            condition = absent() if held is None else version_is(held.version)
            try:
                self._store.put(CONTROL, _row(key, made), condition=condition)
            except ConflictError:
                continue
            return made
        raise StoreBusyError(f"producer {producer_id} of {topic}: {ATTEMPTS_MAX} conflicting writes; try again")

    def of(self, topic: str, *, limit: int = PAGE, cursor: str | None = None) -> TopicProducerPage:
        """Return the producers of a topic. Raises `InvalidPayloadError` for an invalid topic."""
        query = Query(table=CONTROL, partition=_partition(topic), limit=limit, cursor=cursor, consistent=True)
        page = self._store.query(query)
        return TopicProducerPage([_producer(row) for row in page.items], page.cursor)


def _partition(topic: str) -> str:
    if not topic or len(topic.encode(errors="surrogatepass")) > TOPIC_BYTES_MAX:
        raise InvalidPayloadError(f"topic {topic[:60]!r}: give 1 to {TOPIC_BYTES_MAX} bytes of text")
    return f"PRODUCERS#{topic}"


def _row(key: Key, producer: TopicProducer) -> Item:
    row = {**CONTROL.key_attributes(key), **msgspec.to_builtins(producer)}
    if producer.source is not Source.MANUAL:
        row["ttl"] = milliseconds(producer.last_seen_at) // 1000 + _KEPT_SECONDS
    return row


def _producer(row: Item) -> TopicProducer:
    return typed_decode.convert(row, TopicProducer)
