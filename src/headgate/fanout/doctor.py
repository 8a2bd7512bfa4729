"""Queue doctor: checks whether SQS, Lambda, S3 and DynamoDB are configured so that no chunk is lost or run twice.

The configuration is read first; each check is a pure function of it and reports the value, the wanted value and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from headgate.clock import Clock
from headgate.fanout.remote.sqs import DEADLINE_SECONDS, Calls, client_config

if TYPE_CHECKING:
    import boto3

VISIBILITY_FACTOR: Final = 6
RECEIVES_MIN: Final = 3
_DAY_SECONDS: Final = 86_400
_PARTIAL: Final = "ReportBatchItemFailures"
_METRIC: Final = "ApproximateNumberOfMessagesVisible"


class QueueFacts(Struct, frozen=True):
    """A queue. Without `dead_letter_arn`, messages that always fail are redelivered until they expire."""

    name: str
    arn: str
    visibility_seconds: int
    retention_seconds: int
    receives_max: int | None = None
    dead_letter_arn: str | None = None


class FunctionFacts(Struct, frozen=True):
    """A Lambda function that a queue invokes."""

    name: str
    timeout_seconds: int
    window_seconds: int = 0
    reports_failures: bool = True


class QueueSetup(Struct, frozen=True):
    """The configuration to check. None means not requested, or for inputs that they are never deleted."""

    environment: str
    queue: QueueFacts
    dead_letters: QueueFacts | None = None
    functions: tuple[FunctionFacts, ...] = ()
    attempts_max: int = RECEIVES_MIN
    inputs_seconds: int | None = None
    table: str | None = None
    is_table_backed_up: bool | None = None
    has_alarm: bool | None = None


class QueueFinding(Struct, frozen=True):
    """A setting that should be different."""

    check: str
    about: str
    found: str
    wanted: str
    why: str

    def __str__(self) -> str:
        return f"{self.about}: {self.found}; it should be {self.wanted}, because {self.why}"


class QueueScope(Struct, frozen=True):
    """What to read: a queue, and optionally the bucket of inputs and the table."""

    queue_url: str
    environment: str
    attempts_max: int = RECEIVES_MIN
    bucket: str | None = None
    prefix: str = ""
    table: str | None = None


def check_setup(facts: QueueSetup) -> list[QueueFinding]:
    """Return the findings, most dangerous first."""
    checks = (_dead_letters, _reports, _visibility, _receives, _retention, _inputs, _alarm, _backups, _names)
    return [finding for check in checks for finding in check(facts)]


def _dead_letters(facts: QueueSetup) -> Iterator[QueueFinding]:
    if facts.queue.dead_letter_arn is None:
        yield QueueFinding(
            "dead-letters",
            f"queue {facts.queue.name}",
            "it has no queue for dead letters",
            f"one with a redrive policy of {max(RECEIVES_MIN, facts.attempts_max)} receives or more",
            "a message that kills its worker is redelivered until it expires, and is then lost",
        )


def _reports(facts: QueueSetup) -> Iterator[QueueFinding]:
    for function in facts.functions:
        if not function.reports_failures:
            yield QueueFinding(
                "partial-batches",
                f"function {function.name}",
                f"its event source does not have {_PARTIAL}",
                f"connected with FunctionResponseTypes {_PARTIAL}",
                "Lambda deletes all messages of a batch whatever the response says, including failed ones",
            )


def _visibility(facts: QueueSetup) -> Iterator[QueueFinding]:
    for function in facts.functions:
        least_seconds = VISIBILITY_FACTOR * function.timeout_seconds + function.window_seconds
        if facts.queue.visibility_seconds < least_seconds:
            yield QueueFinding(
                "visibility",
                f"queue {facts.queue.name}",
                f"its visibility time-out is {facts.queue.visibility_seconds} s",
                f"at least {least_seconds} s, {VISIBILITY_FACTOR} times the {function.timeout_seconds} s of "
                f"{function.name} and its batching window",
                "a message is redelivered while Lambda still holds it, which uses up receives without an attempt",
            )


def _receives(facts: QueueSetup) -> Iterator[QueueFinding]:
    least, found = max(RECEIVES_MIN, facts.attempts_max), facts.queue.receives_max
    if found is not None and found < least:
        yield QueueFinding(
            "receives",
            f"queue {facts.queue.name}",
            f"maxReceiveCount is {found}",
            f"at least {least}",
            "a message counts as dead before its chunk has had all its attempts",
        )


def _retention(facts: QueueSetup) -> Iterator[QueueFinding]:
    dead = facts.dead_letters
    if dead is not None and dead.retention_seconds <= facts.queue.retention_seconds:
        yield QueueFinding(
            "retention",
            f"queue {dead.name}",
            f"it keeps messages for {_days(dead.retention_seconds)}",
            f"longer than the {_days(facts.queue.retention_seconds)} of {facts.queue.name}",
            "a dead letter is as old as its message, and may expire as soon as it arrives",
        )


def _inputs(facts: QueueSetup) -> Iterator[QueueFinding]:
    dead_seconds = 0 if facts.dead_letters is None else facts.dead_letters.retention_seconds
    least_seconds = facts.queue.retention_seconds + dead_seconds
    if facts.inputs_seconds is not None and facts.inputs_seconds <= least_seconds:
        yield QueueFinding(
            "inputs",
            "inputs of chunks",
            f"they are deleted after {_days(facts.inputs_seconds)}",
            f"kept for longer than the {_days(least_seconds)} that a message can live, as a dead letter included",
            "the input of a late redrive is missing",
        )


def _alarm(facts: QueueSetup) -> Iterator[QueueFinding]:
    if facts.dead_letters is not None and facts.has_alarm is False:
        yield QueueFinding(
            "alarm",
            f"queue {facts.dead_letters.name}",
            f"no alarm watches {_METRIC}",
            "watched by an alarm at more than 0",
            "unprocessed dead letters are lost chunks that go unnoticed until the run is late",
        )


def _backups(facts: QueueSetup) -> Iterator[QueueFinding]:
    if facts.is_table_backed_up is False:
        yield QueueFinding(
            "backups",
            f"table {facts.table}",
            "it has no point-in-time recovery",
            "recoverable to any point in time",
            "rows deleted by mistake cannot be restored",
        )


def _names(facts: QueueSetup) -> Iterator[QueueFinding]:
    named = [("queue", facts.queue.name)]
    if facts.dead_letters is not None:
        named.append(("queue", facts.dead_letters.name))
    named += [("function", function.name) for function in facts.functions]
    if facts.table is not None:
        named.append(("table", facts.table))
    for kind, name in named:
        if facts.environment.lower() not in re.split(r"[-_.]", name.lower()):
            yield QueueFinding(
                "names",
                f"{kind} {name}",
                "its name does not contain its environment",
                f"named with {facts.environment}, such as {facts.environment}-{name}",
                "two environments of an account would share it",
            )


def _days(seconds: int) -> str:
    return f"{seconds / _DAY_SECONDS:g} days"


# Reading the configuration.


def read_setup(
    session: boto3.Session, scope: QueueScope, clock: Clock, *, endpoint_url: str | None = None
) -> QueueSetup:
    """Read the configuration of a queue, its functions, bucket and table from AWS.

    Raises `NotFoundError` if a named resource does not exist, and other errors of `Calls.call`.
    """
    return _SetupReader(session, clock, endpoint_url).facts(scope)


class _SetupReader:
    def __init__(self, session: boto3.Session, clock: Clock, endpoint_url: str | None) -> None:
        self._session = session
        self._options: dict[str, Any] = {"endpoint_url": endpoint_url, "config": client_config()}
        self._calls = Calls(clock, DEADLINE_SECONDS)

    def facts(self, scope: QueueScope) -> QueueSetup:
        queue = self._queue(scope.queue_url)
        dead = None if queue.dead_letter_arn is None else self._queue(self._url(queue.dead_letter_arn))
        return QueueSetup(
            environment=scope.environment,
            queue=queue,
            dead_letters=dead,
            functions=self._functions(queue),
            attempts_max=scope.attempts_max,
            inputs_seconds=None if scope.bucket is None else self._inputs_seconds(scope.bucket, scope.prefix),
            table=scope.table,
            is_table_backed_up=None if scope.table is None else self._is_backed_up(scope.table),
            has_alarm=None if dead is None else self._has_alarm(dead),
        )

    def _queue(self, queue_url: str) -> QueueFacts:
        names = ["QueueArn", "VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy"]
        with closing(self._session.client("sqs", **self._options)) as sqs:
            request = {"QueueUrl": queue_url, "AttributeNames": names}
            found = self._calls.call(sqs.get_queue_attributes, request, f"queue {queue_url}")["Attributes"]
        redrive = msgspec.json.decode(found.get("RedrivePolicy", "{}"))
        receives = redrive.get("maxReceiveCount")
        return QueueFacts(
            name=found["QueueArn"].rpartition(":")[2],
            arn=found["QueueArn"],
            visibility_seconds=int(found["VisibilityTimeout"]),
            retention_seconds=int(found["MessageRetentionPeriod"]),
            # AWS accepts and returns both numbers and strings.
            receives_max=None if receives is None else int(receives),
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
        )

    def _url(self, arn: str) -> str:
        account, name = arn.split(":")[4:6]
        with closing(self._session.client("sqs", **self._options)) as sqs:
            request = {"QueueName": name, "QueueOwnerAWSAccountId": account}
            return self._calls.call(sqs.get_queue_url, request, f"queue {arn}")["QueueUrl"]

    def _functions(self, queue: QueueFacts) -> tuple[FunctionFacts, ...]:
        with closing(self._session.client("lambda", **self._options)) as functions:
            request = {"EventSourceArn": queue.arn}
            listed = self._calls.call(functions.list_event_source_mappings, request, f"queue {queue.name}")
            found: list[FunctionFacts] = []
            for source in listed["EventSourceMappings"]:
                arn = source["FunctionArn"]
                about = self._calls.call(functions.get_function_configuration, {"FunctionName": arn}, f"function {arn}")
                found.append(
                    FunctionFacts(
                        name=about["FunctionName"],
                        timeout_seconds=about["Timeout"],
                        window_seconds=source.get("MaximumBatchingWindowInSeconds", 0),
                        reports_failures=_PARTIAL in source.get("FunctionResponseTypes", []),
                    )
                )
        return tuple(found)

    def _inputs_seconds(self, bucket: str, prefix: str) -> int | None:
        with closing(self._session.client("s3", **self._options)) as s3:
            answer = self._calls.find(
                s3.get_bucket_lifecycle_configuration,
                {"Bucket": bucket},
                f"bucket {bucket}",
                absent="NoSuchLifecycleConfiguration",
            )
        return None if answer is None else expiry_seconds([dict(rule) for rule in answer["Rules"]], prefix)

    def _is_backed_up(self, table: str) -> bool:
        with closing(self._session.client("dynamodb", **self._options)) as dynamodb:
            answer = self._calls.call(dynamodb.describe_continuous_backups, {"TableName": table}, f"table {table}")
        recovery = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        return recovery.get("PointInTimeRecoveryStatus") == "ENABLED"

    def _has_alarm(self, queue: QueueFacts) -> bool:
        request = {
            "Namespace": "AWS/SQS",
            "MetricName": _METRIC,
            "Dimensions": [{"Name": "QueueName", "Value": queue.name}],
        }
        with closing(self._session.client("cloudwatch", **self._options)) as cloudwatch:
            answer = self._calls.call(cloudwatch.describe_alarms_for_metric, request, f"queue {queue.name}")
        return bool(answer["MetricAlarms"])


def expiry_seconds(rules: list[dict[str, Any]], prefix: str) -> int | None:
    """Return after how many seconds lifecycle rules delete objects under a prefix, or None."""
    days = [
        rule["Expiration"]["Days"]
        for rule in rules
        if rule.get("Status") == "Enabled" and "Days" in rule.get("Expiration", {}) and _is_under(rule, prefix)
    ]
    return _DAY_SECONDS * min(days) if days else None


def _is_under(rule: dict[str, Any], prefix: str) -> bool:
    chosen = rule.get("Filter", {})
    ruled = chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or rule.get("Prefix") or ""
    return bool(prefix.startswith(ruled) or ruled.startswith(prefix))
