"""How runs, run logs and job entries look in the table."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import CorruptionError, InvalidItemError
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.runs.rows import (
    Attempt,
    Directive,
    JobLogEntry,
    Order,
    Run,
    RunLog,
    Slot,
    Transition,
    job_item,
    job_of,
    run_log_of,
    run_log_put,
    run_of,
    run_writes,
)
from headgate.store.model.conditions import absent, version_is

NOW_MS = 1_750_000_000_000


def _run(**more: Any) -> Run:
    given: dict[str, Any] = {"status": RunStatus.RUNNING, "version": 3, **more}
    return Run(
        run_id="run_1",
        pipeline_id="orders",
        schedule_id="h07",
        date="2026-03-03",
        attempt=1,
        cause=Cause.SENSOR,
        created_at_ms=NOW_MS,
        updated_at_ms=NOW_MS,
        **given,
    )


def _log(**more: Any) -> RunLog:
    return RunLog(
        pipeline_id="orders",
        schedule_id="h07",
        date="2026-03-03",
        status=RunStatus.FAILED,
        version=4,
        created_at_ms=NOW_MS,
        updated_at_ms=NOW_MS,
        **more,
    )


def _entry(**more: Any) -> JobLogEntry:
    given: dict[str, Any] = {"event": JobEvent.FAIL, "at_ms": NOW_MS, "run_id": "run_1", **more}
    return JobLogEntry(pipeline_id="orders", schedule_id="h07", date="2026-03-03", **given)


def test_run_writes__a_run__are_the_truth_under_its_id_and_a_copy_in_the_list_of_its_pipeline() -> None:
    truth, copy = run_writes(_run(), replaces=2)

    assert (truth.item["PK"], truth.item["SK"]) == ("RUN#run_1", "STATE")
    assert (copy.item["PK"], copy.item["SK"]) == ("PIPELINE#orders", "RUN#run_1")
    assert truth.condition == version_is(2)
    # Only the truth is compared with.
    assert copy.condition is None


def test_run_writes__a_new_run__is_refused_where_one_is() -> None:
    assert run_writes(_run())[0].condition == absent()


@pytest.mark.parametrize(
    "run",
    [
        _run(),
        _run(
            job={"cluster": "j-1", "steps": [1, 2]},
            category=FailureCategory.TIMEOUT,
            event=JobEvent.JOB_POLL_EXHAUSTED,
            transitions=(Transition(RunStatus.PENDING, NOW_MS),),
            is_dry_run=True,
        ),
    ],
)
def test_run_of__a_row__is_the_run_it_was_made_from(run: Run) -> None:
    assert [run_of(write.item) for write in run_writes(run)] == [run, run]


def test_run_log_of__a_row__is_the_log_it_was_made_from() -> None:
    log = _log(
        attempts=2,
        reruns={"drift": 1},
        hold=Directive(Order.HOLD, "ann", "audit", NOW_MS),
        history=(
            Attempt(number=1, run_id="run_1", status=RunStatus.FAILED, cause=Cause.CRON, begun_at_ms=NOW_MS),
            Attempt(
                number=2, run_id="run_2", status=RunStatus.RUNNING, cause=Cause.RERUN, begun_at_ms=NOW_MS, by="ann"
            ),
        ),
    )
    put = run_log_put(log, replaces=3)

    assert (put.item["PK"], put.item["SK"]) == ("PIPELINE#orders", "RUNLOG#2026-03-03#h07")
    assert run_log_of(put.item) == log


def test_run_log_put__a_period_that_is_over__never_expires() -> None:  # bug 19
    assert "ttl" not in run_log_put(_log()).item
    assert "ttl" not in run_writes(_run(status=RunStatus.FAILED))[0].item


def test_run_of__a_row_of_something_else__says_so() -> None:
    with pytest.raises(CorruptionError, match="not a Run"):
        run_of({"PK": "RUN#run_1", "SK": "STATE", "run_id": "run_1", "status": "ASLEEP"})


def test_run_of__attributes_of_others__leaves_them_alone() -> None:
    item = {**run_writes(_run())[0].item, "team": "theirs"}

    assert run_of(item) == _run()


def test_job_item__two_things_in_one_millisecond__are_two_rows_in_the_order_of_time() -> None:
    entries = [_entry(), _entry(event=JobEvent.RERUN_ACCEPTED), _entry(run_id="run_2"), _entry(detail={"n": 1})]
    later = job_item(_entry(at_ms=NOW_MS + 1))
    keys = [job_item(entry)["SK"] for entry in entries]

    assert len(set(keys)) == 4
    assert all(key.startswith(f"JOB#h07#2026-03-03#{NOW_MS}") for key in keys)
    assert all(key < later["SK"] for key in keys)


def test_job_item__the_same_thing_twice__is_one_row() -> None:
    assert job_item(_entry())["SK"] == job_item(_entry())["SK"]


def test_job_of__a_row__is_the_entry_it_was_made_from() -> None:
    entry = _entry(category=FailureCategory.PERMANENT, error="bad SQL", duration_ms=12, detail={"exit": 2})

    assert job_of(job_item(entry)) == entry
    assert job_item(entry, kept_seconds=60)["ttl"] == NOW_MS // 1000 + 60


def test_run_log_put__a_date_that_would_break_its_key__is_refused() -> None:
    with pytest.raises(InvalidItemError):
        run_log_put(RunLog(**Slot("orders", "h07", "2026#03")._asdict(), status=RunStatus.PENDING, version=1,
                           created_at_ms=0, updated_at_ms=0))  # fmt: skip


@pytest.mark.parametrize(
    ("moments", "duration_ms"),
    [
        ({}, None),
        ({"triggered_at_ms": 5}, None),
        ({"triggered_at_ms": 5, "ended_at_ms": 25}, 20),
        ({"triggered_at_ms": 5, "started_at_ms": 10, "ended_at_ms": 25}, 15),
    ],
)
def test_duration_ms__of_a_run__is_what_its_job_took(moments: dict[str, int], duration_ms: int | None) -> None:
    assert _run(**moments).duration_ms == duration_ms
