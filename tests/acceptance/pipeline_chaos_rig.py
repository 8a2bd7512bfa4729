"""What chaos is made with: pipelines to be disturbed, time that is watched, and a record of every scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from headgate.durable.model.duration import Duration, Seconds, seconds
from headgate.pipelines.definition.model import (
    History,
    Period,
    Pipeline,
    PostRun,
    Readiness,
    RetryPolicy,
    Rule,
    Schedule,
    SensorTrigger,
    Sla,
    Upstream,
)
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rows import Slot
from tests.integration.pipelines.watchdog_rig import WatchRig
from tests.pipeline_rig import pipeline

STEP_SECONDS: Final = 30.0
TICK_SECONDS: Final = 300.0
HOUR: Final = "2026-03-03T07"
COUNT: Final = Rule(key="landed", check="gte", field="count", value=900)

Test = TypeVar("Test", bound=Callable[..., object])


class Scenario(Struct, frozen=True, kw_only=True):
    """What is done to a pipeline, and what has to follow within which time."""

    name: str
    mutation: str
    response: str
    within: str


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(name: str, *, mutation: str, response: str, within: str) -> Callable[[Test], Test]:
    """Say what a test does and expects."""

    def note(test: Test) -> Test:
        assert name not in SCENARIOS, f"{name}: there are two of this name"
        SCENARIOS[name] = Scenario(name=name, mutation=mutation, response=response, within=within)
        return test

    return note


class ChaosRig(WatchRig):
    """A server and its watchdog, which looks every five minutes as it does in life."""

    def __init__(self, start: str = "2026-03-03T08:00:00+00:00") -> None:
        super().__init__(start)
        self._ticked_at = 0.0

    def live(self, duration: Duration) -> None:
        """Let time pass, the watchdog looking on."""
        until = self.env.clock.seconds() + seconds(duration, name="duration")
        self._live_until(until, lambda: False, TICK_SECONDS)

    def within(self, duration: Duration, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until something has come about, and fail if that takes longer."""
        until = self.env.clock.seconds() + seconds(duration, name="duration")
        assert self._live_until(until, condition, STEP_SECONDS), f"{what}: not within {duration}"

    def _live_until(self, until: float, condition: Callable[[], bool], step_seconds: float) -> bool:
        while True:
            self.pump()
            if self.env.clock.seconds() >= self._ticked_at + TICK_SECONDS:
                self._ticked_at = self.env.clock.seconds()
                self.tick()
            if condition():
                return True
            left = until - self.env.clock.seconds()
            if left <= 0:
                return False
            self.advance(min(step_seconds, left))

    def is_notified(self, name: EventName, pipeline_id: str = "bronze") -> bool:
        return bool(self.events(pipeline_id, name))

    def is_done(self, slot: Slot) -> bool:
        return self.status(slot) is RunStatus.COMPLETED

    def jobs_of(self, slot: Slot) -> int:
        """Return how many jobs were begun for a period."""
        return len({order.key for order in self.jobs.orders if (order.pipeline, order.date) == slot[::2]})

    def is_free(self, *slots: Slot) -> bool:
        return all(self.stores.locks.find(evaluation_key(slot)) is None for slot in slots)


# Pipelines.


def bronze(*rules: Rule, **fields: Any) -> Pipeline:
    """Return an hourly pipeline that a sensor begins, that waits an hour for its rules, due by half past."""
    given: dict[str, Any] = {
        "period": Period.HOURLY,
        "schedules": (Schedule(name="hourly", sensor=SensorTrigger(key="landed")),),
        "readiness": Readiness(rules=rules or (COUNT,), window=Seconds(3_600), interval=Seconds(300)),
        "retry": RetryPolicy(attempts=2, backoff=Seconds(60)),
        "sla": Sla(deadline=":30", expected_duration=Seconds(600)),
        **fields,
    }
    return pipeline("bronze", **given)


def hour(date: str = HOUR) -> Slot:
    return Slot("bronze", "hourly", date)


def silver(**fields: Any) -> Pipeline:
    """Return a daily pipeline that begins with the last hour of its day, due at two in the morning."""
    every = Upstream(pipeline="bronze", schedule="hourly", periods="all")
    given: dict[str, Any] = {
        "schedules": (Schedule(name="daily", upstream=(every,)),),
        "readiness": Readiness(rules=(Rule(name="every hour", upstream=every),), window=Seconds(6 * 3_600)),
        "sla": Sla(deadline="02:00", day_offset=1, expected_duration=Seconds(1_200)),
        **fields,
    }
    return pipeline("silver", **given)


def day(date: str = "2026-03-03") -> Slot:
    return Slot("silver", "daily", date)


USUAL: Final = Rule(
    name="as many as usual", key="landed", field="count", history=History(periods=7, within=0.3, periods_min=3)
)
RECENT: Final = Rule(name="recent", key="landed", check="age_lt", field="updatedAt", value="2h")
AFTERWARDS: Final = PostRun(
    rules=(Rule(key="written", check="gte", field="count", value=1),), sensor_timeout=Seconds(3_600)
)
