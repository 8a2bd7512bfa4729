"""CloudWatch metrics: what was counted since the last write, as lines of the embedded metric format in the log.

CloudWatch extracts metrics from such lines itself, so that a function makes no call for them. Names, units and
dimensions are those of `METRICS`; their sources are a Prometheus registry or the statistics of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from headgate.clock import Clock

NAMESPACE: Final = "Observability/StateStore"
FUNCTIONS_NAMESPACE: Final = "Headgate/Functions"
COMPLETED: Final = "function.completed"
ACTIVE_INCIDENTS: Final = "incident.active"
HIT_RATE: Final = "cache.hit_rate"
# CloudWatch takes up to 100 values of a metric in one line.
VALUES_MAX: Final = 100
_LOOKUPS: Final = "cache_lookups"
# Statuses of gRPC that are faults of the server, as HTTP's 5xx are.
_SERVER_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

Labels = tuple[tuple[str, str], ...]


class CloudWatchMetric(NamedTuple):
    """A metric as CloudWatch has it. Each value is counted in every set of dimensions."""

    name: str
    unit: str
    dimensions: tuple[tuple[str, ...], ...]


# By the name of the series in a Prometheus registry.
METRICS: Final[Mapping[str, CloudWatchMetric]] = {
    "dynamodb_read_latency": CloudWatchMetric(
        "dynamodb.read_latency", "Milliseconds", (("table", "operation"), ("table",))
    ),
    "dynamodb_write_latency": CloudWatchMetric(
        "dynamodb.write_latency", "Milliseconds", (("table", "operation"), ("table",))
    ),
    "dynamodb_throttle_count": CloudWatchMetric("dynamodb.throttle_count", "Count", (("table", "operation"), ())),
    "dynamodb_consumed_capacity": CloudWatchMetric(
        "dynamodb.consumed_capacity", "Count", (("table", "capacity_type"), ("capacity_type",))
    ),
    "signal_state_updates": CloudWatchMetric("signal_state.updates", "Count", (("signal_type", "state"), ())),
    "signal_state_state_transitions": CloudWatchMetric(
        "signal_state.state_transitions", "Count", (("from_state", "to_state", "tier"), ("from_state", "to_state"))
    ),
    "incident_created": CloudWatchMetric("incident.created", "Count", (("severity", "owner_team"), ("severity",))),
    "incident_resolved": CloudWatchMetric("incident.resolved", "Count", (("severity", "resolution_time_bucket"),)),
    "incident_mttr": CloudWatchMetric("incident.mttr", "Seconds", (("severity",),)),
    "incident_active": CloudWatchMetric(ACTIVE_INCIDENTS, "Count", (("severity",),)),
    "cache_hit_rate": CloudWatchMetric(HIT_RATE, "Percent", (("cache_layer", "table"), ("cache_layer",))),
    "cache_latency": CloudWatchMetric("cache.latency", "Milliseconds", (("cache_layer", "operation"),)),
    "api_request_count": CloudWatchMetric(
        "api.request_count", "Count", (("api_type", "method", "status_code"), ("status_code",))
    ),
    "api_latency": CloudWatchMetric("api.latency", "Milliseconds", (("api_type", "method"),)),
}


class Sample(Protocol):
    """A sample of Prometheus."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> dict[str, str]: ...

    @property
    def value(self) -> float: ...


class Family(Protocol):
    """A metric of Prometheus with its samples."""

    name: str
    type: str

    @property
    def samples(self) -> Sequence[Sample]: ...


class Registry(Protocol):
    """A registry of Prometheus."""

    def collect(self) -> Iterable[Family]: ...


class StoreCounts(Protocol):
    """What a store has counted: throttled attempts by operation and table, and capacity by table and kind."""

    throttled: dict[tuple[str, str], int]
    consumed: dict[tuple[str, str], float]


class Reading(NamedTuple):
    """A value of a series now: a total since the start if it is counted, and one bucket of a histogram has a bound."""

    series: str
    labels: Labels
    value: float
    is_total: bool = True
    bound: float | None = None


Source = Callable[[], Iterable[Reading]]


def registry_source(registry: Registry) -> Source:
    """Return the source that reads a Prometheus registry. Series that are not in `METRICS` are left out."""

    def read() -> Iterator[Reading]:
        for family in registry.collect():
            if family.name in METRICS or family.name == _LOOKUPS:
                yield from _readings(family)

    return read


