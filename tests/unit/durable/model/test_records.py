"""Records as rows: what they vouch for is in the form that a store would have given it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from headgate.durable.model.history import ActivityEnded, StartActivity, Status, Turn
from headgate.durable.model.records import NEVER_MS, Activity, Execution, turn_put
from headgate.store.model.requests import Put
from headgate.store.model.validation import checked_item
from headgate.store.model.values import TrustedItem, dump

EXECUTION = Execution(
    "orders/1", "orders", Status.RUNNING, "2026-11-16T01:01:05.213Z", 5, 1,
    turn=4, tags={"city": "Ulm"}, memo='{"$blob": 1}', timeout_at_ms=NEVER_MS,
)  # fmt: skip
ACTIVITY = Activity(
    "orders/1#1#000008", "charge", '{"$set": [1.0, null]}', '{"retry":{}}', "01M7GXYEA86HDE3HJVT8H9CR5B", 5,
    "orders/1", 1, 8, 1, queue_pk="Q#default", available_at_ms=7, is_external=True,
)  # fmt: skip
TURN = Turn(
    1, 1, 1_794_790_865_224, (ActivityEnded(7, Raw(b'{"$bytes":"x"}')),), (StartActivity(8, "charge", Raw(b"8.0")),)
)


@pytest.mark.parametrize("put", [EXECUTION.replacing(4), ACTIVITY.put(), ACTIVITY.put("7"), turn_put("orders/1", TURN)])
def test_put__plain_record__is_vouched_for_as_the_store_would_have_made_it(put: Put) -> None:
    assert type(put.item) is TrustedItem
    looked_at, special = checked_item(put.table, dict(put.item))
    assert (looked_at, special) == (dict(put.item), False)
    assert put.item.text == dump(looked_at, special=False)


def test_put__what_only_a_store_can_judge__is_not_vouched_for() -> None:
    delivery = Activity("evt#1", "notify", "{}", "{}", "0", 5, subscription="notify")
    abroad = Activity("orders/1#1#000009", "charge", '"Köln"', "{}", "0", 5)
    kept = Execution("orders/1", "orders", Status.RUNNING, "2026-11-16T01:01:05.213Z", 5, 1, retention_seconds=60.0)
    waits = Execution("orders/1", "orders", Status.RUNNING, "2026-11-16T01:01:05.213Z", 5, 1, awaits=("approved",))
    noted = Turn(1, 1, 5, (), (StartActivity(8, "charge", Raw('"Köln"'.encode())),))
    for put in (delivery.put(), abroad.put(), kept.replacing(4), waits.replacing(4), turn_put("orders/1", noted)):
        assert type(put.item) is not TrustedItem
        assert checked_item(put.table, put.item)[1] is False
