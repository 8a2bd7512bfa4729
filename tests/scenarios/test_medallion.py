"""A fortnight of the medallion example, in virtual time: hours, days and business days, and all that goes wrong in it.

Two weekends, Good Friday and Easter Monday, and the night in March that has no hour from two to three. `make test`
lives through its first week, with that night and a weekend; `make soak` through all of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.durable.sdk.app import App
from headgate.notify.enums import Severity
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName as E
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.watchdog.verdicts import StoredVerdict
from tests.acceptance.pipeline_world import World
from tests.unit.notify.rig import sent_to

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "medallion"
BERLIN: Final = ZoneInfo("Europe/Berlin")
BEGIN: Final = "2026-03-27T00:01:00+01:00"
# Read here, because tests themselves see no setting of the machine.
IS_WHOLE: Final = "HEADGATE_TEST_FORTNIGHT" in os.environ
FIRST: Final = "2026-03-27"
LAST: Final = "2026-04-09" if IS_WHOLE else "2026-04-02"
END: Final = f"2026-04-{'10' if IS_WHOLE else '03'}T05:00:00+02:00"
BRONZE, SILVER, GOLD = "bronze-orders", "silver-orders", "gold-revenue"
ORDERS: Final = 100

# What is special about some hours: late, but in time for the deadline; too late for it; there only the next night;
LATE: Final = "2026-03-28T10"
TOO_LATE: Final = "2026-03-30T09"
MISSING: Final = "2026-03-31T14"
# a sensor that makes no sense at first; a file that is not there yet; it is not confirmed; others confirm another
CORRUPT: Final = "2026-04-02T08"
FAILING: Final = "2026-04-04T12"
UNCONFIRMED: Final = "2026-04-05T03"
# count; and very few orders.
CORRECTED: Final = "2026-04-07T15"
SPARSE: Final = "2026-04-09T11"
MORE, FEW = 30, 5

# And about some days: a broken file until after the deadline of the report; the server was down when it was due.
BROKEN: Final = "2026-04-02"
AWAY: Final = "2026-04-08"
RATES_LATE: Final = "2026-04-07"
_BUSINESS: Final = (FIRST, "2026-03-30", "2026-03-31", "2026-04-01", BROKEN, RATES_LATE, AWAY, "2026-04-09")
BUSINESS: Final = tuple(day for day in _BUSINESS if day <= LAST)


def at(text: str) -> datetime:
    """Return a moment from what a clock on a wall in Berlin shows."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)


def hours() -> list[tuple[str, datetime]]:
    """Return every hour that is due in the fortnight, with when it ends: as a calendar counts them, not the product."""
    begin, end = datetime.fromisoformat(BEGIN).astimezone(UTC), datetime.fromisoformat(END).astimezone(UTC)
    ends = begin.replace(minute=0)
    found: list[tuple[str, datetime]] = []
    while ends + timedelta(minutes=5) <= end:
        found.append((f"{(ends - timedelta(hours=1)).astimezone(BERLIN):%Y-%m-%dT%H}", ends))
        ends += timedelta(hours=1)
    return found


def days(first: str, last: str) -> list[str]:
    day, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    return [f"{day + timedelta(days=each):%Y-%m-%d}" for each in range((end - day).days + 1)]


def lived(*dates: str) -> int:
    """Return how many of these days and hours are lived through."""
    return sum(each[:10] <= LAST for each in dates)


