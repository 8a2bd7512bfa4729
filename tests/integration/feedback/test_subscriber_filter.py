"""Subscriber filter: health events are always published, and delivered only to dependent pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.bootstrap.health import event_writer
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Subscription
from headgate.feedback.subscriber_filter import SUBSCRIPTION, TYPES
from headgate.store.catalogue.tables import ACTIVITIES, EVENTS
from headgate.store.model.requests import Put
from tests.integration.feedback.feedback_rig import LoopRig, reader

VERSIONED, SHORT = "urn:dp:shop:orders:v1", "urn:dp:shop:orders"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LoopRig]:
    with LoopRig(tmp_path) as opened:
        yield opened


def received_states(rig: LoopRig, urn: str, type: str = TYPES[0]) -> list[str]:
    """Return the subscriptions to which an event about a dataset is delivered."""
    service = rig.env.service
    event = Event(type=type, source="/headgate/health", id="evt-1", subject=urn, data={"dataset_urn": urn})
    writes = [each for each in event_writer(service.store, service.bus)(event, 1_000) if isinstance(each, Put)]
    assert [each.table for each in writes].count(EVENTS) == 1, "the event is stored whichever process delivers it"
    return [each.item["subscription"] for each in writes if each.table is ACTIVITIES]


@pytest.mark.parametrize("type", TYPES)
def test_announce__no_pipeline_depends_on_the_dataset__is_delivered_to_none(rig: LoopRig, type: str) -> None:
    rig.define(reader(urn="urn:dp:shop:returns:v1"))

    assert received_states(rig, VERSIONED, type) == []


@pytest.mark.parametrize("named", [VERSIONED, SHORT])
def test_announce__a_pipeline_names_it_in_either_form__is_delivered(rig: LoopRig, named: str) -> None:
    rig.define(reader(urn=named))

    assert received_states(rig, VERSIONED) == [SUBSCRIPTION]
    assert received_states(rig, "urn:dp:shop:returns:v1") == []


def test_announce__others_want_it__are_reported_whether_or_not_pipelines_are(rig: LoopRig) -> None:
    rig.env.service.bus.register([Subscription(name="board", types=("headgate.*",))], "board")

    assert received_states(rig, VERSIONED) == ["board"]
    assert received_states(rig, VERSIONED, "headgate.incident.created") == ["board"]
    rig.define(reader(urn=VERSIONED))
    assert received_states(rig, VERSIONED) == ["board", SUBSCRIPTION]


def test_announce__the_pipeline_is_gone_or_asks_for_it_no_more__is_delivered_to_none(rig: LoopRig) -> None:
    rig.define(reader(urn=VERSIONED))
    assert received_states(rig, VERSIONED) == [SUBSCRIPTION]

    rig.define(reader(urn="urn:dp:shop:returns:v1"))

    assert received_states(rig, VERSIONED) == []
