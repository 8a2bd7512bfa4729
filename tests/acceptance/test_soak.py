"""The soak in a short form, so that it still works when its long form is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak import collections, crashes


def test_crashes__two_kills__loses_nothing_and_refuses_nothing(tmp_path: Path) -> None:
    figures = crashes.run(tmp_path, 2)
    assert [each for each in figures if not each.holds] == []


POLL = {
    "StartAt": "Submit",
    "States": {
        "Submit": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:glue:startCrawler",
            "Parameters": {"Name": "${Crawler}"},
            "ResultPath": "$.crawl",
            "Next": "Pause",
        },
        "Pause": {"Type": "Wait", "Seconds": 30, "Next": "Ask"},
        "Ask": {
            "Type": "Task",
            "Resource": "arn:${AWS::Partition}:states:::aws-sdk:glue:getCrawler",
            "Parameters": {"Name.$": "States.Format('{}-{}', '${Crawler}', $.crawl.Id)"},
            "ResultPath": "$.asked",
            "Next": "Done?",
        },
        "Done?": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.asked.Crawler.State", "StringEquals": "READY", "Next": "Each"}],
            "Default": "Pause",
        },
        "Each": {
            "Type": "Map",
            "ItemReader": {
                "Resource": "arn:aws:states:::s3:getObject",
                "ReaderConfig": {"InputType": "CSV", "CSVHeaderLocation": "FIRST_ROW"},
                "Parameters": {"Bucket": "${Bucket}", "Key": "rows.csv"},
            },
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                "StartAt": "Store",
                "States": {
                    "Store": {
                        "Type": "Task",
                        "Resource": "arn:aws:states:::dynamodb:putItem",
                        "Parameters": {"TableName": "${Table}", "Item": {"id": {"S.$": "$.id"}}},
                        "End": True,
                    }
                },
            },
            "End": True,
        },
    },
}
ASK = """
QueryLanguage: JSONata
StartAt: Ask
States:
  Ask:
    Type: Task
    Resource: arn:aws:states:::sqs:sendMessage.waitForTaskToken
    Arguments: {QueueUrl: !Ref Queue, MessageBody: {token: '{% $states.context.Task.Token %}'}}
    Output: '{% $states.result.order.id %}'
    End: true
"""


def test_collections__machines_for_aws__run_with_recorded_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poll.asl.json").write_text(json.dumps(POLL))
    (tmp_path / "ask.asl.yaml").write_text(ASK)
    (tmp_path / "broken.asl.json").write_text("{")
    monkeypatch.setenv(collections.FOLDER, str(tmp_path))

    figures = {each.what: each.value for each in collections.run()}

    assert figures == {"definitions found": "3", "valid for AWS": "2", "run: succeeded": "2"}
