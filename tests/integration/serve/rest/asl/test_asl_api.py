"""Machines over HTTP: kept, checked, drawn, run, shown in the words of Step Functions, and given results of Tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from tests.integration.serve.durable_api import Api, Shop, problem

ECHO = {"StartAt": "Echo", "States": {"Echo": {"Type": "Task", "Resource": "echo", "End": True}}}
ASK = {
    "StartAt": "Ask",
    "States": {
        "Ask": {
            "Type": "Task",
            "Resource": "take_token.waitForTaskToken",
            "Parameters": {"token.$": "$$.Task.Token"},
            "HeartbeatSeconds": 60,
            "Retry": [{"ErrorEquals": ["Again"], "IntervalSeconds": 1, "MaxAttempts": 1}],
            "End": True,
        }
    },
}
FLAKY = {
    "StartAt": "First",
    "States": {
        "First": {"Type": "Task", "Resource": "echo", "Next": "Second"},
        "Second": {"Type": "Task", "Resource": "flaky", "End": True},
    },
}
EACH = {
    "StartAt": "Each",
    "States": {
        "Each": {
            "Type": "Map",
            "ItemProcessor": {
                "StartAt": "One",
                "States": {
                    "One": {
                        "Type": "Task",
                        "Resource": "flaky",
                        "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Skip"}],
                        "End": True,
                    },
                    "Skip": {"Type": "Pass", "End": True},
                },
            },
            "End": True,
        }
    },
}


class Machines(Api):
    """The API around an app whose functions machines call."""

    def keep(self, name: str, definition: Any, **headers: str) -> httpx.Response:
        return self.ask("PUT", f"/machines/{name}", json=definition, headers=headers)

    def begun(self, machine: str, input: Any = None, **more: Any) -> str:
        """Start a machine, run what can happen at once, and return the id of the execution."""
        answer = self.post(f"/machines/{machine}/executions", {"input": input, **more})
        assert answer.status_code == 201, answer.text
        self.env.run()
        identifier: str = answer.json()["id"]
        return identifier

    def shown(self, execution_id: str) -> Any:
        return self.get(f"/machine-executions/{execution_id}").json()

    def events(self, execution_id: str, **query: Any) -> Any:
        answer = self.get(f"/machine-executions/{execution_id}/history", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Machines]:
    shop = Shop()

    @shop.app.activity
    def echo(event: Any) -> Any:
        return event

    @shop.app.activity
    def flaky(event: Any) -> Any:
        if shop.is_broken:
            raise ValueError("it is broken")
        return event

    @shop.app.activity
    def take_token(event: dict[str, str]) -> None:
        shop.tokens.append(event["token"])

    with hg.testing.Environment(shop.app) as env:
        made = Machines(env, shop, tmp_path)
        yield made
        made.pool.close()


# Machines


def test_put__new_same_and_other__counts_versions(api: Machines) -> None:
    first = api.keep("copy", ECHO)
    again = api.keep("copy", {"definition": ECHO})
    other = api.keep("copy", {**ECHO, "Comment": "Says it back"})

    assert (first.status_code, first.json()["version"], first.headers["etag"]) == (201, 1, '"1"')
    assert first.headers["location"] == "/api/v1/machines/copy?version=1"
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert (other.status_code, other.json()["version"]) == (201, 2)
    assert other.json()["comment"] == "Says it back"
    assert api.get("/machines/copy").json()["definition"] == {**ECHO, "Comment": "Says it back"}
    assert api.get("/machines/copy?version=1").json()["definition"] == ECHO
    assert [each["version"] for each in api.get("/machines/copy/versions").json()["machines"]] == [2, 1]
    assert [each["name"] for each in api.get("/machines").json()["machines"]] == ["copy"]


def test_put__as_text_with_variables__fills_them_in(api: Machines) -> None:
    text = json.dumps(ECHO).replace('"echo"', '"${what}"').replace('"End": true', '"TimeoutSeconds": ${n}, "End": true')

    kept = api.keep("copy", {"definition": text, "variables": {"what": "echo", "n": "5"}})

    assert kept.status_code == 201, kept.text
    assert kept.json()["definition"]["States"]["Echo"] == {**ECHO["States"]["Echo"], "TimeoutSeconds": 5}  # type: ignore[index]


def test_put__if_match__changes_only_what_was_seen(api: Machines) -> None:
    tag = api.keep("copy", ECHO).headers["etag"]

    second = api.keep("copy", {**ECHO, "Comment": "2"}, **{"If-Match": tag})
    late = api.keep("copy", {**ECHO, "Comment": "3"}, **{"If-Match": tag})

    assert second.json()["version"] == 2
    problem(late, 412, "precondition_failed")
    problem(api.keep("copy", {"definition": FLAKY, "expected_version": 0}), 409, "version_conflict")
    assert api.keep("copy", {"definition": FLAKY, "expected_version": 2}).json()["version"] == 3


def test_put__bad_definition__names_every_place(api: Machines) -> None:
    bad = {"StartAt": "Nowhere", "States": {"Echo": {"Type": "Task", "Resource": "echo"}}}

    found = problem(api.keep("copy", bad), 400, "bad_definition")

    assert {each["path"] for each in found["errors"]} >= {"$.StartAt", "$.States.Echo"}
    assert "$.StartAt" in found["detail"]
    problem(api.get("/machines/copy"), 404, "not_found")
    problem(api.keep("a.b", ECHO), 400, "bad_id")
    problem(api.keep("copy", {"definition": ECHO, "varables": {}}), 400, "bad_payload")


@pytest.mark.parametrize(
    ("content", "path", "code"),
    [
        (b"", "$", "UNREADABLE"),
        (b"{", "$", "UNREADABLE"),
        (b"\xff", "$", "UNREADABLE"),
        (b"null", "$", "WRONG_TYPE"),
        (b'"text"', "$", "UNREADABLE"),
        (b"[" * 100_000, "$", "UNREADABLE"),
        (b'{"TimeoutSeconds": ' + b"1" * 5_000 + b"}", "$", "UNREADABLE"),
        (b'{"StartAt": "\\ud800", "States": {}}', "$", "UNREADABLE"),
        (b'{"StartAt": "A", "StartAt": "B"}', "$", "UNREADABLE"),
        (b'{"definition": "no"}', "$", "UNREADABLE"),
        (b'{"definition": {"StartAt": "A"}}', "$", "MISSING_FIELD"),
        (b'{"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "B"}}}', "$.States.A.Next", "UNKNOWN_STATE"),
    ],
)
def test_validate__whatever_it_is_given__lists_what_is_wrong(
    api: Machines, content: bytes, path: str, code: str
) -> None:
    answer = api.post("/machines/validate", content=content)

    assert answer.status_code == 200, answer.text
    assert answer.json()["valid"] is False
    assert (path, code) in [(each["path"], each["code"]) for each in answer.json()["problems"]]
    assert all(each["fact"] for each in answer.json()["problems"])
    kept = api.ask("PUT", "/machines/copy", content=content)
    assert problem(kept, 400, "bad_definition")["errors"] == answer.json()["problems"]


def test_validate__loop_that_outruns_the_history__is_a_warning_or_a_problem(api: Machines) -> None:
    loop = {
        "StartAt": "Look",
        "TimeoutSeconds": 86_400,
        "States": {
            "Look": {"Type": "Task", "Resource": "echo", "Next": "Pause"},
            "Pause": {"Type": "Wait", "Seconds": 1, "Next": "Done"},
            "Done": {
                "Type": "Choice",
                "Choices": [{"Variable": "$.done", "BooleanEquals": True, "Next": "End"}],
                "Default": "Look",
            },
            "End": {"Type": "Succeed"},
        },
    }

    found = api.post("/machines/validate", loop).json()
    strict = api.post("/machines/validate", {"definition": loop, "strict_budget": True}).json()

    assert (found["valid"], found["problems"], strict["valid"]) == (True, [], False)
    assert [each["code"] for each in found["warnings"]] == ["BUDGET_EXCEEDED"]
    assert strict["problems"] == found["warnings"]
    assert found["costs"]["loops"][0]["verdict"] == "EXCEEDS"
    assert api.keep("loop", loop).status_code == 201


def test_validate__table_that_nothing_declares_or_allows__is_a_problem_and_refuses_the_start(api: Machines) -> None:
    resource = "arn:aws:states:::dynamodb:getItem"
    state = {"Type": "Task", "Resource": resource, "Parameters": {"TableName": "orders", "Key": {}}, "End": True}
    machine = {"StartAt": "A", "States": {"A": state}}

    found = api.post("/machines/validate", machine).json()
    for_aws = api.post("/machines/validate", {"definition": machine, "target": "aws"}).json()
    kept = api.keep("reads", machine)
    started = api.post("/machines/reads/executions", {"input": {}})

    assert [(each["path"], each["code"]) for each in found["problems"]] == [("$.States.A.Resource", "BAD_RESOURCE")]
    assert "tasks.tables does not declare it" in found["problems"][0]["fact"]
    assert (for_aws["valid"], len(for_aws["notes"])) == (True, 1)
    assert kept.status_code == 201
    assert "state 'A': table orders" in problem(started, 400, "bad_definition")["detail"]


def test_validate__definition_for_aws__notes_what_only_aws_can_run(api: Machines) -> None:
    state = {"Type": "Task", "Resource": "arn:aws:states:::mediaconvert:createJob.sync", "End": True}
    definition = {"StartAt": "A", "States": {"A": state}}

    here = api.post("/machines/validate", definition).json()
    on_aws = api.post("/machines/validate", {"definition": definition, "target": "aws"}).json()

    assert (here["valid"], [each["code"] for each in here["problems"]]) == (False, ["BAD_RESOURCE"])
    assert (on_aws["valid"], on_aws["problems"]) == (True, [])
    assert [each["code"] for each in on_aws["notes"]] == ["ONLY_ON_AWS"]
    problem(api.post("/machines/validate", {"definition": definition, "target": "azure"}), 400, "bad_payload")


def test_put__yaml_with_variables__is_stored_as_json(api: Machines) -> None:
    text = "StartAt: Echo\nStates:\n  Echo: {Type: Task, Resource: !Ref Work, End: true}\n"

    stored = api.keep("written", {"definition": text, "variables": {"Work": "echo"}})
    unused = api.keep("written", {"definition": text, "variables": {"Work": "echo", "work.arn": "x"}})

    assert stored.status_code == 201, stored.text
    assert api.get("/machines/written").json()["definition"]["States"]["Echo"]["Resource"] == "echo"
    assert (
        "there is no ${work.arn} in the definition; it has ${Work}" in problem(unused, 400, "bad_definition")["detail"]
    )


def test_validate__warnings__are_problems_if_asked_for(api: Machines) -> None:
    rule = {"Variable": "$.x", "IsNull": True, "Next": "B"}
    loop = {
        "StartAt": "A",
        "States": {"A": {"Type": "Choice", "Choices": [rule], "Default": "A"}, "B": {"Type": "Succeed"}},
    }

    found = api.post("/machines/validate", loop).json()
    strict = api.post("/machines/validate", {"definition": loop, "strict": True}).json()

    assert (found["valid"], strict["valid"]) == (True, False)
    assert "IDLE_LOOP" in [each["code"] for each in found["warnings"]]
    assert strict["problems"] == found["warnings"]


# Executions


def test_start__again_with_the_same_input__is_the_same_and_another_input_is_409(api: Machines) -> None:
    api.keep("copy", ECHO)

    first = api.post("/machines/copy/executions", {"name": "one", "input": {"a": 1}})
    api.env.run()
    again = api.post("/machines/copy/executions", {"name": "one", "input": {"a": 1}})
    other = api.post("/machines/copy/executions", {"name": "one", "input": {"a": 2}})

    assert (first.status_code, first.json()) == (201, {"id": "copy:one", "machine": "copy", "created": True})
    assert first.headers["location"] == "/api/v1/machine-executions/copy%3Aone"
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert problem(other, 409, "already_started")["errors"] == [{"name": "ExecutionAlreadyExists"}]


def test_start__twice_with_one_key__is_one_even_before_it_has_begun(api: Machines) -> None:
    api.keep("copy", ECHO)

    answers = [api.post("/machines/copy/executions", {}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    waiting = api.shown("copy:k")
    api.env.run()

    assert [(each.status_code, each.json()["id"]) for each in answers] == [(201, "copy:k"), (200, "copy:k")]
    assert (waiting["status"], waiting["machine"], waiting["name"]) == ("RUNNING", "copy", "k")
    shown = api.shown("copy:k")
    assert (shown["status"], shown["input"], shown["output"]) == ("SUCCEEDED", {}, {})


def test_describe__ended_well__has_input_and_output(api: Machines) -> None:
    api.keep("copy", ECHO)

    execution_id = api.begun("copy", {"a": [1]}, name="one")
    shown = api.shown(execution_id)

    assert (shown["status"], shown["machine"], shown["name"], shown["version"]) == ("SUCCEEDED", "copy", "one", 1)
    assert (shown["input"], shown["output"]) == ({"a": [1]}, {"a": [1]})
    assert api.get(api.post("/machines/copy/executions", {}).headers["location"].removeprefix("/api/v1")).is_success
    api.env.run()
    problem(api.get("/machine-executions/copy:none"), 404, "not_found")


def test_start__cannot_be__says_why(api: Machines) -> None:
    api.keep("copy", ECHO)
    api.keep("lost", {"StartAt": "A", "States": {"A": {"Type": "Task", "Resource": "nobody", "End": True}}})

    problem(api.post("/machines/none/executions", {}), 404, "not_found")
    problem(api.post("/machines/copy/executions", {"version": 7}), 404, "not_found")
    problem(api.post("/machines/copy/executions", {"name": "a b"}), 400, "bad_id")
    problem(api.post("/machines/copy/executions", {"input": "x" * 300_000}), 413, "payload_too_large")
    problem(api.post("/machines/copy/executions", {"inpt": 1}), 400, "bad_payload")
    assert "nobody" in problem(api.post("/machines/lost/executions", {}), 404, "not_found")["detail"]


def test_ls__by_machine_and_status__pages(api: Machines) -> None:
    api.keep("copy", ECHO)
    api.keep("flaky", FLAKY)
    for number in range(3):
        api.begun("copy", number, name=f"n{number}")
        api.env.advance("1s")
    api.shop.is_broken = True
    api.begun("flaky", {}, name="bad")

    first = api.get("/machines/copy/executions?limit=2").json()
    rest = api.get("/machines/copy/executions", params={"limit": 2, "cursor": first["cursor"]}).json()
    failed = api.get("/machines/flaky/executions?status=FAILED").json()["executions"]

    assert [each["name"] for each in [*first["executions"], *rest["executions"]]] == ["n2", "n1", "n0"]
    assert [(each["id"], each["status"]) for each in failed] == [("flaky:bad", "FAILED")]
    assert api.get("/machines/copy/executions?status=RUNNING").json()["executions"] == []
    problem(api.get("/machines/none/executions"), 404, "not_found")
    problem(api.get("/machines/copy/executions?status=GOOD"), 400, "bad_payload")


def test_history__of_a_task__is_in_the_shape_of_step_functions(api: Machines) -> None:
    api.keep("flaky", FLAKY)
    api.shop.is_broken = True

    execution_id = api.begun("flaky", {"a": 1})
    events = api.events(execution_id)["events"]

    assert [each["type"] for each in events] == [
        "ExecutionStarted",
        "TaskStateEntered",
        "LambdaFunctionScheduled",
        "LambdaFunctionStarted",
        "LambdaFunctionSucceeded",
        "TaskStateExited",
        "TaskStateEntered",
        "LambdaFunctionScheduled",
        "LambdaFunctionStarted",
        "LambdaFunctionFailed",
        "ExecutionFailed",
    ]
    assert [each["id"] for each in events] == list(range(1, 12))
    assert [each["previousEventId"] for each in events] == list(range(11))
    assert events[0]["executionStartedEventDetails"]["input"] == {"a": 1}
    assert events[1]["stateEnteredEventDetails"] == {"name": "First", "input": {"a": 1}}
    assert events[2]["lambdaFunctionScheduledEventDetails"]["resource"] == "echo"
    assert events[5]["stateExitedEventDetails"] == {"name": "First", "output": {"a": 1}}
    assert events[9]["lambdaFunctionFailedEventDetails"]["error"] == "ValueError"
    assert events[10]["executionFailedEventDetails"]["error"] == "ValueError"
    assert events[0]["timestamp"].startswith("2025-06-15T15:06:40")
    assert "lambdaFunctionStartedEventDetails" not in events[3]


def test_history__in_pages_and_from_the_end__has_each_event_once(api: Machines) -> None:
    api.keep("flaky", FLAKY)
    execution_id = api.begun("flaky", {"a": 1})

    for reverse, expected in ((False, list(range(1, 13))), (True, list(range(12, 0, -1)))):
        seen: list[int] = []
        cursor: str | None = None
        while True:
            more = {} if cursor is None else {"cursor": cursor}
            page = api.events(execution_id, limit=5, reverse=str(reverse).lower(), **more)
            seen += [each["id"] for each in page["events"]]
            cursor = page["cursor"]
            if cursor is None:
                break
        assert seen == expected
    problem(api.get(f"/machine-executions/{execution_id}/history?cursor=x"), 400, "bad_cursor")


def test_redrive__after_it_was_repaired__goes_on_from_where_it_failed(api: Machines) -> None:
    api.keep("flaky", FLAKY)
    api.shop.is_broken = True
    execution_id = api.begun("flaky", {"a": 1})
    failed = api.shown(execution_id)
    api.shop.is_broken = False

    redriven = api.post(f"/machine-executions/{execution_id}/redrive")
    api.env.run()

    assert (failed["status"], failed["error"], "output" in failed) == ("FAILED", "ValueError", False)
    assert (redriven.status_code, redriven.json()) == (202, {"id": execution_id, "redrive_count": 1})
    shown = api.shown(execution_id)
    assert (shown["status"], shown["output"], shown["redrive_count"]) == ("SUCCEEDED", {"a": 1}, 1)
    entered = [
        each["stateEnteredEventDetails"]["name"]
        for each in api.events(execution_id)["events"]
        if each["type"] == "TaskStateEntered"
    ]
    assert entered == ["First", "Second", "Second"]
    refused = problem(api.post(f"/machine-executions/{execution_id}/redrive"), 409, "conflict")
    assert refused["errors"] == [{"name": "ExecutionNotRedrivable"}]


def test_reset__over_the_execution_api__runs_from_a_state_or_from_the_failure(api: Machines) -> None:
    api.keep("flaky", FLAKY)
    api.shop.is_broken = True
    execution_id = api.begun("flaky", {"a": 1})
    key = {"Idempotency-Key": '"k-1"'}

    again = api.post(f"/executions/{execution_id}/retry-from-failure", {"reason": "a try"}, headers=key)
    at_once = api.post(f"/executions/{execution_id}/retry-from-failure", {"reason": "a try"}, headers=key)
    assert (at_once.status_code, at_once.json().get("created")) == (202, False)
    problem(api.post(f"/executions/{execution_id}/retry-from-failure"), 409, "conflict")
    api.env.run()
    assert (again.status_code, again.json()["created"], api.shown(execution_id)["status"]) == (202, True, "FAILED")
    repeated = api.post(f"/executions/{execution_id}/retry-from-failure", {"reason": "a try"}, headers=key)
    assert (repeated.status_code, repeated.json()["created"]) == (202, False)
    api.shop.is_broken = False
    reset = api.post(f"/executions/{execution_id}/reset", {"to": "First", "reason": "repaired"})
    api.env.run()

    assert (reset.status_code, reset.json()["created"]) == (202, True)
    shown = api.shown(execution_id)
    assert (shown["status"], shown["output"], shown["redrive_count"]) == ("SUCCEEDED", {"a": 1}, 2)
    by_turn = problem(api.post(f"/executions/{execution_id}/reset", {"to": 2}), 400, "bad_payload")
    assert "give the name of a state" in by_turn["detail"]
    problem(api.post(f"/executions/{execution_id}/reset", {"to": "First", "signals": "drop"}), 400, "bad_payload")
    problem(api.post(f"/executions/{execution_id}/reset", {"to": "None"}), 404, "not_found")


def test_stop__running__is_aborted_with_the_cause(api: Machines) -> None:
    api.keep("ask", ASK)
    execution_id = api.begun("ask")
    running = api.shown(execution_id)

    stopped = api.post(f"/machine-executions/{execution_id}/stop", {"error": "Enough", "cause": "nobody answers"})
    api.env.run()

    assert (running["status"], running["states"]) == ("RUNNING", ["Ask"])
    assert stopped.status_code == 202
    shown = api.shown(execution_id)
    assert (shown["status"], "states" in shown) == ("ABORTED", False)
    last = api.events(execution_id)["events"][-1]
    assert last["type"] == "ExecutionAborted"
    assert "nobody answers" in last["executionAbortedEventDetails"]["cause"]
    problem(api.post(f"/machine-executions/{execution_id}/stop"), 409, "execution_closed")
    assert [each["name"] for each in api.get("/machines/ask/executions?status=ABORTED").json()["executions"]]


# Tasks


def test_tasks__token__beats_fails_and_succeeds_once(api: Machines) -> None:
    api.keep("ask", ASK)
    execution_id = api.begun("ask")
    for _ in range(3):
        api.env.advance("50s")
        assert api.post("/tasks/heartbeat", {"taskToken": api.shop.tokens[0]}).status_code == 204
        api.env.run()

    failed = api.post("/tasks/failure", {"taskToken": api.shop.tokens[0], "error": "Again", "cause": "later"})
    api.env.advance("2s")
    done = api.post("/tasks/success", {"taskToken": api.shop.tokens[1], "output": {"ok": True}})
    api.env.run()

    assert (failed.status_code, done.status_code, len(api.shop.tokens)) == (204, 204, 2)
    shown = api.shown(execution_id)
    assert (shown["status"], shown["output"]) == ("SUCCEEDED", {"ok": True})
    late = problem(api.post("/tasks/success", {"taskToken": api.shop.tokens[1], "output": 1}), 409, "stale_claim")
    assert late["errors"] == [{"name": "TaskTimedOut"}]


def test_tasks__what_is_no_token_or_too_much__is_refused(api: Machines) -> None:
    api.keep("ask", ASK)
    api.begun("ask")
    token = api.shop.tokens[0]

    forged = problem(api.post("/tasks/heartbeat", {"taskToken": f"{token}x"}), 400, "bad_signature")

    assert forged["errors"] == [{"name": "InvalidToken"}]
    problem(api.post("/tasks/success", {"taskToken": token, "output": "x" * 300_000}), 413, "payload_too_large")
    problem(api.post("/tasks/success", {"taskToken": token}), 400, "bad_payload")
    problem(api.post("/tasks/success", {"output": 1}), 400, "bad_payload")
    problem(api.post("/tasks/success", {"token": token, "taskToken": f"{token}x", "output": 1}), 400, "bad_payload")


def test_tasks__token_instead_of_task_token__is_accepted(api: Machines) -> None:
    api.keep("ask", ASK)
    execution_id = api.begun("ask")

    assert api.post("/tasks/heartbeat", {"token": api.shop.tokens[0]}).status_code == 204
    assert api.post("/tasks/success", {"token": api.shop.tokens[0], "output": 1}).status_code == 204
    api.env.run()

    assert api.shown(execution_id)["output"] == 1


# Drawing


def test_graph__by_format_or_accept__is_drawn(api: Machines) -> None:
    api.keep("flaky", FLAKY)

    picture = api.get("/machines/flaky/graph")
    text = api.get("/machines/flaky/graph", headers={"accept": "text/plain"})
    mermaid = api.get("/machines/flaky/graph?format=mermaid", headers={"accept": "text/plain"})

    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert picture.text.lstrip().startswith("<svg")
    assert text.headers["content-type"].startswith("text/plain")
    assert "First" in text.text
    assert mermaid.text.startswith("flowchart")
    problem(api.get("/machines/none/graph"), 404, "not_found")
    problem(api.get("/machines/flaky/graph?format=gif"), 400, "bad_payload")


def test_graph__of_an_execution__shows_how_far_it_came_in_the_version_that_it_ran(api: Machines) -> None:
    api.keep("flaky", FLAKY)
    api.shop.is_broken = True
    execution_id = api.begun("flaky", {"a": 1})
    api.keep("flaky", ECHO)

    drawn = api.get("/machines/flaky/graph", params={"format": "text", "execution": execution_id}).text

    assert "✓ First" in drawn
    assert "✗ Second" in drawn


def test_graph__map_whose_items_are_caught__says_so(api: Machines) -> None:
    api.keep("each", EACH)
    api.shop.is_broken = True
    execution_id = api.begun("each", [1, 2])

    drawn = api.get("/machines/each/graph", params={"format": "text", "execution": execution_id}).text

    assert api.shown(execution_id)["status"] == "SUCCEEDED"
    assert "✓ Each" in drawn
    assert "↷ One" in drawn
    assert "✓ Skip" in drawn
