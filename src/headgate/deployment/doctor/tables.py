"""Tables of a deployment: their states, their capacity and the keys that take most of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headgate.deployment.doctor.calls import DoctorCalls
from headgate.deployment.doctor.facts import KeyShare, KeySource, PlaceFacts, ReplicaFacts, TableFacts, Usage
from headgate.deployment.doctor.metrics import Metric, Metrics, Reduction
from headgate.store.dynamodb.tables import description_differences, expiry_differences
from headgate.store.model.schema import Table
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_dynamodb import DynamoDBClient

_NAMESPACE: Final = "AWS/DynamoDB"
_THROTTLES: Final = ("WriteThrottleEvents", "ReadThrottleEvents")
_KEY_RANGE: Final = ("WriteKeyRangeThroughputThrottleEvents", "ReadKeyRangeThroughputThrottleEvents")
_ACCOUNT: Final = ("WriteAccountLimitThrottleEvents", "ReadAccountLimitThrottleEvents")
_MAXIMUM: Final = ("WriteMaxOnDemandThroughputThrottleEvents", "ReadMaxOnDemandThroughputThrottleEvents")
_CONSUMED: Final = ("ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits")
# A sample of a throttled place: segments spread it over the hash range. Some 100 read units in all.
_SEGMENTS: Final = 8
_SAMPLED_A_SEGMENT: Final = 125
_SAMPLE_MIN: Final = 20
_TOP: Final = 3


class TableReader:
    """Reads the tables of the catalogue."""

    def __init__(
        self, dynamodb: DynamoDBClient, cloudwatch: CloudWatchClient, calls: DoctorCalls, metrics: Metrics
    ) -> None:
        self._dynamodb = dynamodb
        self._cloudwatch = cloudwatch
        self._calls = calls
        self._metrics = metrics

    def read(self, catalogue: Sequence[Table], names: TableNames) -> tuple[TableFacts, ...]:
        """Return the facts of the tables, with their indexes."""
        described = [self._described(table, names.physical(table)) for table in catalogue]
        places = [place.name for table in described for place in table.places]
        usage = self._usage(places)
        insights = self._insights() if places else None
        return tuple(
            replace(
                table,
                places=tuple(
                    self._with_keys(source, replace(place, usage=usage.get(place.name)), insights)
                    for place in table.places
                ),
            )
            for source, table in zip(catalogue, described, strict=True)
        )

    def _described(self, table: Table, physical: str) -> TableFacts:
        about = f"table {physical}"
        is_absent, answer = self._calls.find(
            "dynamodb:DescribeTable", about, self._dynamodb.describe_table, TableName=physical
        )
        if not answer:
            return TableFacts(name=physical, exists=False if is_absent else None)
        description = answer["Table"]
        differences = list(description_differences(table, description))
        expiry = self._calls.call(
            "dynamodb:DescribeTimeToLive", about, self._dynamodb.describe_time_to_live, TableName=physical
        )
        if expiry is not None:
            ttl = expiry["TimeToLiveDescription"]
            differences += expiry_differences(table, ttl.get("TimeToLiveStatus", "DISABLED"), ttl.get("AttributeName"))
        return TableFacts(
            name=physical,
            exists=True,
            status=description.get("TableStatus", ""),
            differences=tuple(differences),
            has_recovery=self._has_recovery(physical),
            replicas=tuple(
                ReplicaFacts(each["RegionName"], each.get("ReplicaStatus", "ACTIVE"))
                for each in description.get("Replicas", [])
            ),
            places=(
                _place(physical, description),
                *(
                    _place(f"{physical}/{index['IndexName']}", index)
                    for index in description.get("GlobalSecondaryIndexes", [])
                ),
            ),
        )

    def _has_recovery(self, physical: str) -> bool | None:
        answer = self._calls.call(
            "dynamodb:DescribeContinuousBackups",
            f"table {physical}",
            self._dynamodb.describe_continuous_backups,
            TableName=physical,
        )
        if answer is None:
            return None
        recovery = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        return bool(recovery.get("PointInTimeRecoveryStatus") == "ENABLED")

    def _usage(self, places: list[str]) -> dict[str, Usage]:
        wanted = [metric for place in places for metric in _metrics_of(place)]
        if not wanted:
            return {}
        found = self._metrics.read("capacity and throttles of the tables", wanted)
        if found is None:
            return {}

        def total(place: str, *names: str) -> int:
            return round(sum(found[_metric(place, name)] for name in names))

        return {
            place: Usage(
                peak_writes=found[_metric(place, _CONSUMED[0], Reduction.PEAK_RATE)],
                peak_reads=found[_metric(place, _CONSUMED[1], Reduction.PEAK_RATE)],
                write_throttles=total(place, _THROTTLES[0]),
                read_throttles=total(place, _THROTTLES[1]),
                key_range_throttles=total(place, *_KEY_RANGE),
                account_throttles=total(place, *_ACCOUNT),
                maximum_throttles=total(place, *_MAXIMUM),
            )
            for place in places
        }

    def _insights(self) -> set[str] | None:
        """Return the places with Contributor Insights; None if that is not known."""
        found: set[str] = set()
        request: dict[str, Any] = {"MaxResults": 100}
        while True:
            answer = self._calls.call(
                "dynamodb:ListContributorInsights", "the account", self._dynamodb.list_contributor_insights, **request
            )
            if answer is None:
                return None
            for each in answer.get("ContributorInsightsSummaries", []):
                if each.get("ContributorInsightsStatus") in ("ENABLED", "ENABLING"):
                    found.add("/".join(filter(None, (each["TableName"], each.get("IndexName")))))
            if not answer.get("NextToken"):
                return found
            request["NextToken"] = answer["NextToken"]

    def _with_keys(self, table: Table, place: PlaceFacts, insights: set[str] | None) -> PlaceFacts:
        has_insights = None if insights is None else place.name in insights
        if has_insights:
            keys = tuple(self._reported_keys(place.name))
        elif place.usage is not None and place.usage.throttles:
            keys = self._sampled_keys(table, place.name)
        else:
            keys = ()
        return replace(place, has_insights=has_insights, keys=keys)

    def _reported_keys(self, place: str) -> Iterator[KeyShare]:
        """Yield the keys with most consumed units and most throttled requests, by Contributor Insights."""
        table, _, index = place.partition("/")
        request = {"TableName": table, **({"IndexName": index} if index else {})}
        answer = self._calls.call(
            "dynamodb:DescribeContributorInsights", place, self._dynamodb.describe_contributor_insights, **request
        )
        starts, ends = self._metrics.window
        for rule in [] if answer is None else answer.get("ContributorInsightsRuleList", []):
            # Rules are named by what they count: PKC and PKT for partition keys consumed and throttled.
            source = {"PKC": KeySource.CONSUMED, "PKT": KeySource.THROTTLED}.get(
                rule.partition("-")[2].partition("-")[0]
            )
            if source is None:
                continue
            report = self._calls.call(
                "cloudwatch:GetInsightRuleReport",
                f"rule {rule}",
                self._cloudwatch.get_insight_rule_report,
                RuleName=rule,
                StartTime=starts,
                EndTime=ends,
                Period=3600,
                MaxContributorCount=10,
            )
            total = 0.0 if report is None else report.get("AggregateValue", 0.0)
            for each in [] if report is None or not total else report["Contributors"][:_TOP]:
                value = each["ApproximateAggregateValue"]
                yield KeyShare(each["Keys"][0], value / total, round(value), source)

    def _sampled_keys(self, table: Table, place: str) -> tuple[KeyShare, ...]:
        """Return the keys that most items of a sample have."""
        physical, _, index = place.partition("/")
        partition = (table.index(index) if index else table).partition.name
        counts: Counter[str] = Counter()
        for segment in range(_SEGMENTS):
            answer = self._calls.call(
                "dynamodb:Scan",
                place,
                self._dynamodb.scan,
                TableName=physical,
                **({"IndexName": index} if index else {}),
                Segment=segment,
                TotalSegments=_SEGMENTS,
                Limit=_SAMPLED_A_SEGMENT,
                ProjectionExpression="#partition",
                ExpressionAttributeNames={"#partition": partition},
            )
            if answer is None:
                return ()
            counts.update(str(next(iter(item[partition].values()))) for item in answer["Items"])
        total = counts.total()
        if total < _SAMPLE_MIN:
            return ()
        return tuple(KeyShare(key, count / total, total, KeySource.SAMPLE) for key, count in counts.most_common(_TOP))


def _place(name: str, description: Any) -> PlaceFacts:  # noqa: ANN401 - a table or an index
    provisioned = description.get("ProvisionedThroughput", {})
    return PlaceFacts(
        name=name,
        write_units=provisioned.get("WriteCapacityUnits") or None,
        read_units=provisioned.get("ReadCapacityUnits") or None,
    )


def _metrics_of(place: str) -> Iterator[Metric]:
    for name in (*_THROTTLES, *_KEY_RANGE, *_ACCOUNT, *_MAXIMUM):
        yield _metric(place, name)
    for name in _CONSUMED:
        yield _metric(place, name, Reduction.PEAK_RATE)


def _metric(place: str, name: str, reduction: Reduction = Reduction.TOTAL) -> Metric:
    table, _, index = place.partition("/")
    dimensions = (("TableName", table), *((("GlobalSecondaryIndexName", index),) if index else ()))
    return Metric(_NAMESPACE, name, dimensions, reduction)
