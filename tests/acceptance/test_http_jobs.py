"""http jobs of the installed program: synchronous, polled, by callback; across a restart, and silent ones."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.acceptance.job_site import CallbackSite, callback_site, report
from tests.unit.triggers.rigs import Asked, Reply

PIPELINES = """\
id: synchronous
trigger: {type: http, config: {url: JOBS/sync}}
---
id: polled
trigger: {type: http, check_interval: 1s, config: {url: JOBS/polled}}
---
id: calling-back
trigger: {type: http, callback: true, config: {url: JOBS/callback}}
---
id: silent
retry: {attempts: 1}
trigger: {type: http, callback: true, heartbeat: 1s, config: {url: JOBS/silent, cancel_url: JOBS/cancel}}
"""


def answer(asked: Asked) -> Reply:
    if asked.path == "/sync":
        time.sleep(0.3)
    if asked.path == "/polled":
        return 202, {"id": 7}
    return 200, {"status": "done"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallbackSite]:
    with callback_site(tmp_path_factory.mktemp("jobs"), PIPELINES, answer) as made:
        made.api.headers = {"location": "/jobs/7"}
        yield made


def test_synchronous__answered__is_done_and_took_as_long_as_the_request(site: CallbackSite) -> None:
    site.begin("synchronous")

    done = site.until_status("synchronous", "COMPLETED")

    assert done["duration_ms"] >= 300
    assert done["category"] is None


def test_polled__202_with_location__is_done_when_that_says_so(site: CallbackSite) -> None:
    site.begin("polled")

    done = site.until_status("polled", "COMPLETED")

    assert len(site.asked("/polled")) == 1
    assert site.asked("/jobs/7")
    assert done["duration_ms"] >= 1000


def test_callback__server_killed_meanwhile__completes_after_the_restart_and_starts_once(site: CallbackSite) -> None:
    site.begin("calling-back")
    job = site.job("/callback")
    site.until_status("calling-back", "RUNNING")

    assert report(job, "running").json()["status"] == "RUNNING"
    site.restart()
    assert site.run_of("calling-back")["heartbeat_at"] is not None
    answered = report(job, "success")

    assert answered.status_code == 200, answered.text
    site.until_status("calling-back", "COMPLETED")
    assert len(site.asked("/callback")) == 1
    entries = [each for each in site.server.get("/audit")["items"] if each["action"] == "run.callback"]
    assert [each["actor"] for each in entries] == [f"callback of {job.headers['headgate-run-id']}"], "no heartbeat"


def test_callback__no_heartbeat__the_run_fails_as_a_timeout_and_the_job_is_cancelled(site: CallbackSite) -> None:
    site.begin("silent")

    failed = site.until_status("silent", "FAILED")

    assert (failed["category"], failed["event"]) == ("TIMEOUT", "timeout")
    assert "no heartbeat for 1 s" in failed["reason"]
    assert len(site.asked("/cancel")) == 1
    assert report(site.job("/silent"), "success").status_code == 409
