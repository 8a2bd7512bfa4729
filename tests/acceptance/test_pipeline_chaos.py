"""Twenty-three ways in which data, jobs and sensors go wrong, each with what has to follow and by when."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.pipelines.definition.model import Json, PostRun, Rule, Schedule, SensorTrigger
from headgate.pipelines.enums import ExpectationKind, FailureCategory, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName as E
from headgate.pipelines.sensors import sensor_key
from headgate.store.catalogue.tables import PIPELINES
from headgate.triggers.contract import TriggerFailedError
from tests.acceptance.pipeline_chaos_rig import (
    AFTERWARDS,
    COUNT,
    HOUR,
    RECENT,
    SCENARIOS,
    USUAL,
    ChaosRig,
    bronze,
    day,
    hour,
    scenario,
    silver,
)
from tests.acceptance.program import Server, run, until
from tests.process_state import is_alive

COMPLETION = ExpectationKind.COMPLETION_SLA


@pytest.fixture
def rig() -> Iterator[ChaosRig]:
    with ChaosRig() as rig:
        rig.jobs.succeed()
        yield rig


def land(rig: ChaosRig, date: str = HOUR, /, count: Json = 1_000, **more: Json) -> None:
    """Say that the data of an hour is there."""
    rig.push("bronze", "landed", date, count=count, **more)


def hours_of(first: int, last: int) -> list[str]:
    return [f"2026-03-03T{each:02d}" for each in range(first, last + 1)]


# Data that comes late, not at all, or not whole.


@scenario(
    "delay",
    mutation="the data of an hour comes 35 minutes after its end",
    response="a warning, a breach, and then the run, done at once",
    within="30 minutes to the breach, a minute to the run",
)
def test_delay__data_comes_after_its_deadline__warned_breached_and_then_done(rig: ChaosRig) -> None:
    rig.define(bronze())
    rig.within("20m", lambda: rig.is_notified(E.SLA_WARNING), "the warning")
    rig.within("15m", lambda: rig.is_notified(E.SLA_BREACH), "the breach")

    land(rig)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")

    rig.live("1h")
    assert rig.verdict(hour(), COMPLETION) == "MISSED"
    deadlines = rig.events("bronze", E.SLA_WARNING, E.SLA_BREACH, E.SLA_MET)
    assert [event.name for event in deadlines if event.date == HOUR] == [E.SLA_WARNING, E.SLA_BREACH]
    assert rig.jobs_of(hour()) == 1


@scenario(
    "drop-hour",
    mutation="the data of one hour of a day never comes",
    response="that hour is missed by its name, the day does not begin, and no other hour is held up",
    within="five minutes after the deadline of the hour",
)
def test_drop_hour__one_of_twenty_four__is_named_and_the_day_waits_for_it() -> None:
    schedule = Schedule(name="hourly", sensor=SensorTrigger(key="landed", deadline=":40"))
    with ChaosRig("2026-03-03T00:01:00+00:00") as rig:
        rig.jobs.succeed()
        rig.define(bronze(schedules=(schedule,)), silver())
        for date in hours_of(0, 23):
            rig.live("1h")
            if date != HOUR:
                land(rig, date)
        rig.live("45m")

        assert [event.date for event in rig.events("bronze", E.SENSOR_DEADLINE_EXPIRED)] == [HOUR]
        assert [date for date in hours_of(0, 23) if not rig.is_done(hour(date))] == [HOUR]
        assert rig.status(day()) is None
        # Once it is there after all, someone asks for it, and the day follows.
        land(rig)
        assert rig.status(hour()) is RunStatus.FAILED
        rig.stores.reruns.request(hour(), RerunReason.MANUAL, by="ana", note="it is there now")
        rig.within("2m", lambda: rig.is_done(day()), "the day")
        rig.live("2h")
        assert rig.verdict(day(), COMPLETION) == "MET"


@scenario(
    "partial",
    mutation="an hour comes with 400 of its 1000 records, and whole ten minutes later",
    response="no job on the part, one job on the whole",
    within="a minute after the rest came",
)
def test_partial__part_of_the_records__starts_nothing_until_the_rest_is_there(rig: ChaosRig) -> None:
    rig.define(bronze())
    land(rig, count=400)
    rig.live("10m")
    assert rig.jobs_of(hour()) == 0

    land(rig, count=1_000)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")

    assert rig.jobs_of(hour()) == 1
    assert rig.verdict(hour(), COMPLETION) == "MET"


@scenario(
    "empty",
    mutation="an hour comes with no records at all",
    response="zero is a number: it is not ready, and its window closes with that reason",
    within="the window of an hour",
)
def test_empty__no_records__is_held_back_for_being_zero(rig: ChaosRig) -> None:  # bug 48
    rig.define(bronze())
    land(rig, count=0)

    rig.within("61m", lambda: rig.is_notified(E.VALIDATION_EXHAUSTED), "the end of the window")

    assert rig.jobs.orders == []
    assert rig.status(hour()) is RunStatus.FAILED
    assert "0" in rig.run(hour()).reason
    assert rig.verdict(hour(), COMPLETION) == "MISSED"
    assert rig.is_free(hour())


@scenario(
    "corrupt",
    mutation="rows of sensors hold what no sensor is: a text for a map, a list for a number, a word for a version",
    response="nothing starts on them, no other pipeline is held up, and the repaired row begins the run",
    within="a minute after the row was repaired",
)
@pytest.mark.parametrize(
    "fields",
    [
        {"data": "garbage"},
        {"data": {"count": [1, 2]}},
        {"data": {"count": "NaN"}},
        {"data": {"count": {"n": 10**30}, "date": "2026-13-45"}, "version": "x"},
        {"data": {"count": None}, "changed_at_ms": {"no": "moment"}},
    ],
    ids=["no-map", "a-list", "not-a-number", "no-version", "no-moment"],
)
def test_corrupt__rows_no_one_can_read__stop_no_one(rig: ChaosRig, fields: dict[str, Json]) -> None:  # bug 67
    rig.define(bronze(), silver())
    place = PIPELINES.key_attributes(sensor_key("bronze", "landed", HOUR))
    rig.store.put(PIPELINES, {**place, **fields})
    rig.pump()
    land(rig, "2026-03-03T06")
    rig.within("1m", lambda: rig.is_done(hour("2026-03-03T06")), "the hour beside it")
    assert rig.jobs_of(hour()) == 0

    rig.store.delete(PIPELINES, sensor_key("bronze", "landed", HOUR))
    land(rig)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")
    assert rig.jobs_of(hour()) == 1


@scenario(
    "duplicate",
    mutation="the same sensor is said five times, and the stream tells everything twice",
    response="one execution, one job, one verdict",
    within="at once",
)
def test_duplicate__said_five_times_and_reported_twice__is_one_run(rig: ChaosRig) -> None:  # D11
    rig.define(bronze())
    for _ in range(5):
        land(rig)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")
    for _ in range(3):
        land(rig)
    rig.receive_again(rig.all_changes())
    rig.live("10m")

    assert rig.jobs_of(hour()) == 1
    assert len(rig.runs(hour())) == 1
    assert rig.event_names("bronze", E.JOB_TRIGGERED, E.JOB_COMPLETED, E.LATE_DATA_ARRIVAL) == [
        E.JOB_TRIGGERED,
        E.JOB_COMPLETED,
    ]


@scenario(
    "out-of-order",
    mutation="hours come in the order 9, 7, 8, each without its period in the key",
    response="each hour is done by itself; an older one does not hide a newer one",
    within="a minute each",
)
def test_out_of_order__hours_mixed_up__each_is_done_once() -> None:  # bug 52
    with ChaosRig("2026-03-03T10:05:00+00:00") as rig:
        rig.jobs.succeed()
        rig.define(bronze())
        for each in ("09", "07", "08"):
            rig.push("bronze", "landed", date="20260303", hour=each, count=1_000 + int(each))
            came = hour(f"2026-03-03T{each}")
            rig.within("1m", lambda: rig.is_done(came), f"hour {each}")  # noqa: B023 - used before the next round

        assert [rig.jobs_of(hour(date)) for date in hours_of(7, 9)] == [1, 1, 1]
        newest = rig.pipelines.sensors.get("bronze", "landed")
        assert newest is not None
        assert newest.data["hour"] == "09"
        assert rig.event_names("bronze", E.LATE_DATA_ARRIVAL) == []


@scenario(
    "stale-replay",
    mutation="the producer sends yesterday's hours again, unchanged, and the stream is read from its beginning",
    response="nothing: what is done stays done, and no budget is charged",
    within="at once",
)
def test_stale_replay__old_news_again__changes_nothing(rig: ChaosRig) -> None:
    rig.define(bronze())
    old = ["2026-03-02T21", "2026-03-02T22", "2026-03-02T23"]
    for date in old:
        land(rig, date)
    rig.within("1m", lambda: all(rig.is_done(hour(date)) for date in old), "the runs")
    rig.live("3h")

    for date in old:
        land(rig, date)
    rig.receive_again(rig.all_changes())
    rig.live("30m")

    assert [rig.jobs_of(hour(date)) for date in old] == [1, 1, 1]
    assert [rig.log(hour(date)).reruns for date in old] == [{}, {}, {}]
    assert rig.event_names("bronze", E.RERUN_REQUESTED, E.LATE_DATA_ARRIVAL) == []


# Data whose form or amount changes.


@scenario(
    "schema-drift-renamed",
    mutation="the field that the rule reads is called `row_count` from now on",
    response="unknown is not zero and not enough: it waits, says which field is missing, and its window closes",
    within="the window of an hour",
)
def test_schema_drift__field_renamed__waits_and_names_the_field(rig: ChaosRig) -> None:
    rig.define(bronze())
    rig.push("bronze", "landed", HOUR, row_count=1_000)

    rig.within("61m", lambda: rig.is_notified(E.VALIDATION_EXHAUSTED), "the end of the window")

    assert rig.jobs.orders == []
    assert "count" in rig.run(hour()).reason
    assert rig.is_free(hour())


@scenario(
    "schema-drift-retyped",
    mutation="a number becomes a text: first one that is a number, then one that is none",
    response='"1000" is the number that it says; "1,000 rows" is none, and holds its hour back',
    within="a minute, and the window of an hour",
)
def test_schema_drift__number_becomes_text__is_read_as_what_it_says(rig: ChaosRig) -> None:  # bug 55
    rig.define(bronze())
    land(rig, "2026-03-03T06", count="1000")
    rig.within("1m", lambda: rig.is_done(hour("2026-03-03T06")), "a number in a text")

    land(rig, count="1,000 rows")
    rig.within("61m", lambda: rig.is_notified(E.VALIDATION_EXHAUSTED), "the end of the window")

    assert rig.jobs_of(hour()) == 0
    assert "1,000 rows" in rig.run(hour()).reason


@scenario(
    "post-run-drift",
    mutation="an hour that is done changes its count from 1000 to 1400, and then to 1500",
    response="reported, and run again once: the budget for drift is one",
    within="a minute",
)
def test_post_run_drift__counts_change_after_the_run__done_again_within_its_budget(rig: ChaosRig) -> None:  # bug 46
    rule = Rule(key="audited", check="exists")
    rig.define(bronze(post_run=PostRun(rules=(rule,), drift_field="count")))
    rig.push("bronze", "audited", HOUR, count=1_000)
    land(rig)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")

    rig.live("5m")
    rig.push("bronze", "audited", HOUR, count=1_400)
    rig.within("1m", lambda: len(rig.runs(hour())) == 2 and rig.is_done(hour()), "the rerun")
    rig.live("5m")
    rig.push("bronze", "audited", HOUR, count=1_500)
    rig.live("5m")

    assert rig.jobs_of(hour()) == 2
    assert rig.event_names("bronze", E.POST_RUN_DRIFT, E.RERUN_ACCEPTED, E.RERUN_REJECTED) == [
        E.POST_RUN_DRIFT,
        E.RERUN_ACCEPTED,
        E.POST_RUN_DRIFT,
        E.RERUN_REJECTED,
    ]
    assert rig.verdict(hour(), COMPLETION) == "MET"
    assert rig.is_free(hour())


@scenario(
    "rolling-degradation",
    mutation="each hour has a tenth fewer records than the one before, so that no step is large",
    response="held back once it is too far from what was usual, although each step was small",
    within="eight hours",
)
def test_rolling_degradation__a_tenth_less_each_hour__is_held_back_in_the_end() -> None:
    with ChaosRig("2026-03-03T00:01:00+00:00") as rig:
        rig.jobs.succeed()
        rig.define(bronze(USUAL))
        counts = [round(1_000 * 0.9**each) for each in range(10)]
        for date, count in zip(hours_of(0, 9), counts, strict=True):
            rig.live("1h")
            land(rig, date, count=count)
        rig.live("70m")

        held = [date for date in hours_of(0, 9) if not rig.is_done(hour(date))]
        assert held, "it was not noticed"
        assert min(held) <= "2026-03-03T07"
        assert [event.date for event in rig.events("bronze", E.VALIDATION_EXHAUSTED)] == held


@scenario(
    "stale-sensor",
    mutation="the sensor is there, but says that its data is from five hours ago",
    response="not ready until it is recent, and then at once",
    within="a minute after it was brought up to date",
)
def test_stale_sensor__data_from_five_hours_ago__waits_for_news(rig: ChaosRig) -> None:
    rig.define(bronze(COUNT, RECENT))
    land(rig, updatedAt=(rig.now - timedelta(hours=5)).isoformat())
    rig.live("20m")
    assert rig.jobs_of(hour()) == 0

    land(rig, updatedAt=rig.now.isoformat())
    rig.within("1m", lambda: rig.is_done(hour()), "the run")


@scenario(
    "timestamp-forgery",
    mutation="the sensor says that its data is from tomorrow",
    response="rejected: not ready, however recent it would be",
    within="the window of an hour",
)
def test_timestamp_forgery__data_from_tomorrow__is_not_believed(rig: ChaosRig) -> None:  # D15
    rig.define(bronze(COUNT, RECENT))
    land(rig, updatedAt=(rig.now + timedelta(days=1)).isoformat())

    rig.within("61m", lambda: rig.is_notified(E.VALIDATION_EXHAUSTED), "the end of the window")

    assert rig.jobs.orders == []
    assert "future" in rig.run(hour()).reason


# Sensors that are not what they seem.


@scenario(
    "phantom-sensor-unknown-pipeline",
    mutation="sensors come for a pipeline that is not defined",
    response="nothing begins and nothing breaks; the next sensor of another pipeline is handled",
    within="at once",
)
def test_phantom_sensor__of_no_pipeline__begins_nothing(rig: ChaosRig) -> None:
    rig.define(bronze())
    rig.push("nowhere", "landed", HOUR, count=1_000)
    land(rig)

    rig.within("1m", lambda: rig.is_done(hour()), "the run")
    assert rig.events("nowhere") == []
    assert len(rig.executions()) == 1


@scenario(
    "phantom-sensor-similar-key",
    mutation="a sensor comes whose key only begins like the one that is waited for",
    response="it is another sensor: nothing begins, and the hour is missed for want of its own",
    within="the deadline of the hour",
)
@pytest.mark.parametrize("key", ["landed-eu", "landed_v2", "LANDED", "land"])
def test_phantom_sensor__key_that_looks_alike__begins_nothing(rig: ChaosRig, key: str) -> None:  # D16
    rig.define(bronze())
    rig.push("bronze", key, HOUR, count=1_000)

    rig.within("35m", lambda: rig.is_notified(E.SLA_BREACH), "the breach")

    assert rig.executions() == []
    assert rig.status(hour()) is None


@scenario(
    "phantom-trigger",
    mutation="a lock and a run are there, and the execution they belong to is not",
    response="reported as timed out, the lock is released, and the period is started again",
    within="the life of a lock, and ten minutes",
)
def test_phantom_trigger__run_without_an_execution__is_freed_and_begun_again(rig: ChaosRig) -> None:  # D28
    rig.define(bronze())
    rig.begin_alone(hour(), execution="never-was")
    rig.push("bronze", "landed", HOUR, count=1_000)
    assert rig.jobs_of(hour()) == 0

    rig.within("5h", lambda: rig.is_free(hour()), "the lock is let go")
    rig.within("15m", lambda: rig.is_done(hour()), "the run")

    assert rig.jobs_of(hour()) == 1
    assert rig.events("bronze", E.RUN_STUCK, E.SFN_TIMEOUT)


@scenario(
    "sensor-flapping",
    mutation="the count goes from enough to not enough and back every few minutes",
    response="no job before it has held for three evaluations in a row; then one",
    within="three evaluations after it has settled",
)
def test_sensor_flapping__ready_and_not_in_turn__starts_once_it_has_settled(rig: ChaosRig) -> None:
    stable = Rule(key="landed", check="gte", field="count", value=900, stable_for=3)
    rig.define(bronze(stable))
    for each in range(5):
        land(rig, count=1_000 if each % 2 == 0 else 10)
        rig.live("3m")
        assert rig.jobs_of(hour()) == 0, f"it has not settled after {each + 1} changes"

    rig.within("16m", lambda: rig.is_done(hour()), "the run")
    rig.live("10m")
    assert rig.jobs_of(hour()) == 1


@scenario(
    "split-sensor",
    mutation="two writers say one half of an hour each, under parts of the key, twenty minutes apart",
    response="one run, once both halves are there",
    within="a minute after the second half",
)
def test_split_sensor__halves_of_an_hour__one_run_with_both(rig: ChaosRig) -> None:  # bug 58
    parts = [Rule(key=f"landed#{part}", check="gte", field="count", value=400) for part in ("eu", "us")]
    rig.define(bronze(*parts))
    rig.push("bronze", "landed#eu", HOUR, count=500)
    rig.live("20m")
    assert rig.jobs_of(hour()) == 0

    rig.push("bronze", "landed#us", HOUR, count=500)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")

    assert rig.jobs_of(hour()) == 1
    assert len(rig.runs(hour())) == 1


# Jobs, and what hangs on them.


@scenario(
    "cascade-delay",
    mutation="the last hour of a day is three hours late",
    response="the day is warned of, breached, and done at once when the hour is; it never fails for having waited",
    within="a minute after the hour",
)
def test_cascade_delay__last_hour_comes_late__the_day_waits_and_follows() -> None:
    with ChaosRig("2026-03-03T00:01:00+00:00") as rig:
        rig.jobs.succeed()
        rig.define(bronze(), silver())
        for date in hours_of(0, 22):
            rig.live("1h")
            land(rig, date)
        rig.live("4h")
        assert rig.status(day()) is None
        assert rig.event_names("silver", E.SLA_WARNING, E.SLA_BREACH) == [E.SLA_WARNING, E.SLA_BREACH]

        land(rig, "2026-03-03T23")
        rig.within("2m", lambda: rig.is_done(day()), "the day")

        assert rig.event_names("silver", E.PIPELINE_FAILED, E.VALIDATION_EXHAUSTED, E.SLA_MET) == []
        assert [run.cause.value for run in rig.runs(day())] == ["upstream"]
        assert rig.verdict(day(), COMPLETION) == "MISSED"


@scenario(
    "false-success",
    mutation="jobs say that they have succeeded; one has written nothing, and another never reports again",
    response="what was written fails its rule, what does not report is missed; both are reported, once",
    within="at once, and within the hour that a sensor has to follow",
)
def test_false_success__nothing_was_written__is_reported_afterwards(rig: ChaosRig) -> None:
    rig.define(bronze(post_run=AFTERWARDS))
    good, empty, silent = hours_of(5, 7)
    for date in (good, empty, silent):
        land(rig, date)
    rig.within("1m", lambda: all(rig.is_done(hour(date)) for date in (good, empty, silent)), "the runs")
    rig.live("10m")
    rig.push("bronze", "written", good, count=1_000)
    rig.push("bronze", "written", empty, count=0)

    assert [event.date for event in rig.events("bronze", E.POST_RUN_FAILED)] == [empty]
    rig.within("56m", lambda: rig.is_notified(E.POST_RUN_SENSOR_MISSING), "the alert")

    rig.live("1h")
    assert [event.date for event in rig.events("bronze", E.POST_RUN_SENSOR_MISSING)] == [silent]
    assert [event.date for event in rig.events("bronze", E.POST_RUN_PASSED)] == [good]
    verdicts = [rig.verdict(hour(date), ExpectationKind.POST_RUN_SENSOR) for date in (good, empty, silent)]
    assert verdicts == ["MET", "MET", "MISSED"]


@scenario(
    "trigger-timeout",
    mutation="whatever starts jobs does not answer in time, again and again",
    response="tried again with pauses under the same key, then reported and given up; the next sensor starts it again",
    within="four minutes to each end",
)
def test_trigger_timeout__start_is_never_answered__let_go_and_begun_by_the_next_news(rig: ChaosRig) -> None:  # bug 45
    rig.define(bronze())
    late = TriggerFailedError("no answer within 30 s", FailureCategory.TIMEOUT)
    rig.jobs.start_errors.extend([late] * 20)
    land(rig)

    rig.within("15m", lambda: rig.is_notified(E.TRIGGER_EXHAUSTED), "the end of trying")
    rig.within("15m", lambda: rig.status(hour()) is RunStatus.FAILED and rig.is_free(hour()), "the lock is let go")
    assert rig.jobs.begun == []
    assert len({order.key for order in rig.jobs.orders}) == len(rig.runs(hour()))
    assert rig.event_names("bronze", E.TRIGGER_FAILED)

    rig.jobs.start_errors.clear()
    land(rig, count=1_001)
    rig.within("1m", lambda: rig.is_done(hour()), "the run")
    assert len(rig.jobs.begun) == 1


# The same with the real program, where a process matters.

_DEFINITION = """
id: loads
schedules:
  - {{name: daily, sensor: {{key: landed}}}}
