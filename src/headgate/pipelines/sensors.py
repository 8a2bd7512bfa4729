"""Sensors: data that producers push, stored as rows `SENSOR#key` and `SENSOR#key#period`.

A value belongs to one period: the one that the push or its fields name, or else the one in which it arrives. It holds
for all periods only if the push says so. The row of a period takes precedence over the row without one, which has the
newest value and applies only to its own period.

Other programs may write rows too, with their fields in `data` or beside the keys; both are read. Such a row without a
period holds for all, and so does one that an earlier release stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError
from headgate.ids import check_new_path
from headgate.pipelines.definition.model import Json
from headgate.pipelines.field_values import moment_ms
from headgate.pipelines.schedule.sensor_periods import (
    DELIMITER,
    forms_of,
    may_concern,
    period_of_fields,
    period_text,
    split_key,
)
from headgate.store.catalogue.tables import PIPELINES, SENSOR
from headgate.store.model.conditions import Condition, absent, equals, has, lacks
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.telemetry import traceparent

# Retention of the rows of a period, for comparisons with earlier periods.
RETENTION_SECONDS: Final = 90 * 86_400
KEY_LENGTH_MAX: Final = 256
_PREFIX: Final = "SENSOR#"
_RACES_MAX: Final = 8
_PAGE: Final = 200
# The attribute with the period in which a value arrived that names none.
_ARRIVED_IN: Final = "arrived_in"
# The attributes of our rows beside the data.
_OURS: Final = frozenset(
    {
        "PK",
        "SK",
        "ttl",
        "data",
        "version",
        "changed_at_ms",
        "pushed_at_ms",
        "pushed_by",
        "is_copy",
        "traceparent",
        _ARRIVED_IN,
    }
)
_KEYS: Final = frozenset({"PK", "SK", "ttl"})
_CLAIMS: Final = ("updatedAt", "updated_at")
# Keys of probes. Their rows are shared by all pipelines and written by the poller of probes alone.
PROBE_PREFIX: Final = "probe:"


class Sensor(Struct, frozen=True, kw_only=True):
    """The latest data of a key, for one period or for all."""

    key: str
    data: Mapping[str, Json]
    # The period that the key or the fields name, or in which it arrived. None: it holds for all periods.
    period: str | None = None
    # Whether the key names it.
    is_of_period: bool = False
    # Incremented by every push.
    version: int = 0
    # When the data last changed, and when it was last pushed. 0: a row of another program without times.
    changed_at_ms: int = 0
    pushed_at_ms: int = 0
    by: str = ""
    # A copy beside the row without a period, which keeps the data when that is overwritten. It causes no events.
    is_copy: bool = False

    @property
    def full_key(self) -> str:
        """The key of the row."""
        return f"{self.key}{DELIMITER}{self.period}" if self.is_of_period else self.key

    @property
    def updated_at_ms(self) -> int:
        """The time of the data: its field `updatedAt` (seconds, milliseconds or ISO), or else the push time."""
        for name in _CLAIMS:
            claimed_ms = moment_ms(self.data.get(name))
            if claimed_ms is not None:
                return int(claimed_ms)
        return self.pushed_at_ms


class Reading(Struct, frozen=True, kw_only=True):
    """The sensors that apply to a run, by key. `strays` has those that are known only for another period."""

    sensors: Mapping[str, Sensor]
    strays: Mapping[str, str] = {}


class _Push(NamedTuple):
    """A value to store. `arrived_in` is its period if it names none."""

    pipeline_id: str
    key: str
    data: Mapping[str, Json]
    by: str
    arrived_in: str | None


Also = Callable[[Sensor], Sequence[Write]]


# Returns the period of a value that names none and arrives at a time, by pipeline and key. None: it is unknown.
ArrivalPeriod = Callable[[str, str, datetime], str | None]


def _nothing(_: Sensor) -> Sequence[Write]:
    return ()


def _unknown_period(_pipeline_id: str, _key: str, _at: datetime) -> str | None:
    return None


def sensor_of(item: Mapping[str, Any]) -> Sensor:
    """Decode a sensor from its row, in any of its forms."""
    key, period = split_key(str(item["SK"]).removeprefix(_PREFIX))
    data = data_of(item)
    return Sensor(
        key=key,
        data=data,
        period=period or period_of_fields(data) or _arrived_in(item),
        is_of_period=period is not None,
        version=_whole(item.get("version")),
        changed_at_ms=_whole(item.get("changed_at_ms")),
        pushed_at_ms=_whole(item.get("pushed_at_ms")),
        by=str(item.get("pushed_by", "")),
        is_copy=item.get("is_copy") is True,
    )


def data_of(item: Mapping[str, Any]) -> dict[str, Json]:
    """Return the fields of a sensor's row: those in `data`, and those of other programs beside the keys."""
    data = item.get("data")
    if not isinstance(data, dict):
        return {name: value for name, value in item.items() if name not in _KEYS}
    beside = {name: value for name, value in item.items() if name not in _OURS}
    return {**beside, **data}


