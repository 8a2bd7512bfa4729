"""`run watch` and `backfill watch` against a server on a port, in virtual time: each pause is the next step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.api_client import Api
from headgate.cli.pipelines.watch import Followed, FollowedBackfill, FollowedPeriod, FollowedRun, Look, follow
from headgate.clock import VirtualClock
from headgate.errors import NotFoundError, TransientError, UserError
from headgate.exit_codes import ExitCode
from headgate.pipelines.operations.backfill_runner import BackfillRunner
from headgate.pipelines.operations.backfills import Backfills
from headgate.triggers.contract import JobState
from tests.integration.cli.pipeline_site import Site, site_in
from tests.integration.cli.test_pipeline_commands import SILVER, TODAY, begun

Steps = list[Callable[[], object]]


class StepClock(VirtualClock):
    """A clock whose sleepers let the next step happen."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._steps = steps

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.advance(seconds)
        if self._steps:
            self._steps.pop(0)()


@pytest.fixture
def silver(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as site:
        site.said("pipeline", "apply", site.write("silver.yaml", SILVER))
        yield site


def watched(
    followed: Followed, steps: Steps, *, timeout_seconds: float | None = 600, as_json: bool = False
) -> ExitCode:
    return follow(followed, timeout_seconds=timeout_seconds, as_json=as_json, clock=StepClock(steps))


def end_jobs(site: Site, state: JobState) -> Callable[[], None]:
    def end() -> None:
        site.api.jobs.state = state
        site.env.advance("40s")
        site.api.settle()

    return end


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The printed lines without their times."""
    return [line[10:] for line in capsys.readouterr().out.splitlines()]


def test_run_watch__period_without_a_run__shows_why_it_waits_until_it_is_done(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive: Steps = [
        lambda: silver.said("sensor", "push", "silver", "landed", "--data", f'{{"date": "{TODAY}"}}'),
        silver.api.settle,
        lambda: None,
        lambda: begun(silver),
        end_jobs(silver, JobState.SUCCEEDED),
    ]

    code = watched(FollowedPeriod(Api(silver.url), "silver", TODAY, None), arrive)

    assert code is ExitCode.OK
    shown = lines(capsys)
    assert shown[0].startswith(f"silver of {TODAY}  WAITING  has not started: it waits for")
    assert any("PENDING  has not started: 0 of 1 rules hold; orders is missing" in line for line in shown)
    assert any("RUNNING  is running since" in line for line in shown)
    assert "COMPLETED  is done since" in shown[-1]
    # What did not change is not printed again.
    assert len(set(shown)) == len(shown)


def test_run_watch__run_that_fails__exits_with_1_and_prints_the_reason(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = begun(silver)

    code = watched(FollowedRun(Api(silver.url), run_id), [end_jobs(silver, JobState.FAILED)])

    assert code is ExitCode.FAILED
    running, failed = lines(capsys)
    assert running.startswith(f"{run_id}  RUNNING  silver of {TODAY} is running since")
    assert failed.startswith(f"{run_id}  FAILED  ")
    assert "it broke" in failed


def test_run_watch__failure_that_is_retried__goes_on_to_the_last_attempt(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    silver.said(
        "pipeline",
        "apply",
        silver.write("silver.yaml", f"{SILVER}retry: {{attempts: 2, permanent_retries: 1, backoff: 1m}}\n"),
    )
    begun(silver)

    def succeed() -> None:
        silver.api.jobs.state = JobState.SUCCEEDED
        silver.env.advance("1h")
        silver.api.settle()

    code = watched(FollowedPeriod(Api(silver.url), "silver", TODAY, None), [end_jobs(silver, JobState.FAILED), succeed])

    assert code is ExitCode.OK
    statuses = [line.split("  ")[1] for line in lines(capsys)]
    assert statuses[:2] == ["RUNNING", "FAILED"]
    assert statuses[-1] == "COMPLETED"


def test_run_watch__json__is_a_line_per_change_with_run_and_explanation(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = begun(silver)

    watched(FollowedRun(Api(silver.url), run_id), [end_jobs(silver, JobState.SUCCEEDED)], as_json=True)

    running, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert (running["run"]["status"], running["why"]["standing"]) == ("RUNNING", "running")
    assert (done["run"]["status"], done["why"]) == ("COMPLETED", None)


def test_run_watch__nothing_changes__polls_less_often_and_ends_with_75_at_the_timeout(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = StepClock([])

    code = follow(
        FollowedPeriod(Api(silver.url), "silver", TODAY, None), timeout_seconds=30, as_json=False, clock=clock
    )

    assert code is ExitCode.TRY_AGAIN
    assert clock.pauses[:3] == [0.5, 0.75, 1.125]
    assert max(clock.pauses) == 5.0
    assert sum(clock.pauses) == pytest.approx(30)
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert captured.err == f"silver of {TODAY}: has not ended after 30s\n"


def test_run_watch__excluded_period__exits_with_5(silver: Site, capsys: pytest.CaptureFixture[str]) -> None:
    excluding = SILVER.replace("  - sensor: {key: landed}", "  - {cron: 0 6 * * *, exclude: {dates: ['2025-06-10']}}")
    silver.said("pipeline", "apply", silver.write("silver.yaml", excluding))

    assert watched(FollowedPeriod(Api(silver.url), "silver", "2025-06-10", None), []) is ExitCode.STALLED
    assert "WAITING  has not started and will not: the calendar leaves it out" in lines(capsys)[-1]


def test_run_watch__command__has_the_exit_code_and_refuses_unknown_ids(silver: Site) -> None:
    run_id = begun(silver)
    end_jobs(silver, JobState.FAILED)()

    assert silver.run("run", "watch", run_id).exit_code == 1
    assert silver.run("run", "watch", "silver", "--date", TODAY, "--timeout", "1m").exit_code == 1
    assert isinstance(silver.run("run", "watch", "run_none").exception, NotFoundError)
    assert isinstance(silver.run("run", "watch", "nope").exception, NotFoundError)
    assert isinstance(silver.run("run", "watch", run_id, "--timeout", "soon").exception, UserError)


def backfill(site: Site, *options: str) -> str:
    span = ("--from", "2025-06-10", "--to", "2025-06-11", "--reason", "new rule")
    return str(site.json("backfill", "create", "silver", *span, *options)["backfill_id"])


def run_periods(site: Site) -> None:
    """Have the periods that have started run to their end."""
    for _ in range(2):
        site.api.settle()
        site.env.advance("10m")
    site.api.settle()


def run_backfill(site: Site) -> None:
    """Have the backfill start what it can, and the jobs end."""
    pipelines, service = site.api.pipelines, site.env.service
    backfills = Backfills(service.store, site.env.clock, service.ids)
    runner = BackfillRunner(pipelines.stores.runs, pipelines.event_writer, pipelines.starter, backfills)
    for _ in range(4):
        runner.tick()
        site.api.settle()
        site.env.advance("10m")
        site.api.settle()
    runner.tick()


def bring_orders(site: Site) -> None:
    site.said("sensor", "push", "silver", "orders", "--all-periods", "--data", '{"count": 12}')


def test_backfill_watch__periods_that_wait__shows_why_and_counts_to_the_end(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    backfill_id = backfill(silver, "--concurrency", "2")
    silver.api.jobs.state = JobState.SUCCEEDED

    code = watched(
        FollowedBackfill(Api(silver.url), backfill_id),
        [
            lambda: run_backfill(silver),
            lambda: bring_orders(silver),
            lambda: run_periods(silver),
            lambda: run_backfill(silver),
        ],
    )

    assert code is ExitCode.OK
    printed = capsys.readouterr().out
    assert "silver of 2025-06-10 has not started: 0 of 1 rules hold; orders is missing" in printed
    # A period that has ended does not wait.
    assert "is done since" not in printed
    assert f"{backfill_id}  COMPLETED  2 of 2 completed" in printed.splitlines()[-1]


def test_backfill_watch__failure_pauses_it__exits_with_5_and_names_the_period(
    silver: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    backfill_id = backfill(silver, "--stop-on-failure")
    silver.api.jobs.state = JobState.FAILED
    bring_orders(silver)
    run_backfill(silver)

    code = watched(FollowedBackfill(Api(silver.url), backfill_id), [])

    assert code is ExitCode.STALLED
    printed, stalled = capsys.readouterr()
    assert "failed: 2025-06-10: " in printed
    assert "PAUSED  0 of 2 completed, 1 failed" in printed
    assert stalled.startswith("stalled: 2025-06-10 failed: ")
    assert stalled.endswith(f"'headgate backfill resume {backfill_id}' continues it\n")


def test_backfill_watch__command__cancelled_backfill_exits_with_1(silver: Site) -> None:
    backfill_id = backfill(silver)
    silver.said("backfill", "cancel", backfill_id, "--reason", "enough")

    ended = silver.run("backfill", "watch", backfill_id, "--json")

    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["state"] == "CANCELLED"


class Outage:
    """A run whose server does not answer for some polls."""

    id = "run_a"
    is_counted = False

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)

    def look(self) -> Look:
        if len(self._answers) > 1 and not self._answers.pop(0):
            raise TransientError("the server does not answer")
        is_ended = len(self._answers) == 1
        return Look({}, "COMPLETED" if is_ended else "RUNNING", "", exit_code=ExitCode.OK if is_ended else None)


@pytest.mark.parametrize(("failures", "is_followed"), [(3, True), (200, False)])
def test_watch__server_restarts__is_followed_on_for_a_minute(failures: int, is_followed: bool) -> None:
    run: Any = Outage(True, *[False] * failures, True)

    if is_followed:
        assert watched(run, [], timeout_seconds=None) is ExitCode.OK
    else:
        with pytest.raises(TransientError):
            watched(run, [], timeout_seconds=None)


def test_watch__server_does_not_answer_at_first__fails_at_once() -> None:
    with pytest.raises(TransientError):
        watched(Outage(False, True), [], timeout_seconds=None)


class Beating:
    """A run of which only the heartbeat changes."""

    id = "run_a"
    is_counted = False

    def __init__(self) -> None:
        self._looks = 0

    def look(self) -> Look:
        self._looks += 1
        exit_code = ExitCode.OK if self._looks > 5 else None
        return Look({"heartbeat_at": self._looks}, "RUNNING", "", exit_code=exit_code)


def test_watch__only_the_heartbeat_changes__prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    watched(Beating(), [])

    assert len(lines(capsys)) == 2
