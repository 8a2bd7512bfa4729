"""Configs: what is wrong with one is said with the field and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.errors import DefinitionError
from headgate.triggers.contract import FailureCategory, Trigger, TriggerFailedError
from tests.unit.triggers.rigs import kinds, order

MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:load"
GOOD: dict[str, dict[str, Any]] = {
    "command": {"command": "python -m load --date ${date}", "timeout": "5m"},
    "http": {"url": "https://example.com/load", "method": "PUT", "timeout": 10},
    "airflow": {"url": "https://airflow.example.com", "dag_id": "load", "api": "v1", "token": "${file:airflow}"},
    "databricks": {"url": "https://x.cloud.databricks.com", "job_id": 17, "token": "${env:HG_SECRET_DB}"},
    "glue": {"job_name": "load", "arguments": {"--day": "${day_compact}"}},
    "emr": {"cluster_id": "j-1", "args": ["spark-submit", "s3://b/x.py"]},
    "emr-serverless": {
        "application_id": "00f1",
        "execution_role_arn": "arn:aws:iam::123456789012:role/x",
        "job_driver": {"sparkSubmit": {"entryPoint": "s3://b/x.py"}},
    },
    "step-function": {"state_machine_arn": MACHINE, "input": {"date": "${date}"}},
    "lambda": {"function": "load", "invocation": "Event"},
}
SAID = [
    ("command", {}, "command: it is missing; the fields are command, folder,"),
    ("command", {"command": "a 'b"}, "No closing quotation"),
    ("command", {"command": []}, "there is none"),
    ("command", {"command": "x", "timeout": "soon"}, "timeout"),
    ("command", {"command": "x", "timeout": 0}, "timeout 0: use a number from 0.1 to"),
    ("command", {"command": "x", "inherit": ["AWS_SECRET_ACCESS_KEY"]}, "is the server's own"),
    ("http", {"url": "ftp://x"}, "begins with https://"),
    ("http", {"url": "https://x", "method": "FETCH"}, "use one of GET, POST, PUT, PATCH, DELETE"),
    ("http", {"url": "https://x", "metod": "GET"}, "metod: there is no such field; did you mean 'method'?"),
    ("http", {"url": "https://x", "headers": {"Host": "y"}}, "is set by the client"),
    ("http", {"url": "https://x", "headers": {"a\r\nb": "y"}}, "is not a valid header name"),
    ("airflow", {"url": "https://x", "dag_id": "d", "api": "v3"}, "use one of v1, v2"),
    ("airflow", {"url": "https://x", "dag_id": "d", "username": "u"}, "give both, or neither"),
    ("databricks", {"url": "https://x"}, "give one of job_id, tasks; none is given"),
    ("databricks", {"url": "https://x", "job_id": 1, "tasks": [{}]}, "job_id and tasks are given"),
    ("databricks", {"url": "https://x", "job_id": "load"}, "give the job's number"),
    ("databricks", {"url": "https://x", "tasks": [{}], "notebook_params": {}}, "not allowed with tasks"),
    ("glue", {"job_name": "x", "arguments": {"day": "1"}}, "names begin with --"),
    ("emr-serverless", {"application_id": "a", "execution_role_arn": "r", "job_driver": {}}, "sparkSubmit, hive"),
    ("emr-serverless", {"application_id": "a", "execution_role_arn": "r"}, "job_driver: it is missing"),
    # bug 80: nothing that stands for many things.
    ("step-function", {"state_machine_arn": "arn:aws:states:*:*:stateMachine:*"}, "without '\\*'"),
    ("lambda", {"function": "arn:aws:lambda:eu-west-1:123456789012:function:*"}, "without '\\*'"),
    ("glue", {"job_name": "*"}, "without '\\*'"),
    ("lambda", {"function": "f", "invocation": "DryRun"}, "use one of RequestResponse, Event"),
]


@pytest.mark.parametrize("type", GOOD)
def test_check__config_that_is_fine__is_taken(tmp_path: Path, type: str) -> None:
    kinds(tmp_path).check(type, GOOD[type])


@pytest.mark.parametrize(("type", "config", "said"), SAID)
def test_check__config_that_is_wrong__says_field_and_what_is_allowed(
    tmp_path: Path, type: str, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        kinds(tmp_path).check(type, config)

    assert str(caught.value).startswith(f"trigger {type}: ")


def test_check__type_that_does_not_exist__names_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="'cron': there is none; use one of airflow, command, databricks"):
        kinds(tmp_path).check("cron", {"expression": "0 * * * *"})


def test_registry__as_a_whole__is_what_pipelines_know_as_a_trigger(tmp_path: Path) -> None:
    trigger: Trigger = kinds(tmp_path)

    with pytest.raises(TriggerFailedError, match="there is none") as caught:
        trigger.start(order("nothing", {}))

    assert caught.value.category is FailureCategory.PERMANENT


def test_local__only_commands__must_come_from_the_project_folder(tmp_path: Path) -> None:
    registry = kinds(tmp_path)

    assert [type for type in registry.names if registry.is_local(type)] == ["command"]
