"""The doctor of queues: what is well, and what each thing that is not well is called."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.fanout.doctor import FunctionFacts, QueueFacts, QueueSetup, check_setup, expiry_seconds

DAY = 86_400
QUEUE = QueueFacts(
    name="prod-chunks",
    arn="arn:aws:sqs:eu-central-1:1:prod-chunks",
    visibility_seconds=5400,
    retention_seconds=4 * DAY,
    receives_max=3,
    dead_letter_arn="arn:aws:sqs:eu-central-1:1:prod-dead",
)
DEAD = QueueFacts("prod-dead", "arn:aws:sqs:eu-central-1:1:prod-dead", 30, 14 * DAY)
FUNCTION = FunctionFacts("prod-worker", 900)
WELL = QueueSetup(
    environment="prod",
    queue=QUEUE,
    dead_letters=DEAD,
    functions=(FUNCTION,),
    inputs_seconds=19 * DAY,
    table="prod_headgate.fanout",
    is_table_backed_up=True,
    has_alarm=True,
)


def test_examine__all_is_well__finds_nothing() -> None:
    assert check_setup(WELL) == []
    assert check_setup(QueueSetup("prod", QUEUE)) == []


@pytest.mark.parametrize(
    ("facts", "check", "found", "wanted"),
    [
        (
            replace(WELL, queue=replace(QUEUE, visibility_seconds=960)),
            "visibility", "960 s", "at least 5400 s, 6 times the 900 s of prod-worker",
        ),
        (
            replace(WELL, functions=(FUNCTION, replace(FUNCTION, window_seconds=1))),
            "visibility", "5400 s", "at least 5401 s",
        ),
        (replace(WELL, queue=replace(QUEUE, receives_max=1)), "receives", "maxReceiveCount is 1", "at least 3"),
        (replace(WELL, attempts_max=5), "receives", "maxReceiveCount is 3", "at least 5"),
        (
            replace(WELL, queue=replace(QUEUE, dead_letter_arn=None, receives_max=None)),
            "dead-letters", "no queue for dead letters", "3 receives",
        ),
        (
            replace(WELL, functions=(replace(FUNCTION, reports_failures=False),)),
            "partial-batches", "ReportBatchItemFailures", "FunctionResponseTypes",
        ),
        (
            replace(WELL, dead_letters=replace(DEAD, retention_seconds=4 * DAY)),
            "retention", "4 days", "longer than the 4 days of prod-chunks",
        ),
        (replace(WELL, inputs_seconds=18 * DAY), "inputs", "18 days", "longer than the 18 days"),
        (replace(WELL, has_alarm=False), "alarm", "no alarm", "more than 0"),
        (replace(WELL, is_table_backed_up=False), "backups", "point-in-time recovery", "any point in time"),
        (replace(WELL, table="phspectra-runs"), "names", "does not contain its environment", "prod-phspectra-runs"),
        (replace(WELL, dead_letters=replace(DEAD, name="production-dead")), "names", "contain", "prod-production"),
        (replace(WELL, functions=(replace(FUNCTION, name="worker"),)), "names", "does not contain", "prod-worker"),
        (replace(WELL, queue=replace(QUEUE, name="chunks")), "names", "does not contain", "prod-chunks"),
    ],
)  # fmt: skip
def test_examine__one_thing_is_wrong__finds_that_alone(facts: QueueSetup, check: str, found: str, wanted: str) -> None:
    findings = check_setup(facts)

    assert [finding.check for finding in findings] == [check]
    assert found in findings[0].found
    assert wanted in findings[0].wanted
    assert str(findings[0]).endswith(findings[0].why)


def test_examine__as_the_first_pipeline_was_set_up__finds_all_of_it() -> None:
    queue = QueueFacts("phspectra-chunks", "arn", 960, 14 * DAY, 3, "dead")
    dead = QueueFacts("phspectra-dead-letter", "dead", 960, 14 * DAY)
    facts = QueueSetup(
        environment="development",
        queue=queue,
        dead_letters=dead,
        functions=(FunctionFacts("phspectra-worker", 900, reports_failures=False),),
        inputs_seconds=7 * DAY,
        table="phspectra-runs",
        is_table_backed_up=False,
        has_alarm=False,
    )

    assert [finding.check for finding in check_setup(facts)] == [
        "partial-batches", "visibility", "retention", "inputs", "alarm", "backups", "names", "names", "names", "names",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        ([], None),
        ([{"Status": "Enabled", "Filter": {"Prefix": "chunks/"}, "Expiration": {"Days": 7}}], 7),
        ([{"Status": "Enabled", "Prefix": "", "Expiration": {"Days": 9}}], 9),
        ([{"Status": "Enabled", "Filter": {"And": {"Prefix": "chunks/run"}}, "Expiration": {"Days": 3}}], 3),
        ([{"Status": "Disabled", "Filter": {}, "Expiration": {"Days": 7}}], None),
        ([{"Status": "Enabled", "Filter": {"Prefix": "athena/"}, "Expiration": {"Days": 7}}], None),
        ([{"Status": "Enabled", "Filter": {}, "Transitions": [{"Days": 1}]}], None),
        (
            [
                {"Status": "Enabled", "Filter": {}, "Expiration": {"Days": 30}},
                {"Status": "Enabled", "Filter": {"Prefix": "chunks/"}, "Expiration": {"Days": 7}},
            ],
            7,
        ),
    ],
)
def test_kept__by_the_rules_of_a_bucket__is_the_shortest_that_applies(
    rules: list[dict[str, Any]], days: int | None
) -> None:
    assert expiry_seconds(rules, "chunks/") == (None if days is None else days * DAY)
