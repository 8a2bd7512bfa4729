"""Jobs outside Headgate: reports of runs in any order."""

from __future__ import annotations

import itertools
from typing import Any

from headgate.health.jobs.model import RUNS_MAX, JobHistory, JobState, RunReport, folded


def report(minute: int, state: JobState | None, run: str = "r1", **more: Any) -> RunReport:
    at = f"2026-01-15T{10 + minute // 60:02d}:{minute % 60:02d}:00.000Z"
    return RunReport(job_id="job:ns.j", namespace="ns", name="j", run_id=run, at=at, state=state, **more)


def after(*reports: RunReport) -> JobHistory:
    known: JobHistory | None = None
    for each in reports:
        known = folded(known, each)
    assert known is not None
    return known


def test_folded__events_of_a_run_in_any_order__give_its_state_and_duration() -> None:
    reports = [
        report(0, JobState.RUNNING, inputs=("urn:dp:a:in",)),
        report(1, None),
        report(3, JobState.FAILED, outputs=("urn:dp:a:out",), message="boom"),
    ]
    for order in itertools.permutations(reports):
        found = after(*order)
        (run,) = found.runs
        assert (run.state, run.duration_seconds, run.message) == (JobState.FAILED, 180.0, "boom"), order
        assert (found.job.state, found.job.duration_seconds) == (JobState.FAILED, 180.0)
        assert (found.job.inputs, found.job.outputs) == (("urn:dp:a:in",), ("urn:dp:a:out",))


def test_folded__a_repeated_report__changes_nothing() -> None:
    known = after(report(0, JobState.COMPLETED))

    assert folded(known, report(0, JobState.COMPLETED)) is known


def test_folded__a_later_run__is_the_state_of_the_job_and_an_earlier_one_is_not() -> None:
    found = after(
        report(10, JobState.RUNNING, "r2"), report(12, JobState.COMPLETED, "r2"), report(5, JobState.FAILED, "r1")
    )

    assert (found.job.state, found.job.run_id) == (JobState.COMPLETED, "r2")
    assert [each.run_id for each in found.runs] == ["r2", "r1"]


def test_folded__a_run_that_reads_other_datasets__replaces_those_of_the_run_before_when_it_ends() -> None:
    found = after(
        report(0, JobState.COMPLETED, "r1", inputs=("urn:dp:a:old",)),
        report(5, JobState.RUNNING, "r2", inputs=("urn:dp:a:new",)),
    )
    assert found.job.inputs == ("urn:dp:a:new", "urn:dp:a:old")

    ended = after(
        report(0, JobState.COMPLETED, "r1", inputs=("urn:dp:a:old",)),
        report(5, JobState.COMPLETED, "r2", inputs=("urn:dp:a:new",)),
    )
    assert ended.job.inputs == ("urn:dp:a:new",)


def test_folded__more_runs_than_are_kept__drops_the_earliest() -> None:
    found = after(*(report(number, JobState.COMPLETED, f"r{number}") for number in range(RUNS_MAX + 5)))

    assert len(found.runs) == RUNS_MAX
    assert found.runs[0].run_id == f"r{RUNS_MAX + 4}"
