"""The catalogue: every event of both generations, each with all that alerts need, and no way to forget one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.clock import VirtualClock
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Filter, Subscription, matches
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.ids import IdMaker
from headgate.notify.deliverer import CHANNEL_FAILED, CHANNEL_RECOVERED
from headgate.notify.enums import DefaultRoute, Severity
from headgate.notify.notices import NEWS_FIELD, TYPE_PREFIX
from headgate.pipelines.events.catalogue import CATALOGUE, find, resolved_keys
from headgate.pipelines.events.event_types import SUBJECTS, EventType, Scope
from headgate.pipelines.events.names import ALIASES, EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents
from headgate.store.model.requests import Write
from tests.unit.notify.rig import World

ROOT = Path(__file__).parents[4]
OLDER = [
        "TRAIT_EVALUATED", "READINESS_CHECKED", "READINESS_CACHE_CHECKED", "RUN_STATE_CHANGED", "TRIGGER_FIRED",
    "TRIGGER_FAILED", "CALLBACK_RECEIVED", "RETRY_SCHEDULED", "RETRY_EXHAUSTED", "SLA_BREACHED", "WATCHER_EVALUATION",
    "TRAIT_PUSHED", "RERUN_REQUESTED", "RERUN_COMPLETED", "MONITORING_STARTED", "MONITORING_DRIFT_DETECTED",
    "MONITORING_COMPLETED", "SCHEDULE_MISSED", "PIPELINE_COMPLETED", "PIPELINE_FAILED", "RUN_STUCK",
    "CIRCUIT_BREAKER_TRIPPED", "WATCHDOG_RETRIGGER", "DATA_QUARANTINED",
]  # fmt: skip
NEWER = [
        "SLA_WARNING", "SLA_BREACH", "SLA_MET", "RELATIVE_SLA_WARNING", "RELATIVE_SLA_BREACH", "VALIDATION_PASSED",
    "VALIDATION_EXHAUSTED", "JOB_TRIGGERED", "JOB_COMPLETED", "JOB_FAILED", "RETRY_EXHAUSTED", "JOB_POLL_EXHAUSTED",
    "SFN_TIMEOUT", "INFRA_FAILURE", "INFRA_ALARM", "SCHEDULE_MISSED", "IRREGULAR_SCHEDULE_MISSED",
    "SENSOR_DEADLINE_EXPIRED", "TRIGGER_RECOVERED", "LATE_DATA_ARRIVAL", "RERUN_ACCEPTED", "RERUN_REJECTED",
    "PIPELINE_EXCLUDED", "DATA_DRIFT", "POST_RUN_BASELINE_CAPTURED", "BASELINE_CAPTURE_FAILED", "POST_RUN_PASSED",
    "POST_RUN_FAILED", "POST_RUN_DRIFT", "POST_RUN_DRIFT_INFLIGHT", "POST_RUN_SENSOR_MISSING", "WATCHDOG_DEGRADED",
    "DRY_RUN_WOULD_TRIGGER", "DRY_RUN_LATE_DATA", "DRY_RUN_SLA_PROJECTION", "DRY_RUN_DRIFT", "DRY_RUN_COMPLETED",
    "DRY_RUN_WOULD_RERUN", "DRY_RUN_RERUN_REJECTED", "DRY_RUN_WOULD_RETRY", "DRY_RUN_RETRY_EXHAUSTED",
]  # fmt: skip
# Events that a newer release publishes, and one that it should.
TOLD_BEFORE = set(NEWER) - {
    "VALIDATION_PASSED", "JOB_TRIGGERED", "POST_RUN_BASELINE_CAPTURED", "POST_RUN_PASSED",
}  # fmt: skip


def detail_of(kind: EventType) -> dict[str, Any]:
    return {name: f"<{name}>" for name in kind.fields}


@pytest.mark.parametrize("name", sorted({*OLDER, *NEWER}))
def test_catalogue__a_name_of_either_generation__is_known(name: str) -> None:
    assert find(name).text


def test_catalogue__both_generations__have_all_their_names_here() -> None:
    assert (len(OLDER), len(NEWER)) == (24, 41)


@pytest.mark.parametrize("name", sorted(TOLD_BEFORE))
def test_catalogue__people_were_reported_it_before__still_alerts(name: str) -> None:
    assert find(name).alerts


@pytest.mark.parametrize("name", list(EventName))
def test_catalogue__every_name__has_one_entry_that_is_complete(name: EventName) -> None:
    kind = CATALOGUE[name]

    assert kind.placeholders() <= {*kind.fields, *SUBJECTS}
    assert "\n" not in kind.line("orders", "daily", "2026-03-03", detail_of(kind))
    assert kind.severity in Severity
    assert kind.route in DefaultRoute
    assert kind.alerts or kind.route is DefaultRoute.LOG
    assert not kind.alerts or kind.severity is Severity.INFO or kind.hint, "an alert names a remedy"
    assert (kind.severity is Severity.CRITICAL) == (kind.route is DefaultRoute.PAGE)
    assert all(CATALOGUE[resolved].alerts for resolved in kind.resolves)
    assert name.value == name.name


def test_catalogue__entries__are_each_made_once() -> None:
    assert set(CATALOGUE) == set(EventName)
    assert not set(ALIASES) & {name.value for name in EventName}, "an alias is not a name of its own"
    texts = [kind.text for kind in CATALOGUE.values()]
    assert len(texts) == len(set(texts)), "two names must not mean the same"


def test_catalogue__every_name__is_reported_by_some_code() -> None:
    # Modules that declare or only receive events publish none.
    elsewhere = {"event_names.py", "run_event_types.py", "watch_event_types.py", "outcome_signals.py"}
    files = (path for path in (ROOT / "src" / "headgate").rglob("*.py") if path.name not in elsewhere)
    result = {name for path in files for name in re.findall(r"EventName\.([A-Z_]+)", path.read_text())}
    by_alerts = {CHANNEL_FAILED, CHANNEL_RECOVERED}

    assert {name.value for name in EventName} - result - by_alerts == set()


def test_catalogue__two_meanings__have_two_names() -> None:
    # An execution of the lifecycle began, and a job was started; the job was tried in vain, and its start was.
    for first, second in (
        (EventName.EXECUTION_STARTED, EventName.JOB_TRIGGERED),
        (EventName.RETRY_EXHAUSTED, EventName.TRIGGER_EXHAUSTED),
    ):
        assert CATALOGUE[first].text != CATALOGUE[second].text


@pytest.mark.integration
def test_catalogue__every_event__reaches_people_exactly_if_its_entry_says_so(tmp_path: Path) -> None:
    # bug 71: there is no second list of event types that a new one would have to be added to.
    world = World(tmp_path, {"channels": {"ops": {"kind": "file", "path": "ops.jsonl"}}, "group_after": 0})
    events = PipelineEvents(world.store, world.clock, world.ids, world.bus)
    for kind in CATALOGUE.values():
        # Each about its own pipeline, and published before the next, so that none puts an end to another first.
        events.publish(PipelineEvent(name=kind.name, pipeline_id=kind.name.lower(), detail=detail_of(kind)))
        world.run()

    published = [(each["event"], each["severity"]) for each in world.sent() if each["action"] == "trigger"]
    world.close()
    troubles = [kind for kind in CATALOGUE.values() if kind.alerts and kind.severity is not Severity.INFO]
    assert sorted(published) == sorted((kind.name.value, kind.severity.value) for kind in troubles)


class _Bus:
    """Keeps the events that are to be written."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event_writes(self, event: Event, _now_ms: int, **_options: object) -> list[Write]:
        self.events.append(event)
        return []


