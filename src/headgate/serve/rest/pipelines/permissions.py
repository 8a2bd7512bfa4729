"""Authorization rules of the pipeline API: read, push data and start, control, define."""

from __future__ import annotations

from typing import Final

from headgate.auth.roles import Permission
from headgate.auth.rules import Rule

READ: Final = Rule(Permission.PIPELINE_READ)
# Sensors, traits, markers, run starts, and completion reports of jobs.
PUSH: Final = Rule(Permission.PIPELINE_PUSH)
# Pauses, holds, reruns, backfills, cancellations.
CONTROL: Final = Rule(Permission.PIPELINE_CONTROL)
# A definition determines what runs with the server's privileges: administrators only.
DEFINE: Final = Rule(Permission.PIPELINE_DEFINE)
