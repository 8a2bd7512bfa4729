"""How long a job is polled: as its trigger says, or as long as the job may take."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import Pipeline, TriggerSpec
from headgate.pipelines.runs.locks import lifetime_seconds


@pytest.mark.parametrize(
    ("type", "config", "poll_window", "seconds"),
    [
        ("http", {"timeout": "12h"}, 3_600, 3_600),
        ("command", {}, 3_600, 3_665),
        ("command", {"timeout": "12h"}, 3_600, 12 * 3_600 + 65),
        ("command", {"timeout": 7_200, "grace": "10m"}, 3_600, 7_200 + 660),
        # A window that the definition sets, and no time-out.
        ("command", {}, 900, 900),
        ("command", {"timeout": "1h"}, 900, 3_665),
        ("command", {"timeout": "10m"}, 86_400, 86_400),
        # Filled in at the start, or wrong, which the start reports.
        ("command", {"timeout": "${hours}"}, 3_600, 3_665),
    ],
)
def test_window_seconds__time_out_of_the_job__extends_the_window(
    type: str, config: dict[str, Any], poll_window: float, seconds: float
) -> None:
    trigger = TriggerSpec(type=type, config=config, poll_window=Seconds(poll_window))

    assert window_seconds(trigger) == seconds
    assert lifetime_seconds(Pipeline(id="orders", trigger=trigger)) > seconds