@pytest.mark.parametrize("name", list(EventName))
def test_catalogue__any_event__is_brought_to_alerts_if_it_reports_or_ends_something(name: EventName) -> None:
    kind = CATALOGUE[name]
    wanted = Subscription(name="n", types=(f"{TYPE_PREFIX}*",), filter=Filter(data={NEWS_FIELD: True}))

    bus, nothing = _Bus(), cast("Any", None)
    events = PipelineEvents(nothing, VirtualClock(), IdMaker(VirtualClock()), cast("Any", bus))

    events.event_writes(PipelineEvent(name=name, detail=detail_of(kind)), 0)

    assert [matches(wanted, event) for event in bus.events] == [kind.alerts or bool(kind.resolves)]


def test_catalogue__watchdog_is_degraded_or_silent__someone_is_woken() -> None:
    # bug 65: a failure of the failure check is reported.
    for name in (EventName.WATCHDOG_DEGRADED, EventName.WATCHDOG_SILENT, EventName.SERVER_SILENT):
        assert CATALOGUE[name].route is DefaultRoute.PAGE
        assert CATALOGUE[name].scope is Scope.INSTALLATION


def test_catalogue__what_alerts_report_themselves__is_in_it() -> None:
    assert CATALOGUE[EventName(CHANNEL_FAILED)].alerts
    assert not CATALOGUE[EventName(CHANNEL_RECOVERED)].alerts


def test_find__unknown__is_refused() -> None:
    assert find("SLA_BREACHED") is find("SLA_BREACH")
    with pytest.raises(NotFoundError, match="POST_RUN_VALIDATION_FAILED"):
        find("POST_RUN_VALIDATION_FAILED")


def test_line__a_field_is_missing__is_refused_with_its_name() -> None:
    with pytest.raises(InvalidPayloadError, match=r"JOB_FAILED: its detail has no \['error'\]"):
        CATALOGUE[EventName.JOB_FAILED].line("orders", "daily", "2026-03-03", {"category": "TRANSIENT"})


def test_line__values_with_braces__are_taken_as_they_are() -> None:
    detail = {"category": "{date}", "error": "{0.__class__}"}

    text = CATALOGUE[EventName.JOB_FAILED].line("orders", "", "", detail)

    assert text == "orders - -: the job failed ({date}): {0.__class__}"


def test_resolved_keys__end_of_a_period__are_those_of_its_troubles_alone() -> None:
    done = CATALOGUE[EventName.PIPELINE_COMPLETED]

    keys = resolved_keys(done, "orders", "daily", "2026-03-03")

    assert "JOB_FAILED#orders#daily#2026-03-03" in keys
    assert all(key.endswith("#orders#daily#2026-03-03") for key in keys)
    assert CATALOGUE[EventName.CIRCUIT_BREAKER_TRIPPED].key("orders", "daily", "2026-03-03") in resolved_keys(
        CATALOGUE[EventName.CIRCUIT_BREAKER_RESET], "orders", "", ""
    )
