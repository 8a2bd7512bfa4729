"""Producers of topics: the best source is believed, in whatever order they are seen, and the silent are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.durable.model.records import instant
from headgate.errors import InvalidIdError, InvalidPayloadError
from headgate.health.model.enums import Confidence
from headgate.health.resolution.topic_producers import Source, TopicProducer, TopicProducers, merged
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

TOPIC, JOB = "raw.orders", "job:etl"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def producers(tmp_path: Path, clock: VirtualClock) -> Iterator[TopicProducers]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as store:
        yield TopicProducers(store, clock)


def sighting(second: int, source: Source, confidence: Confidence) -> TopicProducer:
    at = instant(1_768_471_200_000 + second * 1000)
    return TopicProducer(
        topic=TOPIC, producer_id=JOB, confidence=confidence, source=source, first_seen_at=at, last_seen_at=at,
        said_at=at, version=0,
    )  # fmt: skip


SIGHTINGS = st.lists(
    st.builds(sighting, st.integers(0, 20), st.sampled_from(Source), st.sampled_from(Confidence)),
    min_size=1,
    max_size=8,
    unique_by=lambda each: each.said_at,
)


@given(SIGHTINGS)
def test_merged__any_order_and_again__is_what_the_best_source_said_last(
    seen: list[TopicProducer],
) -> None:
    def known(given: list[TopicProducer]) -> TopicProducer:
        held: TopicProducer | None = None
        for each in given:
            held = merged(held, each)
            assert merged(held, each) is held
        assert held is not None
        return replace(held, version=0)

    best = max(seen, key=lambda each: (list(Source).index(each.source), each.said_at))
    found = known(seen)
    assert found == known(seen[::-1]) == known(sorted(seen, key=lambda each: each.said_at))
    assert (found.source, found.confidence, found.said_at) == (best.source, best.confidence, best.said_at)
    assert found.first_seen_at == min(each.said_at for each in seen)
    assert found.last_seen_at == max(each.said_at for each in seen)


def test_seen__and_then_not_for_long__is_forgotten_unless_people_said_so(
    producers: TopicProducers, clock: VirtualClock
) -> None:
    producers.seen(TOPIC, JOB, confidence=Confidence.HIGH, source=Source.HEADER)
    said = producers.seen(TOPIC, "svc", confidence=Confidence.HIGH, source=Source.MANUAL)
    assert [each.producer_id for each in producers.of(TOPIC).producers] == [JOB, "svc"]

    clock.advance(91 * 86_400)

    assert producers.of(TOPIC).producers == [said]
    assert producers.of("raw").producers == []


def test_seen__what_cannot_be__is_refused(producers: TopicProducers, clock: VirtualClock) -> None:
    with pytest.raises(InvalidPayloadError, match="topic"):
        producers.seen("", JOB, confidence=Confidence.LOW, source=Source.HEADER)
    with pytest.raises(InvalidIdError):
        producers.seen(TOPIC, "a b#c", confidence=Confidence.LOW, source=Source.HEADER)
    later = instant(int(clock.seconds() * 1000) + 3_600_000)
    with pytest.raises(InvalidPayloadError, match="future"):
        producers.seen(TOPIC, JOB, confidence=Confidence.LOW, source=Source.HEADER, seen_at=later)
