"""Which SQS queues fan-outs may use."""

from __future__ import annotations

import pytest

from headgate.errors import DefinitionError
from headgate.fanout.model.queue_urls import QueueRules

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/chunks"
ANY_AWS = QueueRules("eu-west-1", ["https://sqs.*.amazonaws.com/*"])


@pytest.mark.parametrize("url", [QUEUE, QUEUE + ".fifo"])
def test_check__url_matches_a_pattern__is_allowed(url: str) -> None:
    ANY_AWS.check(url)


def test_check__queue_of_fan_outs_that_name_none__is_allowed_by_its_own_setting() -> None:
    QueueRules("eu-west-1", default_url=QUEUE).check(QUEUE)


@pytest.mark.parametrize("url", [QUEUE, "http://127.0.0.1:4566/000000000000/chunks"])
def test_check__no_queue_is_configured__is_refused_and_the_setting_is_named(url: str) -> None:
    with pytest.raises(DefinitionError, match=r"may not send to it; fanout\.queues allows none: an operator can add"):
        QueueRules("eu-west-1", default_url=QUEUE + "-default").check(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("chunks", "write the URL of an SQS queue"),
        ("ftp://sqs.eu-west-1.amazonaws.com/1/chunks", "write the URL"),
        ("https://key:secret@sqs.eu-west-1.amazonaws.com/1/chunks", "write the URL"),
        (QUEUE + "?Action=Purge", "write the URL"),
        (QUEUE + "#x", "write the URL"),
        (QUEUE + "/more", "write the URL"),
        ("https://sqs.eu-west-1.amazonaws.com/1/../chunks", "write the URL"),
        ("https://sqs.eu-west-1.amazonaws.com:x/1/chunks", "write the URL"),
        (QUEUE + "\n", "write the URL"),
        ("https://sqs.us-east-1.amazonaws.com/1/chunks", "store.aws_region is eu-west-1"),
        ("http://sqs.eu-west-1.amazonaws.com/1/chunks", "fanout.queues allows"),
        ("https://169.254.169.254/1/chunks", "fanout.queues allows"),
        ("https://sqs.eu-west-1.amazonaws.com.example.org/1/chunks", "fanout.queues allows"),
    ],
)
def test_check__anything_else__is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        ANY_AWS.check(url)


def test_check__settings_name_queues__only_those_are_allowed() -> None:
    rules = QueueRules("eu-west-1", ["https://sqs.eu-west-1.amazonaws.com/123456789012/survey-*"])

    rules.check("https://sqs.eu-west-1.amazonaws.com/123456789012/survey-chunks")

    with pytest.raises(DefinitionError, match=r"fanout\.queues allows"):
        rules.check(QUEUE)


def test_check__no_region__names_the_setting() -> None:
    with pytest.raises(DefinitionError, match=r"store\.aws_region"):
        QueueRules(None).check(QUEUE)
