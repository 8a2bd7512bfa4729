"""Attacks by state machines and built-in workflows: none reaches a table, a definition or a file of Headgate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.auth.roles import Role
from tests.security.machine_site import FOREIGN, SECRET, Site, config_item, opened, report_incident, task

SDK: Final = "arn:aws:states:::aws-sdk:dynamodb:"
OPTIMISED: Final = "arn:aws:states:::dynamodb:"
ARN: Final = "arn:aws:dynamodb:eu-west-1:123456789012:table/"
PREFIX: Final = "zz-"
INCIDENTS: Final = "observability-incident-index"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("machines")
    environ = {"HEADGATE_STORE_TABLE_PREFIX": PREFIX, "HEADGATE_TASKS_TABLES": "orders:id"}
    with opened(folder, **environ) as site:
        site.incident = report_incident(site)
        yield site


def each_role(site: Site, attack: Callable[[Role], dict[str, Any]], pipeline: str = "evil") -> None:
    """Try an attack with a key of each role: it is refused or fails, and leaves no trace."""
    for role in Role:
        found = attack(role)
        assert found["status"] in ("REFUSED", "FAILED"), (role, found)
        if not site.may_write_executions(role):
            assert found["http"] == 403, (role, found)
        assert SECRET not in json.dumps(found), role
        assert site.admin.get(f"/pipelines/{pipeline}").status_code == 404, role
        assert site.force(role, pipeline) in (403, 404), role
        assert not site.marker.exists(), role


# H1: a definition is written into the table of pipelines.


def _put(table: str) -> Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]:
    return lambda item: (f"{OPTIMISED}putItem", {"TableName": table, "Item": item})


def _update(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"{OPTIMISED}updateItem", {
        "TableName": "headgate-pipelines",
        "Key": {name: item[name] for name in ("PK", "SK")},
        "UpdateExpression": "SET config = :c",
        "ExpressionAttributeValues": {":c": item["config"]},
    }


def _statement(item: dict[str, Any]) -> dict[str, Any]:
    return {"Statement": 'INSERT INTO "headgate-pipelines" VALUE ?', "Parameters": [{"M": item}]}


WRITES: Final[dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]]] = {
    "name": _put("headgate-pipelines"),
    "prefixed": _put(f"{PREFIX}headgate-pipelines"),
    "arn": _put(f"{ARN}headgate-pipelines"),
    "arn of the prefixed": _put(f"{ARN}{PREFIX}headgate-pipelines"),
    "arn of an index": _put(f"{ARN}headgate-pipelines/index/GSI1"),
    "case": _put("Headgate-Pipelines"),
    "space": _put(" headgate-pipelines"),
    "a table of users as prefix": _put("orders:table/headgate-pipelines"),
    "sdk": lambda item: (f"{SDK}putItem", {"TableName": "headgate-pipelines", "Item": item}),
    "sdk in another case": lambda item: (
        "arn:aws:states:::aws-sdk:dynamodb:PutItem", {"tableName": "headgate-pipelines", "item": item}
    ),
    "update": _update,
    "batch": lambda item: (
        f"{SDK}batchWriteItem", {"RequestItems": {"headgate-pipelines": [{"PutRequest": {"Item": item}}]}}
    ),
    "transaction": lambda item: (
        f"{SDK}transactWriteItems",
        {"TransactItems": [{"Put": {"TableName": "headgate-pipelines", "Item": item}}]},
    ),
    "statement": lambda item: (f"{SDK}executeStatement", _statement(item)),
    "statements": lambda item: (f"{SDK}batchExecuteStatement", {"Statements": [_statement(item)]}),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITES)
def test_write__of_a_definition_into_the_table_of_pipelines__is_refused_to_each_role(site: Site, form: str) -> None:
    pipeline = site.name("evil")
    resource, parameters = WRITES[form](config_item(pipeline, site.marker))

    each_role(site, lambda role: site.run_machine(role, task(resource, parameters)), pipeline)


# H2: rows of datasets outside the scope of a key are read.


def _query(table: str, value: str, attribute: str = "PK", **more: Any) -> dict[str, Any]:
    return {
        "TableName": table,
        "KeyConditionExpression": f"{attribute} = :p",
        "ExpressionAttributeValues": {":p": {"S": value}},
        **more,
    }


READS: Final[dict[str, Callable[[str], tuple[str, dict[str, Any]]]]] = {
    "query": lambda key: (f"{SDK}query", _query(INCIDENTS, key)),
    "prefixed": lambda key: (f"{SDK}query", _query(f"{PREFIX}{INCIDENTS}", key)),
    "arn": lambda key: (f"{OPTIMISED}query", _query(f"{ARN}{INCIDENTS}", key)),
    "index": lambda _: (
        f"{SDK}query", _query(INCIDENTS, f"DS#{FOREIGN}", "GSI1PK", IndexName="dataset-time-index")
    ),
    "scan": lambda _: (f"{SDK}scan", {"TableName": INCIDENTS}),
    "statement": lambda _: (f"{SDK}executeStatement", {"Statement": f'SELECT * FROM "{INCIDENTS}"'}),
    "definitions": lambda _: (f"{SDK}query", _query("headgate-definitions", "STATE-MACHINE#headgate-lifecycle")),
    "fan-outs": lambda _: (f"{SDK}query", _query("headgate-fanout", "run")),
    "keys": lambda _: (f"{SDK}query", _query("headgate-api-keys", "x", "key_id")),
}  # fmt: skip


@pytest.mark.parametrize("form", READS)
def test_read__of_a_table_of_headgate__is_refused_to_each_role(site: Site, form: str) -> None:
    machine = task(*READS[form](f"INC#{site.incident}"))

    each_role(site, lambda role: site.run_machine(role, machine))


def test_read__of_one_incident_by_its_key__is_refused_to_each_role(site: Site) -> None:
    key = {"PK": {"S": f"INC#{site.incident}"}, "SK": {"S": "META"}}
    parameters = {"TableName": INCIDENTS, "Key": key}

    each_role(site, lambda role: site.run_machine(role, task(f"{OPTIMISED}getItem", parameters)))


def test_own_table__declared_in_settings__works_for_each_role_that_runs_machines(site: Site) -> None:
    item = {"id": {"S": "7"}, "n": {"N": "1"}}
    machine = {
        "StartAt": "Put",
        "States": {
            "Put": {
                "Type": "Task",
                "Resource": f"{OPTIMISED}putItem",
                "Parameters": {"TableName": "orders", "Item": item},
                "Next": "Get",
            },
            "Get": {
                "Type": "Task",
                "Resource": f"{SDK}getItem",
                "Parameters": {"TableName": f"{ARN}orders", "Key": {"id": {"S": "7"}}},
                "End": True,
            },
        },
    }
    for role in Role:
        if site.may_write_executions(role):
            ended = site.run_machine(role, machine)
            assert (ended["status"], ended["output"]["Item"]) == ("SUCCEEDED", item)


# Functions, machines and workflows of Headgate itself.

TRIGGER: Final = {"mode": "trigger", "runId": "run_1", "pipelineId": "evil", "scheduleId": "s", "date": "2026-01-05"}
SERVICE_CALL: Final = {"service": "dynamodb", "action": "putItem", "parameters": {}}
CALLS: Final[dict[str, dict[str, Any]]] = {
    "function": task("headgate.pipelines.trigger", TRIGGER),
    "variable": task("${headgate.pipelines.orchestrator}", TRIGGER),
    "lambda arn": task("arn:aws:lambda:eu-west-1:1:function:headgate.pipelines.evaluator", TRIGGER),
    "activity arn": task("arn:aws:states:eu-west-1:1:activity:headgate.asl.service", SERVICE_CALL),
    "invoke": task(
        "arn:aws:states:::lambda:invoke", {"FunctionName": "headgate.pipelines.trigger", "Payload": TRIGGER}
    ),
    "invoke by a computed name": task(
        "arn:aws:states:::lambda:invoke",
        {"FunctionName.$": "States.Format('headgate.{}', 'pipelines.trigger')", "Payload": TRIGGER},
    ),
    "invoke by arn": task(
        "arn:aws:states:::lambda:invoke",
        {"FunctionName": "arn:aws:lambda:eu-west-1:1:function:headgate.asl.service", "Payload": SERVICE_CALL},
    ),
    "within a branch": {
        "StartAt": "P",
        "States": {
            "P": {"Type": "Parallel", "Branches": [task("headgate.pipelines.trigger", TRIGGER)], "End": True}
        },
    },
    "within an express map": {
        "StartAt": "M",
        "States": {
            "M": {
                "Type": "Map",
                "Items": [1],
                "QueryLanguage": "JSONata",
                "ItemProcessor": {
                    "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"},
                    **task("headgate.asl.service", None),
                },
                "End": True,
            }
        },
    },
    "nested": task(
        "arn:aws:states:::states:startExecution.sync:2",
        {"StateMachineArn": "arn:aws:states:::stateMachine:headgate-lifecycle", "Input": {"pipelineId": "evil"}},
    ),
    "nested without waiting": task(
        "arn:aws:states:::states:startExecution", {"StateMachineArn": "headgate-lifecycle", "Input": {}}
    ),
    "machine": task("machine:headgate-lifecycle.sync", {"pipelineId": "evil"}),
    "fan-out": task("fanout:headgate.triggers.local.command_process.run", {"items": ["x"]}),
    "fan-out with a job": task("fanout:headgate.cli.main:load.sync", {"items": ["x"]}),
    "events": task(
        "arn:aws:states:::events:putEvents",
        {"Entries": [{"Source": "x", "DetailType": "headgate.pipeline.completed", "Detail": {}}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", CALLS)
def test_call__of_a_function_or_machine_of_headgate__is_refused_to_each_role(site: Site, form: str) -> None:
    def attack(role: Role) -> dict[str, Any]:
        found = site.run_machine(role, CALLS[form])
        # Refused for its name, and not because the call failed.
        assert "reserved for Headgate" in json.dumps(found) or not site.may_write_executions(role), found
        return found

    each_role(site, attack)


def _refused(answer: Any) -> dict[str, Any]:
    status = "REFUSED" if answer.status_code >= 400 else "ACCEPTED"
    return {**answer.json(), "status": status, "http": answer.status_code}


def test_lifecycle_machine__replaced_or_started_over_the_api__is_refused_to_each_role(site: Site) -> None:
    before = site.admin.get("/machines/headgate-lifecycle").json()["version"]

    each_role(site, lambda role: _refused(site.clients[role].put("/machines/headgate-lifecycle", json=task("echo"))))
    each_role(
        site,
        lambda role: _refused(
            site.clients[role].post("/machines/headgate-lifecycle/executions", json={"input": {"pipelineId": "evil"}})
        ),
    )

    assert site.admin.get("/machines/headgate-lifecycle").json()["version"] == before


def _machine_input(site: Site) -> dict[str, Any]:
    parameters = {"TableName": "headgate-pipelines", "Item": config_item("evil", site.marker)}
    definition = json.dumps(task(f"{OPTIMISED}putItem", parameters))
    return {"machine": "headgate-lifecycle", "name": "n", "definition": definition, "started_at_ms": 1}


def test_built_in_workflow__started_over_the_api__is_refused_to_each_role(site: Site) -> None:
    input = _machine_input(site)
    for workflow in ("headgate.machine", "headgate.map_lane", "headgate.new"):
        each_role(
            site,
            lambda role, workflow=workflow: _refused(  # type: ignore[misc]
                site.clients[role].post("/executions", json={"workflow": workflow, "input": input})
            ),
        )
        each_role(
            site,
            lambda role, workflow=workflow: _refused(  # type: ignore[misc]
                site.clients[role].post(
                    "/executions/signal-with-start",
                    json={"workflow": workflow, "input": input, "id": site.name("e"), "name": "go"},
                )
            ),
        )


def test_built_in_workflow__by_a_schedule__is_refused_to_each_role(site: Site) -> None:
    body = {"workflow": "headgate.machine", "cron": "* * * * *", "input": _machine_input(site)}
    made = site.admin.post("/schedules", json={"workflow": "idle", "cron": "@daily", "id": "mine"})
    assert made.status_code == 201, made.text

    each_role(site, lambda role: _refused(site.clients[role].post("/schedules", json={**body, "id": site.name("s")})))
    each_role(site, lambda role: _refused(site.clients[role].put("/schedules/mine", json=body)))


def test_built_in_workflow__by_the_trigger_of_a_pipeline__is_refused_to_each_role(site: Site) -> None:
    trigger = {"type": "workflow", "config": {"workflow": "headgate.machine", "input": _machine_input(site)}}
    pipeline = site.name("evil")
    text = json.dumps({"id": pipeline, "trigger": trigger})

    for role in Role:
        put = site.clients[role].put(f"/pipelines/{pipeline}", content=text)
        assert put.status_code == (400 if role is Role.ADMIN else 403), put.text


def test_message__to_an_execution_of_a_machine__is_refused_to_each_role(site: Site) -> None:
    waits = task("arn:aws:states:::lambda:invoke.waitForTaskToken", {"FunctionName": "echo", "Payload": {}})
    name = site.name()
    assert site.admin.put(f"/machines/{name}", json=waits).status_code == 201
    started = site.admin.post(f"/machines/{name}/executions", json={"input": {}}).json()["id"]
    answer = {"callback": "success", "output": {"forged": True}}
    for role in Role:
        client = site.clients[role]
        for refused in (
            client.post(f"/executions/{started}/signals", json={"name": "asl.task.1.1", "payload": answer}),
            client.post(f"/executions/{started}/updates", json={"name": "x", "input": None, "wait": "0s"}),
            client.post(
                "/executions/signal-with-start",
                json={"workflow": "idle", "id": started, "name": "asl.task.1.1", "payload": answer},
            ),
            client.post("/executions", json={"workflow": "idle", "id": started, "reuse": "terminate"}),
        ):
            assert refused.status_code >= 400, (role, refused.text)
    assert site.admin.get(f"/machine-executions/{started}").json()["status"] == "RUNNING"
    site.admin.post(f"/machine-executions/{started}/stop", json={})


# Files and blobs.

READERS: Final[dict[str, dict[str, Any]]] = {
    "key": {"Bucket": "b", "Key": "../../keys.json"},
    "bucket": {"Bucket": "../..", "Key": "keys.json"},
    "absolute": {"Bucket": "/", "Key": "/etc/passwd"},
    "prefix": {"Bucket": "b", "Prefix": "../../../"},
    "bucket of a listing": {"Bucket": "..", "Prefix": ""},
    "bucket above": {"Bucket": "../..", "Prefix": ""},
}


@pytest.mark.parametrize("form", READERS)
def test_item_reader__outside_the_buckets_of_machines__is_refused_to_each_role(site: Site, form: str) -> None:
    where = READERS[form]
    is_list = "Prefix" in where
    reader: dict[str, Any] = {
        "Resource": f"arn:aws:states:::s3:{'listObjectsV2' if is_list else 'getObject'}",
        "Parameters": where,
    }
    if not is_list:
        reader["ReaderConfig"] = {"InputType": "JSON"}
    machine = _map(ItemReader=reader)

    each_role(site, lambda role: site.run_machine(role, machine))


@pytest.mark.parametrize("where", [{"Bucket": "..", "Prefix": "spill"}, {"Bucket": "b", "Prefix": "../../x"}])
def test_result_writer__outside_the_buckets_of_machines__is_refused_to_each_role(
    site: Site, where: dict[str, str]
) -> None:
    machine = _map(ResultWriter={"Resource": "arn:aws:states:::s3:putObject", "Parameters": where}, ItemsPath="$.items")
    machine["States"]["Set"] = {"Type": "Pass", "Result": {"items": [1]}, "Next": "M"}
    machine["StartAt"] = "Set"
    before = _files(site.server.home / "blobs")

    each_role(site, lambda role: site.run_machine(role, machine))

    assert {each for each in _files(site.server.home / "blobs") - before if "buckets" not in each.parts} == set()


def _map(**fields: Any) -> dict[str, Any]:
    processor = {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
        "StartAt": "P",
        "States": {"P": {"Type": "Pass", "End": True}},
    }
    return {"StartAt": "M", "States": {"M": {"Type": "Map", "ItemProcessor": processor, "End": True, **fields}}}


def _files(folder: Path) -> set[Path]:
    return {each for each in folder.rglob("*") if each.is_file()}
