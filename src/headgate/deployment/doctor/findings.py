"""Findings: what is wrong with a deployment, and its remedy. Pure functions of the facts."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from headgate.deployment.doctor.facts import (
    CallFailure,
    DeploymentFacts,
    FunctionFacts,
    KeySource,
    MachineFacts,
    MappingFacts,
    PlaceFacts,
    QueueFacts,
    TableFacts,
    Usage,
)

# A partition of DynamoDB takes this many units a second.
PARTITION_WRITES: Final = 1_000
PARTITION_READS: Final = 3_000
USED_SHARE_MAX: Final = 0.8
THROTTLES_MAX: Final = 1_000
ERROR_SHARE_MAX: Final = 0.1
ITERATOR_AGE_SECONDS_MAX: Final = 300
OLDEST_SECONDS_MAX: Final = 900
HOT_SHARE: Final = 0.5
# A sample shows a key that many items share; less than this is not worth naming.
_SAMPLE_SHARE: Final = 0.2
# Queues that 'headgate aws redrive' processes.
REDRIVEN: Final = ("-failed-stream", "-failed-events", "-failed-lost-activities")
# Functions that do nothing unless a stream or a queue invokes them.
FED: Final = ("stream-router", "waker", "turns", "activities", "chunk-worker", "dead-letter")
_READY: Final = frozenset({"ACTIVE", "UPDATING"})


class Severity(enum.StrEnum):
    """FAIL: something does not work. WARN: it works, and needs attention. UNKNOWN: it could not be checked."""

    FAIL = "FAIL"
    WARN = "WARN"
    UNKNOWN = "UNKNOWN"


class Finding(Struct, frozen=True):
    """One thing that is wrong, and what to do."""

    severity: Severity
    check: str
    subject: str
    fact: str
    remedy: str


def findings(facts: DeploymentFacts) -> list[Finding]:
    """Return what is wrong, the worst first."""
    found = [
        *(finding for table in facts.tables for finding in _table(table, facts.hours)),
        *_functions(facts),
        *_mappings(facts),
        *(finding for queue in facts.queues or () for finding in _queue(queue)),
        *_machines(facts),
        *_refusals(facts.failures),
    ]
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def worst(found: list[Finding]) -> Severity | None:
    """Return the highest severity of findings, or None if there are none."""
    return found[0].severity if found else None


def _table(table: TableFacts, hours: int) -> Iterator[Finding]:
    subject = f"table {table.name}"
    if table.exists is False:
        yield Finding(
            Severity.FAIL,
            "tables",
            subject,
            "does not exist",
            "run 'headgate table create' or apply Terraform; if the tables have another prefix, give --table-prefix",
        )
        return
    if table.status and table.status not in _READY:
        yield Finding(Severity.FAIL, "tables", subject, f"is {table.status}", "wait until it is ACTIVE, or restore it")
    for difference in table.differences:
        yield Finding(
            Severity.FAIL, "catalogue", subject, difference, "apply Terraform, or change the table as the fact says"
        )
    if table.has_recovery is False:
        yield Finding(
            Severity.WARN,
            "recovery",
            subject,
            "has no point-in-time recovery",
            f"aws dynamodb update-continuous-backups --table-name {table.name} "
            "--point-in-time-recovery-specification PointInTimeRecoveryEnabled=true",
        )
    for replica in table.replicas:
        if replica.status not in _READY:
            yield Finding(
                Severity.FAIL,
                "replicas",
                subject,
                f"its replica in {replica.region} is {replica.status}",
                "do not fail over to that region; see the table's global tables in the console",
            )
    for place in table.places:
        yield from _capacity(place, hours)
        yield from _hot_keys(place)


def _capacity(place: PlaceFacts, hours: int) -> Iterator[Finding]:
    usage = place.usage
    if usage is None:
        return
    if usage.throttles:
        severity = Severity.FAIL if usage.throttles >= THROTTLES_MAX else Severity.WARN
        fact = f"{usage.write_throttles:,} writes and {usage.read_throttles:,} reads throttled in {hours} h"
        cause, remedy = _throttle_cause(place, usage)
        yield Finding(severity, "throttles", place.name, f"{fact}: {cause}", remedy)
    for kind, peak, units in (
        ("write", usage.peak_writes, place.write_units),
        ("read", usage.peak_reads, place.read_units),
    ):
        if units and peak >= USED_SHARE_MAX * units:
            yield Finding(
                Severity.WARN,
                "capacity",
                place.name,
                f"consumed {peak:,.0f} of {units:,} {kind} units a second in its busiest five minutes",
                f"raise the maximum of its autoscaling, or provision {math.ceil(peak / USED_SHARE_MAX):,} {kind} units",
            )


def _throttle_cause(place: PlaceFacts, usage: Usage) -> tuple[str, str]:
    """Return why requests were throttled, and the remedy."""
    if usage.account_throttles:
        return "quota of the account", "ask AWS for a higher quota of table throughput (Service Quotas, DynamoDB)"
    if usage.maximum_throttles:
        return "maximum of the table", "raise the maximum on-demand throughput of the table"
    units = (place.write_units, usage.peak_writes), (place.read_units, usage.peak_reads)
    exceeded = any(provisioned is not None and peak >= USED_SHARE_MAX * provisioned for provisioned, peak in units)
    if usage.key_range_throttles or not exceeded:
        # On demand, capacity doubles within minutes: throttles below it are those of one partition.
        return (
            "one partition is hot"
            if usage.key_range_throttles
            else "no limit of the table is reached; a hot partition",
            "find the key below or with Contributor Insights; a key that all rows share needs shards (ADR 45)",
        )
    return "provisioned capacity", "provision more units, or bill the table on demand"


def _hot_keys(place: PlaceFacts) -> Iterator[Finding]:
    usage = place.usage
    for each in place.keys:
        near = usage is not None and (
            usage.peak_writes >= PARTITION_WRITES * HOT_SHARE or usage.peak_reads >= PARTITION_READS * HOT_SHARE
        )
        is_hot = {
            KeySource.THROTTLED: each.counted > 0,
            KeySource.CONSUMED: each.share >= HOT_SHARE and near,
            KeySource.SAMPLE: each.share >= _SAMPLE_SHARE,
        }[each.source]
        if is_hot:
            yield Finding(
                Severity.WARN,
                "hot keys",
                place.name,
                f"partition key {each.key!r} has {each.share:.0%} of {each.counted:,} {each.source}",
                "spread it over shards (ADR 45) if it is Headgate's own; otherwise spread the load over more keys",
            )
    if usage is not None and usage.throttles and place.has_insights is False:
        table, _, index = place.name.partition("/")
        option = f" --index-name {index}" if index else ""
        yield Finding(
            Severity.WARN,
            "hot keys",
            place.name,
            "is throttled, and Contributor Insights is off",
            f"aws dynamodb update-contributor-insights --table-name {table}{option} "
            "--contributor-insights-action ENABLE",
        )


def _functions(facts: DeploymentFacts) -> Iterator[Finding]:
    if facts.functions == ():
        yield Finding(
            Severity.WARN,
            "functions",
            f"{facts.name}-*",
            f"no function in {facts.region} has a name that begins with {facts.name}-",
            "deploy with 'headgate aws deploy', or give the variable name of the deployment: --name",
        )
    for function in facts.functions or ():
        yield from _function(function, facts.hours)


def _function(function: FunctionFacts, hours: int) -> Iterator[Finding]:
    subject = f"function {function.name}"
    log = f"aws logs tail /aws/lambda/{function.name} --since {hours}h"
    if function.state in ("Failed", "Inactive") or function.update_status == "Failed":
        state = function.state if function.state in ("Failed", "Inactive") else "not updated"
        reason = f": {function.state_reason}" if function.state_reason else ""
        yield Finding(Severity.FAIL, "functions", subject, f"is {state}{reason}", "deploy the package again")
    if function.errors:
        invocations = max(function.invocations or 0, function.errors)
        severity = Severity.FAIL if function.errors >= ERROR_SHARE_MAX * invocations else Severity.WARN
        yield Finding(
            severity,
            "errors",
            subject,
            f"{function.errors:,} of {invocations:,} invocations failed in {hours} h",
            f"{log} --filter-pattern ERROR",
        )
    if function.longest_ms >= 1000 * function.timeout_seconds > 0:
        yield Finding(
            Severity.FAIL,
            "time-outs",
            subject,
            f"an invocation ran into the time-out of {function.timeout_seconds} s in the last {hours} h",
            f"{log} --filter-pattern '\"Task timed out\"'; then raise its timeout_seconds or do less in one invocation",
        )
    if function.throttles:
        yield Finding(
            Severity.WARN,
            "concurrency",
            subject,
            f"{function.throttles:,} invocations throttled in {hours} h",
            "raise its reserved concurrency, or the account's quota of concurrent executions",
        )
    if function.dead_letter_errors:
        yield Finding(
            Severity.FAIL,
            "dead letters",
            subject,
            f"{function.dead_letter_errors:,} failed events were lost: its dead-letter queue refused them in {hours} h",
            "grant the function sqs:SendMessage on its dead-letter queue",
        )
    if function.iterator_age_ms >= 1000 * ITERATOR_AGE_SECONDS_MAX:
        yield Finding(
            Severity.WARN,
            "streams",
            subject,
            f"reads its stream {function.iterator_age_ms / 1000:,.0f} s late",
            f"{log}; a record that fails again and again holds up its shard",
        )


def _mappings(facts: DeploymentFacts) -> Iterator[Finding]:
    if facts.mappings is None:
        return
    for mapping in facts.mappings:
        yield from _mapping(mapping)
    fed = {mapping.function for mapping in facts.mappings}
    for function in facts.functions or ():
        if function.name.removeprefix(f"{facts.name}-") in FED and function.name not in fed:
            yield Finding(
                Severity.FAIL,
                "mappings",
                f"function {function.name}",
                "has no event source mapping, so nothing invokes it",
                "apply Terraform",
            )


def _mapping(mapping: MappingFacts) -> Iterator[Finding]:
    subject = f"mapping {mapping.source} to {mapping.function}"
    if mapping.state in ("Disabled", "Disabling"):
        yield Finding(
            Severity.FAIL,
            "mappings",
            subject,
            f"is {mapping.state}",
            f"aws lambda update-event-source-mapping --uuid {mapping.uuid} --enabled",
        )
    if mapping.last_result.startswith("PROBLEM"):
        yield Finding(
            Severity.FAIL, "mappings", subject, f"last result: {mapping.last_result}", "grant what the result names"
        )


def _remedy(queue: QueueFacts) -> str:
    if queue.name.endswith(REDRIVEN):
        return "repair the cause that the log of its function names, then: headgate aws redrive"
    return f"read them, repair the cause, then: aws sqs start-message-move-task --source-arn {queue.arn}"


def _queue(queue: QueueFacts) -> Iterator[Finding]:
    subject = f"queue {queue.name}"
    if queue.is_dead_letters:
        if queue.waiting and not queue.has_consumer:
            yield Finding(
                Severity.FAIL,
                "dead letters",
                subject,
                f"{queue.waiting:,} {'message' if queue.waiting == 1 else 'messages'} given up",
                _remedy(queue),
            )
        return
    limit_seconds = max(OLDEST_SECONDS_MAX, 2 * queue.visibility_seconds)
    if queue.oldest_seconds is not None and queue.oldest_seconds > limit_seconds:
        yield Finding(
            Severity.FAIL,
            "queues",
            subject,
            f"its oldest message waits for {queue.oldest_seconds:,.0f} s; {queue.waiting:,} wait, "
            f"{queue.in_flight:,} are in flight",
            "see the errors, throttles and mapping of its function",
        )
    if queue.has_consumer is False and queue.waiting:
        yield Finding(
            Severity.FAIL,
            "queues",
            subject,
            f"{queue.waiting:,} messages wait, and no function receives them",
            "apply Terraform, or start a worker that consumes the queue",
        )


def _machines(facts: DeploymentFacts) -> Iterator[Finding]:
    for machine in facts.machines or ():
        subject = f"state machine {machine.name}"
        if machine.status not in ("ACTIVE", ""):
            yield Finding(Severity.FAIL, "machines", subject, f"is {machine.status}", "apply Terraform")
        ended = _ended_badly(machine)
        if ended:
            yield Finding(
                Severity.WARN,
                "machines",
                subject,
                f"{ended} in {facts.hours} h",
                f"aws stepfunctions list-executions --state-machine-arn {machine.arn} --status-filter FAILED; "
                "the reason is in the log of the run",
            )
        if machine.throttled:
            yield Finding(
                Severity.WARN,
                "machines",
                subject,
                f"{machine.throttled:,} state transitions throttled in {facts.hours} h",
                "ask AWS for a higher quota of StateTransition (Service Quotas, Step Functions)",
            )


def _ended_badly(machine: MachineFacts) -> str:
    counts = {"failed": machine.failed or 0, "timed out": machine.timed_out, "aborted": machine.aborted}
    return ", ".join(f"{count:,} executions {how}" for how, count in counts.items() if count)


def _refusals(failures: tuple[CallFailure, ...]) -> Iterator[Finding]:
    """Yield one finding for each call, however many resources it was refused for."""
    by_call: dict[tuple[str, str], list[CallFailure]] = defaultdict(list)
    for failure in failures:
        by_call[failure.call, failure.code].append(failure)
    for (call, code), same in by_call.items():
        first = same[0]
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        remedy = f"grant {call} to who runs this command" if first.is_permission else "try again; see the message"
        yield Finding(Severity.UNKNOWN, "calls", call, f"{first.about}{others}: {code}: {first.message}", remedy)
