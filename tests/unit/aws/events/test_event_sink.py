"""Event sink: refusals for now and for good, an order that is kept, and records that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from headgate.aws.events.event_sink import EventSink, FailedEvent
from headgate.aws.events.targets import ORIGIN, EventBus, Refusal, TargetName, Topic
from headgate.clock import VirtualClock
from headgate.durable.bus import events
from headgate.durable.bus.event_log import StoredEvent, event_put, first_id
from headgate.durable.bus.events import Event
from headgate.errors import StoreIOError, TransientError
from headgate.health.model.events import SOURCE
from headgate.store.dynamodb.marshalling import to_attributes
from tests.aws_rig import stream_record

CLOCK_AT = 1_767_571_200


class Clock(VirtualClock):
    """A clock on which a sleep takes no time."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Page:
    """A target that remembers what it was given, and answers as a test says."""

    name = TargetName.BUS

    def __init__(self, answer: Callable[[StoredEvent, int], Refusal | None] = lambda _event, _attempt: None) -> None:
        self.accepted: list[str] = []
        self.calls = 0
        self._answer = answer

    def wants(self, event: Event) -> bool:
        return ORIGIN not in event.extensions

    def publish(self, given: Sequence[StoredEvent]) -> dict[str, Refusal]:
        self.calls += 1
        answers = {each.event_id: self._answer(each, self.calls) for each in given}
        self.accepted += [each.event.subject for each in given if answers[each.event_id] is None]
        return {name: refusal for name, refusal in answers.items() if refusal is not None}


class Kept:
    def __init__(self) -> None:
        self.events: list[FailedEvent] = []

    def put(self, failed: FailedEvent) -> None:
        self.events.append(failed)


def record(number: int, subject: str, **more: Any) -> dict[str, Any]:
    event = Event(type="order.paid", source="/shop", id=f"e-{number}", subject=subject, data={}, **more)
    event = msgspec.structs.replace(event, time=Clock(CLOCK_AT).now())
    event_id = first_id(1000 * CLOCK_AT + number)
    image = to_attributes(event_put(event_id, event, events.dump(event)).item)
    made = stream_record(number, "", "", image)
    made["dynamodb"]["Keys"] = {"day": image["day"], "event_id": image["event_id"]}
    made["dynamodb"]["NewImage"] = image
    return made


def sink(target: Page, kept: Kept | None = None) -> EventSink:
    return EventSink([target], kept or Kept(), Clock(CLOCK_AT), lambda change: change)


def seq(number: int) -> str:
    return f"{number:021d}"


def test_events__delivered_twice__are_published_once_and_in_order() -> None:
    target = Page()
    publish, records = sink(target), [record(1, "a"), record(2, "b"), record(3, "a")]

    assert publish(records, lambda: False) == []
    assert publish(records, lambda: False) == []

    assert target.accepted == ["a", "b", "a"]


def test_event__throttled_for_a_moment__is_published_in_the_same_invocation() -> None:
    target = Page(lambda _event, attempt: Refusal("slow down", is_passing=True) if attempt < 3 else None)

    assert sink(target)([record(1, "a")], lambda: False) == []
    assert (target.accepted, target.calls) == (["a"], 3)


def test_event__throttled_for_longer__is_left_to_the_stream_with_all_that_follow() -> None:
    throttled = Refusal("slow down", is_passing=True)
    target = Page(lambda event, _attempt: throttled if event.event.subject == "b" else None)
    publish, records = sink(target), [record(1, "a"), record(2, "b"), record(3, "c")]

    assert publish(records, lambda: False) == [seq(2)]
    assert target.accepted == ["a", "c"]


def test_event__refused_for_good__is_kept_and_holds_up_nothing() -> None:
    kept = Kept()
    target = Page(lambda event, _attempt: Refusal("bad", is_passing=False) if event.event.subject == "b" else None)
    publish = sink(target, kept)

    assert publish([record(1, "a"), record(2, "b"), record(3, "c")], lambda: False) == []

    assert target.accepted == ["a", "c"]
    assert [(each.event_id, each.reason) for each in kept.events] == [(first_id(1000 * CLOCK_AT + 2), "bad")]