def store_source(stats: StoreCounts) -> Source:
    """Return the source that reads the statistics of a store."""

    def read() -> Iterator[Reading]:
        # Copied: another thread may add a key meanwhile.
        for (operation, about), count in list(stats.throttled.items()):
            tables = about.removeprefix("tables ").removeprefix("table ").replace(", ", "+")
            yield Reading("dynamodb_throttle_count", (("table", tables), ("operation", operation)), count)
        for (table, kind), units in list(stats.consumed.items()):
            yield Reading("dynamodb_consumed_capacity", (("table", table), ("capacity_type", kind)), units)

    return read


def _readings(family: Family) -> Iterator[Reading]:
    if family.type == "histogram":
        yield from _buckets(family)
        return
    is_total = family.type == "counter"
    wanted = f"{family.name}_total" if is_total else family.name
    for sample in family.samples:
        if sample.name == wanted:
            yield Reading(family.name, tuple(sample.labels.items()), sample.value, is_total=is_total)


def _buckets(family: Family) -> Iterator[Reading]:
    """Yield the count of each bucket alone: Prometheus counts all below it, too."""
    below, last, last_bound = 0.0, None, 0.0
    for sample in family.samples:
        if sample.name != f"{family.name}_bucket":
            continue
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if labels != last:
            below, last = 0.0, labels
        bound = float(sample.labels["le"])
        # What is above the highest bound counts as twice it.
        last_bound = 2 * last_bound if bound == float("inf") else bound
        yield Reading(family.name, labels, sample.value - below, bound=last_bound)
        below = sample.value


class EmbeddedMetrics:
    """Writes what has changed in its sources. Not safe to use from several threads at once."""

    def __init__(self, sources: Sequence[Source], clock: Clock, write: Callable[[str], object]) -> None:
        """`write` takes one line, without its end."""
        self._sources = tuple(sources)
        self._clock = clock
        self._write = write
        self._totals: dict[tuple[str, Labels, float | None], float] = {}

    def flush(self) -> None:
        """Write the metrics of everything that was counted since the last call, and the gauges."""
        values: dict[tuple[str, Labels], list[float]] = {}
        lookups: dict[Labels, dict[str, float]] = {}
        for source in self._sources:
            for reading in source():
                change = self._change(reading)
                if reading.series == _LOOKUPS:
                    labels = tuple(each for each in reading.labels if each[0] != "outcome")
                    lookups.setdefault(labels, {})[dict(reading.labels)["outcome"]] = change
                elif reading.series != "cache_hit_rate" and (change or not reading.is_total):
                    found = values.setdefault((reading.series, reading.labels), [])
                    found += [change] if reading.bound is None else [reading.bound] * round(change)
        for labels, outcomes in lookups.items():
            if asked := sum(outcomes.values()):
                values["cache_hit_rate", labels] = [100 * outcomes.get("hit", 0.0) / asked]
        for (series, labels), found in values.items():
            self.put(NAMESPACE, METRICS[series], _classified(labels), found)

    def put(
        self, namespace: str, metric: CloudWatchMetric, labels: Iterable[tuple[str, str]], values: Sequence[float]
    ) -> None:
        """Write values of a metric, in as many lines as they take."""
        for start in range(0, len(values), VALUES_MAX):
            part = values[start : start + VALUES_MAX]
            line = {
                "_aws": {
                    "Timestamp": int(self._clock.seconds() * 1000),
                    "CloudWatchMetrics": [
                        {
                            "Namespace": namespace,
                            "Dimensions": metric.dimensions,
                            "Metrics": [{"Name": metric.name, "Unit": metric.unit}],
                        }
                    ],
                },
                **dict(labels),
                metric.name: part[0] if len(part) == 1 else part,
            }
            self._write(msgspec.json.encode(line).decode())

    def _change(self, reading: Reading) -> float:
        if not reading.is_total:
            return reading.value
        key = reading.series, reading.labels, reading.bound
        before = self._totals.get(key, 0.0)
        self._totals[key] = reading.value
        return reading.value - before


def _classified(labels: Labels) -> Iterator[tuple[str, str]]:
    """Yield labels with the class of a status in place of the status, such as 5xx."""
    for name, value in labels:
        if name != "status_code":
            yield name, value
        elif value.isdecimal():
            yield name, f"{value[0]}xx"
        else:
            yield name, "5xx" if value in _SERVER_FAULTS else value
