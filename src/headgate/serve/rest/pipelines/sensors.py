"""Sensor and marker API: producers push facts about data, and request periods."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta, Struct

from headgate.errors import NotFoundError
from headgate.pipelines.runs.markers import Marker
from headgate.pipelines.schedule.due_checks import slot_named
from headgate.pipelines.sensors import Sensor
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag
from headgate.serve.http.problem import Problem
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import Limit
from headgate.serve.rest.pipelines.models import Date, ScheduleName
from headgate.serve.rest.pipelines.permissions import CONTROL, PUSH, READ

_SOURCE: Final = "api"
Period = Annotated[
    str, Meta(max_length=40, description="The period of the sensor value.", examples=["2026-03-03", "2026-03-03T07"])
]
Data = Annotated[
    dict[str, Any],
    Meta(
        description="The sensor value. `date` and `hour` in it set the period, too.",
        examples=[{"count": 12000, "date": "2026-03-03"}],
    ),
]


class PushSensor(Struct, forbid_unknown_fields=True, kw_only=True):
    """A sensor value, of one period or of all. Without either it belongs to the period in which it arrives."""

    data: Data
    period: Period | None = None
    all_periods: Annotated[bool, Meta(description="Whether the value holds for every period.")] = False
    new: Annotated[
        bool, Meta(description="Whether the key may be one that the pipeline does not read and that has no value yet.")
    ] = False


class PutMarker(Struct, forbid_unknown_fields=True, kw_only=True):
    """A requested period; `again` requests it once more."""

    date: Date
    schedule: ScheduleName | None = None
    again: bool = False
    data: dict[str, Any] = {}


class SensorQuery(Struct, forbid_unknown_fields=True):
    """Period; without one, the value without a period."""

    period: Period | None = None


class SensorsQuery(Struct, forbid_unknown_fields=True):
    """Filter: all sensors, or those of one key with its periods and parts."""

    key: str | None = None
    limit: Limit = 1000


class MarkersQuery(Struct, forbid_unknown_fields=True):
    """Filter of markers by date prefix."""

    dates: Annotated[str, Meta(max_length=40, examples=["2026-03"])] = ""
    limit: Limit = 100


class SensorView(Struct, frozen=True, kw_only=True):
    """The last value of a sensor. `version` increases with every push, `changed_at` with every change.

    `period` is null for a value that holds for all periods.
    """

    key: str
    period: str | None
    is_of_period: bool
    data: dict[str, Any]
    version: int
    by: str
    changed_at: str | None
    pushed_at: str | None
    updated_at: str | None


class Sensors(Struct, frozen=True):
    """Sensors of a pipeline, by key. `is_cut`: there are more than the limit."""

    sensors: list[SensorView]
    is_cut: bool


class MarkerView(Struct, frozen=True, kw_only=True):
    """A requested period. `version` counts the requests; `is_new`: created by this request."""

    pipeline_id: str
    schedule_id: str
    date: str
    version: int
    source: str
    by: str
    at: str | None
    data: dict[str, Any]
    is_new: bool = False


class Markers(Struct, frozen=True):
    """Requested periods, latest first."""

    markers: list[MarkerView]


def sensor_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operations on sensors and markers."""
    return [*_Sensors(pipelines).operations(), *_Markers(pipelines).operations()]


class _Sensors:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._sensors = pipelines.sensors
        self._pushes = pipelines.sensor_pushes

    def operations(self) -> list[Operation]:
        many, one = "/pipelines/{id}/sensors", "/pipelines/{id}/sensors/{key}"
        return [
            Operation("GET", many, "List sensors", self.ls, {200: Sensors}, query=SensorsQuery, rule=READ),
            Operation("GET", one, "Show a sensor", self.show, {200: SensorView}, query=SensorQuery, rule=READ),
            Operation(
                "POST", one, "Push a sensor value", self.push, {200: SensorView, 201: SensorView},
                body=PushSensor, rule=PUSH, repeatable=True,
            ),
            Operation(
                "DELETE", one, "Delete a sensor", self.delete, {204: None, 404: Problem}, query=SensorQuery,
                rule=CONTROL,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, SensorsQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        found = list(islice(self._sensors.values(call.path["id"], key=call.query.key), call.query.limit + 1))
        views = [shown(SensorView, each) for each in found[: call.query.limit]]
        return Answer(Sensors(views, is_cut=len(found) > call.query.limit))

    def show(self, call: Call[None, SensorQuery]) -> Answer:
        found = self._sensors.get(call.path["id"], call.path["key"], period=call.query.period)
        if found is None:
            raise _no_sensor(call)
        return _shown(found)

    def push(self, call: Call[PushSensor, NoQuery]) -> Answer:
        sensor = self._pushes.push(
            call.path["id"],
            call.path["key"],
            call.body.data,
            period=call.body.period,
            is_for_all=call.body.all_periods,
            is_new=call.body.new,
            by=call.principal.name,
        )
        return _shown(sensor, 201 if sensor.version == 1 else 200)

    def delete(self, call: Call[None, SensorQuery]) -> Answer:
        if not self._sensors.delete(call.path["id"], call.path["key"], period=call.query.period):
            raise _no_sensor(call)
        return Answer(status=204)


class _Markers:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._markers = pipelines.stores.markers

    def operations(self) -> list[Operation]:
        many = "/pipelines/{id}/markers"
        return [
            Operation("GET", many, "List markers", self.ls, {200: Markers}, query=MarkersQuery, rule=READ),
            Operation(
                "POST", many, "Put a marker", self.put, {200: MarkerView, 201: MarkerView}, body=PutMarker,
                rule=PUSH, repeatable=True,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, MarkersQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        found = self._markers.ls(call.path["id"], dates=call.query.dates, limit=call.query.limit)
        return Answer(Markers([_marker(each) for each in found]))

    def put(self, call: Call[PutMarker, NoQuery]) -> Answer:
        body = call.body
        pipeline = self._definitions.get(call.path["id"]).pipeline
        slot = slot_named(pipeline, body.date, body.schedule)
        by = call.principal.name
        if body.again:
            return Answer(
                _marker(self._markers.put_again(slot, source=_SOURCE, by=by, data=body.data), is_new=True), 201
            )
        placed = self._markers.put(slot, source=_SOURCE, by=by, data=body.data)
        return Answer(_marker(placed.marker, is_new=placed.is_new), 201 if placed.is_new else 200)


def _shown(sensor: Sensor, status: int = 200) -> Answer:
    return Answer(shown(SensorView, sensor), status, etag(sensor.version))


def _marker(marker: Marker, *, is_new: bool = False) -> MarkerView:
    return shown(MarkerView, marker, is_new=is_new)


def _no_sensor(call: Call[Any, SensorQuery]) -> NotFoundError:
    of_period = "" if call.query.period is None else f" of {call.query.period[:40]}"
    listed = f"{PREFIX}/pipelines/{quote(call.path['id'], safe='')}/sensors"
    return NotFoundError(f"sensor {call.path['key'][:80]!r}{of_period}: no value received; {listed} lists all")
