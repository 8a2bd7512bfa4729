"""Who may ask what of pipelines: read them, tell them of data and start them, steer them, define them."""

from __future__ import annotations

from typing import Final

from headgate.auth.roles import Permission
from headgate.auth.rules import Rule

READ: Final = Rule(Permission.PIPELINE_READ)
# Sensors, traits, markers, runs, and a job's own word for how it ended.
PUSH: Final = Rule(Permission.PIPELINE_PUSH)
# Pauses, holds, reruns, backfills, cancellations.
CONTROL: Final = Rule(Permission.PIPELINE_CONTROL)
# A definition decides what is run with the server's rights: it is for those who may do everything.
DEFINE: Final = Rule(Permission.PIPELINE_DEFINE)
