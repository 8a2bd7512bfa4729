"""Activity functions: derived from the activities of an app, with names that Lambda allows."""

from __future__ import annotations

import re

import headgate as hg
from headgate.deployment.activity_functions import ActivityFunction, activity_functions


def test_functions__of_an_app__are_those_of_activities_that_ask_for_one() -> None:
    app = hg.App("orders")
    app.activity(invocation=hg.AsyncInvocation(retries=2, max_age="1h"), name="weigh")(lambda: None)
    app.activity(name="charge")(lambda: None)

    assert activity_functions(app.activities.values()) == {"weigh": ActivityFunction("weigh", 2, 3600)}


def test_functions__names_that_lambda_does_not_allow__stay_apart() -> None:
    app = hg.App("orders")
    names = ["a.b", "a-b", "x" * 40 + "1", "x" * 40 + "2"]
    for name in names:
        app.activity(invocation=hg.AsyncInvocation(), name=name)(lambda: None)

    found = activity_functions(app.activities.values())

    assert sorted(each.activity for each in found.values()) == sorted(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,30}", each) for each in found)
