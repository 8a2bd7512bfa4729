"""The doctor of queues: whether SQS and Lambda are set up so that no chunk is lost, run twice at once, or unseen.

What is looked at are facts; each check is a function of them alone, and says what is, what should be, and why.
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
    """A queue. Without `dead_letter_arn`, what cannot be handled is received until it is too old, and then gone."""

    name: str
    arn: str
    visibility_seconds: int
    retention_seconds: int
    receives_max: int | None = None
    dead_letter_arn: str | None = None


class FunctionFacts(Struct, frozen=True):
    """A Lambda function that a queue calls."""

    name: str
    timeout_seconds: int
    window_seconds: int = 0
    reports_failures: bool = True


class Facts(Struct, frozen=True):
    """All that is looked at. None is for what nobody asked about, and for inputs that are kept for ever."""

    environment: str
    queue: QueueFacts
    dead_letters: QueueFacts | None = None
    functions: tuple[FunctionFacts, ...] = ()
    attempts_max: int = RECEIVES_MIN
    inputs_seconds: int | None = None
    table: str | None = None
    is_table_backed_up: bool | None = None
    has_alarm: bool | None = None


class Finding(Struct, frozen=True):
    """Something that is not as it should be."""

    check: str
    about: str
    found: str
    wanted: str
    why: str

    def __str__(self) -> str:
        return f"{self.about}: {self.found}; it should be {self.wanted}, because {self.why}"


class Scope(Struct, frozen=True):
    """What to look at: a queue, and with it where inputs are and the table, if they are to be looked at."""

    queue_url: str
    environment: str
    attempts_max: int = RECEIVES_MIN
    bucket: str | None = None
    prefix: str = ""
    table: str | None = None


def examine(facts: Facts) -> list[Finding]:
    """Return what is not as it should be, the most dangerous first; nothing if all is well."""
    checks = (_dead_letters, _reports, _visibility, _receives, _retention, _inputs, _alarm, _backups, _names)
    return [finding for check in checks for finding in check(facts)]


def _dead_letters(facts: Facts) -> Iterator[Finding]:
    if facts.queue.dead_letter_arn is None:
        yield Finding(
            "dead-letters",
            f"queue {facts.queue.name}",
            "it has no queue for dead letters",
            f"one with a redrive policy of {max(RECEIVES_MIN, facts.attempts_max)} receives or more",
            "a message that kills its worker is received again and again, and is then gone without a trace",
        )


def _reports(facts: Facts) -> Iterator[Finding]:
    for function in facts.functions:
        if not function.reports_failures:
            yield Finding(
                "partial-batches",
                f"function {function.name}",
                f"its event source does not have {_PARTIAL}",
                f"connected with FunctionResponseTypes {_PARTIAL}",
                "Lambda deletes all messages of a batch whatever the answer says, those that failed included",
            )


def _visibility(facts: Facts) -> Iterator[Finding]:
    for function in facts.functions:
        least_seconds = VISIBILITY_FACTOR * function.timeout_seconds + function.window_seconds
        if facts.queue.visibility_seconds < least_seconds:
            yield Finding(
                "visibility",
                f"queue {facts.queue.name}",
                f"its visibility time-out is {facts.queue.visibility_seconds} s",
                f"at least {least_seconds} s, {VISIBILITY_FACTOR} times the {function.timeout_seconds} s of "
                f"{function.name} and its batching window",
                "a message comes again while Lambda still holds it, and its receives are used up without a try",
            )


def _receives(facts: Facts) -> Iterator[Finding]:
    least, found = max(RECEIVES_MIN, facts.attempts_max), facts.queue.receives_max
    if found is not None and found < least:
        yield Finding(
            "receives",
            f"queue {facts.queue.name}",
            f"maxReceiveCount is {found}",
            f"at least {least}",
            "a message counts as dead before its chunk has had all its attempts",
        )


def _retention(facts: Facts) -> Iterator[Finding]:
    dead = facts.dead_letters
    if dead is not None and dead.retention_seconds <= facts.queue.retention_seconds:
        yield Finding(
            "retention",
            f"queue {dead.name}",
            f"it keeps messages for {_days(dead.retention_seconds)}",
            f"longer than the {_days(facts.queue.retention_seconds)} of {facts.queue.name}",
            "a dead letter is as old as its message, and may expire as soon as it arrives",
        )


def _inputs(facts: Facts) -> Iterator[Finding]:
    dead_seconds = 0 if facts.dead_letters is None else facts.dead_letters.retention_seconds
    least_seconds = facts.queue.retention_seconds + dead_seconds
    if facts.inputs_seconds is not None and facts.inputs_seconds <= least_seconds:
        yield Finding(
            "inputs",
            "inputs of chunks",
            f"they are deleted after {_days(facts.inputs_seconds)}",
            f"kept for longer than the {_days(least_seconds)} that a message can live, as a dead letter included",
            "a chunk that is redriven late finds its input gone",
        )


def _alarm(facts: Facts) -> Iterator[Finding]:
    if facts.dead_letters is not None and facts.has_alarm is False:
        yield Finding(
            "alarm",
            f"queue {facts.dead_letters.name}",
            f"no alarm watches {_METRIC}",
            "watched by an alarm at more than 0",
            "dead letters that nobody takes in are chunks that nobody misses until the run is late",
        )


def _backups(facts: Facts) -> Iterator[Finding]:
    if facts.is_table_backed_up is False:
        yield Finding(
            "backups",
            f"table {facts.table}",
            "it has no point-in-time recovery",
            "recoverable to any point in time",
            "what was deleted by mistake cannot be brought back",
        )


def _names(facts: Facts) -> Iterator[Finding]:
    named = [("queue", facts.queue.name)]
    if facts.dead_letters is not None:
        named.append(("queue", facts.dead_letters.name))
    named += [("function", function.name) for function in facts.functions]
    if facts.table is not None:
        named.append(("table", facts.table))
    for kind, name in named:
        if facts.environment.lower() not in re.split(r"[-_.]", name.lower()):
            yield Finding(
                "names",
                f"{kind} {name}",
                "its name does not say which environment it belongs to",
                f"called so that {facts.environment} is a part of it, as in {facts.environment}-{name}",
                "two environments of an account would share it",
            )


def _days(seconds: int) -> str:
    return f"{seconds / _DAY_SECONDS:g} days"


# Looking.


def look(session: boto3.Session, scope: Scope, clock: Clock, *, endpoint_url: str | None = None) -> Facts:
    """Return the facts about a queue, and about all that belongs to it, as AWS has them.

    Raises `NotFoundError` if something named is not there, and what else `Calls.call` raises.
    """
    return _Look(session, clock, endpoint_url).facts(scope)


class _Look:
    def __init__(self, session: boto3.Session, clock: Clock, endpoint_url: str | None) -> None:
        self._session = session
        self._options: dict[str, Any] = {"endpoint_url": endpoint_url, "config": client_config()}
        self._calls = Calls(clock, DEADLINE_SECONDS)

    def facts(self, scope: Scope) -> Facts:
        queue = self._queue(scope.queue_url)
        dead = None if queue.dead_letter_arn is None else self._queue(self._url(queue.dead_letter_arn))
        return Facts(
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
            # AWS takes it as a number and as text, and gives it back as it was given.
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
        return None if answer is None else kept_seconds([dict(rule) for rule in answer["Rules"]], prefix)

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


def kept_seconds(rules: list[dict[str, Any]], prefix: str) -> int | None:
    """Return after how long the rules of a bucket delete what is under a prefix, or None if they do not."""
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
