"""Attack: create things under ids that are paths, hidden, unprintable or too long, and that no URL reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.security.server import Target

BAD = ["../../y", "..", ".", ".hidden", "a/../b", "a//b", "/a", "a/", "a\\b", "a%2fb", "a\nb", "a\x00b", "", "x" * 300]
SLASHES = [*BAD, "a/b"]
MACHINE = {"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}
PIPELINE = {
    "id": "ID",
    "owner": "data",
    "schedules": [{"sensor": {"key": "landed"}}],
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/x"}},
}
# What is created: the ids to refuse, a good id, method, path and body. The id replaces ID in the path and in the body.
Route = tuple[list[str], str, str, str, Any]
FANOUT = {"group": "g", "range": [0, 1]}
ROUTES: dict[str, Route] = {
    "fan-out": (SLASHES, "good-1", "POST", "/fanouts", {**FANOUT, "run_id": "ID"}),
    "campaign": (SLASHES, "good-1", "POST", "/fanouts", {**FANOUT, "campaign": "ID"}),
    "machine": (SLASHES, "good-1", "PUT", "/machines/ID", MACHINE),
    "machine execution": (SLASHES, "good-1", "POST", "/machines/base/executions", {"name": "ID"}),
    "schedule": (SLASHES, "good-1", "POST", "/schedules", {"id": "ID", "workflow": "w", "cron": "@daily"}),
    "dataset": (SLASHES, "urn:dp:a:b", "POST", "/datasets", {"dataset_urn": "ID", "reason": "r"}),
    "calendar": (SLASHES, "good-1", "PUT", "/calendars/ID", {"weekends": True}),
    "flag": (SLASHES, "good.one", "PUT", "/flags/ID", {"is_on": True, "reason": "r"}),
    "pipeline": (SLASHES, "good-1", "PUT", "/pipelines/ID", PIPELINE),
    "execution": (BAD, "a/b", "POST", "/executions", {"workflow": "none", "id": "ID"}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("ids")
    found = Target(folder, cwd=folder, roles=[])
    assert found.call("admin", "PUT", "/machines/base", MACHINE).status in (200, 201)
    yield found
    found.stop()


def send(target: Target, route: Route, identifier: str) -> tuple[int, str]:
    _, _, method, path, body = route
    where = path.replace("ID", quote(identifier, safe=""))
    content = {name: identifier if value == "ID" else value for name, value in body.items()}
    return (found := target.call("admin", method, where, content)).status, found.text


@pytest.mark.parametrize("what", ROUTES)
def test_create__under_an_id_that_no_url_reaches__is_refused_and_names_it(target: Target, what: str) -> None:
    route = ROUTES[what]
    accepted = {}
    for identifier in route[0]:
        status, text = send(target, route, identifier)
        if not 400 <= status < 500 or "unknown_workflow" in text:
            accepted[identifier] = (status, text[:200])

    assert accepted == {}


@pytest.mark.parametrize("what", sorted(set(ROUTES) - {"execution", "schedule"}))
def test_create__under_a_plain_id__is_accepted(target: Target, what: str) -> None:
    status, text = send(target, ROUTES[what], ROUTES[what][1])

    assert status in (200, 201, 202), text


def test_fan_out__idempotency_key_that_is_no_id__is_refused(target: Target) -> None:
    found = target.call("admin", "POST", "/fanouts", FANOUT, {"idempotency-key": "../../y"})

    assert found.status == 400
    assert "fan-out id" in found.text


def test_execution__plain_id_of_an_unknown_workflow__is_refused_for_the_workflow_only(target: Target) -> None:
    status, text = send(target, ROUTES["execution"], "a/b")

    assert 400 <= status < 500
    assert "unknown_workflow" in text or "workflow none" in text
