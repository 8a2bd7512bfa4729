"""Bus rules: patterns that let through what a subscription takes, and change with the app."""

from __future__ import annotations

from headgate.deployment.bus_rules import bus_rules
from headgate.durable.bus.subscriptions import Filter, Subscription


def test_rules__of_types__name_them_by_text_and_prefix() -> None:
    rules = bus_rules([Subscription(name="ship", types=("order.paid", "return.*"))])

    assert rules == {"ship": {"detail-type": ["order.paid", {"prefix": "return."}]}}


def test_rules__of_all_types__have_no_type() -> None:
    assert bus_rules([Subscription(name="log", types=("*",))]) == {"log": {}}


def test_rules__of_a_filter__look_into_cloudevents_and_others() -> None:
    filter = Filter(data={"order.country": "DE", "order.items.0": "x", "weight": 1.5, "paid": True})

    rules = bus_rules([Subscription(name="ship", types=("a.b",), filter=filter)])

    wanted = {"order": {"country": ["DE"]}, "paid": [True]}
    assert rules["ship"]["$or"] == [{"detail": {"data": wanted}}, {"detail": wanted}]


def test_rules__of_events_of_headgate_itself__are_none() -> None:
    own = Subscription(name="page", types=("headgate.incident.*",))
    mixed = Subscription(name="both", types=("headgate.pipeline.failed", "order.paid"))

    assert bus_rules([own, mixed]) == {"both": {"detail-type": ["order.paid"]}}


def test_rules__names_that_a_rule_cannot_have__stay_apart() -> None:
    first, second = "a" * 40 + "b", "a" * 40 + "c"

    names = list(bus_rules([Subscription(name=each, types=("a.b",)) for each in (first, second)]))

    assert len({*names}) == 2
    assert all(len(name) <= 30 for name in names)
