"""OpenLineage events (spec 2-0-2): run, job and dataset events, and their validation."""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError, PayloadTooLargeError
from headgate.health.ingest import names as openlineage_names
from headgate.health.ingest.effects import RunState
from headgate.health.model import timestamps

EVENT_BYTES_MAX: Final = 5_000_000
DATASETS_MAX: Final = 2_000
BATCH_EVENTS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 20_000_000
RUN_ID_LENGTH_MAX: Final = 128
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

RawFacets = dict[str, Raw]


class EventKind(enum.StrEnum):
    """The kind of an event."""

    RUN = "RunEvent"
    JOB = "JobEvent"
    DATASET = "DatasetEvent"


class Run(Struct, frozen=True):
    """A run of a job."""

    runId: str
    facets: RawFacets | None = None


class Job(Struct, frozen=True):
    """A job."""

    namespace: str
    name: str
    facets: RawFacets | None = None


class DatasetRef(Struct, frozen=True):
    """A dataset that was read or written, or that the event is about."""

    namespace: str
    name: str
    facets: RawFacets | None = None
    inputFacets: RawFacets | None = None
    outputFacets: RawFacets | None = None


class Event(Struct, frozen=True, kw_only=True):
    """An event. Its kind follows from which of `run`, `job` and `dataset` it has."""

    eventTime: str
    eventType: str | None = None
    producer: str | None = None
    schemaURL: str | None = None
    run: Run | None = None
    job: Job | None = None
    dataset: DatasetRef | None = None
    inputs: list[DatasetRef] | None = None
    outputs: list[DatasetRef] | None = None

    @property
    def kind(self) -> EventKind:
        if self.run is not None:
            return EventKind.RUN
        return EventKind.JOB if self.job is not None else EventKind.DATASET

    @property
    def state(self) -> RunState:
        """The state of the run. Unknown types of later spec versions map to none."""
        given = (self.eventType or "").upper()
        return RunState(given) if given in RunState.__members__ else RunState.OTHER

    @property
    def order_key(self) -> str:
        """The ordering key of events: their job, or their dataset."""
        about = self.job or self.dataset
        assert about is not None, "a parsed event has a job or a dataset"
        return f"{len(about.namespace)}:{about.namespace}{about.name}"


_decode_event: Final = msgspec.json.Decoder(Event).decode
_decode_batch: Final = msgspec.json.Decoder(list[Raw]).decode


def parse(body: bytes) -> Event:
    """Return the event of a JSON document, with a canonical timestamp.

    Raises `PayloadTooLargeError`, and `InvalidPayloadError` for an invalid event; facets are not validated here.
    """
    if len(body) > EVENT_BYTES_MAX:
        raise PayloadTooLargeError(
            f"OpenLineage event: {len(body):,} bytes, at most {EVENT_BYTES_MAX:,}; "
            "disable unused facets, such as the logical plan of Spark"
        )
    try:
        event = _decode_event(body)
    except _ERRORS as exc:
        raise InvalidPayloadError(f"OpenLineage event: {str(exc)[:300]}") from exc
    _check(event)
    return replace(event, eventTime=timestamps.moment(event.eventTime, field="eventTime"))


def split(body: bytes) -> list[bytes]:
    """Return the events of a batch, not parsed yet. Raises as `parse` does for an invalid batch."""
    if len(body) > BATCH_BYTES_MAX:
        raise PayloadTooLargeError(f"OpenLineage batch: {len(body):,} bytes, at most {BATCH_BYTES_MAX:,}")
    try:
        events = _decode_batch(body)
    except _ERRORS as exc:
        raise InvalidPayloadError(f"OpenLineage batch: {str(exc)[:300]}; send a JSON array of events") from exc
    if len(events) > BATCH_EVENTS_MAX:
        raise PayloadTooLargeError(f"OpenLineage batch: {len(events):,} events, at most {BATCH_EVENTS_MAX:,}")
    return [bytes(event) for event in events]


def _check(event: Event) -> None:
    about = event.job or event.dataset
    if about is None or (event.run is not None and event.job is None):
        raise InvalidPayloadError("OpenLineage event: neither a job nor a dataset; send one of them")
    if event.dataset is not None and event.job is not None:
        raise InvalidPayloadError("OpenLineage event: both a dataset and a job; send one of them")
    if event.run is not None and not 1 <= len(event.run.runId.strip()) <= RUN_ID_LENGTH_MAX:
        raise InvalidPayloadError(f"OpenLineage event: runId {event.run.runId[:60]!r} is not a run id")
    datasets = [*(event.inputs or ()), *(event.outputs or ())]
    if len(datasets) > DATASETS_MAX:
        raise PayloadTooLargeError(
            f"OpenLineage event: {len(datasets):,} datasets, at most {DATASETS_MAX:,}; name tables rather than files"
        )
    for each in (about, *datasets):
        openlineage_names.check(each.namespace, each.name)
