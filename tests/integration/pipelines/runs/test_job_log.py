"""What happened to the jobs of a period."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.pipelines.enums import JobEvent
from headgate.pipelines.runs.rows import JobLogEntry, Slot
from tests.unit.pipelines.run_rig import EVENT, SLOT, Rig, opened_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _note(rig: Rig, event: JobEvent, slot: Slot = SLOT, **more: Any) -> JobLogEntry:
    rig.clock.advance(1)
    entry = JobLogEntry(**slot._asdict(), event=event, at_ms=rig.now_ms, **more)
    rig.job_log.note(entry)
    return entry


def test_ls__some_entries__are_reported_latest_first_and_page_by_page(rig: Rig) -> None:
    entries = [_note(rig, JobEvent.INFRA_TRIGGER_FAILURE, attempt=number) for number in range(5)]

    first = rig.job_log.ls(SLOT, limit=3)
    rest = rig.job_log.ls(SLOT, limit=3, cursor=first.cursor)

    assert [*first.entries, *rest.entries] == entries[::-1]
    assert rest.cursor is None


def test_latest__of_a_day__is_not_that_of_one_of_its_hours(rig: Rig) -> None:  # D16
    own = _note(rig, JobEvent.SUCCESS)
    _note(rig, JobEvent.FAIL, SLOT._replace(date=f"{SLOT.date}T07"))
    _note(rig, JobEvent.FAIL, SLOT._replace(schedule_id="daily-eu"))

    assert rig.job_log.latest(SLOT) == own


def test_latest__of_a_new_attempt__does_not_take_the_failure_of_the_one_before_for_its_own(rig: Rig) -> None:  # D4
    failed = _note(rig, JobEvent.FAIL, run_id="run_1")

    assert rig.job_log.latest(SLOT, run_id="run_2") is None
    assert rig.job_log.latest(SLOT, run_id="run_1") == failed


def test_latest__of_a_run_that_many_others_followed__is_found(rig: Rig) -> None:
    wanted = _note(rig, JobEvent.FAIL, run_id="run_1")
    for _ in range(120):
        _note(rig, JobEvent.INFRA_TRIGGER_FAILURE, run_id="run_2")

    assert rig.job_log.latest(SLOT, run_id="run_1") == wanted


def test_latest__nothing_happened__is_none(rig: Rig) -> None:
    assert rig.job_log.latest(SLOT) is None


def test_note__with_an_event__writes_both(rig: Rig) -> None:
    entry = JobLogEntry(**SLOT._asdict(), event=JobEvent.SUCCESS, at_ms=rig.now_ms)
    rig.job_log.note(entry, also=[EVENT])
    rig.job_log.note(entry)

    assert rig.is_notified()
    assert rig.job_log.ls(SLOT).entries == [entry]


@pytest.mark.parametrize(
    ("event", "is_terminal"),
    [
        (JobEvent.SUCCESS, True),
        (JobEvent.VALIDATION_EXHAUSTED, True),
        (JobEvent.JOB_POLL_EXHAUSTED, True),
        (JobEvent.INFRA_TRIGGER_EXHAUSTED, True),
        (JobEvent.INFRA_TRIGGER_FAILURE, False),
        (JobEvent.RERUN_ACCEPTED, False),
    ],
)
def test_entries__of_each_kind__say_whether_the_job_is_over(event: JobEvent, is_terminal: bool) -> None:  # bugs 19, 31
    assert JobLogEntry(**SLOT._asdict(), event=event, at_ms=1).event.is_terminal == is_terminal