class Shop:
    """What happens around Headgate: exports, their confirmations, exchange rates, and people who repair things."""

    def __init__(self, world: World, lake: Path) -> None:
        self.world = world
        self.lake = lake
        self.plan: list[tuple[datetime, Callable[[], object]]] = []
        for hour, ends in hours():
            self._plan_hour(hour, ends)
        for day in days(FIRST, LAST):
            self.add(at(f"{day}T06:20" if day == RATES_LATE else f"{day}T05:30"), self.rates)

    def add(self, moment: datetime, act: Callable[[], object]) -> None:
        self.plan.append((moment, act))

    def _plan_hour(self, hour: str, ends: datetime) -> None:
        delay = {LATE: 20, TOO_LATE: 40, MISSING: 9 * 60 + 30}.get(hour, 2)
        count = FEW if hour == SPARSE else ORDERS
        if hour == CORRUPT:
            self.add(ends + timedelta(minutes=2), lambda: self.say(hour, status=17, count="lots"))
            delay = 15
        file_delay = 14 if hour == FAILING else delay
        self.add(ends + timedelta(minutes=file_delay), lambda: self.write(hour, count))
        self.add(ends + timedelta(minutes=delay), lambda: self.say(hour, status="complete", count=count))
        confirmed = count + MORE if hour == CORRECTED else count
        confirmed_at = ends + timedelta(minutes=max(70, delay + 40))
        if hour == CORRECTED:
            self.add(confirmed_at, lambda: self.write(hour, confirmed))
        if hour != UNCONFIRMED:
            self.add(confirmed_at, lambda: self.say(hour, status="complete", count=confirmed))

    def say(self, hour: str, **data: Any) -> None:
        self.world.push(BRONZE, "orders-export", hour, **data)

    def write(self, hour: str, count: int) -> None:
        orders = [{"id": f"{hour}-{each}", "country": "DE", "amount": 1.0} for each in range(count)]
        file = self.lake / "exports" / f"{hour}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(orders))

    def rates(self) -> None:
        self.world.push(GOLD, "exchange-rates", EURUSD=1.1)

    def live(self, until: datetime) -> None:
        """Let everything that is planned until a moment happen at its time."""
        due = sorted((each for each in self.plan if each[0] <= until), key=lambda each: each[0])
        self.plan = [each for each in self.plan if each[0] > until]
        for moment, act in due:
            self.world.advance(max(0.0, (moment - self.world.now).total_seconds()))
            act()
        self.world.advance((until - self.world.now).total_seconds())


