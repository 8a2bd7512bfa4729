"""The http trigger with jobs that go on after the answer: 202 with Location, a status URL, Retry-After, callbacks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headgate.durable.bus.egress_policy import Destinations
from headgate.errors import DefinitionError
from headgate.triggers.contract import FailureCategory, JobState, StartStatus, TriggerFailedError
from tests.unit.triggers.rigs import RUN_ID, Api, Asked, Reply, kinds, order, serving


class JobServer:
    """Accepts jobs, and answers what the test says when it is asked after one."""

    def __init__(self) -> None:
        self.start: Reply = (202, {"id": "j 7"})
        self.status: Reply = (202, {})

    def answer(self, asked: Asked) -> Reply:
        return self.start if asked.method == "POST" else self.status


def polled(tmp_path: Path, api: Api, config: dict[str, Any], metadata: dict[str, str]) -> Any:
    return kinds(tmp_path).poll(order("http", {"url": f"{api.url}/jobs", **config}), metadata)


def test_start__202_with_location__is_running_and_polled_there(tmp_path: Path) -> None:
    jobs = JobServer()
    with serving(jobs.answer) as api:
        api.headers = {"location": "/jobs/7"}
        started = kinds(tmp_path).start(
            order("http", {"url": f"{api.url}/jobs", "headers": {"authorization": "Bearer x"}})
        )

        assert (started.status, started.external_id) == (StartStatus.RUNNING, RUN_ID)
        config = {"headers": {"authorization": "Bearer x"}}
        assert polled(tmp_path, api, config, started.metadata).state is JobState.RUNNING
        jobs.status = (200, {"rows": 7})
        assert polled(tmp_path, api, config, started.metadata).state is JobState.SUCCEEDED

    assert [(asked.method, asked.path) for asked in api.asked] == [
        ("POST", "/jobs"),
        ("GET", "/jobs/7"),
        ("GET", "/jobs/7"),
    ]
    assert api.asked[1].headers["authorization"] == "Bearer x"


def test_start__202_without_location__is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    jobs = JobServer()
    with serving(jobs.answer) as api:
        with pytest.raises(TriggerFailedError, match=r"202 without Location.*accepts_202") as caught:
            kinds(tmp_path).start(order("http", {"url": api.url}))
        assert (caught.value.category, caught.value.was_started) == (FailureCategory.PERMANENT, True)

        started = kinds(tmp_path).start(order("http", {"url": api.url, "accepts_202": True}))
        assert started.status is StartStatus.COMPLETED


def test_poll__location_on_another_host__gets_no_header_of_the_config(tmp_path: Path) -> None:
    jobs = JobServer()
    with serving(jobs.answer) as api, serving(jobs.answer) as other:
        api.headers = {"location": f"{other.url}/jobs/7"}
        config = {"url": api.url, "headers": {"authorization": "Bearer x"}}
        started = kinds(tmp_path).start(order("http", config))
        kinds(tmp_path).poll(order("http", config), started.metadata)

    assert "authorization" not in other.asked[0].headers
    assert api.asked[0].headers["authorization"] == "Bearer x"


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/meta-data", "http://10.0.0.1/"])
def test_poll__location_that_is_not_allowed__is_not_asked(tmp_path: Path, location: str) -> None:
    with serving(JobServer().answer) as api:
        api.headers = {"location": location}
        started = kinds(tmp_path).start(order("http", {"url": api.url}))
        with pytest.raises(TriggerFailedError) as caught:
            polled(tmp_path, api, {}, started.metadata)

    assert caught.value.category is FailureCategory.PERMANENT


def test_start__location_that_is_no_url__is_an_error(tmp_path: Path) -> None:
    with serving(JobServer().answer) as api:
        api.headers = {"location": "file:///etc/passwd"}
        with pytest.raises(TriggerFailedError, match="no URL that can be polled"):
            kinds(tmp_path).start(order("http", {"url": api.url}))


def test_poll__retry_after__is_waited_for_before_the_next_request(tmp_path: Path) -> None:
    jobs = JobServer()
    with serving(jobs.answer) as api:
        api.headers = {"location": "/jobs/7", "retry-after": "60"}
        before = time.time()
        started = kinds(tmp_path).start(order("http", {"url": api.url}))
        early = polled(tmp_path, api, {}, started.metadata)
        assert len(api.asked) == 1, "it was not asked again"
        later = polled(tmp_path, api, {}, {**started.metadata, "poll_at_seconds": str(before - 1)})

    assert early.state is later.state is JobState.RUNNING
    assert 0 < early.check_after_seconds <= 61
    assert later.check_after_seconds == 60


def test_status__url_with_the_job_id_and_a_path__decides(tmp_path: Path) -> None:
    jobs = JobServer()
    jobs.start = (200, {"id": "j 7"})
    with serving(jobs.answer) as api:
        config = {
            "job_id": "$.id",
            "status": {
                "url": f"{api.url}/jobs/${{job_id}}?day=${{date}}",
                "path": "$.job.state",
                "running": ["BUSY", "0"],
                "succeeded": ["GREAT"],
                "failed": ["BROKEN"],
                "reason": "$.job.error",
            },
            "cancel_url": f"{api.url}/jobs/${{job_id}}/cancel",
        }
        started = kinds(tmp_path).start(order("http", {"url": f"{api.url}/jobs", **config}))
        assert (started.status, started.external_id) == (StartStatus.RUNNING, "j 7")

        seen = []
        for state in ("busy", 0, "GREAT", "BROKEN"):
            jobs.status = (200, {"job": {"state": state, "error": "SyntaxError: x"}})
            seen.append(polled(tmp_path, api, config, started.metadata))
        assert [each.state for each in seen] == [
            JobState.RUNNING,
            JobState.RUNNING,
            JobState.SUCCEEDED,
            JobState.FAILED,
        ]
        assert seen[-1].category is FailureCategory.PERMANENT
        assert seen[-1].reason.endswith("the job is BROKEN: SyntaxError: x")

        jobs.status = (200, {"job": {"state": "ODD"}})
        with pytest.raises(TriggerFailedError, match="'ODD' is in none of running, succeeded and failed"):
            polled(tmp_path, api, config, started.metadata)
        jobs.status = (200, {})
        with pytest.raises(TriggerFailedError, match="finds nothing"):
            polled(tmp_path, api, config, started.metadata)
        kinds(tmp_path).cancel(order("http", {"url": f"{api.url}/jobs", **config}), started.metadata)

    assert api.asked[1].path == "/jobs/j%207?day=2026-03-03T07"
    assert api.asked[-1].path == "/jobs/j%207/cancel"


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ((200, {"status": "running"}), JobState.RUNNING),
        ((200, {"state": "Succeeded"}), JobState.SUCCEEDED),
        ((200, {"status": "failed"}), JobState.FAILED),
        ((202, {"status": "failed"}), JobState.FAILED),
        ((200, {"status": 7}), JobState.SUCCEEDED),
        ((204, b""), JobState.SUCCEEDED),
        ((303, b"/result"), JobState.SUCCEEDED),
        ((404, b""), JobState.FAILED),
        ((410, b""), JobState.FAILED),
    ],
)
def test_poll__by_convention__status_code_and_usual_names_decide(tmp_path: Path, reply: Reply, state: JobState) -> None:
    with serving(lambda _: reply) as api:
        assert polled(tmp_path, api, {}, {"status_url": f"{api.url}/jobs/7"}).state is state


@pytest.mark.parametrize("status", [401, 500])
def test_poll__that_fails__is_no_failure_of_the_job(tmp_path: Path, status: int) -> None:
    with serving(lambda _: (status, b"")) as api, pytest.raises(TriggerFailedError, match=f"answered {status}"):
        polled(tmp_path, api, {}, {"status_url": f"{api.url}/jobs/7"})


def test_callback__url_and_token__are_sent_and_the_token_is_nowhere_else(tmp_path: Path) -> None:
    token = "kid.sig.secret-payload"
    with serving(lambda asked: (500, asked.body)) as api:
        config = {"url": api.url, "body": {"t": "${callback_token}"}, "retries": 0}
        asked_for = order("http", config, callback_url="https://h.example/c", callback_token=token)
        with pytest.raises(TriggerFailedError) as caught:
            kinds(tmp_path).start(asked_for)

    assert api.asked[0].headers["headgate-callback"] == "https://h.example/c"
    assert api.asked[0].headers["headgate-callback-token"] == token
    assert api.asked[0].json() == {"t": token}
    assert token not in str(caught.value)
    assert token not in repr(asked_for)


def test_callback__with_202_and_location__is_not_polled(tmp_path: Path) -> None:
    with serving(JobServer().answer) as api:
        api.headers = {"location": "/jobs/7"}
        asked_for = order("http", {"url": api.url}, callback_url="https://h.example/c", callback_token="t")
        started = kinds(tmp_path).start(asked_for)
        assert kinds(tmp_path).poll(asked_for, started.metadata).state is JobState.RUNNING

    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"status": {"path": "$["}}, "status.path.*no JSONPath"),
        ({"job_id": "$.id["}, "job_id.*no JSONPath"),
        ({"status": {"url": "https://j.example/${job_id}"}}, "job_id: .*is used; give the JSONPath"),
        ({"headers": {"x": "${job_id}"}}, "known after the request only"),
        ({"status": {}, "accepts_202": True}, "accepts_202: it contradicts status"),
        ({"status": {"running": ["DONE"]}}, "done is in two of"),
        ({"status": {"failed": []}}, "status.failed: give at least one"),
        ({"status": {"pth": "$.x"}}, "pth"),
    ],
)
def test_config__that_could_never_work__is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        kinds(tmp_path, destinations=Destinations()).check("http", {"url": "https://j.example", **config})