def sensor_key(pipeline_id: str, key: str, period: str | None = None) -> Key:
    """Return the key of a sensor's row. The row of a probe is one for all pipelines."""
    full = key if period is None else f"{key}{DELIMITER}{period}"
    if key.startswith(PROBE_PREFIX):
        pipeline_id = key
    return SENSOR.key(pipeline_id=pipeline_id, sensor_key=full)


class Sensors:
    """Stores sensors. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        retention_seconds: int = RETENTION_SECONDS,
        arrival_period: ArrivalPeriod = _unknown_period,
    ) -> None:
        """`arrival_period` returns the period of values that name none; without it, they hold for all."""
        self._store = store
        self._clock = clock
        self._retention_seconds = retention_seconds
        self._arrival_period = arrival_period

    def push(
        self,
        pipeline_id: str,
        key: str,
        data: Mapping[str, Json],
        *,
        period: str | None = None,
        is_for_all: bool = False,
        by: str = "",
        also: Also = _nothing,
    ) -> Sensor:
        """Store data under a key, for one period or for all, and return the sensor.

        Without a period the data may name one (`date`, `hour`), or else it belongs to the period in which it arrives.
        It is then stored for that period too, and data of an older period does not replace the row without one. `also`
        makes further writes for the transaction from the new sensor. Pushing equal data for the same period is a new
        version but no change. Raises `InvalidPayloadError` for an invalid key, period or data, and `ConflictError` if a
        write of `also` is refused.
        """
        base, named = _checked_key(key, period)
        _refuse_probe(base)
        check_new_path("sensor key", base, KEY_LENGTH_MAX, is_foreign=True)
        _check_data(base, data)
        of_data = period_of_fields(data)
        if is_for_all and (named or of_data) is not None:
            fact = f"names the period {named or of_data} and is pushed for all periods"
            raise InvalidPayloadError(f"sensor {base}: it {fact}; leave one of the two out")
        arrived_in = None
        if named is None and of_data is None and not is_for_all:
            arrived_in = self._arrival_period(pipeline_id, base, self._clock.now())
        for race in range(_RACES_MAX):
            pushed = _Push(pipeline_id, base, data, by, arrived_in)
            sensor, writes = self._writes(pushed, named or of_data or arrived_in, with_base=named is None)
            try:
                self._store.transact([*writes, *also(sensor)])
                return sensor
            except ConflictError as exc:
                if exc.write_index >= len(writes) or race == _RACES_MAX - 1:
                    raise
        raise AssertionError("the last race returns or raises")

    def get(self, pipeline_id: str, key: str, *, period: str | None = None) -> Sensor | None:
        """Return the sensor of exactly this key and period, or None."""
        base, named = _checked_key(key, period)
        item = self._store.get(PIPELINES, sensor_key(pipeline_id, base, named), consistent=True)
        return None if item is None else sensor_of(item)

    def read(self, pipeline_id: str, keys: Iterable[str], date: str, *, any_period: Collection[str] = ()) -> Reading:
        """Return the sensors that apply to a run of `date`, by key; those of `any_period` whichever period they are of.

        Costs one read for each form of a key, regardless of the number of periods.
        """
        wanted = sorted(set(keys))
        places = [place for key in wanted for place in _places(pipeline_id, key, date)]
        items = self._store.get_many(PIPELINES, places, consistent=True)
        stored = {place: sensor_of(item) for place, item in zip(places, items, strict=True) if item is not None}
        sensors: dict[str, Sensor] = {}
        strays: dict[str, str] = {}
        for key in wanted:
            found = [stored[place] for place in _places(pipeline_id, key, date) if place in stored]
            for sensor in _newest_first(found, is_of_any_period=key in any_period):
                is_own = sensor.is_of_period or sensor.period is None or not date or may_concern(sensor.period, date)
                if is_own or key in any_period:
                    sensors[key] = sensor
                    break
                strays[key] = str(sensor.period)
        return Reading(sensors=sensors, strays=strays)

    def read_periods(self, pipeline_id: str, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Sensor]]:
        """Return the stored periods of each key, with one read."""
        wanted_forms = [
            (key, period, form) for key, periods in wanted.items() for period in periods for form in forms_of(period)
        ]
        places = [sensor_key(pipeline_id, key, form) for key, _, form in wanted_forms]
        sensors: dict[str, dict[str, Sensor]] = {key: {} for key in wanted}
        for (key, date, _), item in zip(wanted_forms, self._store.get_many(PIPELINES, places), strict=True):
            if item is not None:
                sensors[key].setdefault(date, sensor_of(item))
        return sensors

    def values(self, pipeline_id: str, *, key: str | None = None) -> Iterator[Sensor]:
        """Yield sensors as `ls` does, without the copies of values that are in the row without a period."""
        newest: dict[str, str | None] = {}
        for sensor in self.ls(pipeline_id, key=key):
            if not sensor.is_of_period:
                newest[sensor.key] = sensor.period
            elif sensor.is_copy and newest.get(sensor.key) == sensor.period:
                continue
            yield sensor

    def ls(self, pipeline_id: str, *, key: str | None = None) -> Iterator[Sensor]:
        """Yield all sensors of a pipeline, or those of one key with its periods and parts, in order of keys."""
        prefix = _PREFIX if key is None else f"{_PREFIX}{key}"
        cursor = None
        while True:
            page = self._store.query(
                Query(
                    table=PIPELINES,
                    partition=SENSOR.key(pipeline_id=pipeline_id, sensor_key="-").partition,
                    sort=Sort(Range.BEGINS_WITH, prefix),
                    limit=_PAGE,
                    cursor=cursor,
                )
            )
            for item in page.items:
                full = str(item["SK"])
                if key is None or full == prefix or full.startswith(prefix + DELIMITER):
                    yield sensor_of(item)
            cursor = page.cursor
            if cursor is None:
                return

    def delete(self, pipeline_id: str, key: str, *, period: str | None = None) -> bool:
        """Delete the sensor of exactly this key and period, with its copy. Returns whether there was one."""
        base, named = _checked_key(key, period)
        _refuse_probe(base)
        place = sensor_key(pipeline_id, base, named)
        item = self._store.get(PIPELINES, place, consistent=True)
        of_base = None if item is None or named is not None else sensor_of(item).period
        if of_base is not None:
            copied = sensor_key(pipeline_id, base, of_base)
            found = self._store.get(PIPELINES, copied, consistent=True)
            if found is not None and sensor_of(found).is_copy:
                self._store.delete(PIPELINES, copied)
        return self._store.delete(PIPELINES, place) is not None

    def probe_writes(self, key: str, data: Mapping[str, Json], *, period: str | None = None) -> list[Put]:
        """Return the writes that store the result of a probe, for the transaction of its caller.

        Unchanged data is rewritten quietly: only its time changes, and nothing is woken.
        """
        written = self._put(_Push(key, key, data, "probe", None), period, is_copy=False)
        assert written is not None, "data of a probe names no period"
        sensor, put = written
        return [replace(put, quiet=sensor.version > 1 and sensor.changed_at_ms != sensor.pushed_at_ms)]

    def _writes(self, pushed: _Push, period: str | None, *, with_base: bool) -> tuple[Sensor, list[Write]]:
        """Return the new sensor, and its writes: without a period, with one, or both."""
        rows: list[tuple[Sensor, Put]] = []
        if with_base:
            base = self._put(pushed, None, is_copy=False)
            if base is not None:
                rows.append(base)
        if period is not None:
            # Beside a row without a period it is a copy; alone, the row of a period is a change of its own.
            of_period = self._put(pushed, period, is_copy=bool(rows))
            if of_period is not None:
                rows.append(of_period)
        return rows[0][0], [put for _, put in rows]

    def _put(self, pushed: _Push, period: str | None, *, is_copy: bool) -> tuple[Sensor, Put] | None:
        place = sensor_key(pushed.pipeline_id, pushed.key, period)
        current = self._store.get(PIPELINES, place, consistent=True)
        now_ms = int(self._clock.seconds() * 1000)
        claimed = period_of_fields(pushed.data) or pushed.arrived_in
        before = None if current is None else sensor_of(current)
        if period is None and before is not None and _is_older(claimed, before.period):
            return None
        is_same = before is not None and before.data == dict(pushed.data) and before.period == (period or claimed)
        sensor = Sensor(
            key=pushed.key,
            data=dict(pushed.data),
            period=period or claimed,
            is_of_period=period is not None,
            version=1 if before is None else before.version + 1,
            changed_at_ms=before.changed_at_ms or now_ms if is_same and before is not None else now_ms,
            pushed_at_ms=now_ms,
            by=pushed.by,
            is_copy=is_copy,
        )
        item = self._item(place, sensor)
        if period is None and pushed.arrived_in is not None:
            item[_ARRIVED_IN] = pushed.arrived_in
        return sensor, Put(PIPELINES, item, _unchanged(current))

    def _item(self, place: Key, sensor: Sensor) -> Item:
        item: Item = {
            **PIPELINES.key_attributes(place),
            "data": sensor.data,
            "version": sensor.version,
            "changed_at_ms": sensor.changed_at_ms,
            "pushed_at_ms": sensor.pushed_at_ms,
            "pushed_by": sensor.by,
        }
        if sensor.is_of_period:
            item["ttl"] = sensor.pushed_at_ms // 1000 + self._retention_seconds
        if sensor.is_copy:
            item["is_copy"] = True
        elif trace := traceparent():
            item["traceparent"] = trace
        return item


def _places(pipeline_id: str, key: str, date: str) -> list[Key]:
    """Return the candidate rows of a key, in order of precedence."""
    of_period = [sensor_key(pipeline_id, key, form) for form in forms_of(date)]
    return [*of_period, sensor_key(pipeline_id, key)]


def _newest_first(found: Sequence[Sensor], *, is_of_any_period: bool) -> Sequence[Sensor]:
    """Return the rows of a key in order of precedence, given with that without a period last."""
    if len(found) < 2 or found[-1].is_of_period:
        return found
    base, copied = found[-1], found[0]
    if is_of_any_period:
        return (base, *found[:-1])
    # A value for all periods replaces the copy of an older value. Rows of other programs may lack the time.
    is_replaced = base.period is None and (not base.pushed_at_ms or base.pushed_at_ms > copied.pushed_at_ms)
    return (base, *found[:-1]) if copied.is_copy and is_replaced else found


def _checked_key(key: str, period: str | None) -> tuple[str, str | None]:
    base, named = split_key(key)
    if not base or len(base) > KEY_LENGTH_MAX or not base.isprintable() or base != base.strip():
        raise InvalidPayloadError(
            f"sensor key {key[:40]!r}: use 1 to {KEY_LENGTH_MAX} printable characters without surrounding space"
        )
    if period is None:
        return base, named
    wanted = period_text(period)
    if wanted is None:
        raise InvalidPayloadError(
            f"sensor {base}: period {period[:40]!r} is none; write 2026-03-03, 2026-03-03T07, 2026-W10 or 2026-03"
        )
    if named is not None and named != wanted:
        raise InvalidPayloadError(f"sensor {key}: the key names the period {named}, and the call {wanted}; give one")
    return base, wanted


def _check_data(key: str, data: object) -> None:
    if not isinstance(data, Mapping) or not all(isinstance(name, str) and name for name in data):
        raise InvalidPayloadError(f"sensor {key}: data is a JSON object with named fields, such as {{'count': 1}}")


def _refuse_probe(key: str) -> None:
    if key.startswith(PROBE_PREFIX):
        raise InvalidPayloadError(
            f"sensor {key}: the results of probes are written by Headgate; push under a key without {PROBE_PREFIX!r}"
        )


def _is_older(claimed: str | None, known: str | None) -> bool:
    """Whether a period is before the known one, as far as their texts can be compared."""
    return claimed is not None and known is not None and len(claimed) == len(known) and claimed < known


def _unchanged(current: Item | None) -> Condition:
    if current is None:
        return absent()
    version = current.get("version")
    if "version" not in current:
        return lacks("version")
    # A row of another program may have any type in this field.
    return equals("version", version) if isinstance(version, str | int | float) else has("version")


def _arrived_in(item: Mapping[str, Any]) -> str | None:
    period = item.get(_ARRIVED_IN)
    return period_text(period) if isinstance(period, str) else None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0
