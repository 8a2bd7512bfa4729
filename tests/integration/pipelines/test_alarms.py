"""Alarms that come over the bus: one that is on is reported once, one that is off is not."""

from __future__ import annotations

from headgate.durable.bus.events import Event
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.alarms import Alarms
from headgate.pipelines.definition.model import Json
from headgate.pipelines.events.names import EventName
from tests.pipeline_rig import Rig

CLOUDWATCH: Json = {
    "detail-type": "CloudWatch Alarm State Change",
    "detail": {"alarmName": "errors", "state": {"value": "ALARM", "reason": "5 > 1"}},
}


def test_alarm__on_then_brought_again_then_off__is_reported_once() -> None:
    with Rig() as rig:
        alarms = Alarms(rig.pipelines.events)
        for event_id, data in (("1", CLOUDWATCH), ("1", CLOUDWATCH), ("2", {"alarm": "errors", "state": "OK"})):
            alarms.handle(Event(type="infra.alarm", source="/cloudwatch", id=event_id, data=data))

        [events] = rig.events(INFRASTRUCTURE, EventName.INFRA_ALARM)

    assert (events.text, events.message) == ("alarm errors is in state ALARM", "5 > 1")
