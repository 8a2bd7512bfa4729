"""Attacks by way of resource maps and AWS rules: no map comes through the API, no rule opens what is Headgate's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from headgate.auth.roles import Role
from tests.security.machine_site import Site, config_item, opened, task
from tests.security.test_machine_attacks import PREFIX, READS, WRITES

# Nothing listens there: a call that is not refused before it is made ends with another error.
DEAD: Final = "http://127.0.0.1:9"
RULES: Final = "dynamodb:*,s3:*,sqs:*,scheduler:*"
BUCKET: Final = "own-blobs"
SDK: Final = "arn:aws:states:::aws-sdk:"
MAPPED: Final = "arn:aws:states:::glue:startJobRun"
MAP: Final = """
resources:
  - {resource: "glue:*", parameters: {JobName: mapped}, command: [touch, ran]}
  - {resource: "*headgate*", answer: replaced}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("resources")
    (folder / "resources.yaml").write_text(MAP)
    environ = {
        "HEADGATE_STORE_TABLE_PREFIX": PREFIX,
        "HEADGATE_STORE_AWS_REGION": "eu-west-1",
        "HEADGATE_TASKS_AWS": RULES,
        "HEADGATE_TASKS_AWS_ENDPOINT_URL": DEAD,
        "AWS_ACCESS_KEY_ID": "1",
        "AWS_SECRET_ACCESS_KEY": "-",
    }
    with opened(folder, "--resources", "resources.yaml", **environ) as site:
        yield site


def refused(site: Site, machine: dict[str, Any]) -> None:
    """Try a machine with a key of each role that may run one: it is refused before a call is made."""
    for role in Role:
        found = site.run_machine(role, machine)
        assert found["status"] in ("REFUSED", "FAILED"), (role, found)
        assert "SdkClientException" not in found.get("error", ""), (role, found)


@pytest.mark.parametrize("form", [*WRITES, *READS])
def test_table_of_headgate__with_rules_for_every_table__is_refused_to_each_role(site: Site, form: str) -> None:
    made = WRITES[form](config_item("evil", site.marker)) if form in WRITES else READS[form]("x")

    refused(site, task(*made))


@pytest.mark.parametrize("form", WRITES)
def test_table_of_headgate__named_only_at_run_time__is_refused(site: Site, form: str) -> None:
    resource, parameters = WRITES[form](config_item("evil", site.marker))
    machine = task(resource)
    machine["States"]["T"]["Parameters"] = {f"{name}.$": f"$.{name}" for name in parameters}
    machine["States"] |= {"S": {"Type": "Pass", "Result": parameters, "Next": "T"}}

    refused(site, {**machine, "StartAt": "S"})


def test_schedule_of_aws__that_would_write_a_table_of_headgate__is_refused(site: Site) -> None:
    target = {"Arn": "arn:aws:scheduler:::aws-sdk:dynamodb:putItem", "Input": '{"TableName":"zz-headgate-pipelines"}'}

    refused(site, task(f"{SDK}scheduler:createSchedule", {"Name": "x", "Target": target}))


def test_table_of_a_user__with_a_rule__is_called(site: Site) -> None:
    found = site.run_machine(Role.ADMIN, task(f"{SDK}dynamodb:getItem", {"TableName": "orders", "Key": {}}))

    assert found["error"] == "DynamoDb.SdkClientException", found


def test_resource_map__in_a_request__is_not_taken(site: Site) -> None:
    entries = [{"resource": "glue:*", "command": ["touch", str(site.marker)]}]
    for role in (Role.ADMIN, Role.OPERATOR, Role.SERVICE):
        client, name = site.clients[role], site.name()
        machine = task(MAPPED, {"JobName": "other"})
        client.put(f"/machines/{name}", json={"definition": machine, "resources": entries})
        client.put(f"/machines/{name}", json=machine)
        for more in ({"resources": entries}, {"is_routed": True}, {"case": "x#y"}, {"test_case": "y"}):
            client.post(f"/machines/{name}/executions", json={"input": {}, **more})
        found = client.post(f"/machines/{name}/executions", json={"input": {}})

        assert found.status_code >= 400, (role, found.text)
        assert not site.marker.exists()


def test_command_of_the_map__runs_for_its_resource_alone(site: Site) -> None:
    found = site.run_machine(Role.OPERATOR, task(MAPPED, {"JobName": "mapped"}))
    assert found["status"] == "SUCCEEDED", found
    assert (site.folder / "ran").exists()

    call = {"resource": MAPPED, "parameters": {"JobName": "mapped"}, "input": {}}
    for resource in ("headgate.asl.resource", "arn:aws:states:eu-west-1:1:activity:headgate.asl.resource"):
        # The answer of the map for names of Headgate is that of a user: the function is not reached.
        reached = site.run_machine(Role.OPERATOR, task(resource, call))
        assert reached["status"] in ("REFUSED", "FAILED") or reached["output"] == "replaced", reached
