"""Which SQS queues fan-outs may use."""

from __future__ import annotations

import pytest

from headgate.errors import DefinitionError
from headgate.fanout.model.queue_urls import QueueRules

RULES = QueueRules("eu-west-1", "http://127.0.0.1:4566")
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/chunks"


@pytest.mark.parametrize("url", [QUEUE, QUEUE + ".fifo", "http://127.0.0.1:4566/000000000000/chunks"])
def test_check__queue_of_the_region_or_the_endpoint__is_allowed(url: str) -> None:
    RULES.check(url)


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
        ("http://sqs.eu-west-1.amazonaws.com/1/chunks", "not at AWS"),
        ("https://169.254.169.254/1/chunks", "not at AWS"),
        ("http://127.0.0.1:4567/1/chunks", "not at AWS"),
        ("https://sqs.eu-west-1.amazonaws.com.example.org/1/chunks", "not at AWS"),
    ],
)
def test_check__anything_else__is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        RULES.check(url)


def test_check__settings_name_queues__only_those_are_allowed() -> None:
    rules = QueueRules("eu-west-1", patterns=["https://sqs.eu-west-1.amazonaws.com/123456789012/survey-*"])

    rules.check("https://sqs.eu-west-1.amazonaws.com/123456789012/survey-chunks")

    with pytest.raises(DefinitionError, match=r"fanout\.queues allows"):
        rules.check(QUEUE)


def test_check__no_region__names_the_setting() -> None:
    with pytest.raises(DefinitionError, match=r"store\.aws_region"):
        QueueRules(None).check(QUEUE)
