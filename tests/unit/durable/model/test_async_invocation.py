"""Asynchronous invocation: what an activity may ask for, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.durable.model.async_invocation import AsyncInvocation
from headgate.errors import DefinitionError


def work() -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "gpu"}, "queue='gpu' with invocation=: the activity has a function of its own"),
        ({"timeout": "15m"}, "timeout=900 s with invocation=: Lambda ends an invocation after 15 minutes"),
    ],
)
def test_activity__options_that_a_function_of_its_own_cannot_have__is_refused(
    options: dict[str, Any], message: str
) -> None:
    declare: Any = hg.App("orders").activity
    invoked: Any = hg.App("orders").activity(invocation=hg.AsyncInvocation())(work)

    with pytest.raises(DefinitionError, match=message):
        declare(invocation=hg.AsyncInvocation(), **options)(work)
    with pytest.raises(DefinitionError, match=message):
        invoked.options(**options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"retries": 3}, "Lambda takes 0 to 2"),
        ({"retries": -1}, "Lambda takes 0 to 2"),
        ({"max_age": "59s"}, "one minute to six hours"),
        ({"max_age": "7h"}, "one minute to six hours"),
    ],
)
def test_invocation__beyond_the_limits_of_lambda__is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        AsyncInvocation(**values)


def test_activity__with_invocation__keeps_it_through_options() -> None:
    activity = hg.App("orders").activity(invocation=hg.AsyncInvocation(max_age="90m"), timeout="885s")(work)

    changed = activity.options(retry=hg.Retry(attempts=7))

    assert changed.invocation == AsyncInvocation(0, "90m")
    assert changed.invocation.age_seconds == 5400
