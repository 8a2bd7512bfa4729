"""What arrives for a period that is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError
from headgate.pipelines.enums import JobEvent, RerunReason, RunStatus
from headgate.pipelines.runs.late_data import RETENTION_SECONDS, Arrival, LateArrival, arrival_writes, judge_arrival
from headgate.pipelines.runs.rows import RunLog
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, SLOT, Rig, at_once, opened_rig

NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _log(status: RunStatus, **more: Any) -> RunLog:
    given: dict[str, Any] = {"attempts": 1, "run_id": "run_1", "begun_at_ms": 100, **more}
    return RunLog(**SLOT._asdict(), status=status, version=1, created_at_ms=0, updated_at_ms=0, **given)


def _late(rig: Rig, **more: Any) -> LateArrival:
    given: dict[str, Any] = {"sensor_key": "orders-complete", "sensor_version": 2, "at_ms": rig.now_ms, **more}
    return LateArrival(**SLOT._asdict(), run_id="run_1", late_by_ms=5, **given)


@pytest.mark.parametrize(
    ("log", "at_ms", "arrival"),
    [
        (None, 50, Arrival.FIRST),
        (_log(RunStatus.PENDING, attempts=0, run_id="", begun_at_ms=None), 50, Arrival.FIRST),
        # The record that started the run, delivered again after its end, is not late data.
        (_log(RunStatus.COMPLETED, succeeded_at_ms=200), 100, Arrival.KNOWN),
        (_log(RunStatus.RUNNING), 50, Arrival.KNOWN),
        (_log(RunStatus.PENDING), 150, Arrival.DURING),
        (_log(RunStatus.RUNNING), 150, Arrival.DURING),
        # It came while the run was on its way, whenever it is looked at.
        (_log(RunStatus.COMPLETED, succeeded_at_ms=200), 150, Arrival.DURING),
        (_log(RunStatus.COMPLETED, succeeded_at_ms=200), 200, Arrival.DURING),
        (_log(RunStatus.COMPLETED, succeeded_at_ms=200), 201, Arrival.LATE),
        (_log(RunStatus.COMPLETED_MONITORING, succeeded_at_ms=200), 201, Arrival.LATE),
        (_log(RunStatus.FAILED), 150, Arrival.AFTER_FAILURE),
        (_log(RunStatus.CANCELLED), 150, Arrival.AFTER_FAILURE),
        # The period was closed before it began.
        (_log(RunStatus.FAILED, attempts=0, run_id="", begun_at_ms=None), 150, Arrival.AFTER_FAILURE),
    ],
)
def test_judge_arrival__by_when_it_came__says_what_it_means(log: RunLog | None, at_ms: int, arrival: Arrival) -> None:
    assert judge_arrival(log, at_ms) is arrival


def test_note__late_data__is_kept_with_an_entry_in_the_job_log(rig: Rig) -> None:
    late = _late(rig, data={"rows": 12})

    assert rig.late_data.note(late, also=[EVENT])

    assert rig.late_data.ls(SLOT) == [late]
    entry = rig.job_log.latest(SLOT)
    assert entry is not None
    assert (entry.event, entry.detail["sensor_key"]) == (JobEvent.LATE_DATA_ARRIVAL, "orders-complete")
    assert rig.is_notified()
    rig.clock.advance(RETENTION_SECONDS + 1)
    assert rig.late_data.ls(SLOT) == []


def test_note__the_same_arrival_reported_again__is_noted_once(rig: Rig) -> None:  # D11
    late = _late(rig)

    outcomes = at_once(5, lambda _: rig.late_data.note(late))

    assert sorted(map(str, outcomes)) == ["False"] * 4 + ["True"]
    assert rig.late_data.ls(SLOT) == [late]
    assert not rig.late_data.note(late, also=[EVENT])
    assert not rig.is_notified()


def test_note__other_arrivals_in_the_same_millisecond__are_all_noted(rig: Rig) -> None:
    arrivals = [_late(rig), _late(rig, sensor_version=3), _late(rig, sensor_key="other")]

    assert [rig.late_data.note(each) for each in arrivals] == [True, True, True]
    assert len(rig.late_data.ls(SLOT)) == 3
    assert len(rig.job_log.ls(SLOT).entries) == 3


def test_note__what_comes_with_it_is_refused__notes_nothing(rig: Rig) -> None:
    with pytest.raises(ConflictError):
        rig.late_data.note(_late(rig), also=[NEVER])

    assert rig.late_data.ls(SLOT) == []


def test_arrival_writes__with_a_rerun_request__are_one_transaction(rig: Rig) -> None:
    late = _late(rig)

    rerun = rig.reruns.request(SLOT, RerunReason.LATE_DATA, also=arrival_writes(late))

    assert rig.late_data.ls(SLOT) == [late]
    assert rig.reruns.pending(SLOT) == rerun


def test_ls__of_a_period__is_not_that_of_others(rig: Rig) -> None:
    rig.late_data.note(_late(rig))

    assert rig.late_data.ls(SLOT._replace(date="2026-03-03T07")) == []
    assert rig.late_data.ls(SLOT._replace(schedule_id="dai")) == []
