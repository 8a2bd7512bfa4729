"""CloudWatch metrics: many at once, each reduced to one number over the window."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate.clock import Clock
from headgate.deployment.doctor.calls import DoctorCalls

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient

PERIOD_SECONDS: Final = 300
# Of one call of GetMetricData.
_QUERIES_MAX: Final = 500


class Reduction(enum.Enum):
    """How the values of a metric become one number."""

    TOTAL = "total"
    # The largest sum of a period, as a mean a second.
    PEAK_RATE = "peak rate"
    MAXIMUM = "maximum"
    # The maximum of the newest period that has a value.
    LATEST = "latest"


class Metric(NamedTuple):
    """One metric of one resource."""

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]
    reduction: Reduction = Reduction.TOTAL


class Metrics:
    """Reads metrics of the last hours."""

    def __init__(self, client: CloudWatchClient, calls: DoctorCalls, clock: Clock, hours: int) -> None:
        self._client = client
        self._calls = calls
        self._ends = datetime.fromtimestamp(clock.seconds(), UTC)
        self._starts = self._ends - timedelta(hours=hours)

    @property
    def window(self) -> tuple[datetime, datetime]:
        return self._starts, self._ends

    def read(self, about: str, metrics: Iterable[Metric]) -> dict[Metric, float] | None:
        """Return the number of each metric; 0 without values. None if a call failed."""
        wanted = list(dict.fromkeys(metrics))
        found: dict[Metric, float] = {}
        for first in range(0, len(wanted), _QUERIES_MAX):
            part = self._read_some(about, wanted[first : first + _QUERIES_MAX])
            if part is None:
                return None
            found.update(part)
        return found

    def _read_some(self, about: str, metrics: list[Metric]) -> dict[Metric, float] | None:
        queries = [_query(number, metric) for number, metric in enumerate(metrics)]
        pages = self._calls.pages(
            "cloudwatch:GetMetricData",
            about,
            self._client,
            "get_metric_data",
            MetricDataQueries=queries,
            StartTime=self._starts,
            EndTime=self._ends,
            ScanBy="TimestampDescending",
        )
        if pages is None:
            return None
        values: dict[int, list[tuple[datetime, float]]] = {}
        for page in pages:
            for result in page["MetricDataResults"]:
                pairs = zip(result["Timestamps"], result["Values"], strict=True)
                values.setdefault(int(result["Id"][1:]), []).extend(pairs)
        return {metric: _reduced(metric.reduction, values.get(number, [])) for number, metric in enumerate(metrics)}


def _query(number: int, metric: Metric) -> dict[str, Any]:
    is_sum = metric.reduction in (Reduction.TOTAL, Reduction.PEAK_RATE)
    dimensions: list[Mapping[str, str]] = [{"Name": name, "Value": value} for name, value in metric.dimensions]
    return {
        "Id": f"m{number}",
        "MetricStat": {
            "Metric": {"Namespace": metric.namespace, "MetricName": metric.name, "Dimensions": dimensions},
            "Period": PERIOD_SECONDS,
            "Stat": "Sum" if is_sum else "Maximum",
        },
    }


def _reduced(reduction: Reduction, values: list[tuple[datetime, float]]) -> float:
    if not values:
        return 0.0
    match reduction:
        case Reduction.TOTAL:
            return sum(value for _, value in values)
        case Reduction.PEAK_RATE:
            return max(value for _, value in values) / PERIOD_SECONDS
        case Reduction.MAXIMUM:
            return max(value for _, value in values)
        case Reduction.LATEST:
            return max(values)[1]
