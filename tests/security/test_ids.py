"""Attack: create things under ids that are paths, hidden, unprintable or too long, and that no URL reaches.

Every API is tried: REST, Connect, the commands and the SDK. An id is refused with a message that names the field and
what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest

import headgate as hg
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.slots import Spec
from headgate.errors import UserError
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.sources import RangeSource
from headgate.testing import Environment
from tests.security.server import Target
from tests.unit.cli.program import invoke

# Ids that may hold an address, such as airflow://host/dag; paths; and names, which have no slash.
ADDRESSES = ["../../y", "..", ".", "a/../b", "a\\b", "%2e%2e", "a%2f..", "a\nb", "a\x00b", "", " ", "x" * 5000]
PATHS = [*ADDRESSES, "a%2fb", "a//b", "/a", "a/"]
NAMES = [*PATHS, ".hidden", "a/b", "x" * 300]
# How a message says what is allowed.
ALLOWED = re.compile(r"\buse\b|\bwrite\b|\bgive\b|Expected `str`|must be|must not|may hold|such as|name it")
MACHINE = {"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}
PIPELINE = {
    "id": "ID",
    "owner": "data",
    "schedules": [{"sensor": {"key": "landed"}}],
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/x"}},
}
FANOUT = {"group": "g", "range": [0, 1]}
URN = "urn:dp:a:base"
SPEC = {"updated_at": "2026-03-03T00:00:00Z", "dataset_writes": [URN]}
RULE = {"topic_pattern": "orders", "resolution_type": "EXACT", "dataset_urn": URN}


class Route(NamedTuple):
    """How a thing is created. The id replaces ID in the path and in the body; `field` is what a message calls it."""

    field: str
    bad: list[str]
    good: str
    method: str
    path: str
    body: dict[str, Any]


BASELINE = {"baseline_value": 1, "stddev": 0, "sample_count": 1}
ROUTES: dict[str, Route] = {
    "fan-out": Route("fan-out id|run_id", NAMES, "good-1", "POST", "/fanouts", {**FANOUT, "run_id": "ID"}),
    "campaign": Route("campaign", NAMES, "good-1", "POST", "/fanouts", {**FANOUT, "campaign": "ID"}),
    "group": Route("group", PATHS, "a/b", "POST", "/fanouts", {**FANOUT, "group": "ID"}),
    "machine": Route("machine", NAMES, "good-1", "PUT", "/machines/ID", MACHINE),
    "machine execution": Route("name", NAMES, "good-1", "POST", "/machines/base/executions", {"name": "ID"}),
    "schedule": Route(
        "schedule id|id", NAMES, "good-1", "POST", "/schedules", {"id": "ID", "workflow": "w", "cron": "@daily"}
    ),
    "dataset": Route(
        "dataset|dataset_urn", NAMES, "urn:dp:a:b", "POST", "/datasets", {"dataset_urn": "ID", "reason": "r"}
    ),
    "calendar": Route("calendar", NAMES, "good-1", "PUT", "/calendars/ID", {"weekends": True}),
    "flag": Route("flag", NAMES, "good.one", "PUT", "/flags/ID", {"is_on": True, "reason": "r"}),
    "pipeline": Route("id", NAMES, "good-1", "PUT", "/pipelines/ID", PIPELINE),
    "execution": Route("execution id|id", PATHS, "a/b", "POST", "/executions", {"workflow": "none", "id": "ID"}),
    "lineage spec": Route("spec", ADDRESSES, "lspec:job/x:git:1", "PUT", "/lineage/specs/ID", SPEC),
    "resolution rule": Route(
        "name", NAMES, "good-1", "POST", f"/datasets/{URN}/resolution-rules", {**RULE, "name": "ID"}
    ),
    "topic pattern": Route(
        "topic_pattern",
        ADDRESSES,
        "projects/p/topics/t",
        "POST",
        f"/datasets/{URN}/resolution-rules",
        {**RULE, "topic_pattern": "ID", "name": "other"},
    ),
    "marker": Route("date", NAMES, "2026-03-03", "POST", "/pipelines/base/markers", {"date": "ID"}),
    "baseline": Route("metric", PATHS, "rows/s", "PUT", f"/datasets/{URN}/baselines/ID", BASELINE),
    "topic": Route("topic", ADDRESSES, "projects/p/topics/t", "PUT", "/topics/ID/producers/p", {"source": "MANUAL"}),
    "producer": Route(
        "producer|producer_id", ADDRESSES, "airflow://host/dag.t", "PUT", "/topics/t/producers/ID", {"source": "MANUAL"}
    ),
    "sensor": Route(
        "sensor key", ADDRESSES, "s3://in/x", "POST", "/pipelines/base/sensors/ID", {"data": {"n": 1}, "new": True}
    ),
    "trait": Route("trait", NAMES, "good-1", "POST", "/pipelines/base/traits/ID", {"status": "PASS"}),
    "alert quota": Route("team", PATHS, "data/eng", "POST", "/alert-quotas/ID/acquire", {}),
    "mute": Route(
        "pipeline",
        ["a\nb", "a\x00b", "", " ", "x" * 5000],
        "silver-*",
        "POST",
        "/alert-mutes",
        {"reason": "r", "duration": "1h", "pipeline": "ID"},
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("ids")
    found = Target(folder, cwd=folder, roles=[])
    assert found.call("admin", "PUT", "/machines/base", MACHINE).status in (200, 201)
    assert found.call("admin", "PUT", "/pipelines/base", {**PIPELINE, "id": "base"}).status == 201
    assert found.call("admin", "POST", "/datasets", {"dataset_urn": URN, "reason": "r"}).status == 201
    yield found
    found.stop()


def send(target: Target, route: Route, identifier: str) -> tuple[int, str]:
    where = route.path.replace("ID", quote(identifier, safe=""))
    content = {name: identifier if value == "ID" else value for name, value in route.body.items()}
    found = target.call("admin", route.method, where, content)
    return found.status, str(found.body.get("detail", found.text) if isinstance(found.body, dict) else found.text)


@pytest.mark.parametrize("what", ROUTES)
def test_create__under_an_id_that_no_url_reaches__is_refused_and_names_the_field(target: Target, what: str) -> None:
    route = ROUTES[what]
    accepted: dict[str, object] = {}
    for identifier in route.bad:
        status, detail = send(target, route, identifier)
        # A path that the id breaks is no route at all.
        is_unroutable = "ID" in route.path and status in (404, 405) and detail.startswith("/api/v1/")
        is_named = re.search(rf"\b({route.field})\b", detail) and ALLOWED.search(detail)
        if not 400 <= status < 500 or "not loaded here" in detail or not (is_unroutable or is_named):
            accepted[identifier[:20]] = (status, detail[:200])

    assert accepted == {}


@pytest.mark.parametrize("what", sorted(set(ROUTES) - {"execution", "schedule"}))
def test_create__under_a_plain_id__is_accepted(target: Target, what: str) -> None:
    status, text = send(target, ROUTES[what], ROUTES[what].good)

    assert status in (200, 201, 202), text


def test_fan_out__idempotency_key_that_is_no_id__is_refused(target: Target) -> None:
    found = target.call("admin", "POST", "/fanouts", FANOUT, {"idempotency-key": "../../y"})

    assert found.status == 400
    assert "fan-out id" in found.text


def test_execution__plain_id_of_an_unknown_workflow__is_refused_for_the_workflow_only(target: Target) -> None:
    status, text = send(target, ROUTES["execution"], "a/b")

    assert 400 <= status < 500
    assert "workflow 'none'" in text


@pytest.mark.parametrize("producer", ["../../y", "a%2f..%2fb", "a\u202eb", "x" * 5000])
def test_lineage__spec_of_a_producer_that_no_url_reaches__is_refused(target: Target, producer: str) -> None:
    body = {**SPEC, "producer_id": producer}
    found = target.call("admin", "PUT", f"/lineage/specs/{quote(f'lspec:{producer}:git:1', safe='')}", body)

    assert found.status in (400, 404), found.text
    assert re.search("producer|spec|/api/v1/", found.text)


# Connect, whose messages gRPC shares.


SIGNAL = {"state": "OK", "windowStart": "2026-03-03T00:00:00Z", "windowEnd": "2026-03-03T00:05:00Z"}
# A failure is never sampled out.
EVIDENCE = {"validation": {"result": "FAIL"}, "producer": {"id": "job:x"}}
WRITES = [{"datasetUrn": URN}]
# The field as a message names it, the method, the message, and the ids to refuse.
RPCS: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "dataset of a signal": (
        "dataset|dataset_urn",
        "SignalStateService/UpdateSignalState",
        {"datasetUrn": "ID", "signalType": "FRESHNESS", "state": SIGNAL},
        NAMES,
    ),
    "signal": (
        "signal_type",
        "SignalStateService/UpdateSignalState",
        {"datasetUrn": URN, "signalType": "ID", "state": SIGNAL},
        NAMES,
    ),
    "dataset of an incident": (
        "dataset|dataset_urn",
        "IncidentService/CreateIncident",
        {"datasetUrn": "ID", "signalType": "FRESHNESS"},
        NAMES,
    ),
    "incident": ("incident|incident_id", "IncidentService/GetIncident", {"incidentId": "ID"}, NAMES),
    "evidence": (
        "evidence_id",
        "EvidenceCacheService/PutEvidence",
        {"evidence": {**EVIDENCE, "evidenceId": "ID", "datasetUrn": URN}},
        [each for each in NAMES if each],
    ),
    "spec": (
        "spec|spec_id",
        "LineageIndexService/UpdateLineage",
        {"specId": "ID", "producerId": "job:x", "datasetWrites": WRITES},
        ADDRESSES,
    ),
    "producer": (
        "producer|producer_id",
        "LineageIndexService/UpdateLineage",
        {"specId": "lspec:x:git:1", "producerId": "ID", "datasetWrites": WRITES},
        ADDRESSES,
    ),
}


@pytest.mark.parametrize("what", RPCS)
def test_connect__message_with_an_id_that_no_url_reaches__is_refused_and_names_it(target: Target, what: str) -> None:
    field, method, message, bad = RPCS[what]
    wrong: dict[str, object] = {}
    for identifier in bad:
        body = json.loads(json.dumps(message).replace('"ID"', json.dumps(identifier)))
        found = target.call("admin", "POST", f"/observability.statestore.v1.{method}", body, prefix="")
        said = str(found.body.get("message", ""))
        # An answer about one signal says what was wrong with it.
        said = said or str(found.body.get("errorMessage", ""))
        if not re.search(rf"\b({field})\b", said) or not (ALLOWED.search(said) or found.status == 404):
            wrong[identifier[:20]] = (found.status, found.text[:200])

    assert wrong == {}


# Commands.


COMMANDS: dict[str, tuple[str, list[str], list[str]]] = {
    "fan-out": ("fan-out id|run_id", ["fanout", "submit", "--range", "0..1", "--run-id=ID"], NAMES),
    "group": ("group", ["fanout", "submit", "--range", "0..1", "--group=ID"], PATHS),
    "execution": ("id", ["execution", "start", "none", "--id=ID"], PATHS),
    "machine": ("machine", ["asl", "put", "--", "ID", "FILE"], NAMES),
    "schedule": ("id", ["schedule", "create", "--workflow", "w", "--cron", "@daily", "--", "ID"], NAMES),
    "calendar": ("calendar", ["calendar", "put", "--weekends", "--", "ID"], NAMES),
    "flag": ("flag", ["gate", "flag", "--reason", "r", "--", "ID", "on"], NAMES),
    "dataset": ("dataset|dataset_urn|URN", ["dataset", "register", "--reason", "r", "--", "ID"], NAMES),
    "sensor": ("sensor key", ["sensor", "push", "--new", "--", "base", "ID"], ADDRESSES),
    "trait": ("trait", ["trait", "push", "--", "base", "ID", "pass"], NAMES),
    "marker": ("date", ["marker", "put", "base", "--date=ID"], NAMES),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_command__with_an_id_that_no_url_reaches__fails_and_names_it(target: Target, what: str, tmp_path: Path) -> None:
    field, arguments, bad = COMMANDS[what]
    environ = {"HEADGATE_SERVER": target.url, "HEADGATE_API_KEY": target.keys["admin"]}
    definition = tmp_path / "machine.json"
    definition.write_text(json.dumps(MACHINE))
    wrong: dict[str, object] = {}
    for identifier in bad:
        filled = [each.replace("ID", identifier).replace("FILE", str(definition)) for each in arguments]
        ended = invoke(filled, environ)
        said = ended.output + str(ended.exception or "")
        is_usage = ended.exit_code == 2
        is_named = is_usage or "/api/v1/" in said or re.search(rf"\b({field})\b", said)
        if ended.exit_code == 0 or not is_named or "not loaded here" in said:
            wrong[identifier[:20]] = (ended.exit_code, said[:200])

    assert wrong == {}


# The SDK.


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    app = hg.App("ids")

    @app.workflow
    async def noop() -> None:
        return

    with Environment(app) as opened:
        yield opened


@pytest.mark.parametrize("identifier", PATHS, ids=lambda each: repr(each[:12]))
def test_sdk__start_under_an_id_that_no_url_reaches__is_refused(env: Environment, identifier: str) -> None:
    with pytest.raises(UserError, match="execution id"):
        env.service.client.start("noop", msgspec.Raw(b"null"), execution_id=identifier)


@pytest.mark.parametrize("identifier", NAMES, ids=lambda each: repr(each[:12]))
def test_sdk__fan_out_and_schedule_under_an_id_that_no_url_reaches__are_refused(
    env: Environment, identifier: str
) -> None:
    with pytest.raises(UserError, match="fan-out id"):
        env.service.fanouts.splitter.split(Order("g", 1), RangeSource(0, 1), run_id=identifier)
    with pytest.raises(UserError, match="schedule id"):
        env.service.schedules.get(identifier)


@pytest.mark.parametrize("identifier", [each for each in NAMES if each], ids=lambda each: repr(each[:12]))
def test_sdk__subscription_and_workflow_under_such_a_name__are_refused(identifier: str) -> None:
    app = hg.App("ids")

    async def noop() -> None:
        return

    with pytest.raises(UserError, match="subscription"):
        app.on_event("thing", name=identifier)(print)
    with pytest.raises(UserError, match="workflow"):
        app.workflow(name=identifier)(noop)


def test_sdk__schedule_triggered_under_a_request_id_with_a_path__is_refused(env: Environment) -> None:
    env.service.schedules.create("nightly", Spec(workflow="noop", recurrence=Recurrence("@daily")))
    with pytest.raises(UserError, match="execution id"):
        env.service.schedules.trigger("nightly", request_id="a/../b")