def test_record__not_readable__is_kept_and_holds_up_nothing() -> None:
    kept, target, bad = Kept(), Page(), record(1, "a")
    bad["dynamodb"]["NewImage"]["body"] = {"S": "not JSON"}

    assert sink(target, kept)([bad, {"dynamodb": {}}, record(2, "b")], lambda: False) == []

    assert target.accepted == ["b"]
    assert [each.reason.startswith("not readable") for each in kept.events] == [True, True]


def test_target__missing_or_forbidden__fails_the_invocation_and_buries_nothing() -> None:
    class Forbidden(Page):
        def publish(self, given: Sequence[StoredEvent]) -> dict[str, Refusal]:
            raise StoreIOError("not authorised")

    kept = Kept()
    with pytest.raises(StoreIOError):
        sink(Forbidden(), kept)([record(1, "a")], lambda: False)
    assert kept.events == []


def test_payload__not_restored_for_now__fails_the_invocation() -> None:
    def restore(_change: object) -> Any:
        raise TransientError("S3 is slow")

    with pytest.raises(TransientError):
        EventSink([Page()], Kept(), Clock(CLOCK_AT), restore)([record(1, "a")], lambda: False)


def test_time__is_over__leaves_what_was_not_published() -> None:
    target = Page()

    assert sink(target)([record(1, "a"), record(2, "b")], lambda: True) == [seq(1)]
    assert target.calls == 0


def test_event__from_a_bus__is_not_published_again() -> None:
    target = Page()

    assert sink(target)([record(1, "a", extensions={ORIGIN: "shop"})], lambda: False) == []
    assert target.calls == 0


def stored(number: int, event: Event) -> StoredEvent:
    complete = msgspec.structs.replace(event, id=f"e-{number}", time=Clock(CLOCK_AT).now())
    return StoredEvent(first_id(number), complete.type, complete.source, events.dump(complete))


class Client:
    """The answers of SNS and EventBridge to batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.refused: dict[int, dict[str, Any]] = {}

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        start = sum(self.batches)
        self.batches.append(len(Entries))
        return {"Entries": [self.refused.get(start + place, {"EventId": "1"}) for place in range(len(Entries))]}


def test_bus__many_events__are_sent_ten_at_a_time_and_each_has_its_own_refusal() -> None:
    client = Client()
    client.refused = {
        11: {"ErrorCode": "ThrottlingException"},
        12: {"ErrorCode": "MalformedDetail", "ErrorMessage": "x"},
    }
    given = [stored(number, Event(type="a.b", source="/s", data=number)) for number in range(13)]

    refused = EventBus(client, "bus", "headgate.a").publish(given)

    assert client.batches == [10, 3]
    assert refused == {
        given[11].event_id: Refusal("ThrottlingException: ", is_passing=True),
        given[12].event_id: Refusal("MalformedDetail: x", is_passing=False),
    }


def test_bus__an_event_larger_than_an_entry__is_refused_and_the_others_are_sent() -> None:
    client = Client()
    given = [stored(1, Event(type="a.b", source="/s", data="x" * 300_000)), stored(2, Event(type="a.b", source="/s"))]

    refused = EventBus(client, "bus", "headgate.a").publish(given)

    assert (set(refused), client.batches) == ({given[0].event_id}, [1])
    assert not refused[given[0].event_id].is_passing


def test_topic__wants_events_of_health_and_pipelines_alone() -> None:
    topic = Topic(None, "arn:aws:sns:us-east-1:1:t")

    assert topic.wants(Event(type="headgate.signal.state_changed", source=SOURCE))
    assert topic.wants(Event(type="headgate.dataset.config_changed", source=SOURCE))
    assert not topic.wants(Event(type="order.paid", source="/shop"))
