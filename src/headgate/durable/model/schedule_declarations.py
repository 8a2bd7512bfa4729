"""Schedule declarations: schedules in the code of an app, which its workers store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Struct

from headgate.durable.model.duration import Duration


@dataclass(frozen=True)
class Cron:
    """When a workflow is started: a cron expression, a name such as `@hourly`, or an interval such as `every 15m`.

    `overlap` is what a slot does while an execution of the schedule is open: skip, buffer_one, allow, cancel_other or
    terminate_other. `catchup` is what happens to slots that were missed while no worker ran: none, last or all.
    """

    expression: str
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    jitter: Duration = 0.0
    overlap: str = "skip"
    catchup: str = "last"
    catchup_window: Duration = "7d"
    tags: Mapping[str, str] = field(default_factory=dict)


class ScheduleDeclaration(Struct, frozen=True):
    """A schedule as an app declares it. `input` is JSON."""

    schedule_id: str
    workflow: str
    cron: Cron
    input: str