trigger:
  type: command
  check_interval: 1s
  config: {{command: [{python}, {script}], folder: {folder}, timeout: {timeout}, grace: 1s}}
retry: {{attempts: 2, backoff: 1s}}
"""
# Notes that it began, and if it is not alone, and the first time does not end by itself. A lock ends with who has it.
_SCRIPT = """
import fcntl, os, pathlib, time
begun, beside, lock = (pathlib.Path(name) for name in ("begun", "beside", "lock"))
held = lock.open("w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    beside.touch()
with begun.open("a") as notes:
    notes.write(f"{os.getpid()}\\n")
if len(begun.read_text().splitlines()) == 1:
    time.sleep(600)
"""


class Loads:
    """A server whose only pipeline runs a script, which hangs the first time."""

    server: Server

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun = folder / "begun"
        (folder / "pipelines").mkdir()
        self.define(timeout="10m")

    def define(self, *, timeout: str) -> None:
        script = self.folder / "load.py"
        script.write_text(_SCRIPT)
        text = _DEFINITION.format(python=sys.executable, script=script, folder=self.folder, timeout=timeout)
        (self.folder / "pipelines" / "loads.yaml").write_text(text)

    def serve(self) -> Server:
        self.server = Server(self.folder, "--pipelines", "pipelines")
        return self.server

    def land(self) -> None:
        ended = run("sensor", "push", "loads", "landed", "--period", "2026-03-03", folder=self.folder)
        assert ended.returncode == 0, ended.stderr

    def pids(self) -> list[int]:
        return [int(line) for line in self.begun.read_text().split()] if self.begun.exists() else []

    def runs(self) -> list[str]:
        """Return how its runs stand, the first first."""
        # Asked again and again: without certificates, whose loading takes most of the time of a request.
        url = f"{self.server.url}/api/v1/pipelines/loads/runs"
        answer = httpx.get(url, verify=False).raise_for_status().json()
        return [str(each["status"]) for each in answer["runs"]][::-1]

    def events_named(self, name: str) -> list[dict[str, Any]]:
        ended = run("pipeline", "events", "loads", "--name", name, "--json", folder=self.folder)
        assert ended.returncode == 0, ended.stderr
        found: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
        return found


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loads]:
    loads = Loads(tmp_path)
    yield loads
    for pid in filter(is_alive, loads.pids()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@scenario(
    "job-kill",
    mutation="the process of a job is killed with SIGKILL",
    response="detected at once, reported with the signal, and retried",
    within="ten seconds",
)
def test_job_kill__process_is_killed__reported_and_tried_again(loads: Loads) -> None:
    with loads.serve():
        loads.land()
        until(lambda: len(loads.pids()) == 1, "the job")
        os.kill(loads.pids()[0], signal.SIGKILL)

        until(lambda: len(loads.pids()) == 2, "the second attempt", 20)
        until(lambda: loads.runs() == ["FAILED", "COMPLETED"], "the end of the run")

        (failed,) = loads.events_named("JOB_FAILED")
        assert "SIGKILL" in json.dumps(failed) or "signal 9" in json.dumps(failed)


def test_job_kill__the_server_is_killed_instead__the_job_is_never_run_beside_itself(loads: Loads) -> None:
    with loads.serve() as server:
        loads.land()
        until(lambda: len(loads.pids()) == 1, "the job")
        server.signal(signal.SIGKILL)
        server.exit_code()
    (pid,) = loads.pids()
    assert is_alive(pid), "it outlives the server"

    with loads.serve():
        until(lambda: loads.runs() == ["RUNNING"], "the run goes on")
        os.kill(pid, signal.SIGKILL)
        until(lambda: loads.runs()[-1:] == ["COMPLETED"], "the run", 90)

        assert len(loads.pids()) == 2
        assert not (loads.folder / "beside").exists()


def test_trigger_timeout__command_takes_longer_than_it_may__is_ended_and_tried_again(loads: Loads) -> None:
    loads.define(timeout="8s")  # far longer than Python takes to begin on a busy machine: the second attempt must end
    with loads.serve():
        loads.land()
        until(lambda: loads.runs() == ["FAILED", "COMPLETED"], "the end of the run", 60)

        assert not is_alive(loads.pids()[0])
        assert len(loads.events_named("JOB_TIMEOUT")) == 1


def test_scenarios__all_of_them__are_here() -> None:
    assert len(SCENARIOS) == 23
    assert all(each.mutation and each.response and each.within for each in SCENARIOS.values())