def medallion() -> App:
    spec = importlib.util.spec_from_file_location("medallion_app", EXAMPLE / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app: App = module.app
    return app


def live_the_fortnight(world: World, lake: Path) -> None:
    shop = Shop(world, lake)
    world.manual.mark_success(Slot(SILVER, "daily", "2026-03-26"), by="ana", reason="done before Headgate was there")
    # The hour that never came does come, in the night, and someone asks for it.
    shop.add(
        at("2026-04-01T00:40"),
        lambda: world.manual.rerun(Slot(BRONZE, "hourly", MISSING), RerunReason.MANUAL, by="ana", note="it is there"),
    )
    day_file, kept = lake / "silver" / "2026-04-01.json", lake / "kept.json"
    shop.add(at(f"{BROKEN}T05:50"), lambda: (day_file.rename(kept), day_file.write_text("[{")))
    shop.add(at(f"{BROKEN}T07:40"), lambda: kept.replace(day_file))
    shop.add(
        at(f"{BROKEN}T07:45"),
        lambda: world.manual.rerun(Slot(GOLD, "morning", BROKEN), RerunReason.MANUAL, by="bo", note="mended"),
    )
    if lived(AWAY):
        shop.live(at(f"{AWAY}T05:58"))
        world.sleep_until(f"{AWAY}T06:09:00+02:00")
    shop.live(datetime.fromisoformat(END).astimezone(UTC))


def story(folder: Path) -> None:
    with World(BEGIN, medallion(), folder / "home") as world:
        world.apply(EXAMPLE / "pipelines")
        live_the_fortnight(world, folder / "lake")
        check_bronze(world)
        check_silver(world)
        check_gold(world)
        check_expectations(world)
        check_alerts(world)
        check_lake(folder / "lake")
        check_rest(world)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_fortnight__everything_that_goes_wrong__is_reported_once_and_the_lake_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bug 2, bug 63, bug 64, D17: each hour has its own deadline and verdict, each day goes by its own calendar.
    monkeypatch.chdir(tmp_path)
    # In another thread, which commits by itself: the main thread has it done for it, at twice the cost.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(story, tmp_path).result()


# What was done.


def outcomes(runs: Iterable[Run]) -> list[tuple[str, Cause, RunStatus]]:
    return [(run.date, run.cause, run.status) for run in sorted(runs, key=lambda run: (run.date, run.attempt))]


def check_bronze(world: World) -> None:
    expected: list[tuple[str, Cause, RunStatus]] = []
    for date, _ in sorted(hours()):
        is_failing = date in (MISSING, FAILING)
        expected.append((date, Cause.CRON, RunStatus.FAILED if is_failing else RunStatus.COMPLETED))
        if date == FAILING:
            expected.append((date, Cause.CRON, RunStatus.COMPLETED))
        if date in (MISSING, CORRECTED):
            expected.append((date, Cause.RERUN, RunStatus.COMPLETED))
    assert outcomes(world.all_runs(BRONZE)) == expected
    # The night in which the clocks go forward has no hour from two to three.
    assert "2026-03-29T02" not in {date for date, _, _ in expected}

    published = events(world, BRONZE)
    assert published[E.POST_RUN_DRIFT] == published[E.RERUN_REQUESTED] - 1 == lived(CORRECTED)
    assert published[E.RERUN_ACCEPTED] == published[E.RERUN_COMPLETED] == lived(MISSING, CORRECTED)
    failed = lived(FAILING)
    assert (published[E.JOB_FAILED], published[E.RETRY_SCHEDULED], published[E.RETRY_EXHAUSTED]) == (failed, failed, 0)
    assert (published[E.VALIDATION_EXHAUSTED], published[E.PIPELINE_FAILED]) == (1, 1)
    assert published[E.RULE_WARNED] == lived(SPARSE)
    assert published[E.JOB_TRIGGERED] == published[E.JOB_COMPLETED] + failed == len(expected) - 1
    # The last hour of each day lets the day begin.
    assert published[E.CASCADE_SENT] == len(days(FIRST, LAST))


def check_silver(world: World) -> None:
    runs = world.all_runs(SILVER)
    assert outcomes(runs) == [(date, Cause.UPSTREAM, RunStatus.COMPLETED) for date in days(FIRST, LAST)]
    began = {run.date: datetime.fromtimestamp(run.created_at_ms / 1000, UTC) for run in runs}
    late = {date for date, moment in began.items() if moment > at(f"{date}T00:00") + timedelta(hours=24, minutes=10)}
    # One hour of it came in the night.
    assert late == {"2026-03-31"}


def check_gold(world: World) -> None:
    failed = [(BROKEN, Cause.CRON, RunStatus.FAILED)] * 3 + [(BROKEN, Cause.RERUN, RunStatus.COMPLETED)]
    expected = [
        outcome
        for date in BUSINESS
        for outcome in (failed if date == BROKEN else [(date, Cause.CRON, RunStatus.COMPLETED)])
    ]
    assert outcomes(world.all_runs(GOLD)) == expected
    published = events(world, GOLD)
    assert (
        published[E.JOB_FAILED],
        published[E.RETRY_SCHEDULED],
        published[E.RETRY_EXHAUSTED],
        published[E.PIPELINE_FAILED],
    ) == (
        3,
        2,
        1,
        1,
    )
    assert (published[E.SCHEDULE_MISSED], published[E.SLA_WARNING], published[E.SLA_BREACH]) == (lived(AWAY), 1, 1)
    waited = [run.triggered_at_ms for run in world.all_runs(GOLD) if run.date == RATES_LATE]
    assert waited == [at(f"{RATES_LATE}T06:20").timestamp() * 1000] * lived(RATES_LATE)


def events(world: World, pipeline_id: str) -> Counter[str]:
    return Counter(event.name for event in world.all_events(pipeline_id))


# What was expected.


def check_expectations(world: World) -> None:
    """Every expectation that a calendar gives has one verdict, reported once, and no other was made up."""
    bronze, silver, gold = (verdicts(world, each) for each in (BRONZE, SILVER, GOLD))
    end = datetime.fromisoformat(END).astimezone(UTC)
    dates = [date for date, _ in hours()]
    # A sensor is to follow within two hours of the success, which the end of the job is at once.
    followed = {date for date, ends in hours() if ends + timedelta(hours=2, minutes=5) <= end}
    assert bronze == {
        **{(date, ExpectationKind.SCHEDULE): ExpectationVerdict.MET for date in dates},
        **{(date, ExpectationKind.COMPLETION_SLA): missed(date in (TOO_LATE, MISSING)) for date in dates},
        **{(date, ExpectationKind.POST_RUN_SENSOR): missed(date == UNCONFIRMED) for date in followed},
    }
    every_day = days(FIRST, LAST)
    assert silver == {(date, ExpectationKind.COMPLETION_SLA): ExpectationVerdict.MET for date in every_day}
    assert gold == {
        (date, kind): missed((date, kind) in _GOLD_MISSED) if date in BUSINESS else ExpectationVerdict.WAIVED
        for date in every_day
        for kind in (ExpectationKind.SCHEDULE, ExpectationKind.EVALUATION_SLA, ExpectationKind.COMPLETION_SLA)
    }


_GOLD_MISSED: Final = {(AWAY, ExpectationKind.SCHEDULE), (BROKEN, ExpectationKind.COMPLETION_SLA)}


def missed(is_missed: bool) -> ExpectationVerdict:
    return ExpectationVerdict.MISSED if is_missed else ExpectationVerdict.MET


def verdicts(world: World, pipeline_id: str) -> dict[tuple[str, ExpectationKind], ExpectationVerdict]:
    found: list[StoredVerdict] = world.all_verdicts(pipeline_id)
    result = [
        (event.date, event.detail["kind"], event.detail["verdict"])
        for event in world.all_events(pipeline_id)
        if event.name == E.EXPECTATION_JUDGED
    ]
    assert sorted(result) == sorted((each.date, each.kind.value, each.verdict.value) for each in found)
    return {(each.date, each.kind): each.verdict for each in found}


# Alerts.


def check_alerts(world: World) -> None:
    """Each trouble is one alert, however often it was reported, and is over when its period is done."""
    troubles = [alert for alert in world.all_alerts() if alert.severity is not Severity.INFO]
    result = {(alert.event, alert.date): (alert.count, alert.status.value) for alert in troubles}
    assert len(troubles) == len(result)
    whole = {
        (E.SLA_WARNING, TOO_LATE): (1, "RESOLVED"),
        (E.SLA_BREACH, TOO_LATE): (1, "RESOLVED"),
        (E.SLA_WARNING, MISSING): (1, "RESOLVED"),
        (E.SLA_BREACH, MISSING): (1, "RESOLVED"),
        (E.VALIDATION_EXHAUSTED, MISSING): (1, "RESOLVED"),
        (E.PIPELINE_FAILED, MISSING): (1, "RESOLVED"),
        (E.JOB_FAILED, FAILING): (1, "RESOLVED"),
        (E.JOB_FAILED, BROKEN): (3, "RESOLVED"),
        (E.RETRY_EXHAUSTED, BROKEN): (1, "RESOLVED"),
        (E.PIPELINE_FAILED, BROKEN): (1, "RESOLVED"),
        (E.SLA_WARNING, BROKEN): (1, "RESOLVED"),
        (E.SLA_BREACH, BROKEN): (1, "RESOLVED"),
        (E.SCHEDULE_MISSED, AWAY): (1, "RESOLVED"),
        (E.POST_RUN_SENSOR_MISSING, UNCONFIRMED): (1, "OPEN"),
        (E.POST_RUN_DRIFT, CORRECTED): (1, result.get((E.POST_RUN_DRIFT, CORRECTED), (1, ""))[1]),
        (E.RULE_WARNED, SPARSE): (1, "OPEN"),
    }
    assert result == {(event, date): found for (event, date), found in whole.items() if lived(date)}
    assert all(sent_to(alert) == ["console"] for alert in troubles)
    assert world.all_events("INFRASTRUCTURE") == []


# What is there in the end.


def check_lake(lake: Path) -> None:
    counts = {file.stem: len(json.loads(file.read_text())) for file in (lake / "silver").glob("*.json")}
    usual = 24 * ORDERS
    odd = {"2026-03-29": 23 * ORDERS, CORRECTED[:10]: usual + MORE, SPARSE[:10]: usual - ORDERS + FEW}
    assert counts == {day: odd.get(day, usual) for day in days(FIRST, LAST)}
    revenue = {file.stem: json.loads(file.read_text()) for file in (lake / "gold").glob("*.json")}
    assert set(revenue) == set(BUSINESS)
    # After the weekend, the Sunday that has 23 hours; and what was corrected.
    assert revenue["2026-03-30"] == {"DE": 23.0 * ORDERS}
    assert revenue.get(AWAY) == ({"DE": float(usual + MORE)} if lived(AWAY) else None)


def check_rest(world: World) -> None:
    """Nothing is left locked, waited for or under way."""
    slots = {run.slot for each in (BRONZE, SILVER, GOLD) for run in world.all_runs(each)}
    assert len(slots) == len(hours()) + len(days(FIRST, LAST)) + len(BUSINESS)
    assert [slot for slot in slots if world.lock(slot) is not None] == []
    assert {world.ended(each) for each in world.executions()} == {ExecutionStatus.SUCCEEDED}
    assert [slot for slot in slots if world.stores.reruns.pending(slot) is not None] == []
