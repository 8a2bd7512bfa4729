"""Findings of a deployment: what emulators have no state for, such as replicas, quotas and lost events."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.deployment.doctor.facts import (
    CallFailure,
    DeploymentFacts,
    FunctionFacts,
    KeyShare,
    KeySource,
    MappingFacts,
    PlaceFacts,
    QueueFacts,
    ReplicaFacts,
    TableFacts,
    Usage,
)
from headgate.deployment.doctor.findings import Finding, Severity, findings, worst


def found(**facts: Any) -> list[Finding]:
    return findings(DeploymentFacts(region="eu-west-1", name="acme", hours=24, **facts))


def of_place(**place: Any) -> list[Finding]:
    table = TableFacts(name="runs", exists=True, status="ACTIVE", places=(PlaceFacts(name="runs", **place),))
    return found(tables=(table,))


def function(**facts: Any) -> list[Finding]:
    return found(functions=(FunctionFacts(name="acme-evaluator", timeout_seconds=60, **facts),))


def test_replicas__one_without_its_key__is_a_failure_and_the_others_are_none() -> None:
    replicas = (ReplicaFacts("us-west-2", "INACCESSIBLE_ENCRYPTION_CREDENTIALS"), ReplicaFacts("us-east-1", "ACTIVE"))

    (only,) = found(tables=(TableFacts(name="runs", exists=True, status="ACTIVE", replicas=replicas),))

    assert (only.severity, only.fact) == (
        Severity.FAIL,
        "its replica in us-west-2 is INACCESSIBLE_ENCRYPTION_CREDENTIALS",
    )


@pytest.mark.parametrize(
    ("usage", "units", "cause", "remedy"),
    [
        (Usage(write_throttles=5, account_throttles=5), None, "quota of the account", "ask AWS for a higher quota"),
        (Usage(write_throttles=5, maximum_throttles=5), None, "maximum of the table", "raise the maximum on-demand"),
        (Usage(write_throttles=5, key_range_throttles=5), None, "one partition is hot", "find the key"),
        # As metrics of the cause are missing, what was consumed decides.
        (Usage(write_throttles=5, peak_writes=10), 100, "a hot partition", "find the key"),
        (Usage(write_throttles=5, peak_writes=90), 100, "provisioned capacity", "provision more units"),
    ],
)
def test_throttles__by_their_cause__have_its_remedy(usage: Usage, units: int | None, cause: str, remedy: str) -> None:
    only = of_place(usage=usage, write_units=units)[0]

    assert only.check == "throttles"
    assert cause in only.fact
    assert remedy in only.remedy


@pytest.mark.parametrize(
    ("share", "peak_writes", "is_hot"),
    [(0.9, 600, True), (0.9, 20, False), (0.2, 600, False)],
)
def test_hot_keys__share_of_consumed_units__matters_near_the_limit_of_a_partition(
    share: float, peak_writes: float, is_hot: bool
) -> None:
    key = KeyShare("INBOX", share, 1000, KeySource.CONSUMED)

    assert [each.check for each in of_place(usage=Usage(peak_writes=peak_writes), keys=(key,))] == (
        ["hot keys"] if is_hot else []
    )


def test_function__most_invocations_failed__is_a_failure() -> None:
    (only,) = function(invocations=10, errors=5)

    assert (only.severity, only.fact) == (Severity.FAIL, "5 of 10 invocations failed in 24 h")


@pytest.mark.parametrize(
    ("facts", "check", "severity"),
    [
        ({"state": "Failed", "state_reason": "the image is gone"}, "functions", Severity.FAIL),
        ({"state": "Active", "update_status": "Failed"}, "functions", Severity.FAIL),
        ({"throttles": 4}, "concurrency", Severity.WARN),
        ({"dead_letter_errors": 1}, "dead letters", Severity.FAIL),
        ({"iterator_age_ms": 301_000.0}, "streams", Severity.WARN),
    ],
)
def test_function__each_fault__has_one_finding(facts: dict[str, Any], check: str, severity: Severity) -> None:
    assert [(each.check, each.severity) for each in function(**facts)] == [(check, severity)]


def test_mapping__last_result_is_a_problem__is_a_failure() -> None:
    mapping = MappingFacts("1", "acme-turns", "acme-turns", "Enabled", "PROBLEM: Lambda call failed")

    (only,) = found(mappings=(mapping,))

    assert only.fact == "last result: PROBLEM: Lambda call failed"


def queue(**facts: Any) -> list[Finding]:
    given = {"waiting": 3, "in_flight": 0, "visibility_seconds": 60, **facts}
    return found(queues=(QueueFacts(name="acme-q", url="", arn="arn:aws:sqs:::acme-q", **given),))


def test_queue__messages_without_consumer__is_a_failure_but_not_if_mappings_are_unknown() -> None:
    assert [each.severity for each in queue(has_consumer=False)] == [Severity.FAIL]
    assert queue(has_consumer=None) == []


def test_queue__long_visibility__waits_for_twice_that() -> None:
    assert queue(visibility_seconds=5400, oldest_seconds=10_000.0) == []
    assert [each.check for each in queue(visibility_seconds=5400, oldest_seconds=11_000.0)] == ["queues"]


def test_dead_letters__that_a_function_consumes__are_no_finding() -> None:
    assert queue(is_dead_letters=True, has_consumer=True) == []


def test_refusals__of_one_call__are_one_finding_and_the_lowest_severity() -> None:
    failures = tuple(
        CallFailure("dynamodb:DescribeTable", f"table {name}", "AccessDenied", "no", is_permission=True)
        for name in ("a", "b", "c")
    )

    both = found(failures=failures, functions=())

    assert [(each.severity, each.check) for each in both] == [(Severity.WARN, "functions"), (Severity.UNKNOWN, "calls")]
    assert both[1].fact == "table a and 2 more: AccessDenied: no"
    assert worst(both) is Severity.WARN
    assert worst([]) is None
