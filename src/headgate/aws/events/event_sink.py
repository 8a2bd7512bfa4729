"""Event sink: publishes the events of the event log to SNS and EventBridge, at least once.

The stream of the log invokes it. What a target refuses for good is put into a queue of failed events and does not hold
up the events behind it; what it refuses for now is tried again, and then left to the stream with all that follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog
from msgspec import Struct

from headgate.aws.events.targets import Refusal, Target, TargetName
from headgate.aws.stream_records import sequence_number, stream_change
from headgate.clock import Clock
from headgate.durable.bus.event_log import EventLog, StoredEvent
from headgate.errors import HeadgateError, TransientError
from headgate.store.catalogue.tables import EVENTS
from headgate.store.model.requests import Change

_TRIES: Final = 4
_BACKOFF_SECONDS: Final = 0.2
_REMEMBERED_MAX: Final = 10_000
_log = structlog.get_logger(__name__)


class FailedEvent(Struct, frozen=True, kw_only=True):
    """An event that a target refused. The log still has it."""

    event_id: str
    target: TargetName
    reason: str


class FailedEvents(Protocol):
    """The queue of failed events."""

    def put(self, failed: FailedEvent) -> None:
        """Add an event. Raises `TransientError` and `StoreIOError`."""


class EventSink:
    """Publishes the records of one stream. It skips events it has published; that only saves calls."""

    def __init__(
        self,
        targets: Sequence[Target],
        failed: FailedEvents,
        clock: Clock,
        restore: Callable[[Change], Change],
    ) -> None:
        self._targets = tuple(targets)
        self._failed = failed
        self._clock = clock
        self._restore = restore
        self._published: OrderedDict[tuple[str, TargetName], None] = OrderedDict()

    def __call__(self, records: Sequence[Mapping[str, Any]], is_out_of_time: Callable[[], bool]) -> list[str]:
        """Publish the events of records. Returns the sequence number of the first that is to be delivered again.

        The stream repeats that record and all after it.
        """
        stored: list[tuple[str, StoredEvent]] = []
        for record in records:
            event = self._event(record)
            if event is not None:
                stored.append((sequence_number(record), event))
        left: set[str] = set()
        for target in self._targets:
            left |= self._publish(target, [event for _, event in stored], is_out_of_time)
        return [number for number, event in stored if event.event_id in left][:1]

    def publish_again(self, event: StoredEvent, target_name: TargetName) -> Refusal | None:
        """Publish one event to one target, and return why it was refused. Raises as the target does."""
        target = next((each for each in self._targets if each.name is target_name), None)
        if target is None:
            return Refusal(f"there is no {target_name} any more", is_passing=False)
        return target.publish([event]).get(event.event_id)

    def _event(self, record: Mapping[str, Any]) -> StoredEvent | None:
        """Return the event of a record; None for one that cannot be read, which no retry changes."""
        try:
            change = self._restore(stream_change(EVENTS, record))
            if change.new is None:
                return None
            item = change.new
            event = StoredEvent(item["event_id"], item["type"], item["source"], item["body"])
            # Decoded here, so that a bad one is refused on its own.
            _ = event.event
        except TransientError:
            raise
        except Exception as exc:  # noqa: BLE001 - one bad record must not block the rest
            event_id = str(record.get("dynamodb", {}).get("Keys", {}).get("event_id", {}).get("S", ""))
            _log.error("event not readable", action="event-sink", event_id=event_id, error=str(exc))
            for target in self._targets:
                self._failed.put(FailedEvent(event_id=event_id, target=target.name, reason=f"not readable: {exc}"))
            return None
        return event

    def _publish(self, target: Target, events: Iterable[StoredEvent], is_out_of_time: Callable[[], bool]) -> set[str]:
        """Publish to one target, and return the events that are left for a later delivery."""
        wanted = [
            each for each in events if (each.event_id, target.name) not in self._published and target.wants(each.event)
        ]
        for attempt in range(_TRIES):
            if not wanted:
                return set()
            if is_out_of_time():
                break
            if attempt:
                self._clock.sleep(_BACKOFF_SECONDS * 2**attempt)
            refused = target.publish(wanted)
            for each in wanted:
                refusal = refused.get(each.event_id)
                if refusal is None:
                    self._remember(each, target)
                elif not refusal.is_passing:
                    self._bury(each, target, refusal)
            wanted = [each for each in wanted if (found := refused.get(each.event_id)) is not None and found.is_passing]
        for each in wanted:
            _log.warning("event not accepted yet", action="event-sink", event_id=each.event_id, target=target.name)
        return {each.event_id for each in wanted}

    def _bury(self, event: StoredEvent, target: Target, refusal: Refusal) -> None:
        _log.error(
            "event refused", action="event-sink", event_id=event.event_id, target=target.name, reason=refusal.reason
        )
        self._failed.put(FailedEvent(event_id=event.event_id, target=target.name, reason=refusal.reason))
        self._remember(event, target)

    def _remember(self, event: StoredEvent, target: Target) -> None:
        self._published[event.event_id, target.name] = None
        if len(self._published) > _REMEMBERED_MAX:
            self._published.popitem(last=False)


class RedriveResult(Struct, frozen=True, kw_only=True):
    """What became of failed events."""

    published: int
    refused: int
    # Not in the log any more.
    missing: int


def redrive(failed: Iterable[tuple[FailedEvent, Callable[[], None]]], log: EventLog, sink: EventSink) -> RedriveResult:
    """Publish failed events again, and call what comes with each once its target has accepted it.

    One that is refused again stays in the queue. Raises as the targets do.
    """
    published = refused = missing = 0
    for each, delete in failed:
        event = _logged(log, each.event_id)
        if event is None:
            missing += 1
            delete()
            continue
        refusal = sink.publish_again(event, each.target)
        if refusal is None:
            published += 1
            delete()
        else:
            refused += 1
            _log.warning("event refused again", action="event-sink", event_id=each.event_id, reason=refusal.reason)
    return RedriveResult(published=published, refused=refused, missing=missing)


def _logged(log: EventLog, event_id: str) -> StoredEvent | None:
    try:
        return log.get(event_id)
    except TransientError:
        raise
    except HeadgateError:
        # The id of a record that could not be read.
        return None
